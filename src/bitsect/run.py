"""A run: a network with its samples, task and settings, and everything found out about it so far."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from safetensors.torch import save
from torch import nn
from torch.export import ExportedProgram

from .calibrate import calibrate
from .capture import capture
from .data import Samples, load_samples
from .data.load import MEMORY
from .errors import BitsectError, RunError
from .evaluate import Evaluator
from .measure import (
    Context,
    exact_pairs,
    fisher_terms,
    hessian_traces,
    linear_pairs,
    single_losses,
    weight_errors,
)
from .measure.traces import stacked
from .metrics import Metric, Options
from .models import load_model, parse_example
from .program import Inputs, Program
from .progress import Progress
from .rounder import Rounder
from .store import Folder, Journal, write_bytes
from .tasks import Task, task_named
from .trust import score
from .values import Format, Ranges, Scores, placement_named
from .values.measured import Losses, Measured, Noise

FALLBACK_BATCH = 64


@dataclass(frozen=True)
class Settings:
    """What decides the bits of a run: stored in it, and refused when changed. None: chosen for you."""

    placement: str = "paper"
    rounding: str = "squant"
    range: str = "percentile"
    percentile: float = 99.999
    sign: str | None = None  # None: as the placement has it
    batch_size: int = FALLBACK_BATCH
    threads: int | None = None
    embeddings: bool = False

    def resolved(self) -> Settings:
        if self.batch_size < 1:
            raise BitsectError(f"batch size {self.batch_size} is not at least 1")
        sign = self.sign or placement_named(self.placement).sign
        return replace(self, sign=sign, threads=self.threads or torch.get_num_threads())


class Run:
    """Everything that is known of one network on one set of samples; what is missing is measured once."""

    def __init__(
        self,
        folder: Folder,
        program: Program,
        samples: Samples,
        task: Task,
        settings: Settings,
        progress: Progress | None = None,
    ) -> None:
        self.folder, self.program, self.samples, self.task = folder, program, samples, task
        self.settings, self.progress = settings, progress or Progress()
        self.model_spec = ""
        self._scratch: TemporaryDirectory[str] | None = None  # of a run that was given no folder
        assert settings.threads is not None
        torch.set_num_threads(settings.threads)

    # Stages

    def ranges_for(self, formats: Iterable[Format]) -> Ranges:
        """Ranges that serve `formats`; calibrated where they are not there yet."""
        known = self.folder.read_json("ranges.json")
        widths = {format.activation_bits for format in formats if format.activation_bits is not None}
        if known is not None:
            ranges = Ranges.from_json(known)
            have = set(next(iter(ranges.table.values()), {}))
            if widths <= have:
                return ranges
            widths |= have
        settings = self.settings
        assert settings.sign is not None
        with self.progress.stage("calibrate", len(self.samples)) as advance:
            ranges = calibrate(
                self.program,
                self.samples,
                method=settings.range,
                percentile=settings.percentile,
                sign=settings.sign,
                bits={8, 4, *widths},
                rounding=settings.rounding,
                batch_size=settings.batch_size,
                progress=advance,
            )
        self.folder.write_json("ranges.json", ranges.to_json())
        return ranges

    def rounder(self, formats: Iterable[Format] = ()) -> Rounder:
        """The rounder of this run's placement, with ranges for `formats`."""
        ranges = self.ranges_for(formats)
        if self._rounder is None or self._rounder.ranges != ranges:
            placement = placement_named(self.settings.placement)
            self._rounder = Rounder(self.program, ranges, placement, self.settings.rounding)
        return self._rounder

    _rounder: Rounder | None = None

    def evaluator(self, formats: Iterable[Format] = (), samples: Samples | None = None) -> Evaluator:
        """Judges plans on this run's samples, or on others under the same rounding."""
        name = "evaluated" if samples is None else f"evaluated-{samples.fingerprint()[:16]}"
        return Evaluator(
            self.program,
            self.rounder(formats),
            samples or self.samples,
            self.task,
            batch_size=self.settings.batch_size,
            done=self.folder.journal(name),
        )

    def measured(
        self,
        needs: Collection[str],
        format: Format,
        *,
        pairs: str = "exact",
        loss: str = "task",
        samples: int | None = None,
        probes: int = 64,
        tolerance: float = 0.05,
        seed: int = 0,
    ) -> Measured:
        """The tables `needs`, on the first `samples`; whatever is missing is measured and kept."""
        if pairs not in ("exact", "linear"):
            raise BitsectError(f"unknown way to measure pairs '{pairs}': use exact or linear")
        if loss not in ("task", "kl"):
            raise BitsectError(f"unknown loss '{loss}': use task or kl")
        context = Context(self.evaluator((format,)), samples)
        pieces = len(context.starts()) * len(context.layers)
        traces = losses = None
        signal = noise = fisher = errors = None
        if "traces" in needs:
            journal = self.folder.journal(f"traces-{seed}")
            with self.progress.stage("traces", probes) as advance:
                count = hessian_traces(
                    context, journal, probes=probes, tolerance=tolerance, seed=seed, progress=advance
                )
            traces = stacked(journal, count)
        if {"pair", "single", "base", "signal", "noise"} & set(needs):
            journal, pair = self._losses(context, format, "pair" in needs and pairs, pieces)
            base = _joined(journal, context, "float", "task")
            single = np.stack([_joined(journal, context, i, loss) for i in range(len(context.layers))])
            losses = Losses(base if loss == "task" else np.zeros_like(base), single, pair and pair(loss))
            signal = _joined(journal, context, "float", "signal")
            noise = np.stack([_joined(journal, context, i, "noise") for i in range(len(context.layers))])
        if "fisher" in needs:
            journal = self.folder.journal(f"fisher-{format}")
            with self.progress.stage("fisher", min(256, len(self.samples))) as advance:
                count = fisher_terms(context, format, journal, progress=advance)
            fisher = np.stack([journal[str(sample)]["fisher"] for sample in range(count)], axis=1)
        if "weight_error" in needs:
            errors = weight_errors(context, format)
        return Measured(
            context.layers,
            np.array([layer.weights for layer in self.program.layers]),
            np.array([_elements(layer) for layer in self.program.layers]),
            traces,
            {format.name: losses} if losses is not None else {},
            {format.name: Noise(signal, noise, fisher, errors)},
        )

    def _losses(
        self, context: Context, format: Format, pairs: str | bool, pieces: int
    ) -> tuple[Journal, Callable[[str], np.ndarray[Any, Any]] | None]:
        """The journal that holds single losses, and a function that reads the pair losses, if asked for."""
        exact = self.folder.journal(f"exact-{format}")
        if pairs == "exact":
            with self.progress.stage("pairs", pieces) as advance:
                exact_pairs(context, format, exact, advance)
            return exact, lambda loss: np.concatenate(
                [_joined(exact, context, i, f"pair_{loss}") for i in range(len(context.layers) - 1)]
                or [np.zeros((0, context.samples or len(self.samples)))]
            )
        single = self.folder.journal(f"single-{format}")
        with self.progress.stage("singles", pieces) as advance:
            single_losses(context, format, single, advance)
        if not pairs:
            return single, None
        linear = self.folder.journal(f"linear-{format}")
        with self.progress.stage("linear pairs", len(context.starts())) as advance:
            linear_pairs(context, format, single, linear, advance)
        return (
            single,
            lambda loss: (
                np.concatenate([linear[str(start)][f"pair_{loss}"] for start in context.starts()], axis=1)
                if len(context.layers) > 1
                else np.zeros((0, context.samples or len(self.samples)))
            ),
        )

    def scores(
        self, metric: Metric, format: Format, options: Options | None = None, **measuring: Any
    ) -> Scores:
        """The scores of all layers at `format`, with their standard errors."""
        return score(self.measured(metric.needs, format, **measuring), metric, format, options)


def open_run(
    model: str | Path | nn.Module | ExportedProgram,
    data: Any = None,
    *,
    out: str | Path | None = None,
    example: Inputs = None,
    input_shape: str | None = None,
    task: str | Task | Callable[..., Any] | None = None,
    settings: Settings | None = None,
    draw: int | None = None,
    seed: int = 0,
    data_options: dict[str, Any] | None = None,
    device: str | None = None,
    trust: bool = False,
    fresh: bool = False,
    progress: Progress | None = None,
) -> Run:
    """The run in the folder `out`, made if it is not there; or the run that `model` is the folder of.

    `draw` takes that many of the samples, `data_options` say how pixels are normalised.
    A run that exists must be of the same network, samples, task and settings.
    """
    if isinstance(model, str | Path) and Path(model).is_dir():
        return _reopen(Path(model), data, task, settings, device, trust, progress)
    if data is None:
        raise BitsectError(
            "samples are needed: pass --data FILE, a folder of images, or zoo:fashion-calibration"
        )
    progress = progress or Progress()
    scratch = TemporaryDirectory(prefix="bitsect-") if out is None else None
    folder = Folder(Path(scratch.name if scratch else str(out)), fresh=fresh)
    with progress.stage("capture"):
        loaded = load_samples(data, samples=draw, seed=seed, **(data_options or {}))
        program, spec = _captured(model, loaded, folder, example, input_shape, settings, device, trust)
    settings = (settings or Settings()).resolved()
    judged_by = task_named(task or "classification")
    folder.claim(_identity(spec, program, loaded.spec, dict(loaded.options), loaded, judged_by, settings))
    if loaded.spec == MEMORY:
        _store_samples(folder.path, loaded)
    run = Run(folder, program, loaded, judged_by, settings, progress)
    run.model_spec, run._scratch = spec, scratch
    return run


def _captured(
    model: str | Path | nn.Module | ExportedProgram,
    samples: Samples,
    folder: Folder,
    example: Inputs,
    input_shape: str | None,
    settings: Settings | None,
    device: str | None,
    trust: bool,
) -> tuple[Program, str]:
    """The program, and the spec by which the run folder knows its network."""
    embeddings = settings.embeddings if settings else False
    if input_shape is not None:
        example = parse_example(input_shape)
    if isinstance(model, str | Path):
        network = load_model(str(model), trust=trust)
        example = network.example if example is None else example
        if example is None and isinstance(network.model, nn.Module):
            example = samples.inputs(slice(0, 2))
        spec = str(Path(model).resolve()) if str(model).endswith(".pt2") else str(model)
        return capture(network.model, example, embeddings=embeddings, device=device), spec
    if example is None:
        example = samples.inputs(slice(0, 2))
    program = capture(model, example, embeddings=embeddings, device=device)
    stored = folder.path / "model.pt2"
    if not stored.exists():
        beside = stored.with_name(".model.tmp.pt2")
        torch.export.save(program.exported, beside)
        beside.replace(stored)
    return program, "model.pt2"


def _identity(
    spec: str,
    program: Program,
    data_spec: str,
    options: dict[str, Any],
    samples: Samples,
    task: Task,
    settings: Settings,
) -> dict[str, Any]:
    return {
        "model": spec,
        "model_fingerprint": program.fingerprint,
        "data": data_spec,
        "data_options": options,
        "data_fingerprint": samples.fingerprint(),
        "task": task.name,
        **asdict(settings),
        "device": str(program.device),
        "torch": torch.__version__,
    }


def _reopen(
    path: Path,
    data: Any,
    task: str | Task | Callable[..., Any] | None,
    settings: Settings | None,
    device: str | None,
    trust: bool,
    progress: Progress | None,
) -> Run:
    if not Folder.is_run(path):
        raise RunError(f"{path} is not a run: it holds no run.json")
    folder = Folder(path)
    known = folder.read_json("run.json")
    assert known is not None
    stored = Settings(**{field.name: known[field.name] for field in fields(Settings)})
    progress = progress or Progress()
    with progress.stage("capture"):
        samples = _stored_samples(path, known) if data is None else load_samples(data)
        spec = str(path / "model.pt2") if known["model"] == "model.pt2" else known["model"]
        network = load_model(spec, trust=trust or known["model"] == "model.pt2")
        example = network.example
        if example is None and isinstance(network.model, nn.Module):
            example = samples.inputs(slice(0, 2))
        device = device or known["device"]
        program = capture(network.model, example, embeddings=stored.embeddings, device=device)
    judged_by = task_named(task or known["task"])
    settings = settings or stored
    identity = _identity(
        known["model"], program, known["data"], known["data_options"], samples, judged_by, settings
    )
    # What the run saved itself is what it is of.
    if known["model"] == "model.pt2":
        identity["model_fingerprint"] = known["model_fingerprint"]
    if known["data"] == MEMORY and data is None:
        identity["data_fingerprint"] = known["data_fingerprint"]
    folder.claim(identity)
    run = Run(folder, program, samples, judged_by, settings, progress)
    run.model_spec = known["model"]
    return run


def _store_samples(path: Path, samples: Samples) -> None:
    """Samples that were given as objects, kept so that the run works alone."""
    stored = path / "samples.safetensors"
    inputs = samples.inputs(slice(None))
    if stored.exists() or isinstance(inputs, tuple):
        return
    arrays = inputs if isinstance(inputs, dict) else {"x": inputs}
    if samples.labels is not None:
        arrays = {**arrays, "y": samples.labels}
    write_bytes(stored, save({name: array.contiguous() for name, array in arrays.items()}))


def _stored_samples(path: Path, known: dict[str, Any]) -> Samples:
    if known["data"] != MEMORY:
        return load_samples(known["data"], **known["data_options"])
    stored = path / "samples.safetensors"
    if not stored.exists():
        raise RunError(f"{path}: its samples were given as Python objects: pass them again")
    return load_samples(str(stored))


def _joined(journal: Journal, context: Context, row: int | str, name: str) -> np.ndarray[Any, Any]:
    return np.concatenate([journal[f"{start}/{row}"][name] for start in context.starts()], axis=-1)


def _elements(layer: Any) -> int:
    """What a layer's trace runs over: its weights, or both operands of one sample."""
    if layer.weights:
        return int(layer.weights)
    return sum(int(np.prod(p.signature.input)) + int(np.prod(p.signature.operand)) for p in layer.places)
