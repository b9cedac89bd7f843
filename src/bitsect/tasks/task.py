"""What is asked of a network's outputs: a loss and a score for every sample."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from torch import Tensor

from ..errors import BitsectError
from ..references import calling


class Judged(NamedTuple):
    """One value per sample: `loss` to differentiate, `score` in [0, 1] to count."""

    loss: Tensor | None
    score: Tensor


@dataclass(frozen=True)
class Task:
    """A function (outputs, labels) → (loss, score), each [batch], held to that.

    A function may return the score alone; then nothing that needs gradients can be measured.
    `combine` makes one score in [0, 1] of all samples' scores where that is not their mean.
    """

    name: str
    function: Callable[[Any, Tensor], Any]
    combine: Callable[[Tensor], float] | None = None

    @property
    def mean(self) -> bool:
        """Whether the score is a mean over samples, so that a part of them can decide."""
        return self.combine is None

    def judge(self, outputs: Any, labels: Tensor) -> Judged:
        with calling("task", self.name):
            answer = self.function(outputs, labels)
        loss, score = answer if isinstance(answer, tuple) and len(answer) == 2 else (None, answer)
        for what, values in (("loss", loss), ("score", score)):
            if what == "score" or values is not None:
                self._check_shape(what, values, len(labels))
        outside = ~((score >= 0) & (score <= 1))  # so that NaN is outside too
        if outside.any():
            raise BitsectError(
                f"task '{self.name}': a score of {float(score[outside][0])}: scores are from 0 to 1"
            )
        return Judged(loss, score)

    def loss(self, outputs: Any, labels: Tensor) -> Tensor:
        loss = self.judge(outputs, labels).loss
        if loss is None:
            raise BitsectError(f"task '{self.name}' gives no loss to differentiate: return (loss, score)")
        return loss

    def score(self, outputs: Any, labels: Tensor) -> Tensor:
        return self.judge(outputs, labels).score

    def score_all(self, scores: Tensor) -> float:
        """The score of all samples from the score of each."""
        if self.combine is None:
            return float(scores.double().mean())
        with calling("task", self.name):
            return float(self.combine(scores))

    def _check_shape(self, what: str, values: Any, samples: int) -> None:
        shape = tuple(values.shape) if isinstance(values, Tensor) else type(values).__name__
        if shape != (samples,):
            raise BitsectError(
                f"task '{self.name}': the {what} of {samples} samples is {shape}: "
                f"return a tensor with one value per sample, ({samples},)"
            )
