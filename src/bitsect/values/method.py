"""Methods: named defaults for every option."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeVar

from .destination import BITS, DEFAULT
from .format import INT4, INT8
from .goal import Goal
from .options import given
from .scoring import Scoring
from .settings import Settings

T = TypeVar("T")


@dataclass(frozen=True)
class Method:
    """A named triple of option values; whatever a user asks for replaces its own."""

    name: str
    settings: Settings
    scoring: Scoring
    goal: Goal
    destination: str = DEFAULT  # where a plan is to run, if nobody says

    def complete(self, asked: T) -> T:
        """`asked` with this method's options where nothing else was asked for."""
        (own,) = (each for each in (self.settings, self.scoring, self.goal) if type(each) is type(asked))
        options: dict[str, Any] = {**given(own), **given(asked)}
        return type(asked)(**options)


# The paper's set-up in every option, as we read it; docs/paper.md says where that is not to the letter.
PAPER = Method("paper", Settings(), Scoring(), Goal(), destination=BITS)
# To the letter: 4,096 samples, Hutchinson's traces, the sum over pairs clipped, Algorithm 1 as printed. For
# the objective size every layer is offered 8 and 4 bits, whether they are faster on a device or not.
PAPER_LITERAL = Method(
    "paper-literal",
    Settings(draw=4096),
    Scoring(estimator="hutchinson", clip="sum"),
    Goal(search="literal", formats=(INT8, INT4), objective="size"),
    destination=BITS,
)
# What was measured to be better: least-squares ranges, unsigned codes, second-order rounding of few bits;
# layers by their predicted damage, along which the search goes, by expected accuracy, which is less noisy
# than that of labels; and a promise on samples held out.
BITSECT = Method(
    "bitsect",
    Settings(range="mse", sign="auto", rounding="gptq"),
    Scoring(metric="damage", until_stable=0.98),
    Goal(search="frontier", guide="expected", confidence=0.95),
)
METHODS = {method.name: method for method in (PAPER, PAPER_LITERAL, BITSECT)}


def default_words(kind: type[Any], name: str, default: Any) -> str:
    """What an option is where nobody says otherwise, in words; and in the paper's method, if that differs.

    >>> default_words(Settings, "range", "percentile"), default_words(Settings, "threads", None)
    ('mse (paper: percentile)', '')
    """
    plain = _words(default)
    for own in (BITSECT.settings, BITSECT.scoring, BITSECT.goal):
        if type(own) is kind and name in given(own):
            return f"{_words(given(own)[name])} (paper: {plain or 'none'})"
    return plain


def _words(value: Any) -> str:
    if value in (None, True, False, ()):
        return ""
    return ",".join(map(str, value)) if isinstance(value, tuple) else f"{value}"
