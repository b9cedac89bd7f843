"""A plan on its way out: judged where it will run, written, proven, and only then put in place."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from ..errors import ExportError, MissingExtraError
from ..runs.run import Run, one_of
from ..sources.data import Samples
from ..values import Evaluation, Plan, Target
from .onnx.destination import target_named
from .onnx.write import Exported, check_precision, export_onnx, is_weights_of
from .proof import Proof, prove


class Exporter(NamedTuple):
    """A way out: it writes a model, and proves that what it wrote is the model that was judged."""

    write: Callable[..., Exported]
    prove: Callable[..., Proof]


EXPORTERS = {"onnx": Exporter(export_onnx, prove)}


@dataclass(frozen=True)
class Delivery:
    """What was written, how it was judged before, and what it did when it ran."""

    exported: Exported
    proof: Proof
    float: Evaluation  # on the samples of the run, as the next
    judged: dict[str, Evaluation]  # the plan, by placement: that of the run, then that of the file
    goal: Target | None
    proven_on: str
    failures: tuple[str, ...]
    kept: bool
    remarks: tuple[str, ...] = ()  # on what was asked for

    @property
    def path(self) -> Path:
        return self.exported.path

    @property
    def goal_kept(self) -> bool:
        """Whether the model is as accurate as the target has it, on the samples of the run."""
        (*_, judged) = self.judged.values()
        return self.goal is None or judged.reaches(self.goal.threshold(self.float.exact)) is True

    @property
    def complaint(self) -> str:
        """What is wrong with the model, and what became of it."""
        outcome = "kept all the same" if self.kept else "not written; --force keeps it"
        return f"{self.path}: {'; '.join(self.failures)}; {outcome}"

    @property
    def notes(self) -> tuple[str, ...]:
        """Where the file is not as planned, and what else should be known."""
        return (*self.remarks, *(str(note) for note in self.exported.notes))

    def to_json(self) -> dict[str, Any]:
        return {
            "file": str(self.path) if self.kept else None,
            "for": self.exported.target,
            "proven": self.proof.holds,
            "target": None if self.goal is None else str(self.goal),
            "float_accuracy": self.float.accuracy,
            "judged": {placement: each.accuracy for placement, each in self.judged.items()},
            "proof": {**self.proof.to_json(), "data": self.proven_on},
            "notes": list(self.notes),
            "failures": list(self.failures),
        }


def deliver(
    run: Run,
    plan: Plan,
    path: str | Path,
    *,
    to: str = "onnx",
    made_for: str = "onnxruntime",
    goal: Target | None = None,
    test: Samples | None = None,
    force: bool = False,
    require_speedup: bool = False,
) -> Delivery:
    """The model of `plan` in `path`, proven on `test` (else on the samples of the run).

    A run under another placement than the one the file is made for is judged again first. A file that
    is not the model that was judged, misses `goal`, or is no faster than float where that is required,
    is not put in place, unless `force` is given, which also overwrites.
    """
    check_request(path, to, made_for, force, require_speedup)
    exporter = EXPORTERS[to]
    placement, place = target_named(made_for).placement.name, Path(path)
    samples, formats = test or run.samples, set(plan.values())
    check_precision(run.program, plan)
    run.program.run(samples.inputs(slice(0, 1)))  # so that samples of another shape are refused first
    with ExitStack() as stack:
        folder = stack.enter_context(_folder_beside(place))
        there = run
        if run.settings.placement != placement:
            there = stack.enter_context(run.under(placement))
        judged = {each.settings.placement: _judge(each, plan) for each in (run, there)}
        baseline = _judge(run, Plan.uniform(run.program.layers), "judge float")
        rounder = there.rounder(formats)
        with run.progress.stage("export"):
            draft, about = folder / place.name, _metadata(run, goal)
            exported = exporter.write(run.program, rounder, plan, draft, target=made_for, metadata=about)
        with run.progress.stage("prove", len(samples)) as advance:
            proof = exporter.prove(
                exported.path,
                run.program,
                rounder,
                plan,
                samples,
                run.task,
                target=made_for,
                codes=exported.codes,
                batch_size=run.settings.batch_size,
                progress=advance,
            )
        failures = (
            *proof.failures,
            *_missed(goal, baseline, judged),
            *(["slower than float"] if require_speedup and proof.slower else []),
        )
        kept = force or not failures
        if kept:
            _put_in_place(folder, place)
    exported = replace(exported, path=place)
    return Delivery(exported, proof, baseline, judged, goal, samples.spec, failures, kept)


def check_request(path: str | Path, to: str, made_for: str, force: bool, require_speedup: bool) -> None:
    """Refuse what can be refused before the first minute of work."""
    one_of("form", to, EXPORTERS)
    target_named(made_for)
    for package in ("onnx", "onnx_ir", "onnxscript", "onnxruntime"):
        if find_spec(package) is None:
            raise MissingExtraError(package, "onnx", "export to ONNX")
    if require_speedup and made_for == "portable":
        raise ExportError("a portable file is not timed: leave --require-speedup out")
    if Path(path).is_dir():
        raise ExportError(f"{path} is a folder: name a file in it")
    if Path(path).suffix != ".onnx":
        raise ExportError(f"{path}: a name that ends in .onnx says what the file is")
    if Path(path).exists() and not force:
        raise ExportError(f"{path} exists: pass --force to overwrite it, or name another file")


def _judge(run: Run, plan: Plan, stage: str | None = None) -> Evaluation:
    evaluator = run.evaluator(set(plan.values()))
    stage = stage or f"judge under {run.settings.placement}"
    with run.progress.stage(stage, len(run.samples)) as evaluator.progress:
        return evaluator(plan)


def _missed(goal: Target | None, baseline: Evaluation, judged: Mapping[str, Evaluation]) -> Iterator[str]:
    placement, last = list(judged.items())[-1]
    if goal is not None and not last.reaches(goal.threshold(baseline.exact)):
        fault = f"misses the target of {goal} with {last.accuracy:.2%} (float {baseline.accuracy:.2%})"
        if len(judged) > 1:
            fault += f": `bitsect quantize --placement {placement}` searches under that placement"
        yield fault


def _metadata(run: Run, goal: Target | None) -> dict[str, str]:
    """What a run knows that a program does not; how pixels become inputs serves `bitsect evaluate FILE`."""
    return {
        "bitsect.data": run.samples.fingerprint(),
        "bitsect.task": run.task.name,
        **({} if run.task.output is None else {"bitsect.output": run.task.output}),
        "bitsect.pixels": json.dumps(run.pixels),
        **({} if goal is None else {"bitsect.goal": str(goal)}),
    }


# Files


@contextmanager
def _folder_beside(path: Path) -> Iterator[Path]:
    """A folder on the same disk, gone at the end with all that is still in it."""
    prefix = f".{path.name}.bitsect-"
    folder = path.parent / f"{prefix}{os.getpid()}"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        for left in path.parent.glob(f"{prefix}*"):
            if not _is_running(left.name.removeprefix(prefix)):  # it was killed half-way
                shutil.rmtree(left, ignore_errors=True)
        folder.mkdir()
    except OSError as error:
        raise ExportError(f"{path} cannot be written: {error.strerror}") from None
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _is_running(process: str) -> bool:
    if sys.platform == "win32":
        return True  # there is no signal there that only asks
    try:
        os.kill(int(process), 0)
    except (ValueError, ProcessLookupError):
        return False
    except PermissionError:
        return True
    return int(process) != os.getpid()


def _put_in_place(folder: Path, place: Path) -> None:
    """The model last: it is whole once it is there; then the weights of the one that it replaced go."""
    weights = [item for item in folder.iterdir() if is_weights_of(place, item)]
    old = [item for item in place.parent.iterdir() if is_weights_of(place, item)] if place.exists() else []
    for item in weights:
        item.replace(place.with_name(item.name))
    (folder / place.name).replace(place)
    for item in old:
        if item.name not in {new.name for new in weights}:
            item.unlink(missing_ok=True)
