"""evaluate: how accurate a network is under a plan, or a written model as it is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import OptionError
from ..exporters.runtimes.onnxruntime import RUNTIMES, OnnxModel, Ran, run_onnx
from ..exporters.runtimes.vetting import check_onnx
from ..names import check_name, choose
from ..runs.bar import Bar
from ..runs.opening import OrElse, is_folder, open_run, own_samples
from ..runs.progress import Progress
from ..solve.costs import cost
from ..sources.data import load_samples
from ..sources.tasks import TASKS
from ..sources.tasks.task import Task, task_named
from ..values import Format, Plan, Resources, Settings
from ..values.options import given
from ..values.settings import ROWS
from .keywords import with_options
from .methods import method_of
from .notes import NO_LABELS, about_output, about_reference
from .plans import parse_format, plan_for
from .rows import Row


@dataclass(frozen=True)
class Judgement:
    """The float network and a plan on the same samples."""

    float: Row
    plan: Row
    agreement: bool  # there were no labels: accuracy is agreement with the float network
    notes: tuple[str, ...] = ()

    def __repr__(self) -> str:
        what = "agreement" if self.agreement else "accuracy"
        shown = f"{self.float.evaluation.shown} → {self.plan.evaluation.shown}"
        return f"Judgement: {what} {shown} with {self.plan.plan.counted} layers"

    def to_json(self) -> dict[str, Any]:
        return {
            "float": self.float.to_json(),
            "plan": self.plan.to_json() | {"formats": self.plan.plan.counts},
            "agreement": self.agreement,
            "notes": list(self.notes),
        }


@with_options(settings=Settings, resources=Resources)
def evaluate(
    model: Any,
    data: Any = None,
    *,
    settings: Settings,
    resources: Resources,
    method: str | None = None,
    calibration: Any = None,
    plan: str | Path | Plan | None = None,
    format: str | Format | None = None,
    trust: bool = False,
    progress: Progress | None = None,
) -> Judgement:
    """The float network and the plan, judged on `data`.

    >>> judgement = evaluate("zoo:fashion-resnet", draw=64, format="int8")
    >>> judgement.plan.plan.counts
    {'float': 0, 'int8': 22}

    Arguments:
        model: zoo:NAME, hf:FOLDER, paper:NAME, FILE.pt2, package.module:function, or the folder of a run.
            In Python also an nn.Module.
        data: the samples to judge on, as for quantize; default: a run's own, a zoo network's test images.
        method: named defaults for how values are rounded, bitsect or paper; default: bitsect.
        calibration: the samples that ranges come from; default: those of the run, else `data`.
        plan: the file of a plan, or what the run calls it; default: the run's own.
        format: or one format for all layers; default: int8.
        trust, progress: as for `quantize`.
    """
    wanted, of_run = parse_format(plan, format), is_folder(model)
    if not of_run:
        data = own_samples(model, "test") if data is None else data
        calibration = (
            own_samples(model) if calibration is None and str(model).startswith("zoo:") else calibration
        )
    apart = calibration is not None or of_run  # ranges do not come from the judged samples
    if not of_run:
        settings = method_of(model, None, method).complete(settings)
    elif method is not None:
        raise OptionError(f"[method={method}] is for a new run: {model} rounds as it did when it was made")
    chosen = given(settings)
    drawn = {name: chosen.pop(name) for name in ("draw", "seed") if apart and name in chosen}
    opening = Settings(**chosen)
    with open_run(
        model,
        OrElse(calibration, data) if apart else data,
        opening,
        resources,
        trust=trust,
        progress=progress,
    ) as run:
        samples = run.load(run.samples if data is None else data, **drawn) if apart else None
        planned = plan_for(run, plan, wanted)
        rows = []
        for name, each in (("float", Plan.uniform(run.layers)), ("plan", planned)):
            # The float network comes first: labels are refused before anything is calibrated.
            evaluator = run.evaluator(None if name == "float" else set(planned.values()), samples)
            with run.progress.stage(f"evaluate {name}", len(evaluator.samples)) as evaluator.progress:
                rows.append(Row(name, each, evaluator(each), cost(each, run.layers)))
        agreement = evaluator.samples.labels is None and not run.task.reference
        notes = [NO_LABELS] if agreement else []
        if run.task.reference:
            notes += about_reference(run)
        if not apart:
            notes.append("ranges come from the judged samples themselves; [calibration=FILE] takes others")
        return Judgement(rows[0], rows[1], agreement, (*notes, *about_output(run)))


@with_options(settings=Settings)
def evaluate_file(
    path: str | Path,
    data: Any,
    *,
    settings: Settings,
    runtime: str = "onnxruntime",
    progress: Progress | None = None,
) -> Ran:
    """How the model in an ONNX file does on labelled samples in a runtime, and how fast.

    Pixels are normalised, and the task and output are, as the file says that they were when it was made,
    unless others are given.

    Arguments:
        path: the file.
        data: the samples to judge on, as for `quantize`.
        runtime: where FILE.onnx runs: onnxruntime, openvino or reference.
        progress: as for `quantize`.
    """
    asked = given(settings)
    for name in asked.keys() - {
        "draw",
        "seed",
        "mean",
        "std",
        "scale",
        "task",
        "output",
        "batch_size",
        "threads",
    }:
        raise OptionError(f"[{name}=] does not apply to an ONNX file, whose formats and ranges are fixed")
    check_name("runtime", runtime, RUNTIMES)
    check_onnx(Path(path))
    model: OnnxModel = choose("runtime", runtime, RUNTIMES)(path, threads=settings.threads)
    samples = _load(data, asked, model)
    output = settings.output or model.metadata.get("bitsect.output")
    task = _task_of(model, asked.get("task")).on(output, model.run(samples.inputs(slice(0, 1))))
    rows = settings.batch_size or model.judged_rows or ROWS
    with (progress or Bar()).stage("evaluate", len(samples)) as advance:
        return run_onnx(model, samples, task, batch_size=rows, progress=advance)


def _load(data: Any, asked: Mapping[str, Any], model: OnnxModel) -> Any:
    drawn = {name: asked[name] for name in ("draw", "seed") if name in asked}
    pixels = {name: asked[name] for name in ("mean", "std", "scale") if name in asked}
    return load_samples(data, **drawn, **(pixels or model.pixels))


def _task_of(model: OnnxModel, task: Any) -> Task:
    """The task that is asked for, else the one that the file was judged by, if that is one of ours."""
    known = model.metadata.get("bitsect.task", "classification")
    if task is None and known not in TASKS:
        raise OptionError(f"{model.path} was judged by the task '{known}': pass it again with [task={known}]")
    found = task_named(task or known)
    if found.reference:
        raise OptionError(
            f"task '{found.name}' compares with the float network, which the file does not hold: "
            "`bitsect evaluate RUN` judges the plan, or [task=] names another task"
        )
    return found
