"""The prover: asks samples that the search has not seen whether plans keep the target."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property, partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ..measure.evaluator import Evaluator
from ..runs.disk import fingerprint_json
from ..runs.ledger import Ledger, Search, in_words, share
from ..runs.progress import Advance
from ..runs.run import Run
from ..solve.looks import METHOD, Look, look_at, look_in_blocks, pairs_of, schedule, weighed
from ..sources.data import Samples
from ..values import Goal, Plan, Scoring, Target
from ..values.goal import EXPECTED
from ..values.options import to_json
from ..values.verdict import PROVEN
from .judge import expects

Numbers = NDArray[np.float64]


@dataclass(frozen=True)
class Promise:
    """How far the target is proven on held-out samples."""

    target: Target
    plan: Plan  # the cheapest that is proven; else the best of those that are not
    look: Look  # what the samples say about it
    looks: int  # at plans on the held-out samples
    held_out: int  # samples; judging stops as soon as it is clear
    confidence: float
    accuracy: dict[str, float]  # of the rows "float" and "plan", on the samples that were looked at
    search: int | None = None  # its number among those on these samples, where there is a ledger

    @property
    def samples(self) -> int:
        """How many were looked at."""
        return self.look.samples

    @property
    def verdict(self) -> str:
        return self.look.verdict

    @property
    def seen(self) -> str:
        """What the samples show and prove, in words."""
        look = self.look
        if self.target.perplexity is not None:
            kept, most = (math.exp(nats) for nats in (look.kept, look.bound))
            seen, expected = f"perplexity {kept:.4g}x, at most {most:.4g}x", ""
        elif self.target.relative is None:
            seen = f"{100 * look.kept:.2f} points lost, at most {100 * look.bound:.2f}"
            expected = "" if look.expected is None else f"; {100 * look.expected:.2f} are expected"
        else:
            seen = f"{look.kept:.2%} kept, at least {look.bound:.2%}"
            expected = "" if look.expected is None else f"; {look.expected:.2%} are expected"
        again = self.search is not None and self.search > 1
        return seen + expected + (f"; {in_words(self.search or 1)}" if again else "")

    @property
    def met(self) -> bool | None:
        """True where the target is proven to be kept, False where it is missed, else None."""
        return self.look.met

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
            "held_out": self.held_out,
            "level": self.look.level,
            "search": self.search,
            "accuracy": self.accuracy,
            "looks": self.looks,
        }


class Prover:
    """Asks held-out samples whether plans keep the target; all plans of a search share what it may err.

    Every plan may spend half of what is left of the level, the `last` one all of it, and a plan that is
    proven spends nothing (a fallback procedure): so plans may be asked about in any order, from the cheapest
    or from the safest. Samples are judged in growing blocks, and only until it is clear.
    """

    def __init__(self, run: Run, goal: Goal, held_out: Samples, scoring: Scoring | None = None) -> None:
        assert goal.target is not None
        assert goal.confidence is not None
        self.run, self.goal, self.held_out = run, goal, held_out
        self.target, self.confidence = evidence_of(goal.target), goal.confidence
        self._blind = goal.target.nats / float(goal.target.max_drop or 1)  # ln V of a language model
        self.float_plan = Plan.uniform(run.layers)
        self._asked = {"goal": but_target(goal), "scoring": scoring and to_json(scoring)}
        self._looks: dict[Plan, Look] = {}
        self._spent = 0.0  # of the level of this search
        self._told: dict[Plan, int] = {}  # samples of a plan that the progress knows of

    @classmethod
    def of(cls, run: Run, goal: Goal, held_out: Samples | None, scoring: Scoring) -> Prover | None:
        """The prover of a goal; None where nothing is to be promised."""
        if goal.confidence is None or goal.target is None or held_out is None:
            return None
        return cls(run, goal, held_out, scoring)

    @cached_property
    def search(self) -> Search | None:
        """The entry of this search in the ledger, made before its first look; None without a folder."""
        if self.run.temporary:
            return None
        key = fingerprint_json({"run": self.run.folder.run, **self._asked})
        return Ledger(self.run.folder.path).enter(key, self.held_out.source.digests())

    @property
    def level(self) -> float:
        """What all promises of this search may err together."""
        return (1.0 - float(self.confidence)) * (share(1) if self.search is None else self.search.share)

    @property
    def left(self) -> float:
        return self.level - self._spent

    def test(self, plan: Plan, last: bool = False) -> Look:
        """What the held-out samples say about `plan`; asked again, the same."""
        if plan not in self._looks:
            if plan == self.float_plan:
                self._looks[plan] = self._float_look()
            else:
                self._looks[plan] = self._spend(partial(self._look, plan), last)
        return self._looks[plan]

    def test_scores(self, scores: Callable[[int], tuple[Numbers, Numbers]]) -> Look:
        """What the held-out samples say about a model of any maker.

        `scores` gives the scores of the float network and of the model on the first so many samples, or more.
        """
        whole, families = self.held_out.count, self.held_out.counted_families

        def seen(count: int) -> tuple[Numbers, Numbers]:
            return self._evidence(*scores(count))

        def look(level: float) -> Look:
            if families is not None:
                return look_at(self.target, *seen(whole), level, self.confidence, families)
            return look_in_blocks(self.target, whole, seen, level, self.confidence)

        return self._spend(look)

    def _spend(self, look: Callable[[float], Look], last: bool = False) -> Look:
        """A look at half of the level that is left, or at all of it; it is spent where nothing is proven."""
        level = self.left if last else self.left / 2
        found = look(level)
        if not found.proven:
            self._spent += level
        if self.search is not None:
            Ledger(self.run.folder.path).close(self.search, self.search.share * self.left / self.level)
        return found

    def _float_look(self) -> Look:
        """The float network keeps all that it has, whatever the samples."""
        kept = 0.0 if self.target.relative is None else 1.0
        return Look(kept, kept, 0.0, self.held_out.count, PROVEN, "kept: it is the float network")

    def _look(self, plan: Plan, level: float) -> Look:
        whole = self.held_out.count
        with self.run.progress.stage("promise", 2 * whole) as advance:

            def scores(count: int) -> tuple[Numbers, Numbers]:
                before = self._scores(self.float_plan, count, advance)
                return self._evidence(before, self._scores(plan, count, advance))

            self.run.folder.note_plan(plan)
            if not self._at_once:
                return look_in_blocks(self.target, whole, scores, level, self.confidence)
            families = self._evaluator(plan).families
            return look_at(self.target, *scores(whole), level, self.confidence, families)

    def _evidence(self, before: Numbers, after: Numbers) -> tuple[Numbers, Numbers]:
        """The scores as they are; of perplexity, how far the surprise −ln p of a sample rises, and falls.

        A sample counts for one nat at most, so that no single text decides.
        """
        if self.target.perplexity is None:
            return before, after
        rise = np.clip((before - after) * self._blind, -1.0, 1.0)
        return np.maximum(rise, 0.0), np.maximum(-rise, 0.0)

    @property
    def _at_once(self) -> bool:
        """Whether samples are judged all at once: windows of a text and families belong together."""
        return self.held_out.groups is not None or self.held_out.families is not None

    def _scores(self, plan: Plan, count: int, advance: Advance = lambda count: None) -> Numbers:
        """The scores of the first `count` samples or a few more; each is told of once."""
        seen = 0

        def told(rows: int) -> None:
            nonlocal seen
            seen += rows
            if seen > self._told.get(plan, 0):
                self._told[plan] = seen
                advance(rows)

        if self._at_once:
            return self._evaluator(plan, told=told).scores(plan)
        if self.held_out.source.lengths is None:
            return self._evaluator(plan, told=told).scores(plan, count)
        # Batches are of like lengths, so that the first of them are not any: each block has its own.
        found, start = [], 0
        for end, _ in schedule(self.held_out.count):
            if start < count:
                block = self.held_out.select(torch.arange(start, end))
                found.append(self._evaluator(plan, block, told).scores(plan))
            start = end
        return np.concatenate(found)

    def _evaluator(
        self, plan: Plan, samples: Samples | None = None, told: Advance = lambda count: None
    ) -> Evaluator:
        evaluator = self.run.evaluator(set(plan.values()), samples or self.held_out)
        evaluator.progress = told
        return evaluator

    def knows(self, plan: Plan) -> bool:
        """Whether `plan` was asked about."""
        return plan in self._looks

    def weigh(self, plan: Plan) -> Look:
        """The look at an unproven plan again, with what is expected of it, where the search went by that."""
        look, evaluator = self.test(plan), self._evaluator(plan)
        asked = self.goal.guide == EXPECTED and expects(evaluator.task, evaluator.samples)
        if not look.proven and asked and look.expected is None:
            expected = _expected(self.target, evaluator, plan)
            pairs = pairs_of(*self._seen(plan), evaluator.families)
            self._looks[plan] = weighed(look, pairs, self.target, expected)
        return self._looks[plan]

    def _seen(self, plan: Plan) -> tuple[Numbers, Numbers]:
        """The scores of the float network and of `plan` that were looked at."""
        count = self.test(plan).samples
        before, after = (self._scores(each, count)[:count] for each in (self.float_plan, plan))
        return before, after

    def promise(self, plan: Plan) -> Promise:
        """What is promised of `plan`, which was asked about."""
        before, after = (float(scores.mean()) for scores in self._seen(plan))
        return Promise(
            self.target,
            plan,
            self.test(plan),
            len(self._looks),
            self.held_out.count,
            self.confidence,
            {"float": before, "plan": after},
            None if self.search is None else self.search.number,
        )


def evidence_of(target: Target) -> Target:
    """The target of what a prover looks at: of perplexity, how many nats a sample may lose."""
    return target if target.perplexity is None else replace(target, max_drop=Fraction(target.nats))


def _expected(target: Target, evaluator: Evaluator, plan: Plan) -> float:
    """What is expected of the plan, in the target's own terms: the share kept, or the fraction lost."""
    before = evaluator.expected(Plan.uniform(evaluator.program.layers)).accuracy
    after = evaluator.expected(plan).accuracy
    return before - after if target.relative is None else after / before


def but_target(goal: Goal) -> dict[str, Any]:
    """What a goal asks besides what is to be kept: its searches for several targets are one."""
    asked = {**to_json(goal), "latency": str(getattr(goal.latency, "device", goal.latency))}
    return {
        name: asked[name]
        for name in sorted(asked.keys() - {"target", "max_drop", "max_perplexity", "confidence"})
    }
