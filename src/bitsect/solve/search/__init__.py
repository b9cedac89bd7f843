"""Searches: the plan that keeps the target, asked of a judge in as few questions as may be."""

from __future__ import annotations

from collections.abc import Callable

from .bisection import bisection
from .frontier import Frontier, frontier
from .literal import literal
from .pins import pinned
from .problem import Found, Judge, Problem, high_to_low, uniform_plan
from .progressive import progressive
from .trail import safer, trail

Search = Callable[[Problem], Found]

SEARCHES: dict[str, Search] = {
    "bisection": bisection,
    "frontier": frontier,
    "literal": literal,
    "progressive": progressive,
}

__all__ = [
    "SEARCHES",
    "Found",
    "Frontier",
    "Judge",
    "Problem",
    "Search",
    "high_to_low",
    "pinned",
    "safer",
    "trail",
    "uniform_plan",
]
