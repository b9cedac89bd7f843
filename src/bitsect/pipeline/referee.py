"""judge: quantised files of any tool beside their float file, on the same samples."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from ..errors import DataError, OptionError
from ..exporters.onnx.write import write_onnx
from ..exporters.runtimes.foreign import KINDS, ForeignModel, runtime_of
from ..exporters.subject import Subject
from ..rounding.rounder import Rounder
from ..runs.bar import Bar
from ..runs.opening import open_run, own_samples
from ..runs.progress import Progress
from ..sources.data import Samples, load_samples
from ..sources.models import preparation_for
from ..sources.preparation import Reading
from ..sources.tasks import TASKS
from ..sources.tasks.task import Task, task_named
from ..values import ONNXRUNTIME, Goal, Plan, Resources, Settings, Target
from ..values.goal import parse_confidence
from ..values.options import given
from ..values.verdict import Verdict
from .bench import Bench, Reference
from .keywords import with_options

# Settings that say how a network is rounded: they do not apply to files, and the command does not offer them.
REFUSED = (
    "hold_out",
    "group_by",
    "placement",
    "rounding",
    "refit",
    "bias_correction",
    "range",
    "percentile",
    "sign",
    "embeddings",
    "device",
)


@with_options(settings=Settings)
def judge(
    float_file: Any,
    files: Sequence[str | Path] | str | Path,
    data: Any = None,
    *,
    settings: Settings,
    target: Target | str | float | None = None,
    max_drop: float | None = None,
    confidence: Any = 0.95,
    runtime: str = "onnxruntime",
    timed: bool = True,
    page: str | Path | None = None,
    trust: bool = False,
    progress: Progress | None = None,
) -> Verdict:
    """Which quantised files keep the accuracy of their float file, whoever made them, and what they cost.

    All files run on the same samples, each sample alone, for a range may be taken from what runs together;
    they are timed in turns. Answers and proof are the same each time; times are not.

    Arguments:
        float_file: the float network, a FILE.onnx or whatever quantize takes, which is written as one.
        files: quantised files: .onnx, .xml (OpenVINO), .pt2, .tflite (LiteRT) or .pte (ExecuTorch).
        data: labelled samples, as for quantize; without labels the float file's answers stand for them.
        target: share of the float accuracy to keep; default: 99%.
        max_drop: or percentage points that may be lost.
        confidence: with which a target is called kept, for all files together; default: 95%.
        runtime: where .onnx files run: onnxruntime or openvino.
        timed: time the files and list their kernels, too.
        page: write the verdict as an HTML page, too.
        trust, progress: as for `quantize`.
    """
    if runtime not in ("onnxruntime", "openvino"):
        raise OptionError(f"[runtime={runtime}] does not run .onnx files: use onnxruntime or openvino")
    for name in given(settings).keys() & {*REFUSED}:
        raise OptionError(f"[{name}=] does not apply to files, whose formats and ranges are fixed")
    paths = [Path(each) for each in ([files] if isinstance(files, str | Path) else files)]
    if not paths:
        raise OptionError("which files are to be judged? Name at least one beside the float file")
    wanted = Goal(target=target, max_drop=max_drop).target or Target.parse("99%")
    sure = parse_confidence(confidence)
    if sure is None:
        raise OptionError("a verdict needs a confidence, such as 95%")
    progress = progress or Bar()
    with ExitStack() as undo:
        folder = Path(undo.enter_context(tempfile.TemporaryDirectory(prefix="bitsect-judge-")))
        reference = _reference(float_file, data, settings, runtime, folder, trust, progress)
        undo.callback(reference.model.close)
        bench = Bench(reference, paths, runtime, undo)
        bench.run(progress)
        verdict = bench.verdict(wanted, sure)
        if timed:
            verdict = bench.timed(verdict, folder, progress)
        verdict = bench.blamed(verdict, folder)
    if page is not None:
        from ..reports.html.verdict import write_verdict

        write_verdict(verdict, Path(page))
    return verdict


def _reference(
    float_file: Any,
    data: Any,
    settings: Settings,
    runtime: str,
    folder: Path,
    trust: bool,
    progress: Progress,
) -> Reference:
    threads, rows = settings.threads or 1, settings.batch_size or 1
    path, asked = Path(str(float_file)), given(settings)
    # A float .pt2 file is captured, so that it runs where most quantised files do.
    of_runtime = isinstance(float_file, str | Path) and path.suffix in KINDS and path.suffix != ".pt2"
    name = path.name if of_runtime or isinstance(float_file, str | Path) else "the float network"
    if not of_runtime:
        path, samples, task = _written(float_file, data, settings, folder, trust, progress)
    model = ForeignModel(path, runtime=runtime_of(path, runtime), threads=threads, rows=rows)
    output = settings.output
    if of_runtime:
        known = model.metadata.get("bitsect.task", "classification")
        task = task_named(asked.get("task") or (known if known in TASKS else "classification"))
        output = output or model.metadata.get("bitsect.output")
        samples = _samples(data, asked, settings, task.name, model)
    task = task.on(output or task.output, model.run(samples.inputs(slice(0, 1))))
    return Reference(model, name, samples, task, threads, rows)


def _samples(data: Any, asked: dict[str, Any], settings: Settings, task: str, model: ForeignModel) -> Samples:
    if data is None:
        raise DataError("samples are needed: pass [data=FILE], a folder of images, or zoo:fashion-test")
    preparation = preparation_for(None, settings.processor)
    drawn = {name: asked[name] for name in ("draw", "seed") if name in asked}
    pixels = settings.pixels or model.pixels
    samples = load_samples(data, reading=Reading(preparation, task, **settings.texts), **drawn, **pixels)
    lengths = {shape[1] for shape in model.inputs.values() if len(shape) == 2 and isinstance(shape[1], int)}
    return samples.at_length(lengths.pop()) if len(lengths) == 1 else samples


def _written(
    network: Any, data: Any, settings: Settings, folder: Path, trust: bool, progress: Progress
) -> tuple[Path, Samples, Task]:
    """A network that is no file of a runtime, captured and written as one in float."""
    data = own_samples(network, "test") if data is None else data
    captured = Settings(**{name: value for name, value in given(settings).items() if name != "batch_size"})
    with open_run(network, data, captured, Resources(), trust=trust, progress=progress) as run:
        plan = Plan.uniform(run.layers)
        subject = Subject(run.program, Rounder(run.program, None, ONNXRUNTIME, "nearest"), plan, run.task)
        return write_onnx(subject, folder / "float.onnx").path, run.samples, run.task
