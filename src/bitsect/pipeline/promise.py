"""A promise: what samples that the search has not seen prove about a plan."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np

from ..errors import OptionError
from ..runs.ledger import share
from ..runs.run import Run
from ..solve.confidence import Pairs, bound, in_all, samples_needed
from ..solve.costs import cost
from ..solve.looks import NOT_EXPECTED, NOT_KEPT, ONLY_EXPECTED
from ..solve.search.problem import MISSES, Found, Problem
from ..solve.search.trail import safer
from ..sources.data import Samples
from ..sources.data.copies import fresh
from ..values import Evaluation, Goal, LatencyTable, Plan, Settings
from ..values.options import given
from ..values.verdict import MISSED
from .judge import Evaluate, Judge
from .prover import Promise as Promise
from .prover import Prover as Prover
from .prover import but_target, evidence_of

LOOKS = 4  # plans that a search may ask held-out samples about


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
    if len(run.samples) < 2:
        held = samples_needed(evidence_of(goal.target), level=(1 - goal.confidence) * share(1))
        enough = "no number of samples proves" if held is None else f"about {in_all(held):,} samples prove"
        raise OptionError(
            f"1 sample to calibrate and search on says nothing of others: {enough} {goal.target} of a plan "
            "that answers as the float network does; pass [confidence=none] to go on without a promise"
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
    target, accuracy, families = evidence_of(goal.target), float_network.accuracy, held_out.counted_families
    accuracy = accuracy if target.perplexity is None else 1.0
    level = (1 - goal.confidence) * share(1)  # of a first search, with all that it may spend
    count = held_out.count if families is None else len(set(families.tolist()))
    needed = samples_needed(target, accuracy, level=level)
    if needed is None or needed > count:
        enough = "no number of them would" if needed is None else f"{needed:,} would"
        best = bound(Pairs.expected(count, accuracy), target, level)
        kept = f"{best:.2%} kept" if goal.target.relative is not None else f"{100 * best:.2f} points lost"
        kept = kept if target.perplexity is None else f"perplexity {math.exp(best):.4g}x"
        samples = "1 held-out sample" if count == 1 else f"{count:,} held-out samples"
        if families is not None:
            samples = f"{count:,} groups of held-out samples, each of which may be wrong as a whole,"
        yield (
            f"{samples} cannot prove {goal.target} of a plan that answers as the float network does "
            f"(at best {kept}): {enough}"
        )


def prove_plan(prover: Prover, problem: Problem, found: Found, table: LatencyTable | None) -> Promise:
    """The plan that was found, or a safer one, as far as held-out samples prove that it keeps the target.

    A few plans are asked about, chosen beforehand: the first is the cheapest that so many samples can be
    expected to prove. Where it is proven, cheaper ones follow, else safer ones. Where none is proven, the
    answer is the cheapest of them that nothing speaks against.
    """
    ladder = _ladder(prover.run, problem, found, prover.goal, table)
    first = _provable(prover, ladder, found, problem)
    if first is not None and prover.test(ladder[first], last=first + 1 == len(ladder)).proven:
        cheapest = first
        for place in range(first - 1, max(-1, first - LOOKS), -1):
            if not prover.test(ladder[place], last=True).proven:
                break
            cheapest = place
        return prover.promise(ladder[cheapest])
    places = np.unique(np.linspace(first or 0, len(ladder) - 1, LOOKS).round().astype(int)).tolist()
    for place in places:
        if prover.test(ladder[place], last=place == places[-1]).proven:
            return prover.promise(ladder[place])
        if first is None and prover.weigh(ladder[place]).outcome != MISSED:
            break  # nothing would be proven of safer ones either
    asked = [plan for plan in ladder if prover.knows(plan)]
    good = [plan for plan in asked if prover.weigh(plan).outcome != MISSED]
    return prover.promise(good[0] if good else asked[-1])


def _provable(prover: Prover, ladder: list[Plan], found: Found, problem: Problem) -> int | None:
    """The place on the ladder of the cheapest plan that the samples can be expected to prove, if any.

    What a plan loses is taken to be in proportion to its predicted damage, from what the plan that was
    found lost on the samples that were searched on.
    """
    target, damage, before = prover.goal.target, problem.damage, float(problem.threshold)
    before = before / float(target.relative) if target.relative else before + float(target.max_drop or 0)
    lost = max(0.0, 1 - found.evaluation.accuracy / before) if before else 0.0
    damages = [1.0] if damage is None else [damage(problem.on_ladders(plan)) for plan in ladder]
    for place, predicted in enumerate(damages):
        loses = lost * (predicted / damages[0] if damages[0] else 1.0)
        if target.perplexity is not None:  # every sample loses a little: half of what is allowed leaves room
            needed: int | None = 0 if loses * before <= float(target.max_drop or 0) / 2 else None
        else:
            needed = samples_needed(target, min(1.0, before), kept=1 - loses, level=prover.left / 2)
        if needed is not None and needed <= prover.held_out.count:
            return place
    return None


def _ladder(run: Run, problem: Problem, found: Found, goal: Goal, table: LatencyTable | None) -> list[Plan]:
    """The plan that was found, then ever safer ones; all within what may be spent.

    None is cheaper than what an easier target proved: that one is asked about in its place.
    """
    ladder, limits = [found.plan], goal.limits
    if problem.damage is not None:
        ladder += safer(problem, problem.on_ladders(found.plan))
    if limits is not None:
        ladder = [plan for plan in ladder if limits.fits(cost(plan, run.layers, table))]
    easier = [(cost(plan, run.layers, table).price(goal.objective), plan) for plan in _easier(run, goal)]
    if not easier:
        return ladder
    least, plan = max(easier, key=lambda each: (each[0], each[1].key))
    dearer = [each for each in ladder if cost(each, run.layers, table).price(goal.objective) > least]
    return ladder if len(dearer) == len(ladder) else [plan, *dearer]


def _easier(run: Run, goal: Goal) -> Iterator[Plan]:
    """The plans that were proven in this run for easier targets, where the same was asked else."""
    for path in sorted(run.folder.path.glob("results/*.json")):
        name = path.name.removesuffix(".json")
        known = run.folder.read_json(f"results/{name}.json") or {}
        asked = Goal(**known["goal"]) if (known.get("promise") or {}).get("proven") else None
        if asked is None or but_target(asked) != but_target(goal) or not _is_easier(asked, goal):
            continue
        plan = Plan.from_json(run.folder.read_plan(f"plans/{name}.json"), run.layers)
        if plan.key == known["plan_key"]:  # else somebody edited it
            yield plan


def _is_easier(asked: Goal, goal: Goal) -> bool:
    easy, hard = asked.target, goal.target
    if easy.relative is None or hard.relative is None:
        if easy.perplexity is not None and hard.perplexity is not None:
            return bool(easy.perplexity > hard.perplexity)
        drops = easy.max_drop, hard.max_drop
        return None not in drops and easy.perplexity is hard.perplexity and bool(drops[0] > drops[1])
    return bool(easy.relative < hard.relative)


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
            f"; that plan, with {was.size_ratio:.1%} of the size{latency}, is more than the held-out "
            "samples prove: one of less predicted damage takes its place"
        )
    evaluation = judge(plan)
    if (
        promise is not None and promise.met is not False
    ):  # others than the samples that were searched on decide
        reason = reason.removesuffix(f"; {MISSES}")
    return Found(plan, evaluation, found.evaluated, evaluation.reaches(needed) is True, reason)
