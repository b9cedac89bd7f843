"""The share of the float network's accuracy that must be kept."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from decimal import Decimal, InvalidOperation
from fractions import Fraction
from typing import Any

from ..errors import BitsectError
from ..names import listed


@dataclass(frozen=True)
class Target:
    """Either `relative` (a share of the float accuracy) or `max_drop` (a fraction lost at most).

    Held as exact fractions, so that 99.9 % means 999/1000 and counts are compared without rounding. A largest
    `perplexity`, as a multiple of float's, is a largest drop too, of the score of a language model, once it
    is known how many tokens that chooses from: see `of_tokens`.

    >>> Target.parse("99.9%").threshold(Fraction(900, 1000))
    Fraction(8991, 10000)
    """

    relative: Fraction | None = None
    max_drop: Fraction | None = None
    perplexity: Fraction | None = None

    def __post_init__(self) -> None:
        drops = self.max_drop is not None or self.perplexity is not None
        if (self.relative is not None) == drops:
            raise BitsectError("a target is either relative (99.9%) or a largest drop, not both")
        if self.perplexity is not None and not 1 < self.perplexity <= 2:
            raise BitsectError("a largest perplexity is a multiple of float's, above 1 and up to 2: 1.01x")
        if self.relative is not None and not 0 < self.relative <= 1:
            raise BitsectError("a relative target is a share above 0 and up to 1")
        if self.max_drop is not None and not 0 <= self.max_drop < 1:
            raise BitsectError("a largest drop is a fraction from 0 to 1")

    @classmethod
    def parse(cls, text: str | float) -> Target:
        """The target in `text`: 99.9% or 0.999, or as a target is printed."""
        share = str(text).strip()
        if share.startswith("max drop "):
            return cls.drop(share.removeprefix("max drop ").removesuffix(" points"))
        if share.startswith("perplexity "):
            return cls.of_perplexity(share.removeprefix("perplexity "))
        number = _number(share.removesuffix("%"))
        if number is not None and share.endswith("%"):
            number /= 100
        if number is None or not 0 < number <= 1:
            raise BitsectError(f"target '{text}' is not a share above 0 and up to 1, such as 99.9% or 0.999")
        return cls(relative=number)

    @classmethod
    def several(cls, given: Any) -> tuple[Target, ...]:
        """The targets of a list, or of text with commas, each once.

        >>> [str(each) for each in Target.several("98%,0.99,99%")]
        ['98%', '99%']
        """
        found = (each if isinstance(each, cls) else cls.parse(each) for each in listed(given))
        return tuple(dict.fromkeys(found))

    @classmethod
    def drop(cls, points: float | str) -> Target:
        """A target that loses at most `points` percentage points."""
        number = _number(str(points))
        if number is None or not 0 <= number < 100:
            raise BitsectError(f"largest drop '{points}' is not a number of percentage points from 0 to 100")
        return cls(max_drop=number / 100)

    @classmethod
    def of_perplexity(cls, text: str | float) -> Target:
        """The perplexity may rise to `1.01x` that of the float network.

        >>> str(Target.of_perplexity("1.01x"))
        'perplexity 1.01x'
        """
        number = _number(str(text).strip().removesuffix("x"))
        if number is None or not 1 < number <= 2:
            raise BitsectError(f"largest perplexity '{text}' is not a multiple above 1 and up to 2, as 1.01x")
        return cls(perplexity=number)

    @property
    def nats(self) -> float:
        """By how much the mean surprise −ln p of a token may rise: ln of the largest perplexity."""
        return math.log(self.perplexity or 1)

    def of_tokens(self, tokens: int) -> Target:
        """A largest perplexity as a largest drop of the score 1 − (−ln p) / ln V, with V `tokens`."""
        return replace(self, max_drop=Fraction(self.nats / math.log(max(2, tokens))))

    def threshold(self, float_accuracy: Fraction) -> Fraction:
        """The least accuracy that keeps the target."""
        if self.relative is not None:
            return self.relative * float_accuracy
        if self.max_drop is None:
            raise BitsectError(f"a target of {self} is for the task language-modelling alone")
        return max(Fraction(0), float_accuracy - self.max_drop)

    def __str__(self) -> str:
        if self.relative is not None:
            return f"{_written(self.relative * 100)}%"
        if self.perplexity is not None:
            return f"perplexity {_written(self.perplexity)}x"
        assert self.max_drop is not None
        return f"max drop {_written(self.max_drop * 100)} points"


def _written(number: Fraction) -> str:
    """All digits of a number that was written as a decimal, so that it can be read again."""
    digits = Decimal(number.numerator) / Decimal(number.denominator)
    return f"{digits.normalize():f}"


def _number(text: str) -> Fraction | None:
    """The number that `text` writes out, if it is one of ordinary size."""
    try:
        number = Decimal(text.strip())
    except InvalidOperation:
        return None
    # A fraction has all its digits: 1e999999999 would take for ever.
    return Fraction(number) if number.is_finite() and abs(number.adjusted()) < 30 else None
