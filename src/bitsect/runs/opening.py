"""Opening a run: a new one, one to go on with, or one that works alone from its folder."""

from __future__ import annotations

import shutil
import weakref
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import torch
from torch import nn
from torch.export import ExportedProgram

from ..errors import CaptureError, DataError, RunError
from ..measure.traces import fitting_rows
from ..network.exported_program import shapes_of
from ..network.precision import capture_in_float32
from ..network.program import Program
from ..sources.data import Samples, load_samples
from ..sources.data.load import MEMORY
from ..sources.models import Network, full_spec, is_read, load_model, preparation_for
from ..sources.preparation import Preparation, Reading
from ..sources.room import Room
from ..sources.tasks.task import Task
from ..values import Comparison, Resources, Settings, placement_named
from ..values.options import changed, given, on_top_of, to_json
from ..values.settings import ROWS
from ..values.shown import LayerFacts, Structure
from .bar import Bar
from .estimate import fitting_batch
from .folder import MODEL_FILE, SAMPLES_FILE, RunFolder
from .parts import parted
from .progress import Progress
from .recorded import Recorded, is_kept, keep_objects, read_samples
from .run import Run
from .sites import hired
from .tasks import task_for, task_of

Model = str | Path | nn.Module | ExportedProgram


def open_run(
    model: Model,
    data: Any = None,
    settings: Settings | None = None,
    resources: Resources | None = None,
    *,
    out: str | Path | None = None,
    fresh: bool = False,
    trust: bool = False,
    progress: Progress | None = None,
) -> Run:
    """The run in the folder `out`, made if it is not there; or the run that `model` is the folder of.

    A run that exists must be of the same network, samples, task and settings, wherever those lie now; where
    `model` is its folder, what is not given is the run's own. `fresh` removes the run that is there once all
    else is in order. Without `out`, the run leaves nothing on disk.
    """
    of_run, resources = is_folder(model), resources or Resources()
    data, elsewhere = (data.data, data.elsewhere) if isinstance(data, OrElse) else (data, None)
    if data is None and not of_run:
        data = own_samples(model)
    asked = _Asked(model, data, settings or Settings())
    progress = progress or Bar()
    with ExitStack() as undo:
        folder = _folder(model if of_run else None, out, fresh, undo)
        known = None if fresh else Recorded.read(folder)
        if known is not None:
            asked = asked.completed(known, folder, trust, elsewhere) if of_run else asked.in_threads_of(known)
        asked.settings.check()
        asked = asked.sharing_cores(resources)
        workers = hired(resources, asked.settings.threads, folder.path, progress)
        if workers is not None:
            undo.callback(workers.close)
        with progress.stage("capture"):
            preparation = preparation_for(asked.model, asked.settings.processor, trust=trust)
            asked = asked.for_task_of(preparation, progress)
            network, spec = _network(asked.model, trust)
            room = Room(resources.memory_bytes, shapes_of(network.model, network.example))
            samples = asked.load_samples(preparation, room)
            program = _captured(asked, network, samples)
        _check(program)
        if not program.any_length:
            samples = samples.at_length(program.length)
        task, samples = task_for(asked.settings, preparation, program, samples, progress)
        resolved = _resolved(asked.settings, program, task, resources, samples.source.held)
        facts = _facts(program, samples, task, resolved) | asked.verified
        asked.check_moved(known, folder, facts, samples.spec)
        if fresh:
            _refuse_own_files(folder, spec, samples.spec)
            folder.clear()
        _claim(folder, known, facts, program, samples, spec)
        _remember_comparison(folder, program)
        _remember_layers(folder, program)
        searched, held_out = parted(samples, resolved)
        temporary = out is None and not of_run
        run = Run(folder, program, searched, task, resolved, progress, temporary, held_out)
        run.preparation = preparation
        run.resources = resources
        undo.callback(run.close)
        run.check_memory("evaluate")
        if workers is not None:
            run.workers = workers.of(program)
        undo.pop_all()
    if run.temporary:
        weakref.finalize(run, shutil.rmtree, folder.path, ignore_errors=True)
    return run


@dataclass(frozen=True)
class OrElse:
    """Samples, and others to try where those that a run was made with are gone."""

    data: Any
    elsewhere: Any


@dataclass(frozen=True)
class _Asked:
    """What was asked for, before it is loaded."""

    model: Model
    data: Any
    settings: Settings
    verified: dict[str, str] = field(default_factory=dict)  # fingerprints of what the folder keeps itself
    moved: bool = False  # the samples are not where the run found them

    def in_threads_of(self, known: Recorded) -> _Asked:
        """Threads are chosen once, on whatever machine a run began."""
        if self.settings.threads is not None:
            return self
        return replace(self, settings=changed(self.settings, threads=known.settings.threads))

    def sharing_cores(self, resources: Resources) -> _Asked:
        """With the threads of a new run: those of this machine, shared among its workers."""
        if self.settings.threads is not None:
            return self
        threads = 1 if resources.ray else max(1, torch.get_num_threads() // (resources.workers or 1))
        return replace(self, settings=changed(self.settings, threads=threads))

    def completed(self, known: Recorded, folder: RunFolder, trust: bool, elsewhere: Any) -> _Asked:
        """With what the run in `folder` was made of, where nothing else is asked for."""
        settings = on_top_of(known.settings, self.settings)
        if "task" not in given(self.settings):
            settings = on_top_of(settings, Settings(task=task_of(known, folder, trust)))
        model, data, verified, moved = known.model, self.data, {}, False
        if known.keeps_model:
            model = str(known.stored(folder, MODEL_FILE))
            verified["model_fingerprint"] = known.model_fingerprint
        elif not _is_there(model):
            raise RunError(
                f"{folder.path} was made with the network in {model}, which is not there any more: "
                f"`bitsect quantize FILE --data … --out {folder.path}` says where it is now"
            )
        if data is None and known.keeps_samples:
            data = read_samples(known.stored(folder, SAMPLES_FILE))
            verified["data_fingerprint"] = known.data_fingerprint
        elif data is None:
            data, moved = (known.data, False) if _is_there(known.data) else (elsewhere, True)
            if data is None:
                raise RunError(_gone(folder, known))
        return _Asked(model, data, settings, verified, moved)

    def for_task_of(self, preparation: Preparation, progress: Progress) -> _Asked:
        """With the task that the network is made for, where nobody asks for another."""
        task = preparation.task
        if task is None or "task" in given(self.settings):
            return self
        if task != self.settings.task:
            progress.say(f"task {task}, for which {preparation.made_for} is made: [task=NAME] takes another")
        return replace(self, settings=on_top_of(self.settings, Settings(task=task)))

    def load_samples(self, preparation: Preparation, room: Room) -> Samples:
        if isinstance(self.data, Samples) and "data_fingerprint" in self.verified:
            return self.data  # as the run keeps them: drawn and normalised already
        chosen = self.settings
        pixels = {} if isinstance(self.data, Samples) else chosen.pixels
        name = chosen.task if isinstance(chosen.task, str) else str(getattr(chosen.task, "name", ""))
        reading = Reading(preparation, name, **chosen.texts, room=room)
        return load_samples(self.data, draw=chosen.draw, seed=chosen.seed, reading=reading, **pixels)

    def check_moved(
        self, known: Recorded | None, folder: RunFolder, facts: Mapping[str, Any], spec: str
    ) -> None:
        """Refuse samples that were tried in place of the run's own, and are others."""
        if self.moved and known is not None and facts["data_fingerprint"] != known.data_fingerprint:
            raise RunError(f"{_gone(folder, known)}; those of {spec} are others")


def own_samples(model: Any, name: str = "calibration") -> str:
    """The samples that a network of the zoo brings along; other networks need some."""
    if isinstance(model, str) and model.startswith("zoo:"):
        return f"zoo:fashion-{name}"
    raise DataError("samples are needed: pass [data=FILE], a folder of images, or zoo:fashion-calibration")


def _resolved(settings: Settings, program: Program, task: Task, resources: Resources, held: int) -> Settings:
    """The settings with everything that was left open decided."""
    return on_top_of(
        settings,
        Settings(
            sign=settings.sign or placement_named(settings.placement).sign,
            threads=settings.threads,
            batch_size=fitting_batch(program, settings, resources, held),
            device=str(program.device),
            output=task.output,
        ),
    )


def _facts(program: Program, samples: Samples, task: Task, settings: Settings) -> dict[str, Any]:
    """Everything that the results of a run rest on."""
    return {
        "embeddings": settings.embeddings,  # which decides the layers, and with them what follows
        "model_fingerprint": program.fingerprint,
        **to_json(settings),
        "data_fingerprint": samples.fingerprint(),  # after what decides it: of two changes the cause is named
        "task": task.name,
        "task_code": task.code,
        "torch": torch.__version__,
    }


def _claim(
    folder: RunFolder,
    known: Recorded | None,
    facts: Mapping[str, Any],
    program: Program,
    samples: Samples,
    spec: str,
) -> None:
    """Make `folder` the run of `facts`: the objects that it keeps first, for run.json vouches for them."""
    folder.check(facts)
    model = known.model if known is not None and known.keeps_model else spec
    data = MEMORY if known is not None and known.keeps_samples else samples.spec
    files = keep_objects(
        folder, known, program if is_kept(model) else None, samples if data == MEMORY else None
    )
    folder.claim(facts, model=model, data=data, files=files)


def _refuse_own_files(folder: RunFolder, *specs: str) -> None:
    """Refuse to start anew from what would be removed."""
    for spec in specs:
        path = Path(spec)
        if path.name in (MODEL_FILE, SAMPLES_FILE) and path.parent == folder.path.resolve():
            raise RunError(f"{spec} is a file of the run that [fresh=True] removes: copy it elsewhere first")


def _is_there(spec: str) -> bool:
    # What a name of the hub or of `datasets` stands for is known only when it is asked for.
    return spec.startswith(("zoo:", "paper:", "hf:", "datasets:")) or Path(spec).exists()


def _gone(folder: RunFolder, known: Recorded) -> str:
    return (
        f"{folder.path} was made with the samples of {known.data}, which are not there any more: say where "
        f"they are now, with `bitsect search {folder.path} --data FILE`, or [calibration=FILE] in evaluate"
    )


def is_folder(model: object) -> bool:
    """Whether `model` names a folder: then it is that of a run."""
    try:
        return isinstance(model, str | Path) and Path(model).is_dir()
    except OSError:  # no name of a file is so long
        return False


def _folder(run: Any, out: str | Path | None, fresh: bool, undo: ExitStack) -> RunFolder:
    """The folder to work in, which `undo` gives up again."""
    if run is not None:
        if not RunFolder.is_run(Path(run)):
            way_out = "`bitsect quantize MODEL --out` makes one"
            if (Path(run) / "config.json").is_file():
                way_out = f"for a network of transformers give hf:{run}"
            raise RunError(f"{run} is not a run, it holds no run.json: {way_out}")
        if fresh or (out is not None and Path(out).resolve() != Path(run).resolve()):
            raise RunError(f"{run} is a run, which is continued where it is: to make another, name its model")
        out = run
    path = Path(out) if out is not None else Path(mkdtemp(prefix="bitsect-"))
    if out is None:
        undo.callback(shutil.rmtree, path, ignore_errors=True)
    folder = RunFolder(path)
    undo.callback(folder.close)
    return folder


def _network(model: Model, trust: bool) -> tuple[Network, str]:
    """The network, and the spec by which the run folder knows it."""
    if not isinstance(model, str | Path):
        return Network(model), MODEL_FILE
    spec = str(Path(model).resolve()) if str(model).endswith(".pt2") else str(model)
    network = load_model(model, trust=trust)
    return Network(network.model, None if network.any_example else network.example), full_spec(spec)


def _captured(asked: _Asked, network: Network, samples: Samples) -> Program:
    """The program of the network, captured on its own example or on samples."""
    model, example = network.model, network.example
    if example is None and isinstance(model, nn.Module):
        example = _example(samples)
    options: dict[str, Any] = {"embeddings": asked.settings.embeddings, "device": asked.settings.device}
    # What was read from a file for this run alone is nobody else's; a function may hand out what it keeps.
    options["shared"] = isinstance(asked.model, str | Path) and is_read(str(asked.model))
    any_length = samples.source.lengths is not None
    program = capture_in_float32(model, example, sequences=any_length, **options)
    if any_length and not program.any_length:
        samples = samples.at_length(program.length)
    if program.fixed_batch is not None and isinstance(model, nn.Module):
        program = _in_larger_batches(program, model, samples, asked.settings.batch_size or ROWS, options)
    return program


def _example(samples: Samples) -> Any:
    """Two samples; of several lengths, the longest twice."""
    lengths = samples.source.lengths
    return samples.inputs(slice(0, 2) if lengths is None else torch.full((2,), int(lengths.argmax())))


def _in_larger_batches(
    program: Program, model: nn.Module, samples: Samples, batch_size: int, options: Mapping[str, Any]
) -> Program:
    """A network that fixes its batch, captured with the rows of a batch if that takes no more steps."""
    if program.device.type == "meta":
        return program
    rows = min(batch_size, len(samples), fitting_rows(program))
    if program.fixed_batch is None or rows <= program.fixed_batch:
        return program
    try:
        larger = capture_in_float32(model, samples.inputs(slice(0, rows)), **options)
    except CaptureError:
        return program
    # A loop over the batch takes a step for each row: there nothing is gained.
    return larger if larger.steps == program.steps and larger.fixed_batch == rows else program


def _remember_comparison(folder: RunFolder, program: Program) -> None:
    """Keep how the network compared with its capture: a run that works alone has only the latter."""
    known = folder.read_json("capture.json")
    if program.comparison is not None:
        folder.write_json("capture.json", program.comparison.to_json())
    elif known is not None:
        try:
            program.comparison = Comparison.from_json(known)
        except (KeyError, TypeError):
            raise RunError(f"{folder.path / 'capture.json'} is damaged: delete it") from None


def _remember_layers(folder: RunFolder, program: Program) -> None:
    """Keep what the network is made of, so that the run can be shown without loading it."""
    layers = (
        LayerFacts(each.name, each.kind, each.weight_shape, each.weights, each.macs, len(each.places))
        for each in program.layers
    )
    structure = Structure(tuple(layers), tuple(program.skipped)).to_json()
    if folder.read_json("layers.json") != structure:
        folder.write_json("layers.json", structure)


def _check(program: Program) -> None:
    if not program.layers:
        raise CaptureError("the network has no layer to quantise: `bitsect layers` says what it is made of")
    empty = next((each for each in program.layers if not each.macs and not each.is_look_up), None)
    if empty is not None:
        raise CaptureError(
            f"layer '{empty.name}' multiplies nothing, as one of its sizes is 0: take it out of the network"
        )
    if program.device.type == "meta":
        raise CaptureError(
            "the network has no weights, only shapes: `bitsect layers` and `bitsect latency` work on it"
        )
