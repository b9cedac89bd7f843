"""Searches: the plan that keeps the target, asked of a judge in as few questions as may be."""

from __future__ import annotations

from collections.abc import Callable

from .bisection import bisection
from .frontier import frontier
from .literal import literal, literal_progressive
from .problem import Found, Problem
from .progressive import progressive

Search = Callable[[Problem], Found]

SEARCHES: dict[str, Search] = {
    "bisection": bisection,
    "frontier": frontier,
    "literal": literal,
    "literal-progressive": literal_progressive,
    "progressive": progressive,
}
# The paper's algorithms as printed: what they end on is the answer, and no uniform plan stands in for it.
PRINTED = ("literal", "literal-progressive")
