"""From a problem to a plan: the search that was asked for, within what may be spent."""

from __future__ import annotations

from fractions import Fraction
from functools import partial

from ..errors import BitsectError, DataError, TargetError
from ..names import calling, choose
from ..values import FLOAT, Cost, Evaluation, Goal, LatencyTable, Plan, Target
from .costs import cost
from .search import PRINTED, SEARCHES, Search
from .search.frontier import frontier
from .search.problem import Found, Problem
from .search.uniform import or_cheaper_uniform
from .search.within_budget import NothingFitsError, within_budget


def threshold(target: Target | None, baseline: Evaluation) -> Fraction:
    """The least accuracy that keeps the target; 0 where a budget alone is asked for."""
    if target is None:
        return Fraction(0)
    if not baseline.correct:
        raise DataError(
            "the float network gets no sample right, so every plan would keep the target: "
            "check the labels and how the inputs are normalised"
        )
    if target.relative is None and baseline.accuracy > 1:  # a user's own figure, on a scale of its own
        raise DataError(
            f"[max_drop=] counts points of a share from 0 to 1, and the float network's figure is "
            f"{baseline.accuracy:g}: return a share, or pass [target=]"
        )
    return target.threshold(baseline.exact)


def solve(problem: Problem, goal: Goal, table: LatencyTable | None) -> Found:
    """The plan for the target; where that is over the budget, the most accurate one within it."""

    def spent(plan: Plan) -> Cost:
        return cost(plan, problem.layers, table)

    found, limits = None, goal.limits
    if goal.target is not None:
        found = _searched(problem, goal)
        if goal.search not in PRINTED:
            found = or_cheaper_uniform(problem, found, lambda plan: spent(plan).price(goal.objective))
    if found is not None and (limits is None or limits.fits(spent(found.plan))):
        return found
    assert limits is not None
    asked = [problem.uniform(format) for format in problem.formats]
    asked += [plan for plan, _ in found.evaluated] if found is not None else []
    try:
        return within_budget(problem, lambda plan: limits.excess(spent(plan)), asked)
    except NothingFitsError as error:
        held = goal.objective == "latency" and table is not None and goal.max_size is not None
        other = ", let layers take formats that are not faster with [objective=size]," if held else ""
        raise TargetError(
            f"budget {limits}: no plan fits; the nearest ({error.plan.counted}) takes "
            f"{_words(spent(error.plan))}: allow lower formats{other} or raise the budget"
        ) from None


def _words(cost: Cost) -> str:
    """What a plan costs, with as many digits as a budget may need."""
    size = f"{cost.size_bytes:,.0f} B, {cost.size_ratio:.4f}x of the size"
    if cost.latency_ms is None or cost.latency_ratio is None:
        return size
    return f"{size}, {cost.latency_ms:.4g} ms, {cost.latency_ratio:.4f}x of the latency"


def search_named(name: str) -> Search:
    """The search called `name`: one of SEARCHES, or `package.module:function`."""
    search: Search = choose("search", name, SEARCHES, own=True)
    if not callable(search):
        raise BitsectError(f"search '{name}' is a {type(search).__name__}: name a function of a Problem")
    return search


def _searched(problem: Problem, goal: Goal) -> Found:
    search = search_named(goal.search)
    if search is frontier:
        search = partial(frontier, evaluations=goal.evaluations)
    try:
        with calling("search", goal.search):
            found = search(problem)
    except TargetError as error:
        pins = [f"[keep={pin}]" for pin in goal.keep if FLOAT.name not in pin.rpartition("=")[2]]
        raise TargetError(": ".join([*pins, f"{error}"])) from None
    if not isinstance(found, Found):
        raise BitsectError(
            f"search '{goal.search}' returned a {type(found).__name__}: expected a bitsect.Found"
        )
    return found
