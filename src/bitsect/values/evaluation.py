"""How well a plan did on the samples seen so far."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction


@dataclass(frozen=True)
class Evaluation:
    """Sum of per-sample scores in [0, 1] over `seen` of `total` samples.

    A task whose score is no mean over samples is held as one sample (`seen == total == 1`).
    """

    correct: float
    seen: int
    total: int
    loss: float | None = None  # mean over the samples seen

    @property
    def accuracy(self) -> float:
        return self.correct / self.seen if self.seen else 0.0

    @property
    def shown(self) -> str:
        return accuracy_shown(self.accuracy, self.total)

    @property
    def exact(self) -> Fraction:
        return Fraction(self.correct) / self.total

    @property
    def complete(self) -> bool:
        return self.seen == self.total

    def __repr__(self) -> str:
        seen = f"{self.total:,}" if self.complete else f"the first {self.seen:,} of {self.total:,}"
        return f"Evaluation: {self.shown} on {seen} samples"

    def reaches(self, threshold: Fraction) -> bool | None:
        """Whether the accuracy over all samples is at least `threshold`; None while undecided.

        >>> Evaluation(90, 91, 100).reaches(Fraction(9, 10))
        True
        >>> Evaluation(80, 91, 100).reaches(Fraction(9, 10))
        False
        >>> Evaluation(80, 81, 100).reaches(Fraction(9, 10)) is None
        True
        """
        needed = threshold * self.total
        have = Fraction(self.correct)
        if have >= needed:
            return True
        return False if have + (self.total - self.seen) < needed else None


def accuracy_shown(accuracy: float, samples: int) -> str:
    """In per cent; a score of all samples together, held as one sample, may have another scale, and stays.

    >>> accuracy_shown(0.93, 100), accuracy_shown(27.31, 1)
    ('93.00%', '27.31')
    """
    return f"{accuracy:.4g}" if samples == 1 else f"{accuracy:.2%}"
