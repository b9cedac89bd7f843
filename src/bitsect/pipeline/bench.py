"""Files of any maker on the same samples as their float file: answers, proof, times, kernels, culprits."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..errors import BitsectError, OptionError
from ..exporters.runtimes.apart import Apart, Fault, Model
from ..exporters.runtimes.foreign import ForeignModel, runtime_of, size_on_disk
from ..exporters.suspects import suspects
from ..latency.clock import Clock, time_wholes
from ..measure.evaluator import naming
from ..runs.progress import Progress
from ..solve.intervals import paired_difference
from ..solve.looks import NOT_KEPT, NOT_PROVEN, Look, look_at
from ..sources.data import Samples
from ..sources.tasks.task import Task
from ..sources.tasks.windows import join_windows
from ..values import Target
from ..values.verdict import FIRST, MISSED, PROVEN, UNPROVEN, JudgedFile, Kernels, Verdict
from .notes import NO_LABELS

CHUNK = 64  # samples that travel to the runtimes at once; how many run at once is another matter
PROBED = 4  # samples on which the values inside of a file are compared
Array = np.ndarray[Any, Any]
Scores = dict[int, Array]  # by the number of the file; 0 is the float one


@dataclass
class Reference:
    """The float file, the samples, and how their answers are judged."""

    model: ForeignModel
    name: str
    samples: Samples
    task: Task
    threads: int
    rows: int  # that run at once


@dataclass
class _Answered:
    """What a file answered, sample by sample."""

    scores: list[Tensor] = field(default_factory=list)
    weights: list[Tensor] = field(default_factory=list)
    answers: list[Tensor] = field(default_factory=list)
    moved: list[Tensor] = field(default_factory=list)


class Bench:
    """All files on the same samples."""

    def __init__(self, judged: Reference, paths: Sequence[Path], runtime: str, undo: ExitStack) -> None:
        self.judged, self.paths = judged, paths
        self.models: dict[int, ForeignModel] = {}
        self.faults: dict[int, str] = {}
        self.order: list[Tensor] = []
        self.labels: list[Tensor] = []
        self.seen = [_Answered() for _ in range(len(paths) + 1)]
        for number, path in enumerate(paths, start=1):
            with self._at(number):
                model = ForeignModel(
                    path, runtime=runtime_of(path, runtime), threads=judged.threads, rows=judged.rows
                )
                self.models[number] = model
                undo.callback(model.close)

    @contextmanager
    def _at(self, number: int) -> Iterator[None]:
        """What is wrong with one file is said of that file, and the others go on."""
        try:
            yield
        except OptionError:
            raise
        except BitsectError as error:
            self.faults[number] = str(error)
            self.models.pop(number, None)

    def run(self, progress: Progress) -> None:
        judged = self.judged
        with progress.stage("judge", len(judged.samples)) as advance:
            for batch in judged.samples.batches(CHUNK):
                reference = judged.model.run(batch.inputs)
                labels = judged.task.answers(reference) if batch.labels is None else batch.labels
                self.order.append(batch.indices)
                self.labels.append(labels)
                with naming(judged.samples, batch.indices):
                    self._note(0, reference, reference, labels)
                for number, model in list(self.models.items()):
                    with self._at(number), naming(judged.samples, batch.indices):
                        self._note(number, reference, model.run(batch.inputs), labels)
                advance(len(batch.indices))

    def _note(self, number: int, reference: Any, outputs: Any, labels: Tensor) -> None:
        task, seen = self.judged.task, self.seen[number]
        if isinstance(outputs, Tensor) and isinstance(reference, dict) and len(reference) == 1:
            outputs = dict.fromkeys(reference, outputs)  # a file may not know what its one output is called
        outcome = task.outcome(outputs, labels)
        seen.scores.append(outcome.score)
        if outcome.weight is not None:
            seen.weights.append(outcome.weight)
        if task.answer is not None and self.judged.samples.groups is None:
            seen.answers.append(task.answers(outputs))
        moved = task.divergence(reference, outputs) if number else None
        if moved is not None:
            seen.moved.append(moved)

    def scores(self, number: int) -> Any:
        """The score of every sample in their order; of questions in windows, of every question."""
        order = torch.argsort(torch.cat(self.order))
        scores = torch.cat(self.seen[number].scores)[order].double().numpy()
        groups = self.judged.samples.groups
        if groups is None:
            return scores
        weights = torch.cat(self.seen[number].weights)[order].numpy()
        windows = dict(enumerate(torch.bincount(groups).tolist()))
        return join_windows(scores, weights, groups.numpy(), windows)

    def verdict(self, target: Target, confidence: float) -> Verdict:
        judged = self.judged
        scores = {number: self.scores(number) for number in (0, *self.models)}
        looks = self._looks(scores, target, 1 - confidence)
        rows = [JudgedFile(judged.name, judged.model.runtime, accuracy=self._accuracy(scores[0]))]
        rows[0] = replace(rows[0], outcome=PROVEN, size_bytes=size_on_disk(judged.model.path))
        for number, path in enumerate(self.paths, start=1):
            if number in self.faults:
                rows.append(JudgedFile(self._file(path), verdict=self.faults[number]))
                continue
            changed = self._changed(number, scores)
            look, accuracy = looks.get(number), self._accuracy(scores[number])
            both = rows[0].accuracy or 0.0, accuracy
            outcome, verdict, kept = self._outcome(look, both, target, confidence)
            moved = self.seen[number].moved
            rows.append(
                JudgedFile(
                    self._file(path),
                    self.models[number].runtime,
                    outcome,
                    verdict,
                    accuracy,
                    kept,
                    None if look is None else look.bound,
                    paired_difference((scores[number] - scores[0]).tolist()) if judged.task.mean else None,
                    len(changed),
                    tuple(self._name(index) for index in changed[:FIRST]),
                    float(torch.cat(moved).double().mean()) if moved else None,
                    size_on_disk(path),
                )
            )
        agreement = judged.samples.labels is None
        return Verdict(
            rows[0],
            tuple(rows[1:]),
            str(target),
            confidence,
            judged.samples.count,
            judged.task.name,
            agreement,
            notes=tuple(self._notes(agreement)),
        )

    def _file(self, path: Path) -> str:
        """The name of a file, with its folder where another file has the same."""
        alike = [each for each in (*self.paths, self.judged.model.path) if each.name == path.name]
        return path.name if len(alike) == 1 else str(path)

    def _name(self, index: int) -> str:
        samples = self.judged.samples
        return samples.name(index) if samples.groups is None else f"question {index}"

    def _notes(self, agreement: bool) -> Iterator[str]:
        if agreement:
            yield NO_LABELS
        task = self.judged.task
        if not task.mean:
            yield f"task '{task.name}' scores all samples together, which proves nothing of single ones"
        elif len(self.paths) > 1:
            yield "what is proven is so of all files together, with the confidence asked (Holm's procedure)"

    def _accuracy(self, scores: Array) -> float:
        task = self.judged.task
        order = torch.argsort(torch.cat(self.order))
        return task.score_all(torch.from_numpy(scores), torch.cat(self.labels)[order] if task.ranks else None)

    def _changed(self, number: int, scores: Scores) -> list[int]:
        """The samples whose answers are others than float's; where a task has none, whose scores are."""
        if not self.seen[number].answers:
            tolerance = self.judged.task.tolerance
            return np.flatnonzero(np.abs(scores[number] - scores[0]) > tolerance).tolist()
        before, after = (torch.cat(self.seen[each].answers) for each in (0, number))
        if before.is_floating_point():
            differ = (before - after).abs() > self.judged.task.tolerance
        else:
            differ = before != after
        differ = differ.reshape(len(differ), -1).any(1)
        return sorted(torch.cat(self.order)[differ].tolist())

    def _looks(self, scores: Scores, target: Target, level: float) -> dict[int, Look]:
        """What the samples say of each file; all that are called proven are so together, but for `level`.

        Holm's procedure: of m files each is asked at level / m; those proven leave the others at level over
        their number.
        """
        if not self.judged.task.mean:
            return {}
        left, found = list(self.models), dict[int, Look]()
        while left:
            looks = {n: look_at(target, scores[0], scores[n], level / len(left)) for n in left}
            found |= looks
            proven = [number for number in left if looks[number].proven]
            left = [number for number in left if number not in proven]
            if not proven:
                break
        return found

    def _outcome(
        self, look: Look | None, accuracy: tuple[float, float], target: Target, confidence: float
    ) -> tuple[str, str, float]:
        """Whether the file keeps the target, in a word and in words, and what it keeps (or loses)."""
        if look is None:
            before, after = accuracy
            kept = after >= float(target.threshold(Fraction(before)))
            share = before - after if target.relative is None else after / (before or 1.0)
            return (
                (UNPROVEN, f"{NOT_PROVEN}: kept on these samples", share)
                if kept
                else (MISSED, NOT_KEPT, share)
            )
        if look.proven:
            return PROVEN, f"{target} kept with {100 * confidence:g} % confidence", look.kept
        return look.outcome, look.verdict, look.kept

    def timed(self, verdict: Verdict, folder: Path, progress: Progress) -> Verdict:
        """With the time of one sample in one thread and in all, in turns, and the kernels that ran."""
        judged, typical = self.judged, self.judged.samples.typical()
        models = {0: judged.model, **self.models}
        ran: dict[int, Model] = {}
        for number, model in models.items():
            feed = model.feed(typical, folder / f"{number}.npz")
            ran[number] = Model(str(number), model.path.resolve(), feed, model.engine)
        ms: dict[int, dict[int, float]] = {number: {} for number in ran}
        with progress.stage("time"):
            for threads in sorted({1, _cores()}):
                place = folder / f"threads-{threads}"
                place.mkdir()
                engine = judged.model.engine
                with Apart(engine if engine == "openvino" else "onnxruntime") as apart:
                    clock = Clock.made(apart, threads, place)
                    for name, times in time_wholes(clock, list(ran.values())).items():
                        if not isinstance(times, Fault):
                            ms[int(name)][threads] = clock.ms([times])
        rows = [
            replace(row, ms=ms[number], kernels=self._kernels(models[number], ran[number].feed))
            if number in ran
            else row
            for number, row in enumerate((verdict.reference, *verdict.files))
        ]
        lengths = judged.samples.source.lengths
        length = None if lengths is None else int(lengths.median())
        return replace(verdict, reference=rows[0], files=tuple(rows[1:]), length=length)

    def _kernels(self, model: ForeignModel, feed: Path) -> Kernels | None:
        request = {"do": "kernels", "path": str(model.path.resolve()), "feed": str(feed)}
        try:
            (answer,) = model.apart.ask(request)
        except BitsectError:
            return None
        rows = answer["kernels"]
        if rows is None:
            return None
        floats = sorted((row for row in rows if row[2]), key=lambda row: (-row[3], row[0]))
        names = tuple(f"{name} ({kind})" for name, kind, *_ in floats)
        return Kernels(len(rows) - len(floats), len(floats), sum(row[3] for row in floats), names)

    def blamed(self, verdict: Verdict, folder: Path) -> Verdict:
        """With the layers that did the damage, for files that are not proven to keep the target."""
        rows, files = self.judged, []
        for number, file in enumerate(verdict.files, start=1):
            if file.outcome != PROVEN and number in self.models:
                model, feeds = self.models[number], []
                for index in range(min(PROBED, len(rows.samples))):
                    inputs = rows.samples.inputs(slice(index, index + 1))
                    before, after = (folder / f"probe-{index}-{name}.npz" for name in ("float", number))
                    feeds.append((rows.model.feed(inputs, before), model.feed(inputs, after)))
                files.append(replace(file, suspects=suspects(rows.model, model, feeds)))
            else:
                files.append(file)
        return replace(verdict, files=tuple(files))


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
