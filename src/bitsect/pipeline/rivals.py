"""Files of the runtime's own tools: where one is faster than ours, no larger and proven, it is the answer."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ..errors import BitsectError
from ..exporters.onnx.write import write_onnx
from ..exporters.rivals import Rival, candidates
from ..exporters.runtimes.apart import Apart, Fault, Model
from ..exporters.runtimes.foreign import ForeignModel, size_on_disk
from ..exporters.subject import Subject
from ..latency.clock import Clock, time_wholes
from ..rounding.rounder import Rounder
from ..runs.progress import Progress
from ..runs.run import Run
from ..solve.looks import schedule
from ..sources.data import Samples
from ..values import PAPER, Goal
from ..values.destination import destination_named
from ..values.options import given
from .bench import Bench, Reference
from .prover import Numbers, Prover

GAIN = 0.02  # of the time: what is less faster than this is not told apart
NOTHING = 1e-9  # of the level: less than this proves nothing
FLOAT = "float"


@dataclass(frozen=True)
class Other:
    """A file of another tool, and how it compares with ours."""

    tool: str  # in words
    ratio: float | None = None  # of its time to float's
    size_bytes: int | None = None
    said: str = ""  # what came of it
    path: str | None = None  # where it lies, if it is the answer

    @property
    def is_answer(self) -> bool:
        return self.path is not None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def can_answer(run: Run, asked: Goal, goal: Goal) -> bool:
    """Whether files of other tools can be an answer: they know no pins, limits or formats of ours."""
    free = not given(asked).keys() & {"keep", "formats", "objective"} and goal.limits is None
    judged = not run.task.reference and run.program.fixed_batch is None
    timed = destination_named(goal.destination).runtime is not None and goal.objective == "latency"
    return free and judged and timed


def others(run: Run, prover: Prover, goal: Goal, ours: Path) -> tuple[Other, ...]:
    """What the tools of the runtime make of the network, beside our file `ours`.

    The fastest that is clearly faster than ours, no larger, and proven to keep the target, is put beside it.
    """
    runtime = destination_named(goal.destination).runtime
    assert runtime is not None
    with ExitStack() as undo:
        undo.enter_context(run.progress.stage("other tools"))
        folder = Path(undo.enter_context(tempfile.TemporaryDirectory(prefix="bitsect-others-")))
        rounder = Rounder(run.program, None, PAPER, "nearest")
        subject = Subject(run.program, rounder, prover.float_plan, run.task)
        base = write_onnx(subject, folder / "float.onnx", "portable").path
        made = candidates(base, run.samples, runtime, folder)
        ms = _times(run, runtime, [base, ours, *(each.path for each in made if each.path is not None)])
        found, answer = list[Other](), None
        for rival in sorted(made, key=lambda each: ms.get(each.path, float("inf"))):
            other = _compared(rival, ms, base, ours)
            if not other.said and answer is None and prover.left < NOTHING:
                other = replace(other, said="faster, but no other plan may be proven on these samples")
            elif rival.path is not None and not other.said and answer is None:
                scores = _Scores(run, prover, base, rival.path, runtime)
                look = prover.test_scores(scores)
                other = replace(other, said=look.verdict)
                if look.proven:
                    answer = _put_beside(rival.path, ours)
                    other = replace(other, path=str(answer))
            found.append(other)
        return tuple(found)


def _times(run: Run, runtime: str, paths: Sequence[Path]) -> dict[Path | None, float]:
    """Milliseconds of one sample in one thread, in turns, of the files that run."""
    typical, models = run.samples.typical(), dict[str, Model]()
    with tempfile.TemporaryDirectory() as name, Apart(runtime) as apart:
        for number, path in enumerate(paths):
            with suppress(BitsectError):  # a file that does not load is no answer
                model = ForeignModel(path, runtime=runtime, threads=1)
                feed = model.feed(typical, Path(name) / f"{number}.npz")
                model.close()
                models[str(number)] = Model(str(number), path.resolve(), feed)
        clock = Clock.made(apart, 1, Path(name))
        found = time_wholes(clock, list(models.values()))
        return {
            paths[int(number)]: clock.ms([times])
            for number, times in found.items()
            if not isinstance(times, Fault)
        }


def _compared(rival: Rival, ms: Mapping[Path | None, float], base: Path, ours: Path) -> Other:
    """Why the file is no answer, as far as time and size say; nothing where it may be one."""
    if rival.path is None or rival.path not in ms:
        return Other(rival.tool, said=rival.why or "its file does not run here")
    size = size_on_disk(rival.path)
    other = Other(rival.tool, ms[rival.path] / ms[base], size)
    if ms[rival.path] > (1 - GAIN) * ms[ours]:
        return replace(other, said="not faster")
    return replace(other, said="larger") if size > size_on_disk(ours) else other


@dataclass
class _Scores:
    """The scores of the float file and of another, block by block as a prover asks for them."""

    run: Run
    prover: Prover
    base: Path
    path: Path
    runtime: str

    def __post_init__(self) -> None:
        self._blocks: dict[int, tuple[Numbers, Numbers]] = {}

    def __call__(self, count: int) -> tuple[Numbers, Numbers]:
        samples, start = self.prover.held_out, 0
        for end, _ in schedule(samples.count):
            if start < count and end not in self._blocks:
                self._blocks[end] = self._judged(samples.select(torch.arange(start, end)))
            start = end
        before, after = zip(*(self._blocks[end] for end in sorted(self._blocks)), strict=True)
        return np.concatenate(before), np.concatenate(after)

    def _judged(self, samples: Samples) -> tuple[Numbers, Numbers]:
        with ExitStack() as undo:
            model = ForeignModel(self.base, runtime=self.runtime, threads=1, rows=1)
            undo.callback(model.close)
            reference = Reference(model, FLOAT, samples, self.run.task, 1, 1)
            bench = Bench(reference, [self.path], self.runtime, undo)
            bench.run(Progress())
            if bench.faults:
                raise BitsectError(next(iter(bench.faults.values())))
            return bench.scores(0), bench.scores(1)


def _put_beside(path: Path, ours: Path) -> Path:
    """The file, and its weights, put beside ours under the name of its tool."""
    place = ours.with_name(f"{ours.stem}.{path.stem}{path.suffix}")
    for each in sorted(path.parent.glob(f"{path.stem}.*"), key=lambda each: each == path):
        draft = place.with_suffix(f"{each.suffix}.part")
        shutil.copyfile(each, draft)
        draft.replace(place.with_suffix(each.suffix))
    return place


def others_of(known: Mapping[str, Any]) -> tuple[Other, ...]:
    """What a run found before beside the same file, as long as the answer still lies there."""
    found = tuple(Other(**each) for each in known.get("others", ()))
    return found if all(each.path is None or Path(each.path).is_file() for each in found) else ()
