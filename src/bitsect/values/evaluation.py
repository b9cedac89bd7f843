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
        """The accuracy in per cent; a score of all samples together may have another scale, and stays.

        >>> Evaluation(93, 100, 100).shown, Evaluation(27.31, 1, 1).shown
        ('93.00%', '27.31')
        """
        return f"{self.accuracy:.4g}" if self.total == 1 else f"{self.accuracy:.2%}"

    @property
    def exact(self) -> Fraction:
        return Fraction(self.correct) / self.total

    @property
    def complete(self) -> bool:
        return self.seen == self.total

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
