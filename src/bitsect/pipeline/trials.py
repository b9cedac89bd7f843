"""Trials on one draw of the samples: what one measures serves the others, and none is made twice."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any

from .. import __version__
from ..runs.disk import fingerprint_json, reading
from ..runs.progress import Progress
from ..runs.run import Run
from ..solve.allowed import Allowed, allowed_formats
from ..solve.answer import solve, threshold
from ..solve.costs import cost
from ..solve.search.problem import Ask, Found, Problem
from ..sources.data import Samples
from ..values import FLOAT, Evaluation, Format, Goal, LatencyTable, Plan, Scoring
from ..values.format import FLOAT_BITS, rank
from ..values.options import to_json
from ..values.trial import Setup, Trial
from .judge import Judge
from .methods import FRONTIER
from .problem import state_problem

TRIALS = "trials.json"
VERSION = 2  # of what a trial says: older ones are made again from what was measured
BESIDES = (
    "target",
    "max_drop",
    "max_perplexity",
    "evaluations",
)  # what of a goal the orders of layers do not depend on


@dataclass
class TrialBench:
    """One draw, with everything that trials on it share."""

    run: Run
    table: LatencyTable | None
    test: Samples | None
    judge: Judge = field(init=False)
    _known: dict[str, Any] = field(init=False)
    _stated: dict[str, tuple[Problem, list[str]]] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self.judge = Judge(self.run, None)
        folder = self.run.folder
        with reading(folder.path / TRIALS, "remove it, and it is made again"):
            known = folder.read_json(TRIALS) or {"untimed": self._was_measured()}
            self._known = {name: dict(known.get(name, {})) for name in ("trials", "measuring", "evaluating")}
            # Of what was measured before, or by a command that was killed, nobody knows the seconds.
            self._known["untimed"] = bool(known.get("untimed") or known.get("measuring_now"))

    def _was_measured(self) -> bool:
        path = self.run.folder.path
        journals = [item.name for item in path.glob("journals/*.journal")]
        return (path / "result.json").exists() or any(not name.startswith("evaluated") for name in journals)

    def _keep(self, **now: bool) -> None:
        self.run.folder.write_json(TRIALS, {**self._known, **now})

    def trial(self, setup: Setup, scoring: Scoring, goal: Goal) -> Trial:
        """The outcome of one search; known from before where it was tried already."""
        tested = None if self.test is None else self.test.fingerprint()
        asked: dict[str, Any] = {
            "setup": vars(setup),
            "scoring": to_json(scoring),
            "goal": to_json(goal),
            "test": tested,
        }
        asked["version"] = [VERSION, __version__]
        asked["latency"] = None if self.table is None else [self.table.device, self.table.source]
        key = fingerprint_json(asked)[:16]
        if key not in self._known["trials"]:
            self._known["trials"][key] = self._tried(setup, scoring, goal).to_json()
            self._keep()
        return Trial.from_json(self._known["trials"][key])

    def _tried(self, setup: Setup, scoring: Scoring, goal: Goal) -> Trial:
        run = self.run
        allowed = allowed_formats(run.layers, goal, self.table)
        float_network = self.judge(Plan.uniform(run.layers))
        run.calibrate(allowed.all)
        self.judge.allow(allowed.all)
        found, seconds = self._searched(scoring, goal, allowed)
        evaluation = self.judge(found.plan)  # by labels, whatever the search went by
        met = evaluation.reaches(threshold(goal.target, float_network)) is True
        spent = cost(found.plan, run.layers, self.table)
        asked = dict.fromkeys(plan for plan, _ in found.evaluated)
        test_float, test = self._tested(found.plan, allowed)
        return Trial(
            setup,
            run.settings.seed,
            found.plan.key,
            {name: format.name for name, format in found.plan.items()},
            met,
            found.plan.counts,
            FLOAT_BITS * spent.size_ratio,
            spent.size_ratio,
            spent.latency_ratio,
            spent.bit_operations_ratio,
            len(asked),
            _by_format(asked),
            seconds,
            evaluation.accuracy,
            float_network.accuracy,
            test,
            test_float,
        )

    def _searched(self, scoring: Scoring, goal: Goal, allowed: Allowed) -> tuple[Found, float | None]:
        """What the search found, and the seconds that it would have taken by itself."""
        measuring, evaluating = self._known["measuring"], self._known["evaluating"]
        problem, stages = self._problem(scoring, goal, allowed)
        ask = self._timed(self.judge.guide(goal.guide))
        needed = threshold(goal.target, ask(Plan.uniform(self.run.layers), None))
        with self.run.progress.stage("search") as self.judge.progress:
            found = solve(replace(problem, threshold=needed, judge=ask), goal, self.table)
        plans = {plan.key for plan, _ in found.evaluated}
        took = [measuring[stage] for stage in stages] + [evaluating.get(key, 0.0) for key in plans]
        return found, None if self._known["untimed"] else sum(took)

    def _problem(self, scoring: Scoring, goal: Goal, allowed: Allowed) -> tuple[Problem, list[str]]:
        """The problem but for its target, and the stages in which what it rests on was measured."""
        options = {name: value for name, value in to_json(goal).items() if name not in BESIDES}
        key = fingerprint_json([to_json(scoring), options])
        if key not in self._stated:
            run, measuring, outside = self.run, self._known["measuring"], self.run.progress
            self._keep(measuring_now=True)
            run.progress = timed = _Timed(outside)
            try:
                problem, _ = state_problem(run, scoring, goal, allowed, Fraction(0), self.judge, self.table)
            finally:
                run.progress = outside
            # One stage measures other things for a search by damage, and for scores in another format.
            what = FRONTIER if goal.search == FRONTIER else scoring.score_format or "order"
            stages = {f"{stage} for {what}": seconds for stage, seconds in timed.seconds.items()}
            for stage, seconds in stages.items():
                # Measured once on a draw: whoever comes later finds it there, and is told what it took.
                measuring[stage] = measuring.get(stage, 0.0) + seconds
            self._keep()
            self._stated[key] = problem, list(stages)
        return self._stated[key]

    def _timed(self, ask: Ask) -> Ask:
        """`ask`, which keeps what each plan took."""
        known = self._known["evaluating"]

        def timed(plan: Plan, threshold: Fraction | None) -> Evaluation:
            start = time.perf_counter()
            try:
                return ask(plan, threshold)
            finally:
                known[plan.key] = known.get(plan.key, 0.0) + time.perf_counter() - start

        return timed

    def _tested(self, plan: Plan, allowed: Allowed) -> tuple[float | None, float | None]:
        """The accuracy of the float network and of the plan on the test samples."""
        if self.test is None:
            return None, None
        evaluator = self.run.evaluator(allowed.all, self.test)
        with self.run.progress.stage("test", 2 * len(self.test)) as evaluator.progress:
            return evaluator(Plan.uniform(self.run.layers)).accuracy, evaluator(plan).accuracy


class _Timed(Progress):
    """Stages timed apart, and shown as they are elsewhere."""

    def __init__(self, outside: Progress) -> None:
        super().__init__()
        self.forecast = outside.forecast
        self.shown, self.say = outside.shown, outside.say  # type: ignore[method-assign]


def _by_format(plans: Iterable[Plan]) -> dict[str, int]:
    """How many plans there are by their lowest format: each was asked about in that format's step."""
    counts: dict[str, int] = {}
    for plan in plans:
        lowest = max((f for f in plan.values() if f != FLOAT), key=rank, default=FLOAT)
        counts[lowest.name] = counts.get(lowest.name, 0) + 1
    return {name: counts[name] for name in sorted(counts, key=lambda name: rank(Format.parse(name)))}
