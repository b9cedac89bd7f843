"""Walk: along the plans of least predicted damage once, for many targets at a time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction

from ...values import Evaluation, Plan
from .problem import Problem
from .trail import Point, Trails, thinned

EVALUATIONS = 16  # plans asked about at most, whatever the number of targets
FINE = 0.005  # of all that can be saved: plans closer than this need not be told apart


@dataclass
class Walk:
    """The plans asked about on the trail, and for each threshold the two between which it is crossed."""

    problem: Problem
    thresholds: Sequence[Fraction]
    asked: dict[int, Evaluation] = field(default_factory=dict)  # by place on the trail, as asked
    plans: dict[int, Plan] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._trails = Trails(self.problem)
        self.points: list[Point] = thinned(
            self._trails, self._trails.down(self._trails.rungs(self.problem.start))
        )

    def run(self, evaluations: int = EVALUATIONS) -> dict[Plan, Evaluation]:
        """What was asked: every answer narrows all brackets that it falls into.

        The next plan is in the bracket where the most cost, summed over the targets that share it, is
        still undecided. It ends when no bracket is worth it, or with the evaluations.
        """
        while len(self.asked) < evaluations:
            bracket = self._widest()
            if bracket is None:
                break
            self._ask(self._crossing(*bracket))
        return {self.plans[place]: evaluation for place, evaluation in self.asked.items()}

    def _ask(self, place: int) -> None:
        trails = self._trails
        self.plans[place] = trails.plan(trails.polished(trails.rungs(self.points[place].plan)))
        self.asked[place] = self.problem.judge(self.plans[place], None)

    def bracket(self, threshold: Fraction) -> tuple[int, int]:
        """The last place that passed and the first that failed, as far as the answers narrow it.

        The start passes, and beyond the end everything fails. Answers count in the order in which they
        were given, so that one against the trend does not undo what is known.
        """
        passed, failed = 0, len(self.points)
        for place, evaluation in self.asked.items():
            if passed < place < failed:
                keeps = evaluation.exact >= threshold
                passed, failed = (place, failed) if keeps else (passed, place)
        return passed, failed

    def _widest(self) -> tuple[int, int, Fraction] | None:
        """The bracket with the most to be saved, and the middle one of the thresholds in it."""
        whole = self.points[0].cost - self.points[-1].cost
        shared: dict[tuple[int, int], list[Fraction]] = {}
        for threshold in sorted(set(self.thresholds)):
            shared.setdefault(self.bracket(threshold), []).append(threshold)
        worth = {
            (passed, failed): (self.points[passed].cost - self.points[failed - 1].cost) * len(thresholds)
            for (passed, failed), thresholds in shared.items()
            if failed - passed > 1
        }
        open_ones = {pair: value for pair, value in worth.items() if value / len(shared[pair]) > FINE * whole}
        if not open_ones:
            return None
        best = max(open_ones, key=lambda pair: open_ones[pair])
        return *best, shared[best][len(shared[best]) // 2]

    def _crossing(self, passed: int, failed: int, threshold: Fraction) -> int:
        """Where the accuracy, as a line over log(damage), crosses the threshold; else the middle."""
        middle = (passed + failed) // 2
        above, below = self.asked.get(passed), self.asked.get(failed)
        low, high = self.points[passed].damage, self.points[min(failed, len(self.points) - 1)].damage
        if above is None or below is None or not 0 < low < high or above.exact <= below.exact:
            return middle
        share = float((above.exact - threshold) / (above.exact - below.exact))
        damage = math.exp(math.log(low) + min(1.0, max(0.0, share)) * math.log(high / low))
        reached = sum(point.damage <= damage for point in self.points) - 1
        margin = (failed - passed) // 6 + 1
        inside = min(max(reached, passed + margin), failed - margin)
        return inside if passed < inside < failed else middle
