"""The most accurate plan within a budget of latency or size.

Costs need no evaluation, so the plans worth asking about are found first: with the f most sensitive
layers kept at their highest, the fewest of the others, in rising order of sensitivity, go down the
ladder until the budget fits. One such plan for each of a few f is judged, and the best one kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from ..errors import TargetError
from ..values import Format, Plan
from .problem import Found, Problem, Trials

CANDIDATES = 12  # plans judged at most

Excess = Callable[[Plan], float]  # how far a plan is over the budget; 0 or less fits


def within_budget(problem: Problem, excess: Excess) -> Found:
    """The most accurate plan found that fits; a TargetError names the nearest if none does."""
    trials = Trials(problem)
    start = problem.start
    if excess(start) <= 0:
        return trials.found(start)
    candidates = list(dict.fromkeys(_fitting(problem, excess)))
    if not candidates:
        nearest = min(_lowered(problem, start, problem.formats, 0), key=excess)
        raise TargetError(
            f"no plan fits the budget: the nearest ({_counts(nearest)}) is {excess(nearest):.1%} over it; "
            "allow lower formats or raise the budget"
        )
    # Spread over the whole choice, from few sensitive layers spared to many.
    step = max(1, -(-len(candidates) // CANDIDATES))
    best = max(candidates[::step], key=lambda plan: trials.complete(plan).exact)
    trials.steps.append(
        f"{_counts(best)}: the most accurate of {len(candidates[::step])} plans within the budget"
    )
    return trials.found(best)


def _fitting(problem: Problem, excess: Excess) -> Iterator[Plan]:
    """For each number of spared layers, the first plan on the way down that fits."""
    for spared in range(len(problem.layers)):
        fits = next(
            (plan for plan in _lowered(problem, problem.start, problem.formats, spared) if excess(plan) <= 0),
            None,
        )
        if fits is None:
            return
        yield fits


def _lowered(problem: Problem, plan: Plan, formats: tuple[Format, ...], spared: int) -> list[Plan]:
    """The plans met while one layer after the other goes down, the `spared` most sensitive never."""
    met = [plan]
    for format in formats:
        candidates = problem.candidates(plan, format)
        keep = set(problem.order(format)[len(problem.layers) - spared :])
        for name in candidates:
            if name not in keep:
                plan = plan.replace([name], format)
                met.append(plan)
    return met


def _counts(plan: Plan) -> str:
    return ", ".join(f"{count} {name}" for name, count in plan.counts.items() if count)
