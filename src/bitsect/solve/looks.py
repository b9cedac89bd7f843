"""What held-out samples say about one plan, looked at in growing blocks until it is clear.

Looks come after 128, 256, 512 … samples and after all of them. Each may err with its own part of the
level, fixed beforehand: two thirds for the last, and two thirds of what is left for each one before it.
The parts add up to the level, so a plan that misses the target is proven at any look with at most that
probability (a group-sequential test with Bonferroni's inequality). Giving up may happen at any time, since
it proves nothing. A test by betting, valid after every single sample, needs about twice the samples
(`benchmarks/coverage.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike

from ..values import Target
from ..values.verdict import MISSED, PROVEN, UNPROVEN
from .confidence import LEVEL, Pairs, bound, grouped, keeps, least, proves, refutes, samples_needed

METHOD = "group-sequential paired score bound"
NOT_KEPT = "not kept"
NOT_PROVEN = "not proven"
ONLY_EXPECTED = "not proven, but expected to be kept"
NOT_EXPECTED = "not proven: kept on these samples, but not expected to be on others"
FIRST_LOOK = 128  # samples
LAST = 2 / 3  # of what is left of the level: for the last look, then for the one before it
HOPELESS = 0.01  # how often a plan that just keeps the target is given up at a look
MOST_NAMED = 10**6  # samples; a larger number is not named

Scores = tuple[ArrayLike, ArrayLike]  # of the float network and the plan, on the same first samples


@dataclass(frozen=True)
class Look:
    """What the samples say about one plan."""

    kept: float  # as seen: the share kept, or the fraction lost
    bound: float  # the least that is kept, or the most that is lost, but for an error of `level`
    level: float  # of this look
    samples: int  # that were looked at
    outcome: str  # proven, not proven or missed
    verdict: str  # the same in words
    expected: float | None = None  # what the float network's own probabilities expect to be kept, or lost

    @property
    def proven(self) -> bool:
        return self.outcome == PROVEN

    @property
    def met(self) -> bool | None:
        """Whether the target is kept: True where that is proven, False where it is missed, else None."""
        return {PROVEN: True, MISSED: False}.get(self.outcome)


def look_at(
    target: Target,
    float_scores: ArrayLike,
    plan_scores: ArrayLike,
    level: float = LEVEL,
    confidence: float | None = None,
    families: ArrayLike | None = None,
) -> Look:
    """One look at a plan, all samples at once, that errs with `level` at most.

    `confidence` is what is promised in words, where the level is only a part of what that allows.
    Samples of one of the `families` may be wrong together: what is proven then counts families.

    >>> good, bad = [1.0] * 1000, [0.0] * 30 + [1.0] * 970
    >>> [look_at(Target.parse("99%"), good, plan).verdict for plan in (good, bad)]
    ['kept with 95 % confidence', 'not kept']
    """
    pairs = pairs_of(float_scores, plan_scores, families)
    samples, what = len(np.asarray(float_scores)), "samples" if families is None else "groups of samples"
    kept = pairs.kept(target)
    least_kept = bound(pairs, target, level)
    if proves(pairs, target, level):
        sure = 1 - level if confidence is None else confidence
        return Look(kept, least_kept, level, samples, PROVEN, f"kept with {100 * sure:g} % confidence")
    if not keeps(kept, target):
        return Look(kept, least_kept, level, samples, MISSED, NOT_KEPT)
    verdict = f"{NOT_PROVEN}: {_would_prove(pairs, target, level)}".replace("samples", what)
    return Look(kept, least_kept, level, samples, UNPROVEN, verdict)


def pairs_of(float_scores: ArrayLike, plan_scores: ArrayLike, families: ArrayLike | None) -> Pairs:
    """The pairs of scores that are evidence of their own: of samples, or of whole families."""
    if families is not None:
        float_scores, plan_scores = grouped(families, float_scores, plan_scores)
    return Pairs.of(float_scores, plan_scores)


def schedule(samples: int) -> list[tuple[int, float]]:
    """After how many samples one looks, and the part of the level that each look may spend.

    >>> [(count, round(part, 3)) for count, part in schedule(800)]
    [(128, 0.037), (256, 0.074), (512, 0.222), (800, 0.667)]
    >>> schedule(100)
    [(100, 1.0)]
    """
    counts, count = [], FIRST_LOOK
    while count < 0.75 * samples:
        counts.append(count)
        count *= 2
    parts, left = [], 1.0
    for _ in counts:
        parts.append(LAST * left)
        left -= parts[-1]
    return list(zip([*counts, samples], [left, *reversed(parts)], strict=True))


def look_in_blocks(
    target: Target,
    samples: int,
    scores: Callable[[int], Scores],
    level: float = LEVEL,
    confidence: float | None = None,
) -> Look:
    """Looks at a plan until it is proven, or cannot be any more; all of them together err with `level`.

    `scores` gives the scores of the first so many of the `samples`, or of a few more. They must be in an
    order that has nothing to do with the scores.
    """
    looks = schedule(samples)
    for count, part in looks[:-1]:
        float_scores, plan_scores = scores(count)
        pairs = Pairs.of(float_scores, plan_scores)
        if target.relative is not None and pairs.float_score.max() == 0:
            continue
        if proves(pairs, target, level * part) or _is_hopeless(pairs, target, samples, level * looks[-1][1]):
            return look_at(target, float_scores, plan_scores, level * part, confidence)
    float_scores, plan_scores = scores(samples)
    return look_at(target, float_scores, plan_scores, level * looks[-1][1], confidence)


def _is_hopeless(pairs: Pairs, target: Target, samples: int, level: float) -> bool:
    """Whether the target is refuted, or no `samples` that go on without a loss would prove it."""
    if refutes(pairs, target, HOPELESS):
        return True
    rest = max(0.0, samples - float(pairs.samples))
    count, before, after = pairs.count, pairs.float_score, pairs.plan_score
    best = Pairs(np.append(count, rest), np.append(before, 1.0), np.append(after, 1.0))
    return not proves(best, target, level)


def weighed(look: Look, pairs: Pairs, target: Target, expected: float) -> Look:
    """An unproven look with what is `expected` of the plan: the share kept, or the fraction lost.

    Of a few hundred samples the labels of one or two decide whether 99.9 % is kept. What the float
    network's own probabilities expect tells more, as long as the labels do not refute it; and where a plan
    is not expected to keep the target, that a few labels say otherwise is luck. Neither proves anything.
    """
    look = replace(look, expected=expected)
    if look.proven or refutes(pairs, target, LEVEL):
        return look
    if keeps(expected, target):
        verdict = f"{ONLY_EXPECTED}: {_would_prove(pairs, target, look.level, expected)}"
        return replace(look, outcome=UNPROVEN, verdict=verdict)
    return replace(look, verdict=NOT_EXPECTED) if look.outcome == UNPROVEN else look


def _would_prove(pairs: Pairs, target: Target, level: float, expected: float | None = None) -> str:
    """How many samples would prove the target, in words: of the kind that was seen, or as expected.

    Where the plan did better than float on a few samples, nobody should count on it.
    """
    share = pairs.count / pairs.samples
    if (
        expected is None
        and target.perplexity is None
        and float((share * (pairs.plan_score - pairs.float_score)).sum()) > 0
    ):
        expected = 0.0 if target.relative is None else 1.0
    if expected is None:
        needed = least(lambda n: proves(Pairs(share * n, pairs.float_score, pairs.plan_score), target, level))
    else:
        accuracy = float((share * pairs.float_score).sum())
        kept = expected if target.relative is not None else 1 - expected / accuracy
        discordance = float((share * abs(pairs.plan_score - pairs.float_score)).sum())
        lost = accuracy * (1 - kept)
        discordance = min(discordance, 2 * accuracy - lost, 2 * (1 - accuracy) + lost)  # all that can be
        needed = samples_needed(target, accuracy, discordance, kept=kept, level=level)
    if needed is None or needed > MOST_NAMED:
        return f"it would take more than {MOST_NAMED:,} samples"
    return f"{needed:,} samples would prove it"
