"""A run: a network with its samples, task and settings, and everything found out about it so far."""

from __future__ import annotations

import shutil
import weakref
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass, fields, replace
from io import BytesIO
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save
from torch import nn
from torch.export import ExportedProgram

from .calibrate import METHODS, SIGNS, calibrate
from .capture import capture
from .data import Samples, load_samples
from .data.load import MEMORY
from .errors import BitsectError, CaptureError, RunError
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
from .rounding import ROUNDINGS
from .store import Folder, Journal, write_bytes
from .tasks import Task, task_named
from .trust import score
from .values import PLACEMENTS, Format, Ranges, Scores, placement_named
from .values.measured import Losses, Measured, Noise

PAIRS = ("exact", "linear")
LOSSES = ("task", "kl")
MODEL_FILE, SAMPLES_FILE = "model.pt2", "samples.safetensors"  # what was given as Python objects


@dataclass(frozen=True)
class Settings:
    """What decides the bits of a run: stored in it, and refused when changed. None: chosen for you."""

    placement: str = "paper"
    rounding: str = "squant"
    range: str = "percentile"
    percentile: float = 99.999
    sign: str | None = None  # None: as the placement has it
    batch_size: int = 64
    threads: int | None = None  # None: as many as torch takes
    embeddings: bool = False

    def __post_init__(self) -> None:
        one_of("placement", self.placement, PLACEMENTS)
        one_of("rounding", self.rounding, ROUNDINGS)
        one_of("range", self.range, METHODS)
        one_of("sign", self.sign, (*SIGNS, None))
        if not 0 < self.percentile <= 100:
            raise BitsectError(f"percentile {self.percentile:g} is not above 0 and up to 100")
        for name, count in (("batch size", self.batch_size), ("threads", self.threads)):
            if count is not None and count < 1:
                raise BitsectError(f"{name} {count} is not at least 1")

    def resolved(self) -> Settings:
        sign = self.sign or placement_named(self.placement).sign
        return replace(self, sign=sign, threads=self.threads or torch.get_num_threads())


def one_of(what: str, value: object, choices: Collection[str | None]) -> None:
    """Refuse a `value` that is none of the `choices`."""
    if value not in choices:
        *most, last = (choice for choice in choices if choice is not None)
        raise BitsectError(f"unknown {what} '{value}': use {', '.join(most)} or {last}")


class Run:
    """Everything that is known of one network on one set of samples; what is missing is measured once.

    While it is open nobody else works in its folder. Closed, it measures and judges no more, but still
    rounds as before.
    """

    def __init__(
        self,
        folder: Folder,
        program: Program,
        samples: Samples,
        task: Task,
        settings: Settings,
        progress: Progress | None = None,
        model_spec: str = "",
        temporary: bool = False,
    ) -> None:
        self.folder, self.program, self.samples, self.task = folder, program, samples, task
        self.settings, self.progress, self.model_spec = settings, progress or Progress(), model_spec
        self.temporary = temporary  # its folder goes with it
        assert settings.threads is not None
        self._threads_outside = torch.get_num_threads()
        torch.set_num_threads(settings.threads)

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        torch.set_num_threads(self._threads_outside)
        self.folder.close()

    def load(self, data: Any, **draw: Any) -> Samples:
        """Other samples for this network, with pixels normalised as the run's own are."""
        options = {} if isinstance(data, Samples) else self.samples.options
        pixels = {name: options[name] for name in ("mean", "std", "scale") if name in options}
        return load_samples(data, **pixels, **draw)

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
        one_of("pairs", pairs, PAIRS)
        one_of("loss", loss, LOSSES)
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
    settings: Settings | Mapping[str, Any] | None = None,
    draw: int | None = None,
    seed: int = 0,
    data_options: Mapping[str, Any] | None = None,
    device: str | None = None,
    trust: bool = False,
    fresh: bool = False,
    progress: Progress | None = None,
) -> Run:
    """The run in the folder `out`, made if it is not there; or the run that `model` is the folder of.

    `draw` takes that many of the samples, `data_options` say how pixels are normalised. A run that
    exists must be of the same network, samples, task and settings; where `model` is its folder, what
    is not given is the run's own. Without `out`, the run leaves nothing on disk.
    """
    of_run = is_folder(model)
    if not of_run and data is None:
        raise BitsectError(
            "samples are needed: pass --data FILE, a folder of images, or zoo:fashion-calibration"
        )
    chosen = asdict(settings) if isinstance(settings, Settings) else dict(settings or {})
    chosen = {name: value for name, value in chosen.items() if value is not None}
    Settings(**chosen)  # so that a wrong one is refused before anything is made
    options = {**(data_options or {}), **({} if draw is None else {"samples": draw, "seed": seed})}
    progress = progress or Progress()
    with ExitStack() as undo:
        folder = _folder(model if of_run else None, out, fresh, undo)
        known = folder.read_json("run.json") or {}
        # Threads are chosen once, on whatever machine a run began.
        chosen = {"threads": known.get("threads")} | chosen
        written: set[str] = set()  # what the run wrote itself is what it is of
        if of_run:
            model, task, device = known["model"], task or _task(known, folder), device or known["device"]
            chosen = {field.name: known[field.name] for field in fields(Settings)} | chosen
            options = known["data_options"] | options
            if model == MODEL_FILE:
                model = _stored(folder, MODEL_FILE)
                written |= {"model", "model_fingerprint"}
            if data is None and known["data"] == MEMORY:
                data = replace(_read_samples(_stored(folder, SAMPLES_FILE)), options=options)
                options = {}
                written |= {"data", "data_fingerprint"}
            elif data is None:
                data = known["data"]
        judged_by, resolved = task_named(task or "classification"), Settings(**chosen).resolved()
        with progress.stage("capture"):
            samples = load_samples(data, **options)
            if input_shape is not None:
                example = parse_example(input_shape)
            program, spec = _captured(model, samples, example, resolved.embeddings, device, trust)
        _check(program)
        identity = {
            "model": spec,
            "model_fingerprint": program.fingerprint,
            "data": samples.spec,
            "data_options": dict(samples.options),
            "data_fingerprint": samples.fingerprint(),
            "task": judged_by.name,
            **asdict(resolved),
            "device": str(program.device),
            "torch": torch.__version__,
        }
        folder.claim({name: value for name, value in identity.items() if name not in written})
        if not of_run:
            _keep_objects(folder.path, program if spec == MODEL_FILE else None, samples)
        run = Run(folder, program, samples, judged_by, resolved, progress, spec, out is None and not of_run)
        undo.pop_all()
    if run.temporary:
        weakref.finalize(run, shutil.rmtree, folder.path, ignore_errors=True)
    return run


def is_folder(model: object) -> bool:
    """Whether `model` names a folder: then it is that of a run."""
    return isinstance(model, str | Path) and Path(model).is_dir()


def _folder(run: Any, out: str | Path | None, fresh: bool, undo: ExitStack) -> Folder:
    """The folder to work in, which `undo` gives up again."""
    if run is not None:
        if not Folder.is_run(Path(run)):
            raise RunError(
                f"{run} is not a run, it holds no run.json: `bitsect quantize MODEL --out` makes one"
            )
        if fresh or (out is not None and Path(out).resolve() != Path(run).resolve()):
            raise RunError(f"{run} is a run, which is continued where it is: to make another, name its model")
        out = run
    path = Path(out) if out is not None else Path(mkdtemp(prefix="bitsect-"))
    if out is None:
        undo.callback(shutil.rmtree, path, ignore_errors=True)
    folder = Folder(path, fresh=fresh)
    undo.callback(folder.close)
    return folder


def _captured(
    model: str | Path | nn.Module | ExportedProgram,
    samples: Samples,
    example: Inputs,
    embeddings: bool,
    device: str | None,
    trust: bool,
) -> tuple[Program, str]:
    """The program, and the spec by which the run folder knows its network."""
    spec = MODEL_FILE
    if isinstance(model, str | Path):
        spec = str(Path(model).resolve()) if str(model).endswith(".pt2") else str(model)
        network = load_model(str(model), trust=trust)
        model, example = network.model, network.example if example is None else example
    if example is None and isinstance(model, nn.Module):
        example = samples.inputs(slice(0, 2))
    return capture(model, example, embeddings=embeddings, device=device), spec


def _check(program: Program) -> None:
    if not program.layers:
        raise CaptureError("the network has no layer to quantise: `bitsect layers` says what it is made of")
    if program.device.type == "meta":
        raise CaptureError(
            "the network has no weights, only shapes: `bitsect layers` and `bitsect latency` work on it"
        )


def _task(known: Mapping[str, Any], folder: Folder) -> Task:
    try:
        return task_named(known["task"])
    except BitsectError as error:
        raise RunError(
            f"{folder.path} was made with a task that is not found: {error}; pass it again"
        ) from None


def _stored(folder: Folder, name: str) -> Path:
    path = folder.path / name
    if not path.exists():
        raise RunError(f"{path} is not there yet: call quantize with the Python objects once more")
    return path


def _keep_objects(path: Path, program: Program | None, samples: Samples) -> None:
    """Write down what was given as Python objects, so that the run works alone."""
    if program is not None and not (path / MODEL_FILE).exists():
        buffer = BytesIO()
        torch.export.save(program.exported, buffer)
        write_bytes(path / MODEL_FILE, buffer.getvalue())
    if samples.spec == MEMORY and not (path / SAMPLES_FILE).exists():
        inputs, labels = samples.inputs(slice(None)), samples.labels
        # The names say how the network takes its inputs: alone, in a row or by name.
        arrays = {"labels": labels} if labels is not None else {}
        if isinstance(inputs, dict):
            arrays |= {f"named.{name}": value for name, value in inputs.items()}
        elif isinstance(inputs, tuple):
            arrays |= {f"row.{number}": value for number, value in enumerate(inputs)}
        else:
            arrays["inputs"] = inputs
        write_bytes(path / SAMPLES_FILE, save({name: array.contiguous() for name, array in arrays.items()}))


def _read_samples(path: Path) -> Samples:
    arrays = load_file(path)
    labels, inputs = arrays.pop("labels", None), arrays.get("inputs")
    if inputs is None:
        parts = {name.partition(".")[2]: value for name, value in arrays.items()}
        named = all(name.startswith("named.") for name in arrays)
        inputs = parts if named else tuple(parts[str(number)] for number in range(len(parts)))
    return load_samples([(inputs,) if labels is None else (inputs, labels)])


def _joined(journal: Journal, context: Context, row: int | str, name: str) -> np.ndarray[Any, Any]:
    return np.concatenate([journal[f"{start}/{row}"][name] for start in context.starts()], axis=-1)


def _elements(layer: Any) -> int:
    """What a layer's trace runs over: its weights, or both operands of one sample."""
    if layer.weights:
        return int(layer.weights)
    return sum(int(np.prod(p.signature.input)) + int(np.prod(p.signature.operand)) for p in layer.places)
