"""A promise: what samples that the search has not seen prove about a plan."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ..errors import OptionError
from ..runs.run import Run
from ..solve.confidence import METHOD, NOT_KEPT, Look, best_promise, descend, samples_needed, unproven
from ..solve.search.problem import Found, Problem
from ..solve.search.trail import safer
from ..sources.data import Samples
from ..values import Evaluation, Goal, Plan
from .judge import Evaluate


@dataclass(frozen=True)
class Promise:
    """How far the target is proven on held-out samples."""

    plan: Plan  # the cheapest that is proven; else the one that the search found
    look: Look  # what the samples say about it
    looks: int  # plans that were looked at, the safest first
    samples: int
    confidence: float
    accuracy: dict[str, float]  # of the rows "float" and "plan", on these samples

    @property
    def verdict(self) -> str:
        return self.look.verdict

    @property
    def proven(self) -> bool:
        return self.look.proven

    def to_json(self) -> dict[str, Any]:
        return {
            "verdict": self.verdict,
            "proven": self.proven,
            "kept": self.look.kept,
            "bound": self.look.bound,
            "confidence": self.confidence,
            "method": METHOD,
            "samples": self.samples,
            "accuracy": self.accuracy,
            "looks": self.looks,
        }


def check_promise(goal: Goal, evaluate: Evaluate | None) -> None:
    """Refuse a promise that cannot be made."""
    if goal.confidence is not None and evaluate is not None:
        raise OptionError(
            "[confidence=95%] needs scores of single samples, which [evaluate=] does not give: leave one out"
        )


def what_can_be_promised(goal: Goal, held_out: Samples | None, float_network: Evaluation) -> Iterator[str]:
    """Said before the work starts: whether the held-out samples can prove the target at all."""
    if goal.confidence is None or goal.target is None or held_out is None or goal.target.relative is None:
        return
    level, accuracy = 1 - goal.confidence, float_network.accuracy
    best = best_promise(len(held_out), accuracy, level=level)
    if best < float(goal.target.relative):
        needed = samples_needed(goal.target, accuracy, level=level)
        enough = "no number of them would" if needed is None else f"{needed:,} would"
        yield (
            f"{len(held_out):,} held-out samples cannot prove {goal.target}, not even if nothing is lost "
            f"(at best {best:.2%}): {enough}"
        )


def prove_plan(
    run: Run, problem: Problem, found: Found, goal: Goal, held_out: Samples | None
) -> Promise | None:
    """The cheapest plan on a ladder that the held-out samples prove to keep the target.

    The ladder leads from plans of less predicted damage down to the one that was found. It is fixed before
    the samples are looked at, and left at the first plan that they do not prove, so that all looks
    together err no more often than one. Where the safest is not proven, nothing is: then it is the
    cheapest that kept the target on these samples, or the safest.
    """
    if goal.confidence is None or goal.target is None or held_out is None or not run.task.mean:
        return None
    ladder = [found.plan]
    if problem.damage is not None:
        ladder = [*reversed(safer(problem, found.plan)), found.plan]
    evaluator = run.evaluator({format for plan in ladder for format in plan.values()}, held_out)
    with run.progress.stage("promise", len(held_out) * (1 + len(ladder))) as evaluator.progress:
        float_scores = evaluator.scores(Plan.uniform(run.layers))
        scores = (evaluator.scores(plan) for plan in ladder)
        looks = descend(goal.target, float_scores, scores, 1 - goal.confidence)
        proven = [index for index, look in enumerate(looks) if look.proven]
        if not proven:
            looks = [
                unproven(goal.target, float_scores, evaluator.scores(plan), 1 - goal.confidence)
                for plan in ladder
            ]
            proven = [0, *(index for index, look in enumerate(looks) if look.verdict != NOT_KEPT)]
        plan = ladder[proven[-1]]
        accuracy = {"float": float(float_scores.mean()), "plan": float(evaluator.scores(plan).mean())}
    look = looks[proven[-1]]
    return Promise(plan, look, len(looks), len(held_out), goal.confidence, accuracy)


def follow(promise: Promise | None, found: Found, problem: Problem) -> Found:
    """What was found, with the plan that is promised in place of one that could not be."""
    if promise is None or promise.plan == found.plan:
        return found
    evaluation = problem.judge(promise.plan, None)
    met = evaluation.reaches(problem.threshold) is True
    reason = f"{found.reason}; on the held-out samples a plan of less predicted damage takes its place"
    return Found(promise.plan, evaluation, found.evaluated, met, reason)
