"""From a goal to a plan: the cheapest plan is tried first, and only where it fails are layers scored."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from ..runs.run import Run
from ..solve.allowed import Allowed, allowed_formats
from ..solve.answer import solve, threshold
from ..solve.costs import cost
from ..solve.search.problem import Found, Problem
from ..values import Goal, LatencyTable, Plan, Scores, Scoring
from ..values.destination import Destination
from .fastest import Fastest
from .judge import Judge
from .latency import table_for
from .methods import FRONTIER
from .problem import scored_problem, unscored_problem
from .promise import Promise, Prover, follow, prove_plan


@dataclass(frozen=True)
class Case:
    """A goal for a run, with the formats and latencies of its destination: all but scores of layers."""

    run: Run
    goal: Goal
    judge: Judge
    table: LatencyTable | None
    notes: tuple[str, ...]  # on the latencies
    allowed: Allowed
    problem: Problem
    fastest: Fastest

    @classmethod
    def of(cls, run: Run, goal: Goal, destination: Destination, judge: Judge, *, roughly: bool) -> Case:
        """The case, calibrated; `roughly` timed where no search has to rest on the latencies."""
        table, notes = table_for(run, goal, mixed=not roughly)
        allowed = allowed_formats(run.layers, goal, table)
        run.calibrate(allowed.all)  # ranges and fitted weights, kept in the run
        judge.allow(allowed.all)
        guide = judge.guide(goal.guide)
        needed = threshold(goal.target, guide(Plan.uniform(run.layers), None))
        problem = unscored_problem(run, goal, allowed, needed, guide, table)
        fastest = Fastest(run, problem, goal, destination, table, allowed)
        return cls(run, goal, judge, table, notes, allowed, problem, fastest)

    @property
    def needed(self) -> Fraction:
        """The least accuracy by labels that keeps the target."""
        return threshold(self.goal.target, self.judge(Plan.uniform(self.run.layers)))

    def cheapest(self) -> Plan:
        """The plan that costs least; for a runtime, the one whose file runs fastest here.

        It is looked for among those with every layer in one format, and the one with every layer in the
        fastest of its own formats.
        """
        lowest = Plan({name: ladder[-1] for name, ladder in self.problem.ladders.items()})
        uniform = filter(self.fastest.fits, self.allowed.uniform().values())
        plans = list(dict.fromkeys([lowest, *uniform]))
        return self.fastest.of(plans) if self.fastest.applies else min(plans, key=self.price)

    def price(self, plan: Plan) -> float:
        """What is to be small, of `plan`."""
        price: float = cost(plan, self.run.layers, self.table).price(self.goal.objective)
        return price


def is_tried_first(goal: Goal) -> bool:
    """Whether the cheapest plan is tried before anything else: methods from papers search as printed."""
    return goal.search == FRONTIER and goal.target is not None and goal.limits is None


def cheapest_first(case: Case, prover: Prover | None) -> Found | None:
    """The cheapest plan, if it keeps the target; None where layers have to be scored and searched.

    It has to keep the target on the samples of the search, and where a promise is asked for, held-out
    samples have to prove it.
    """
    problem, plan = case.problem, case.cheapest()
    if plan == problem.start:
        return None
    with case.run.progress.stage("cheapest"):
        if problem.judge(plan, problem.threshold).reaches(problem.threshold) is not True:
            return None
        evaluation = case.judge(plan)
    if prover is not None and not prover.test(plan).proven:
        return None
    reason = "the cheapest plan of all keeps the target, so no layer had to be scored"
    return Found(plan, evaluation, ((plan, evaluation),), True, reason)


def searched(case: Case, scoring: Scoring, prover: Prover | None) -> tuple[Found, Promise | None, Scores]:
    """The plan that a search finds, what is promised of it, and the scores of the layers."""
    run, goal = case.run, case.goal
    problem, scores = scored_problem(case.problem, run, scoring, goal, case.allowed)
    fastest = case.fastest.on(problem)
    with run.progress.stage("search") as case.judge.progress:
        found = solve(problem, goal, case.table)
    found = fastest.among(found, case.allowed.uniform().values())
    promise = None if prover is None else prove_plan(prover, problem, found, case.table)
    found = fastest.or_float(follow(promise, found, case.judge, case.needed, case.table))
    if prover is not None and promise is not None and promise.plan != found.plan:  # float took its place
        prover.test(found.plan)
        promise = prover.promise(found.plan)
    return found, promise, scores
