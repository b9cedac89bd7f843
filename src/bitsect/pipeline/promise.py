"""A promise: what samples that the search has not seen prove about a plan."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import OptionError
from ..measure.evaluator import Evaluator
from ..runs.run import Run
from ..solve.confidence import (
    METHOD,
    NOT_EXPECTED,
    NOT_KEPT,
    ONLY_EXPECTED,
    Look,
    Pairs,
    bound,
    descend,
    samples_needed,
    unproven,
)
from ..solve.costs import cost
from ..solve.search.problem import MISSES, Found, Problem
from ..solve.search.trail import safer
from ..sources.data import Samples
from ..sources.data.copies import fresh
from ..values import Evaluation, Goal, LatencyTable, Plan, Settings, Target
from ..values.goal import EXPECTED
from ..values.options import given
from .judge import Evaluate, Judge, expects


@dataclass(frozen=True)
class Promise:
    """How far the target is proven on held-out samples."""

    target: Target
    plan: Plan  # the cheapest that is proven; else the best of those that are not
    look: Look  # what the samples say about it
    looks: int  # at plans on the held-out samples
    samples: int
    confidence: float
    accuracy: dict[str, float]  # of the rows "float" and "plan", on these samples

    @property
    def verdict(self) -> str:
        return self.look.verdict

    @property
    def seen(self) -> str:
        """What the samples show and prove, in words."""
        look = self.look
        if self.target.relative is None:
            seen = f"{100 * look.kept:.2f} points lost"
            seen += "" if look.bound is None else f", at most {100 * look.bound:.2f}"
            return seen if look.expected is None else f"{seen}; {100 * look.expected:.2f} are expected"
        seen = f"{look.kept:.2%} kept"
        seen += "" if look.bound is None else f", at least {look.bound:.2%}"
        return seen if look.expected is None else f"{seen}; {look.expected:.2%} are expected"

    @property
    def kept(self) -> bool:
        """Whether the plan keeps the target on these samples, or is expected to; proven or not."""
        return self.look.is_kept

    @property
    def proven(self) -> bool:
        return self.look.proven

    def __repr__(self) -> str:
        return f"Promise: target {self.target} {self.verdict} ({self.seen} on {self.samples:,} samples)"

    def to_json(self) -> dict[str, Any]:
        return {
            "verdict": self.verdict,
            "proven": self.proven,
            "seen": self.seen,
            ("lost" if self.target.relative is None else "kept"): self.look.kept,
            "bound": self.look.bound,
            "expected": self.look.expected,
            "confidence": self.confidence,
            "method": METHOD,
            "samples": self.samples,
            "accuracy": self.accuracy,
            "looks": self.looks,
        }


def check_promise(goal: Goal, evaluate: Evaluate | None) -> None:
    """Refuse a promise that cannot be made."""
    if evaluate is not None and not callable(evaluate):
        raise OptionError(f"[evaluate=] is a {type(evaluate).__name__}: expected a function of a module")
    if goal.confidence is not None and evaluate is not None:
        raise OptionError(
            "a promise needs scores of single samples, which [evaluate=] does not give: "
            "pass [confidence=none], or leave it out"
        )


def with_hold_out(settings: Settings, goal: Goal, validation_data: Any, of_run: bool) -> Settings:
    """The settings of a new run: samples are held out where a promise needs them and no others are given."""
    asked = given(settings)
    needed = goal.confidence is not None and goal.target is not None and validation_data is None
    if of_run or "hold_out" in asked or not needed:
        return settings
    return Settings(**{**asked, "hold_out": True})


def promise_samples(run: Run, goal: Goal, validation_data: Any) -> Samples | None:
    """The samples that a promise is proven on: others than those that are searched on."""
    if goal.confidence is None or goal.target is None:
        if validation_data is not None:
            raise OptionError("[validation_data=] proves a promise: pass [confidence=95%] with a target too")
        return None
    if not run.task.mean:  # said before the work starts
        raise OptionError(
            f"task '{run.task.name}' scores all samples together, which proves nothing of single ones: "
            "pass [confidence=none]"
        )
    # In the run's own order, so that the same samples are known again.
    order = {"seed": run.settings.seed}
    samples = run.held_out if validation_data is None else run.load(validation_data, **order)
    if samples is None:
        raise OptionError(
            "a promise needs samples that the search does not see: pass [validation_data=FILE] or "
            "[confidence=none], or make a new run with [hold_out=True]"
        )
    if (samples.labels is None) != (run.samples.labels is None):
        raise OptionError(
            "of the samples to search on and those to prove the target on, only one kind has labels"
        )
    run.program.run(samples.inputs(slice(0, 1)))  # so that a wrong shape is refused first
    return _without_copies(samples, run.samples)


def _without_copies(samples: Samples, searched: Samples) -> Samples:
    """The samples without copies of each other and of those searched on, which prove nothing new."""
    kept = fresh(samples, searched)
    if not len(kept) or samples.fingerprint() == searched.fingerprint():
        raise OptionError(
            "the samples that are to prove the target are those searched on: pass others, or "
            "[confidence=none]"
        )
    copies = samples.count - len(kept)
    return replace(samples.select(kept), copies=copies) if copies else samples


def what_can_be_promised(goal: Goal, held_out: Samples | None, float_network: Evaluation) -> Iterator[str]:
    """Said before the work starts: whether the held-out samples can prove the target at all."""
    if goal.confidence is None or goal.target is None or held_out is None:
        return
    if held_out.copies:
        yield (
            f"{held_out.copies:,} of {held_out.copies + held_out.count:,} held-out samples are copies of "
            "others or of samples that were searched on: they prove nothing new and are left out"
        )
    level, accuracy = 1 - goal.confidence, float_network.accuracy
    needed = samples_needed(goal.target, accuracy, level=level)
    if needed is None or needed > held_out.count:
        enough = "no number of them would" if needed is None else f"{needed:,} would"
        best = bound(Pairs.expected(held_out.count, accuracy), goal.target, level)
        kept = f"{best:.2%} kept" if goal.target.relative is not None else f"{100 * best:.2f} points lost"
        samples = "1 held-out sample" if held_out.count == 1 else f"{held_out.count:,} held-out samples"
        yield (
            f"{samples} cannot prove {goal.target} of a plan that answers as the float network does "
            f"(at best {kept}): {enough}"
        )


def prove_plan(
    run: Run,
    problem: Problem,
    found: Found,
    goal: Goal,
    held_out: Samples | None,
    table: LatencyTable | None,
) -> Promise | None:
    """The cheapest plan on a ladder that the held-out samples prove to keep the target.

    The ladder leads from plans of less predicted damage down to the one that was found. It is fixed before
    the samples are looked at, and left at the first plan that they do not prove, so that all looks
    together err no more often than one. Where the safest is not proven, or the samples are too few to
    prove anything, the answer is the cheapest plan that nothing speaks against.
    """
    if goal.confidence is None or goal.target is None or held_out is None:
        return None
    ladder = _ladder(run, problem, found, goal, table)
    level, float_plan = 1 - goal.confidence, Plan.uniform(run.layers)
    evaluator = run.evaluator({format for plan in ladder for format in plan.values()}, held_out)
    with run.progress.stage("promise", held_out.count * (1 + len(ladder))) as evaluator.progress:
        float_scores = evaluator.scores(float_plan)
        looked, looks = 0, list[Look]()
        needed = samples_needed(goal.target, float(float_scores.mean()), level=level)
        if needed is not None and needed <= held_out.count:
            looks = descend(goal.target, float_scores, map(evaluator.scores, ladder), level)
        if looks and looks[0].proven:
            index = sum(look.proven for look in looks) - 1
            plan, look = ladder[index], looks[index]
        else:
            plan, look, looked = _unproven(goal, evaluator, float_scores, ladder, unseen=not looks)
        accuracy = {"float": float(float_scores.mean()), "plan": float(evaluator.scores(plan).mean())}
    return Promise(goal.target, plan, look, len(looks) + looked, held_out.count, goal.confidence, accuracy)


@dataclass
class Prover:
    """STUB until the sequential test lands."""

    run: Run
    goal: Goal
    held_out: Samples

    @classmethod
    def of(cls, run: Run, goal: Goal, held_out: Samples | None) -> Prover | None:
        if goal.confidence is None or goal.target is None or held_out is None:
            return None
        return cls(run, goal, held_out)

    def test(self, plan: Plan, last: bool = False) -> Look:
        self.tested = plan
        ev = self.run.evaluator({*plan.values()}, self.held_out)
        assert self.goal.confidence is not None
        assert self.goal.target is not None
        f = ev.scores(Plan.uniform(self.run.layers))
        self.f, self.q = f, ev.scores(plan)
        self.look = unproven(self.goal.target, f, self.q, None, 1 - self.goal.confidence, first=True)
        return self.look

    def walk(self, problem: Problem, found: Found, table: LatencyTable | None) -> Promise | None:
        return prove_plan(self.run, problem, found, self.goal, self.held_out, table)

    def promise(self, plan: Plan) -> Promise:
        if not hasattr(self, "look") or self.tested != plan:
            self.test(plan)
        accuracy = {"float": float(self.f.mean()), "plan": float(self.q.mean())}
        return Promise(
            self.goal.target, plan, self.look, 1, self.held_out.count, self.goal.confidence, accuracy
        )


def _ladder(run: Run, problem: Problem, found: Found, goal: Goal, table: LatencyTable | None) -> list[Plan]:
    """The plan that was found, after ever safer ones, the safest first; all within what may be spent."""
    ladder = [found.plan]
    if problem.damage is not None:
        ladder = [*reversed(safer(problem, problem.on_ladders(found.plan))), found.plan]
    if (limits := goal.limits) is not None:
        ladder = [plan for plan in ladder if limits.fits(cost(plan, run.layers, table))]
    return ladder


def _unproven(
    goal: Goal, evaluator: Evaluator, float_scores: NDArray[np.float64], ladder: list[Plan], *, unseen: bool
) -> tuple[Plan, Look, int]:
    """The cheapest plan that nothing speaks against; else the safest.

    Also how many were looked at. While the samples are `unseen`, they may prove the first of them.
    """
    assert goal.target is not None
    assert goal.confidence is not None
    asks = goal.guide == EXPECTED and expects(evaluator.task, evaluator.samples)
    looks: list[Look] = []
    for plan in reversed(ladder):
        expected = _expected(goal.target, evaluator, plan) if asks else None
        scores = evaluator.scores(plan)
        first, level = unseen and not looks, 1 - goal.confidence
        looks.append(unproven(goal.target, float_scores, scores, expected, level, first=first))
        if looks[-1].is_kept:
            return plan, looks[-1], len(looks)
    return ladder[0], looks[-1], len(looks)


def _expected(target: Target, evaluator: Evaluator, plan: Plan) -> float:
    """What is expected of the plan, in the target's own terms: the share kept, or the fraction lost."""
    before = evaluator.expected(Plan.uniform(evaluator.program.layers)).accuracy
    after = evaluator.expected(plan).accuracy
    return before - after if target.relative is None else after / before


def is_vouched_by_others(verdict: str | None, run: Run) -> bool:
    """Whether more speaks for the plan than labels of the run's samples: what is expected, or others."""
    if verdict is None or verdict in (NOT_KEPT, NOT_EXPECTED):
        return False
    return run.held_out is None or verdict.startswith(ONLY_EXPECTED)


def judged_before(promise: Mapping[str, Any] | None) -> tuple[Evaluation, Evaluation] | None:
    """How the float network and the plan did on the samples that a promise rests on."""
    if promise is None:
        return None
    count, accuracy = int(promise["samples"]), promise["accuracy"]
    before, after = (Evaluation(float(accuracy[row]) * count, count, count) for row in ("float", "plan"))
    return before, after


def follow(
    promise: Promise | None, found: Found, judge: Judge, needed: Fraction, table: LatencyTable | None
) -> Found:
    """What was found, with the plan that is promised, and how that does by the labels."""
    plan, reason = found.plan, found.reason
    if promise is not None and promise.plan != plan:
        was = cost(plan, judge.run.layers, table)
        latency = "" if was.latency_ratio is None else f" and {was.latency_ratio:.1%} of the latency"
        plan = promise.plan
        reason += (
            f"; that plan, with {was.size_ratio:.1%} of the size{latency}, is not proven on the held-out "
            "samples: one of less predicted damage takes its place"
        )
    evaluation = judge(plan)
    if promise is not None and promise.kept:  # others than the samples that were searched on decide
        reason = reason.removesuffix(f"; {MISSES}")
    return Found(plan, evaluation, found.evaluated, evaluation.reaches(needed) is True, reason)
