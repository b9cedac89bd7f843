"""Uniform plans as a bound: what a search comes back with is never dearer than one of them that passes."""

from __future__ import annotations

from collections.abc import Callable

from ...values import Plan
from .problem import Found, Problem, Trials

Price = Callable[[Plan], float]


def or_cheaper_uniform(problem: Problem, found: Found, price: Price) -> Found:
    """`found`; or the cheapest uniform plan that keeps the target for less, or where `found` does not."""
    trials = Trials(problem)
    plans = [problem.uniform(format) for format in problem.formats]
    tempting = [plan for plan in plans if not found.met or price(plan) < price(found.plan)]
    passing = [plan for plan in tempting if trials.passes(plan)]
    if not passing:
        return found
    best = min(passing, key=price)
    (format, *_) = (format for format in problem.formats if problem.uniform(format) == best)
    reason = f"{found.reason}; all layers in {format} keep the target for less"
    return Found(best, trials.complete(best), (*found.evaluated, *trials.evaluated.items()), True, reason)
