"""How accurate a plan is: the one question that a search asks of the program."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing, contextmanager
from fractions import Fraction
from functools import cache, cached_property
from typing import Any

import numpy as np
import torch
import torch.utils._pytree as pytree
from torch import Tensor
from torch.nn import functional as F

from ..errors import BitsectError, DataError
from ..network.binding import Inputs
from ..network.parts import FLOAT_ROUNDING, Rounding
from ..network.program import Program
from ..rounding.rounder import Rounder
from ..sources.data import Samples
from ..sources.tasks.outputs import IGNORED
from ..sources.tasks.task import SampleError, Task
from ..sources.tasks.windows import join_windows
from ..values import FLOAT, Evaluation, Plan
from ..values.pieces import Done, Piece
from .prefixes import Prefixes
from .work import Crew, Work, fill, in_order, shared

REFERENCE_BYTES = 256 * 2**20  # of float outputs that are kept where a task compares with them


class Evaluator:
    """Judges plans on the samples, batch by batch; a batch of a plan is judged once.

    Without a rounder it judges the float network alone, for which nothing needs to be calibrated.
    """

    crew: Crew | None = None  # workers that judge batches too
    prefixes: Prefixes | None = None  # what plans share that were judged before

    def __init__(
        self,
        program: Program,
        rounder: Rounder | None,
        samples: Samples,
        task: Task,
        *,
        batch_size: int = 64,
        done: Done | None = None,
        progress: Callable[[int], None] = lambda rows: None,
    ) -> None:
        self.program, self._rounder, self.samples, self.task = program, rounder, samples, task
        self.batch_size = min(batch_size, program.fixed_batch or batch_size)
        # The indices of every batch, known by the first of them.
        self.parts = {int(part[0]): part for part in samples.parts(self.batch_size)}
        self.done: Done = {} if done is None else done
        self.progress = progress
        self._reference: dict[int, Any] = {}  # what the float network gives, where expectations are asked for
        self._wanted: dict[int, Tensor] = {}  # and where a task compares with it
        self.judged_batches = 0  # by this evaluator, not remembered from before

    @property
    def rounder(self) -> Rounder:
        if self._rounder is None:
            raise BitsectError("only the float network can be judged before ranges are calibrated")
        return self._rounder

    def rounding(self, plan: Plan) -> Rounding:
        """What `plan` rounds: nothing, if every layer is in float."""
        return FLOAT_ROUNDING if set(plan.values()) == {FLOAT} else self.rounder(plan)

    def __call__(self, plan: Plan, threshold: Fraction | None = None) -> Evaluation:
        """The evaluation of `plan`: to the end, or until `threshold` is decided."""
        so_far = Evaluation(0.0, 0, self.samples.count)
        pieces: list[Piece] = []
        with closing(self._pieces(plan, self.parts)) as coming:
            for _ in self.parts:
                if threshold is not None and self.task.mean and so_far.reaches(threshold) is not None:
                    return so_far
                pieces.append(next(coming))
                so_far = self._total(pieces)
        return so_far

    def expected(self, plan: Plan, threshold: Fraction | None = None) -> Evaluation:
        """The accuracy that the float network's own probabilities expect of `plan`.

        A label says right or wrong, a probability how much is lost where an answer changes: the same
        samples tell plans apart that differ by less than a sample. What the float network is too sure of
        counts for more.
        """
        so_far, expected = Evaluation(0.0, 0, self.samples.count), 0.0
        seen = 0
        missing = [str(start) for start in self.parts if f"expected/{plan.key}/{start}" not in self.done]
        with closing(in_order(expectations(self, plan), missing)) as coming:
            for start, part in self.parts.items():
                if threshold is not None and so_far.reaches(threshold) is not None:
                    break
                key = f"expected/{plan.key}/{start}"
                if key not in self.done:
                    piece = next(coming)
                    expectation = piece.pop("expected")
                    if f"{plan.key}/{start}" not in self.done:  # scores come with it: they are not asked for
                        self.done[f"{plan.key}/{start}"] = piece
                    self.done[key] = {"score": expectation}
                    self.judged_batches += 1
                expected += float(self.done[key]["score"].sum())
                seen += len(part)
                self.progress(len(part))
                so_far = Evaluation(expected, seen, self.samples.count)
        return so_far

    def _expect(self, start: int, rounding: Rounding) -> Piece:
        """The scores of a batch, and those that are expected."""
        inputs, labels = self.batch(start)
        if start not in self._reference:
            self._reference[start] = self.program.run(inputs)
        outputs = self._run(start, inputs, rounding)
        score = self.task.expected(self._reference[start], outputs)
        if score is None:
            raise BitsectError(f"task '{self.task.name}' expects nothing of single samples")
        return {"expected": score.double().cpu().numpy(), **self._outcome(start, outputs, labels)}

    def known(self, plan: Plan) -> Evaluation | None:
        """What is known of `plan` from before, perhaps not of all samples; None if nothing is."""
        pieces = []
        for start in self.parts:
            if f"{plan.key}/{start}" not in self.done:
                break
            pieces.append(self.done[f"{plan.key}/{start}"])
        return self._total(pieces) if pieces else None

    def scores(self, plan: Plan, first: int | None = None) -> np.ndarray[Any, Any]:
        """The score of every sample, or of every question, in the order of the batches.

        Of whole batches that hold the `first` so many samples, where that is given.
        """
        return self._scores(list(self._pieces(plan, self._up_to(first))))

    @property
    def families(self) -> np.ndarray[Any, Any] | None:
        """The family of every score, in the order of `scores`; None where samples are independent."""
        families = self.samples.families
        if families is None:
            return None
        order = torch.cat(list(self.parts.values()))
        known = families[order].double().numpy()
        return self._scores([{"score": known, "weight": np.zeros(len(known))}])

    def _up_to(self, first: int | None) -> list[int]:
        """The batches that hold the `first` samples; all of them where that is None."""
        starts, held = list[int](), 0
        for start, part in self.parts.items():
            if first is not None and held >= first:
                break
            starts.append(start)
            held += len(part)
        return starts

    def _pieces(self, plan: Plan, starts: Iterable[int]) -> Generator[Piece, None, None]:
        """What came of each batch, judged where that is not known."""
        starts = list(starts)
        missing = [str(start) for start in starts if f"{plan.key}/{start}" not in self.done]
        with closing(in_order(judged(self, plan), missing)) as coming:
            for start in starts:
                key = f"{plan.key}/{start}"
                if key not in self.done:
                    self.done[key] = next(coming)
                    self.judged_batches += 1
                piece = self.done[key]
                self.progress(len(piece["score"]))
                yield piece

    def _scores(self, pieces: list[Piece]) -> np.ndarray[Any, Any]:
        """The scores of the first `pieces`; of questions in windows, those whose windows were all seen."""
        scores = np.concatenate([piece["score"] for piece in pieces])
        if self.samples.groups is None:
            return scores
        seen = torch.cat(list(self.parts.values()))[: len(scores)]
        weights = np.concatenate([piece["weight"] for piece in pieces])
        return join_windows(scores, weights, self.samples.groups[seen].numpy(), self._windows)

    @cached_property
    def _windows(self) -> dict[int, int]:
        """How many windows every question has."""
        groups = self.samples.groups
        assert groups is not None
        return dict(zip(*(part.tolist() for part in torch.unique(groups, return_counts=True)), strict=True))

    @cached_property
    def labels(self) -> Tensor:
        """The label of every sample; without labels, the float network's own answers."""
        if self.samples.labels is not None:
            return self.samples.labels.to(self.program.device)
        answers = [torch.from_numpy(piece["answer"]) for piece in fill(self.done, own_answers(self))]
        if self.samples.source.lengths is not None and answers[0].ndim > 1:  # an answer for every token
            longest = max(answer.shape[1] for answer in answers)
            answers = [F.pad(answer, (0, longest - answer.shape[1]), value=IGNORED) for answer in answers]
        order = torch.argsort(torch.cat(list(self.parts.values())))
        return torch.cat(answers)[order].to(self.program.device)

    def part(self, indices: slice | Tensor) -> tuple[Inputs, Tensor]:
        """The inputs and labels of some samples."""
        inputs = self.samples.inputs(indices)
        return inputs, self._own_answers(inputs) if self.task.reference else self.labels[indices]

    def batch(self, start: int) -> tuple[Inputs, Tensor]:
        """The inputs and labels of the batch that begins with the sample `start`."""
        if not self.task.reference:
            return self.part(self.parts[start])
        if start in self._wanted:
            return self.samples.inputs(self.parts[start]), self._wanted[start]
        inputs, wanted = self.part(self.parts[start])
        if sum(map(_bytes, (*self._wanted.values(), wanted))) <= REFERENCE_BYTES:
            self._wanted[start] = wanted
        return inputs, wanted

    @property
    def again(self) -> Callable[[Evaluator], Evaluator]:
        """Makes this of a worker's own evaluator: that is it already."""
        return _itself

    def _own_answers(self, inputs: Inputs) -> Tensor:
        outputs = self.program.run(inputs)
        check_finite(self.program, inputs, outputs, FLOAT_ROUNDING)
        return self.task.answers(outputs)

    def _judge(self, start: int, rounding: Rounding) -> Piece:
        inputs, labels = self.batch(start)
        return self._outcome(start, self._run(start, inputs, rounding), labels)

    def _run(self, start: int, inputs: Inputs, rounding: Rounding) -> Any:
        if self.prefixes is None:
            outputs = self.program.run(inputs, rounding)
        else:
            outputs = self.prefixes.run(self.samples, start, inputs, rounding)
        check_finite(self.program, inputs, outputs, rounding)
        return outputs

    def _outcome(self, start: int, outputs: Any, labels: Tensor) -> Piece:
        with naming(self.samples, self.parts[start]):
            outcome = self.task.outcome(outputs, labels)
        arrays = {"score": outcome.score.double().cpu().numpy()}
        if outcome.loss is not None:
            arrays["loss"] = outcome.loss.double().cpu().numpy()
        if outcome.weight is not None:
            arrays["weight"] = outcome.weight.double().cpu().numpy()
        return arrays

    def _total(self, pieces: list[Piece]) -> Evaluation:
        scores = self._scores(pieces)
        losses = [piece["loss"] for piece in pieces if "loss" in piece]
        loss = float(np.concatenate(losses).mean()) if losses else None
        if self.task.mean:
            return Evaluation(float(scores.sum()), len(scores), self.samples.count, loss)
        if len(scores) < self.samples.count:
            return Evaluation(0.0, 0, 1, loss)
        order = torch.cat(list(self.parts.values())).to(self.program.device)
        labels = self.labels[order] if self.task.ranks else None
        return Evaluation(self.task.score_all(torch.from_numpy(scores), labels), 1, 1, loss)


# A piece for each batch, which is known by its first sample.


@shared
def judged(evaluator: Evaluator, plan: Plan) -> Work:
    """Losses and scores under `plan`."""
    rounding = cache(lambda: evaluator.rounding(plan))
    return Work(tuple(map(str, evaluator.parts)), lambda start: evaluator._judge(int(start), rounding()))


@shared
def expectations(evaluator: Evaluator, plan: Plan) -> Work:
    """The same, with the scores that the float network's own probabilities expect."""
    rounding = cache(lambda: evaluator.rounding(plan))
    return Work(tuple(map(str, evaluator.parts)), lambda start: evaluator._expect(int(start), rounding()))


def own_answers(evaluator: Evaluator) -> Work:
    """The float network's own answers, which workers are given as labels."""
    names = tuple(f"own/{start}" for start in evaluator.parts)

    def answer(name: str) -> Piece:
        inputs = evaluator.samples.inputs(evaluator.parts[int(name.partition("/")[2])])
        return {"answer": evaluator._own_answers(inputs).cpu().numpy()}

    return Work(names, answer)


def _bytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _itself(evaluator: Evaluator) -> Evaluator:
    return evaluator


@contextmanager
def naming(samples: Samples, indices: Tensor) -> Iterator[None]:
    """Name the sample that a task cannot judge as the user knows it; the batch is of these `indices`."""
    try:
        yield
    except SampleError as error:
        raise DataError(f"{samples.name(int(indices[error.row]))} {error.why}") from None


def check_finite(program: Program, inputs: Inputs, outputs: Any, rounding: Rounding) -> None:
    """Refuse outputs that are not finite, naming the first tensor that was not."""
    leaves = [
        leaf for leaf in pytree.tree_leaves(outputs) if isinstance(leaf, Tensor) and leaf.is_floating_point()
    ]
    if all(bool(torch.isfinite(leaf).all()) for leaf in leaves):
        return
    broken: list[str] = []

    def look(name: str) -> Callable[[Tensor], None]:
        def see(value: Tensor) -> None:
            if not broken and not bool(torch.isfinite(value).all()):
                broken.append(name)

        return see

    program.observe(inputs, {name: look(name) for name in program.layer_tensors}, rounding)
    where = (
        f"'{broken[0]}' is the first tensor that holds them" if broken else "they arise after the last layer"
    )
    raise BitsectError(
        f"the network's outputs hold NaN or infinity: {where}; check the samples and the layer before it"
    )
