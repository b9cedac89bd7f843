"""Searches: the plan that keeps the target, asked of a judge in as few questions as may be."""

from __future__ import annotations

from collections.abc import Callable

from .bisection import bisection
from .frontier import frontier
from .literal import literal
from .problem import Found, Problem
from .progressive import progressive

Search = Callable[[Problem], Found]

SEARCHES: dict[str, Search] = {
    "bisection": bisection,
    "frontier": frontier,
    "literal": literal,
    "progressive": progressive,
}
