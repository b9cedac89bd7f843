"""The most accurate plan within a budget of latency or size.

Costs need no evaluation, so the plans worth asking about are found first: with the f most sensitive
layers kept at their highest, the fewest of the others, in rising order of sensitivity, go down the
ladder until the budget fits. A few of these plans, from f = 0 to the largest that fits, are judged.

With a predicted damage they are instead those of the trail that fit and have the least of it, each
after what it leaves of the budget was spent. Between plans that spend the same, a few hundred samples
can hardly tell: of those within a standard error of the best accuracy, the least damage decides.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable

import numpy as np

from ...errors import TargetError
from ...values import Evaluation, Plan
from .problem import Found, Problem, Trials
from .trail import Trails, Whole

CANDIDATES = 12  # plans judged at most, besides those that were asked about before

Excess = Callable[[Plan], float]  # how far a plan is over the budget; 0 or less fits


class NothingFitsError(TargetError):
    """No plan is within the budget; `plan` is the nearest."""

    def __init__(self, plan: Plan, excess: float) -> None:
        super().__init__(f"no plan fits the budget: the nearest ({plan.counted}) is {excess:.1%} over it")
        self.plan = plan


def within_budget(problem: Problem, excess: Excess, asked: Iterable[Plan] = ()) -> Found:
    """The most accurate plan judged that fits, the cheapest of equals; by damage where that is predicted.

    Where none fits, NothingFitsError holds the nearest. Plans that were `asked`
    about before and fit are judged to the end too.
    """
    trials = Trials(problem)
    if excess(problem.start) <= 0:
        trials.steps.append("every layer at its highest is within the budget")
        return trials.found(problem.start)
    candidates = _predicted(problem, excess) or _spread(_fitting(problem, excess))
    candidates += [plan for plan in asked if plan not in candidates and excess(plan) <= 0]
    best = max(candidates, key=lambda plan: (trials.complete(plan).exact, -excess(plan)))
    step = f"{best.counted}: the most accurate within the budget, of {len(candidates)} judged"
    if problem.damage is not None:
        damage = {plan: problem.damage(problem.on_ladders(plan)) for plan in candidates}
        enough = trials.complete(best).accuracy - _standard_error(trials.complete(best))
        if trials.passes(best):  # the target comes first
            enough = max(enough, float(problem.threshold))
        alike = [plan for plan in candidates if trials.complete(plan).accuracy >= enough]
        best = min(alike, key=lambda plan: (damage[plan], excess(plan)))
        step = f"{best.counted}: the least predicted damage within the budget, of {len(candidates)} judged"
    trials.steps.append(step)
    return trials.found(best)


def _predicted(problem: Problem, excess: Excess) -> list[Plan]:
    """The plans that fit with the least damage, if one is predicted, with the rest of the budget spent."""
    if problem.damage is None:
        return []
    trails = Trails(problem)
    fitting = [at for at in trails.down(trails.rungs(problem.start)) if excess(trails.plan(at)) <= 0]
    fitting = sorted(fitting, key=trails.predicted)[: CANDIDATES // 2]
    plans = dict.fromkeys(trails.plan(_spent(trails, first, excess)) for first in fitting)
    return sorted(plans, key=trails.damage)


def _spent(trails: Trails, at: Whole, excess: Excess) -> Whole:
    """The plan after ever more of the budget went to where it spares the most damage."""
    while True:
        polished = trails.polished(at)  # which minds the price alone, not every limit
        at = polished if excess(trails.plan(polished)) <= 0 else at
        moves = trails.moves(at)
        now = trails.predicted(at)
        trials = (moves.made(at, int(move)) for move in np.argsort(moves.damage, kind="stable"))
        fitting = (trial for trial in trials if excess(trails.plan(trial)) <= 0)
        better = next(fitting, None)
        if better is None or trails.predicted(better) >= now:
            return at
        at = better


def _standard_error(evaluation: Evaluation) -> float:
    """Of an accuracy over single samples; none is known of a score of all samples together."""
    accuracy = evaluation.accuracy
    return 0.0 if evaluation.total == 1 else (accuracy * (1 - accuracy) / evaluation.total) ** 0.5


def _fitting(problem: Problem, excess: Excess) -> list[Plan]:
    """For each number of spared layers, the first plan on the way down that fits."""
    found: list[Plan] = []
    for spared in range(len(problem.layers)):
        way = _way_down(problem, spared)
        if excess(way[-1]) > 0:  # sparing more costs more
            break
        found.append(way[bisect_left(way, True, key=lambda plan: excess(plan) <= 0)])
    return list(dict.fromkeys(found)) or [_nearest(problem, excess)]


def _way_down(problem: Problem, spared: int) -> list[Plan]:
    """The plans met while one layer after the other goes down, the `spared` most sensitive never."""
    way = [problem.start]
    for format in problem.formats:
        keep = set(problem.order(format)[len(problem.layers) - spared :])
        for name in problem.candidates(way[-1], format):
            if name not in keep:
                way.append(way[-1].replace([name], format))
    return way


def _nearest(problem: Problem, excess: Excess) -> Plan:
    """A plan that fits although the lowest formats do not, where a lower one can cost more."""
    plan = min(_way_down(problem, 0), key=excess)
    for name, ladder in problem.ladders.items():
        plan = min((plan.replace([name], format) for format in ladder), key=excess)
    if excess(plan) > 0:
        raise NothingFitsError(plan, excess(plan))
    return plan


def _spread(plans: list[Plan]) -> list[Plan]:
    """At most CANDIDATES of `plans`, evenly, both ends included."""
    count = min(CANDIDATES, len(plans))
    return [plans[i * (len(plans) - 1) // max(1, count - 1)] for i in range(count)]
