"""A plan on its way out: judged where it will run, written, proven, and only then put in place."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ..errors import ExportError, MissingExtraError
from ..files import read_json
from ..names import choose
from ..runs.recorded import Recorded
from ..runs.run import Run
from ..solve.confidence import Pairs, refutes
from ..sources.data import Samples
from ..values import Evaluation, Plan, Target
from ..values.destination import DESTINATIONS, Destination, check_written
from . import EXPORTERS
from .exporter import Exporter, Written
from .onnx.write import is_weights_of
from .proof import Proof
from .subject import Subject

MISSED = "misses the target"


@dataclass(frozen=True)
class Request:
    """Where a model is to be written, and what is asked of it."""

    path: Path
    destination: str | None = None  # as asked for
    force: bool = False  # overwrite, and keep a model that fails a check
    require_speedup: bool = False
    made_for: str | None = None  # the destination of the run
    replaces: bool = False  # what lies there: the run wrote it before

    def exporter(self) -> Exporter:
        """The exporter of files with this ending."""
        suffix = self.path.suffix
        if suffix not in EXPORTERS:
            endings = ", ".join(filter(None, EXPORTERS))
            raise ExportError(
                f"the file name must end in one of {endings}; without an ending it is a folder as of "
                f"transformers: {self.path}"
            )
        found: Exporter = choose("form", suffix, EXPORTERS)
        return found

    def where(self) -> Destination | None:
        """What the file is written for; None where it holds the model as it was judged."""
        if self.exporter().for_runtimes:
            return check_written(written_for(self.destination or self.made_for))
        if self.destination is not None:
            raise ExportError(
                f"[destination={self.destination}] is for an .onnx file: {self.path} holds the model as it "
                "was judged"
            )
        return None

    def check(self) -> None:
        """Refuse what can be refused before the first minute of work."""
        exporter, where = self.exporter(), self.where()
        if self.path.is_dir() and (self.path.suffix or not _is_ours(self.path)):
            raise ExportError(f"{self.path} is a folder: name a file in it")
        for package in exporter.packages:
            if find_spec(package) is None:
                raise MissingExtraError(package, exporter.extra, f"export to {self.path}")
        if where is not None and where.runtime == "openvino" and find_spec("openvino") is None:
            raise MissingExtraError("openvino", "openvino", "export for openvino")
        if self.require_speedup and (where is None or where.runtime is None):
            what = self.path.suffix or "folder" if where is None else where.name
            raise ExportError(f"a {what} file is not timed: leave [require_speedup=True] out")
        if self.path.exists() and not (self.force or self.replaces):
            raise ExportError(f"{self.path} exists: pass [force=True] to overwrite it, or name another file")


@dataclass(frozen=True)
class Delivery:
    """What was written, how it was judged before, and what it did when it ran."""

    written: Written
    proof: Proof
    float: Evaluation  # on the samples of the run, as the next
    judged: dict[str, Evaluation]  # the plan, by placement: that of the run, then that of the file
    target: Target | None
    judged_on: str  # which samples of the run that is, in words
    proven_on: str
    failures: tuple[str, ...]
    kept: bool
    remarks: tuple[str, ...] = ()  # on what was asked for

    @property
    def path(self) -> Path:
        return self.written.path

    def __repr__(self) -> str:
        state = "proven" if self.proof.holds else f"NOT proven: {self.proof.failures[0]}"
        pace = (
            ""
            if self.proof.latency_ratio is None
            else f", {self.proof.latency_ratio:.2f} of the time of float"
        )
        return f"Delivery: {self.path}, {state}{pace}"

    @property
    def target_kept(self) -> bool:
        """Whether the model is as accurate as the target has it, on the samples of the run."""
        (*_, judged) = self.judged.values()
        return self.target is None or judged.reaches(self.target.threshold(self.float.exact)) is True

    @property
    def missed(self) -> bool:
        """Whether missing the target is among what is wrong with the model."""
        return any(failure.startswith(MISSED) for failure in self.failures)

    @property
    def complaint(self) -> str:
        """What is wrong with the model, and what became of it."""
        outcome = "kept all the same" if self.kept else "not written; [force=True] keeps it"
        return f"{self.path}: {'; '.join(self.failures)}; {outcome}"

    @property
    def notes(self) -> tuple[str, ...]:
        """Where the file is not as planned, and what else should be known."""
        return (*self.remarks, *(str(note) for note in self.written.notes))

    def to_json(self) -> dict[str, Any]:
        return {
            "file": str(self.path) if self.kept else None,
            "destination": self.written.destination,
            "proven": self.proof.holds,
            "target": None if self.target is None else str(self.target),
            "float_accuracy": self.float.accuracy,
            "judged": {placement: each.accuracy for placement, each in self.judged.items()},
            "proof": {**self.proof.to_json(), "data": self.proven_on},
            "notes": list(self.notes),
            "failures": list(self.failures),
        }


def written_for(destination: Any) -> str:
    """The destination that a file is written for: ONNX Runtime where nothing else follows from it."""
    known = DESTINATIONS.get(str(destination))
    return (
        "onnxruntime"
        if destination is None or (known is not None and known.form is None)
        else str(destination)
    )


def deliver(
    run: Run,
    plan: Plan,
    request: Request,
    target: Target | None = None,
    test: Samples | None = None,
    *,
    vouched: bool = False,
    before: tuple[Evaluation, Evaluation] | None = None,
) -> Delivery:
    """The model of `plan` written as requested, proven on `test` (else on the samples of the run).

    A run under another placement than the one the file is made for is judged again first. A file that
    is not the model that was judged, misses the target, or is no faster than float where that is required,
    is not put in place, unless `force` is given, which also overwrites. Where the target is `vouched` for
    by more than the labels of the run's samples, it is missed only if they refute it. How the float network
    and the plan did `before`, under the run's own placement, is not judged again.
    """
    request.check()
    exporter = request.exporter()
    where = request.where()
    placement = run.settings.placement if where is None else where.placement.name
    samples, recorded = test or run.samples, Recorded.read(run.folder)
    source = "" if recorded is None else recorded.model
    exporter.check(run.program, plan, source)
    run.program.run(samples.inputs(slice(0, 1)))  # so that samples of another shape are refused first
    with ExitStack() as stack:
        folder = stack.enter_context(_folder_beside(request.path))
        there = run
        if run.settings.placement != placement:
            there = stack.enter_context(run.under(placement))
        baseline, own = before or (_judge(run, Plan.uniform(run.layers), "judge float"), _judge(run, plan))
        judged = {run.settings.placement: own}
        if there is not run:
            judged[placement] = _judge(there, plan)
        subject = Subject(run.program, there.calibrate(set(plan.values())), plan, run.task, source)
        with run.progress.stage("export"):
            draft = folder / request.path.name
            name = None if where is None else where.name
            written = exporter.write(subject, draft, name, _metadata(run, target))
        with run.progress.stage("prove", len(samples)) as advance:
            proof = exporter.prove(
                written,
                subject,
                samples,
                batch_size=min(run.batch_size, run.program.fixed_batch or run.batch_size),
                progress=advance,
                timed_on=run.samples.typical(),
            )
        failures = (
            *proof.failures,
            *(
                ()
                if vouched and (before or not _refuted(there, plan, target))
                else _missed(target, baseline, judged)
            ),
            *(["slower than float"] if request.require_speedup and proof.slower else []),
        )
        kept = request.force or not failures
        if kept:
            _put_in_place(folder, request.path)
    written = replace(written, path=request.path)
    judged_on = "samples of the run" if run.held_out is None else "held-out samples of the run"
    remarks = () if where is None or not proof.slower else (_way_out(run, where, plan),)
    return Delivery(
        written, proof, baseline, judged, target, judged_on, samples.spec, failures, kept, remarks
    )


def _way_out(run: Run, where: Destination, plan: Plan) -> str:
    """What to do where the file is slower than float."""
    if run.settings.placement != where.placement.name:
        return (
            f"the file is slower than float: the plan was not made for {where.name}; quantize with "
            f"[destination={where.name}], in another folder, finds one that is fast there"
        )
    return "the file is slower than float here: export with [format=float] writes that"


def _judge(run: Run, plan: Plan, stage: str | None = None) -> Evaluation:
    """How `plan` does on the samples that its target is judged on: those held out, else those searched."""
    evaluator = run.evaluator(set(plan.values()), run.held_out)
    stage = stage or f"judge under {run.settings.placement}"
    with run.progress.stage(stage, len(evaluator.samples)) as evaluator.progress:
        return evaluator(plan)


def _refuted(run: Run, plan: Plan, target: Target | None) -> bool:
    """Whether the labels show that `plan` misses the target, and not by chance."""
    evaluator = run.evaluator(set(plan.values()), run.held_out)
    before, after = (evaluator.scores(each) for each in (Plan.uniform(run.layers), plan))
    return target is not None and refutes(Pairs.of(before, after), target)


def _missed(target: Target | None, baseline: Evaluation, judged: Mapping[str, Evaluation]) -> Iterator[str]:
    placement, last = list(judged.items())[-1]
    if target is not None and not last.reaches(target.threshold(baseline.exact)):
        fault = f"{MISSED} of {target} with {last.shown} (float {baseline.shown})"
        if len(judged) > 1:
            fault += f": a new run with [placement={placement}] judges plans under it"
        yield fault


def _metadata(run: Run, target: Target | None) -> dict[str, str]:
    """What a run knows that a program does not; how pixels become inputs serves `bitsect evaluate FILE`."""
    return {
        "bitsect.data": run.samples.fingerprint(),
        "bitsect.task": run.task.name,
        **({} if run.task.output is None else {"bitsect.output": run.task.output}),
        "bitsect.pixels": json.dumps(run.settings.pixels),
        **({} if target is None else {"bitsect.target": str(target)}),
    }


# Files


def _is_ours(folder: Path) -> bool:
    """Whether the folder may be replaced: it is empty, or one that was exported."""
    if not folder.is_dir() or folder.is_symlink():
        return False
    marked = folder / "config.json"
    if not marked.is_file():
        return not any(folder.iterdir())
    config = read_json(marked, what="configuration")
    return isinstance(config, dict) and "bitsect" in str(config.get("quantization_config"))


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
    if (folder / place.name).is_dir():
        if place.exists():
            place.replace(folder / f"{place.name}.before")
        (folder / place.name).replace(place)
        return
    weights = [item for item in folder.iterdir() if is_weights_of(place, item)]
    old = [item for item in place.parent.iterdir() if is_weights_of(place, item)] if place.exists() else []
    for item in weights:
        item.replace(place.with_name(item.name))
    (folder / place.name).replace(place)
    for item in old:
        if item.name not in {new.name for new in weights}:
            item.unlink(missing_ok=True)
