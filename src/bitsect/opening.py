"""Opening a run: a new one, one to go on with, or one that works alone from its folder."""

from __future__ import annotations

import shutil
import weakref
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import asdict, fields, replace
from io import BytesIO
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import torch
from safetensors.torch import load_file, save
from torch import nn
from torch.export import ExportedProgram

from .binding import Inputs
from .capture import capture
from .data import Samples, load_samples
from .data.load import MEMORY
from .errors import BitsectError, CaptureError, RunError
from .models import load_model, parse_example
from .program import Program
from .progress import Progress
from .run import GPTQ_SETTINGS, Run, Settings
from .store import Folder, write_bytes
from .tasks import Task, task_named

MODEL_FILE, SAMPLES_FILE = "model.pt2", "samples.safetensors"  # what no spec can bring back


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
            task, device = task or _task(known, folder), device or known["device"]
            own = {field.name: known.get(field.name) for field in fields(Settings)}
            if chosen.get("rounding", own["rounding"]) != own["rounding"]:  # which is what is refused then
                own = {name: value for name, value in own.items() if name not in GPTQ_SETTINGS}
            chosen = own | chosen
            options = known["data_options"] | options
            model = known["model"]
            if _is_kept(known["model"]):
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
            _keep_objects(folder.path, program if _is_kept(spec) else None, samples)
        run = Run(
            folder, program, samples, judged_by, resolved, progress, temporary=out is None and not of_run
        )
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


def _is_kept(spec: str) -> bool:
    """Whether a run keeps its network: it was given as an object, or made by a user's function."""
    return spec == MODEL_FILE or (":" in spec and not spec.startswith("zoo:") and not spec.endswith(".pt2"))


def _stored(folder: Folder, name: str) -> Path:
    path = folder.path / name
    if not path.exists():
        raise RunError(f"{path} is not there yet: call quantize with the Python objects once more")
    return path


def _keep_objects(path: Path, program: Program | None, samples: Samples) -> None:
    """Write down what came out of Python, so that the run works alone."""
    if program is not None and not (path / MODEL_FILE).exists():
        for node in program.exported.graph.nodes:
            for told in ("stack_trace", "from_node"):  # paths and addresses, other ones for every caller
                node.meta.pop(told, None)
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
