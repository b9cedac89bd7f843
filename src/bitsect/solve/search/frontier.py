"""Frontier: among the plans of least predicted damage, and around the one that is found."""

from __future__ import annotations

import math

import numpy as np

from ...values import Plan
from .limit import Limit
from .problem import Found, Problem, Trials
from .trail import Numbers, Trails, Whole, thinned

EVALUATIONS = 16  # plans asked about at most
WORTH = 0.02  # plans less likely to pass than this are not asked about: they would pass by luck
ALIKE = 0.995  # of its damage: a plan that saves no more than one that failed would fail like it
CULPRIT = 1.3  # what a failure multiplies the damage of the layers by that it moved


def frontier(problem: Problem, evaluations: int = EVALUATIONS) -> Found:
    """The cheapest plan that passed, of 16 asked about: always the one that promises the most saving.

    First all layers are asked about in one format, from the lowest up to one that passes. Every other
    plan is the one for which P(passes) · saving is the most, of two kinds. The trail leads from every
    layer at its highest to the cheapest plan, always by the move with the least predicted damage per
    cost saved; before a plan on it is asked about, moves are exchanged while that lowers its damage at
    no more cost. The other plans are one or two moves away from the cheapest that passed, or from a
    failure that came near. P falls with the predicted damage, about the limit that is likely after
    what passed and failed so far (see `Limit`); a failure raises the predicted damage of the layers
    that it moved.

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
        self._trail = [trails.rungs(point.plan) for point in thinned(trails, trails.down(self._lead))]
        for format in reversed(self.problem.formats):
            if self._left() and self._ask(trails.rungs(self.problem.uniform(format))):
                break
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
        # The start passes by definition, which says nothing about luck.
        passed = [known for known in passed if known[3] != self.problem.start] or passed

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

    # What to ask next

    def _improve(self) -> bool:
        """Ask about the plan from which the most saving is to be expected; False where there is none."""
        if len(self._trail) == 1:  # there is nothing to choose
            return False
        self._limit = self._learnt()
        found = [self._on_the_trail(), *(self._around(base) for base in self._bases())]
        _, base, trial = max(found, key=lambda candidate: candidate[0])
        if trial is None:
            return False
        if not self._ask(trial):
            for layer in np.flatnonzero(trial > base):  # those that went down
                self._trails.correct(int(layer), int(trial[layer]), CULPRIT)
        return True

    def _learnt(self) -> Limit:
        """What the plans asked about so far say of the limit."""
        before = self.problem.judge(Plan.uniform(self.problem.layers), None)  # known before any search
        allowed = before.accuracy - float(self.problem.threshold)
        if before.total > 1:  # less than a sample cannot be lost
            allowed = max(allowed, 1 / before.total)
        asked = {plan: at for plan, at in self._asked.items() if plan in self.trials.evaluated}
        damage = [self._trails.predicted(at) for at in asked.values()]
        lost = [before.accuracy - self.trials.evaluated[plan].accuracy for plan in asked]
        share = [each / allowed if allowed > 0 else 0.0 for each in lost]
        return Limit.learnt(damage, [self._passed(plan) for plan in asked], share)

    def _on_the_trail(self) -> tuple[float, Whole, Whole | None]:
        """The plan of the trail, bettered by exchanges, from which most is to be expected."""
        trails, trail = self._trails, self._trail
        saved = self._price - np.array([trails.price(at) for at in trail])
        worth = self._worth(np.array([trails.predicted(at) for at in trail]), saved)
        while worth.max(initial=0.0) > 0:
            place = int(worth.argmax())
            trial = trails.polished(trail[place])
            if trails.price(trial) < self._price and trails.plan(trial) not in self.trials.evaluated:
                return float(worth[place]), trial, trial
            worth[place] = 0.0
        return 0.0, trail[0], None

    def _bases(self) -> list[Whole]:
        """The lead; and of those that are cheaper and failed, the one that came nearest."""
        assert self._lead is not None
        failed = [plan for plan, at in self._asked.items() if self._trails.price(at) < self._price]
        nearest = sorted(failed, key=lambda plan: self.trials.evaluated[plan].accuracy)[-1:]
        return [self._lead, *(self._asked[plan] for plan in nearest)]

    def _around(self, base: Whole) -> tuple[float, Whole, Whole | None]:
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
        """P(passes) · saved, for plans of this predicted damage; nothing where a better one has failed."""
        chance = self._limit.chance(damage)
        worth = np.where((saved > 0) & (chance >= WORTH), saved * chance, 0.0)
        for plan, at in self._asked.items():
            if not self._passed(plan):
                saved_there, like = self._price - self._trails.price(at), ALIKE * self._trails.predicted(at)
                worth[(saved <= saved_there) & (damage >= like)] = 0.0
        return worth

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
            if not taken and any(format in plan.values() and self._passed(plan) for plan in self._asked):
                self.trials.steps.append(f"no layer took {format}: plans with it passed by luck alone")
                continue
            self.trials.note(format, taken, sum(rung[name] >= place - 1 for name, place in down.items()))
