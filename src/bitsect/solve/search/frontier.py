"""Frontier: along the plans of least predicted damage, then around the one that is found."""

from __future__ import annotations

import math

import numpy as np

from ...values import Plan
from .problem import Found, Problem, Trials
from .trail import Numbers, Point, Trails, Whole, thinned

EVALUATIONS = 16  # plans asked about at most
FINE = 0.002  # of all that can be saved: plans closer than this are not told apart by bisection
SPREAD = 0.3  # standard deviation of log(real damage / predicted damage) between similar plans
LEAST = 1e-300  # a damage of nothing has a logarithm too
WORTH = 0.02  # plans less likely to pass than this are not asked about: they would pass by luck
CULPRIT = 1.3  # what a failure multiplies the damage of the layers by that it moved


def frontier(problem: Problem, evaluations: int = EVALUATIONS) -> Found:
    """The cheapest plan that passed, of 16 asked about: bisection along a trail, then repairs.

    The trail leads from every layer at its highest to the cheapest plan, always by the move with the
    least predicted damage per cost saved; before a plan on it is asked about, moves are exchanged
    while that lowers its damage at no more cost. Once a plan has passed and one has failed, the
    next is where the measured accuracies, as a line over log(damage), cross the threshold.

    What is left of the evaluations goes to plans that are one or two moves away from the cheapest that
    passed, or from a failure that came near, and cheaper: those for which P(passes) · saving is the
    most. P falls with the predicted damage, about the damage that best parts what passed from what
    failed; a failure raises the predicted damage of the layers that it moved.

    Accuracy on a few hundred samples is noisy, and of 16 plans some pass by luck: the plan that is
    returned has passed, and plans of its damage did so more often than not.
    """
    return Frontier(problem, evaluations).run()


class Frontier:
    """A search that can be stopped at any time: `best` has passed, whatever happens next."""

    def __init__(self, problem: Problem, evaluations: int = EVALUATIONS) -> None:
        self.problem, self.evaluations = problem, evaluations
        self.trials = Trials(problem)
        self._trails = Trails(problem)
        self._asked: dict[Plan, Whole] = {}  # and the start, which passes by definition
        self._lead: Whole | None = None  # the cheapest that passed
        self._price = math.inf  # of the lead

    def run(self) -> Found:
        trails, plan = self._trails, self.trials.start()
        self._lead = self._asked[plan] = trails.rungs(plan)
        self._price = trails.price(self._lead)
        self._bisect(thinned(trails, trails.down(self._lead)))
        while self._left() and self._improve():
            pass
        best = self.best
        assert best is not None
        self._explain(best)
        return self.trials.found(best)

    @property
    def best(self) -> Plan | None:
        """The cheapest plan that passed, but not by luck; None while nothing has passed.

        By luck passes a plan with more damage than plans that fail: those that passed count up to the
        damage below which most passed and fewest failed, the larger one in a tie.
        """
        asked = [
            (self._trails.damage(plan), self._trails.price(at), self._passed(plan), plan)
            for plan, at in self._asked.items()
        ]
        passed = [known for known in asked if known[2]]
        if not passed:
            return None

        def parted(limit: float) -> int:
            return sum(1 if known[2] else -1 for known in asked if known[0] <= limit)

        limit = max((known[0] for known in passed), key=lambda damage: (parted(damage), damage))
        return min((known for known in passed if known[0] <= limit), key=lambda known: known[1])[3]

    # Asking

    def _left(self) -> bool:
        return len(self.trials.evaluated) < self.evaluations

    def _ask(self, at: Whole) -> bool:
        """Whether the plan passes; if so and it is cheaper, it takes the lead."""
        plan = self._trails.plan(at)
        passed = self.trials.passes(plan)
        self._asked[plan] = at
        price = self._trails.price(at)
        if passed and price < self._price:
            self._lead, self._price = at, price
        return passed

    def _accuracy(self, at: Whole) -> float | None:
        evaluation = self.trials.evaluated.get(self._trails.plan(at))
        return None if evaluation is None else evaluation.accuracy

    # Along the trail

    def _bisect(self, points: list[Point]) -> None:
        """Ask along the trail until the last that passes is known, or the costs hardly differ."""
        trails = self._trails
        plans = [trails.rungs(point.plan) for point in points]
        fine = FINE * (points[0].cost - points[-1].cost)
        passed, failed = 0, len(points)
        while failed - passed > 1 and self._left():
            if failed < len(points) and points[passed + 1].cost - points[failed].cost < fine:
                return
            middle = self._crossing(points, plans, passed, failed)
            plans[middle] = trails.polished(plans[middle])
            if self._ask(plans[middle]):
                passed = middle
            else:
                failed = middle

    def _crossing(self, points: list[Point], plans: list[Whole], passed: int, failed: int) -> int:
        """Where the accuracy is expected to cross the threshold, well inside the two; else the middle."""
        middle = (passed + failed) // 2
        above = self._accuracy(plans[passed])
        below = self._accuracy(plans[failed]) if failed < len(plans) else None
        threshold = float(self.problem.threshold)
        low, high = points[passed].damage, points[min(failed, len(points) - 1)].damage
        if above is None or below is None or not below < threshold <= above or not 0 < low < high:
            return middle
        share = (above - threshold) / (above - below)
        damage = low * (high / low) ** share
        reached = sum(point.damage <= damage for point in points) - 1
        margin = (failed - passed) // 8 + 1
        return min(max(reached, passed + margin), failed - margin) if failed - passed > 2 else middle

    # Around the lead

    def _improve(self) -> bool:
        """Ask about the plan from which the most saving is to be expected; False where there is none."""
        found = [self._most_promising(base) for base in self._bases()]
        _, base, trial = max(found, key=lambda candidate: candidate[0])
        if trial is None:
            return False
        passed = self._ask(trial)
        if not passed:
            for layer in np.flatnonzero(trial != base):
                self._trails.correct(int(layer), int(trial[layer]), CULPRIT)
        return True

    def _bases(self) -> list[Whole]:
        """The lead; and of those that are cheaper and failed, the one that came nearest."""
        assert self._lead is not None
        failed = [plan for plan, at in self._asked.items() if self._trails.price(at) < self._price]
        nearest = sorted(failed, key=lambda plan: self.trials.evaluated[plan].accuracy)[-1:]
        return [self._lead, *(self._asked[plan] for plan in nearest)]

    def _most_promising(self, base: Whole) -> tuple[float, Whole, Whole | None]:
        """The plan one or two moves from `base`, cheaper than the lead, from which most is to be expected."""
        trails = self._trails
        moves, room = trails.moves(base), self._price - trails.price(base)
        every = np.arange(len(moves.layer))
        damage = moves.damage[:, None] + moves.damage + trails.together(base, moves, every)
        cost = moves.cost[:, None] + moves.cost
        # On the diagonal stand the single moves; two moves of one layer are none.
        damage[every, every], cost[every, every] = moves.damage, moves.cost
        worth = np.triu(self._worth(trails.predicted(base) + damage, room - cost))
        worth[(moves.layer[:, None] == moves.layer) & ~np.eye(len(every), dtype=bool)] = 0.0
        while worth.max(initial=0.0) > 0:
            first, second = np.unravel_index(worth.argmax(), worth.shape)
            trial = base.copy()
            for move in (first, second):
                trial[moves.layer[move]] = moves.rung[move]
            if trails.price(trial) < self._price and trails.plan(trial) not in self.trials.evaluated:
                return float(worth[first, second]), base, trial
            worth[first, second] = 0.0
        return 0.0, base, None

    def _worth(self, damage: Numbers, saved: Numbers) -> Numbers:
        """P(passes) · saved, for plans of this predicted damage."""
        chance = self._chance(damage)
        return np.where((saved > 0) & (chance >= WORTH), saved * chance, 0.0)

    def _chance(self, damage: Numbers) -> Numbers:
        """P that a plan of this predicted damage passes."""
        return np.asarray(np.exp(_log_chance(self._limit() - np.log(np.maximum(damage, LEAST)))))

    def _limit(self) -> float:
        """The logarithm of the damage at which plans begin to fail: the mean over what is likely by now."""
        seen = np.log([max(self._trails.predicted(at), LEAST) for at in self._asked.values()])
        passed = np.array([self._passed(plan) for plan in self._asked])
        if passed.all():
            return math.inf
        limits = np.concatenate([seen - SPREAD, seen, seen + SPREAD])
        likely = _log_chance((limits[:, None] - seen) * np.where(passed, 1, -1)).sum(axis=1)
        return float(np.average(limits, weights=np.exp(likely - likely.max())))

    def _passed(self, plan: Plan) -> bool:
        known = self.trials.evaluated.get(plan)
        return known is None or known.reaches(self.problem.threshold) is True  # float is not asked about

    def _explain(self, best: Plan) -> None:
        """Say in the reason how many layers went down to each format, of those on the rung above it."""
        rung = {name: ladder.index(best[name]) for name, ladder in self.problem.ladders.items()}
        for format in self.problem.formats:
            down = {
                n: ladder.index(format) for n, ladder in self.problem.ladders.items() if format in ladder[1:]
            }
            taken = sum(rung[name] >= place for name, place in down.items())
            self.trials.note(format, taken, sum(rung[name] >= place - 1 for name, place in down.items()))


def _log_chance(margin: Numbers) -> Numbers:
    """The logarithm of P that a plan passes whose log-damage is `margin` below the limit (logistic)."""
    return np.asarray(-np.logaddexp(0.0, -1.7 * margin / SPREAD))
