"""What is asked of a network's outputs: a loss and a score for every sample."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from torch import Tensor

from ...errors import BitsectError, DataError
from ...names import calling, choose
from ..fingerprint import fingerprint
from . import TASKS
from .outputs import OWN_TASK, Axis, divergence, logits, logits_name, pick, rows_of


class Outcome(NamedTuple):
    """One value per sample: `loss` to differentiate, `score` in [0, 1] to count.

    Where samples are windows of longer texts, `weight` says how sure the network is of each.
    """

    loss: Tensor | None
    score: Tensor
    weight: Tensor | None = None


class SampleError(DataError):
    """One sample cannot be judged: its `row` in the batch, and `why`."""

    def __init__(self, row: int, why: str) -> None:
        super().__init__(f"row {row} {why}")
        self.row, self.why = row, why


@dataclass(frozen=True)
class Task:
    """What a network is judged by: a function (outputs, labels) → (loss, score), each [batch].

    A function may return the score alone; then nothing that needs gradients can be measured. What else
    a task can say is left out by most:
    """

    name: str
    function: Callable[[Any, Tensor], Any]
    # The loss alone, where the score takes long.
    losses: Callable[[Any, Tensor], Tensor] | None = None
    # One score in [0, 1] made of all samples' scores, where that is not their mean.
    combine: Callable[..., float] | None = None
    # Whether it is made of their labels too, as a rank correlation is.
    ranks: bool = False
    # The network's own answers in its outputs: they stand for labels where there are none.
    answer: Callable[[Any], Tensor] | None = None
    # How far the second outputs are from the first, for each sample; else KL, where they are logits.
    diverge: Callable[[Any, Any], Tensor] | None = None
    # The score that is to be expected of the second outputs, by the probabilities in the first.
    expect: Callable[[Any, Any], Tensor] | None = None
    # The share of these labels that is right by giving all samples the same answer.
    chance: Callable[[Tensor], float] | None = None
    # By how much the score of a sample may move for its answer to count as the same, where that is a number.
    tolerance: float = 1e-5
    # Whether it judges one output, the logits; else it is given all, as the network gives them.
    needs_logits: bool = False
    # Whether samples are compared with what the float network gives for them, whatever labels they have.
    reference: bool = False
    # Whether it is given every output that samples have a part in as [batch, values], by name.
    needs_axes: bool = False
    axes: tuple[tuple[str, Axis], ...] = ()
    # The name of the output that is judged, where the network gives several.
    output: str | None = None

    @property
    def mean(self) -> bool:
        """Whether the score is a mean over samples, so that a part of them can decide."""
        return self.combine is None

    @property
    def code(self) -> str | None:
        """A fingerprint of one's own functions; None for a task that comes with bitsect."""
        own = str(getattr(self.function, "__module__", "")).partition(".")[0] != __name__.partition(".")[0]
        functions = (self.function, self.combine, self.answer, self.diverge)
        return fingerprint(*functions) if own or self.combine else None

    def on(self, output: str | None, example: Any, axes: Mapping[str, Axis] | None = None) -> Task:
        """This task on the output of that name; else on the one with the logits, if it judges these.

        `example` is what the network gives, `axes` say where its samples lie in what layers reach of it.
        Without clear logits, it is refused once they are needed.
        """
        if output is not None:
            pick(example, output)
        if self.needs_axes:
            return self._on_all(output, axes or {})
        if output is not None:
            return replace(self, output=output)
        if self.needs_logits:
            with suppress(DataError):
                output = logits_name(example) or None
        return replace(self, output=output)

    def _on_all(self, output: str | None, axes: Mapping[str, Axis]) -> Task:
        """This task on every output that can be compared sample by sample, or on the one that is named."""
        if output is None and "logits" in axes:
            output = "logits"
        chosen = dict(axes) if output is None else {name: axes[name] for name in axes if name == output}
        if not chosen:
            what = "no output" if output is None else f"not the output '{output}'"
            raise DataError(
                f"task '{self.name}': {what} of the network is made by layers for every sample: {OWN_TASK}"
            )
        return replace(self, output=output, axes=tuple(chosen.items()))

    def outcome(self, outputs: Any, labels: Tensor) -> Outcome:
        """The loss, if the task has one, and the score of every sample."""
        with calling("task", self.name):
            answer = self.function(self._judged(outputs), labels)
        if not isinstance(answer, Outcome):
            pair = answer if isinstance(answer, tuple) and len(answer) == 2 else (None, answer)
            answer = Outcome(*pair)
        loss, score, _ = answer
        for what, values in (("loss", loss), ("score", score)):
            if what == "score" or values is not None:
                self._check_shape(what, values, len(labels))
        outside = ~((score >= 0) & (score <= 1))  # so that NaN is outside too
        if outside.any():
            raise BitsectError(
                f"task '{self.name}': a score of {float(score[outside][0])}: scores are from 0 to 1"
            )
        return answer

    def loss(self, outputs: Any, labels: Tensor) -> Tensor:
        loss = self.loss_if_any(outputs, labels)
        if loss is None:
            raise BitsectError(f"task '{self.name}' gives no loss to differentiate: return (loss, score)")
        return loss

    def loss_if_any(self, outputs: Any, labels: Tensor) -> Tensor | None:
        """The loss of every sample; None where the task has none."""
        if self.losses is not None:
            return self.losses(self._judged(outputs), labels)
        return self.outcome(outputs, labels).loss

    def score(self, outputs: Any, labels: Tensor) -> Tensor:
        return self.outcome(outputs, labels).score

    def score_all(self, scores: Tensor, labels: Tensor | None = None) -> float:
        """The score of all samples from the score of each, and from their labels where it ranks them."""
        if self.combine is None:
            return float(scores.double().mean())
        with calling("task", self.name):
            return float(self.combine(scores, labels) if self.ranks else self.combine(scores))

    def answers(self, outputs: Any) -> Tensor:
        """The network's own answers, which stand for labels where there are none."""
        if self.answer is None:
            raise DataError(
                f"task '{self.name}' needs labels: give (inputs, labels), or say in a bitsect.Task "
                "by answer=f what of the outputs stands for them"
            )
        return self.answer(self._judged(outputs))

    def divergence(self, reference: Any, outputs: Any) -> Tensor | None:
        """How far each sample's outputs moved from the reference's; None if the task cannot say."""
        first, second = self._judged(reference), self._judged(outputs)
        if self.diverge is not None:
            return self.diverge(first, second)
        with suppress(DataError):
            if logits(first).shape[1] > 1:  # what one column means only the task knows
                return divergence(logits(first), logits(second))
        return None

    def expected(self, reference: Any, outputs: Any) -> Tensor | None:
        """The score that the reference's own probabilities expect of each sample; None if it has none."""
        if self.expect is None:
            return None
        return self.expect(self._judged(reference), self._judged(outputs))

    def parts(self, outputs: Any) -> dict[str, Tensor]:
        """The outputs that a task with axes judges, each [batch, values], by name."""
        return {name: rows_of(pick(outputs, name), axis) for name, axis in self.axes}

    def _judged(self, outputs: Any) -> Any:
        if self.axes:
            return self.parts(outputs)
        return outputs if self.output is None else pick(outputs, self.output)

    def _check_shape(self, what: str, values: Any, samples: int) -> None:
        shape = tuple(values.shape) if isinstance(values, Tensor) else type(values).__name__
        if shape != (samples,):
            raise BitsectError(
                f"task '{self.name}': the {what} of {samples} samples is {shape}: "
                f"return a tensor with one value per sample, ({samples},)"
            )


def task_named(task: str | Task | Callable[[Any, Tensor], Any]) -> Task:
    """The task of this name; or one's own, as `package.module:attribute` or as the object itself.

    One's own is a `Task`, or a function (outputs, labels) → (loss, score), or → score.

    >>> task_named("classification").mean
    True
    """
    if isinstance(task, Task):
        return task
    if callable(task):
        return Task(getattr(task, "__qualname__", type(task).__name__), task)
    found = choose("task", task, TASKS, own=True)
    if isinstance(found, Task):
        return found
    if not callable(found):
        raise BitsectError(f"task '{task}' is a {type(found).__name__}: name a function or a Task")
    return Task(task, found)
