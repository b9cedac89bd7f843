"""How much of the accuracy is kept for certain, from samples that had no part in the search.

Every held-out sample gives a pair of scores in [0, 1]: f of the float network and q of the plan. The
plan keeps the share τ if the mean of c = q − τ f is above 0 (at most δ lost: c = q − f + δ). The
score test asks how likely the pairs are if that mean were 0:

    z = (Σ c − κ w) / √(n Σ p c²),   p the likeliest weights with Σ p = 1 and Σ p c = 0
    p_k = n_k / (n + λ c_k)

A sample that only float gets right (c = −w) may occur although none was seen: it takes the weight
that is missing. κ makes "nothing lost of n" right: 95 % sure that less than 3/n is lost. The bound
is the τ at which z is the quantile of the level. For right and wrong answers this is the score bound
on a ratio of paired proportions (Nam and Blackwelder 2002); where float is always right, Wilson's.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..errors import BitsectError
from ..values import Target

LEVEL = 0.05  # the error of a promise with 95 % confidence
MOST_SAMPLES = 10**9  # beyond which a number of samples is not looked for
FEWEST_FOR_SEARCH, MOST_FOR_SEARCH = 256, 1024

Numbers = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Pairs:
    """Pairs of scores and how often each was seen; axes before the last are separate experiments."""

    count: Numbers
    float_score: Numbers
    plan_score: Numbers

    @classmethod
    def of(cls, float_scores: ArrayLike, plan_scores: ArrayLike) -> Pairs:
        """The pairs of two lists of scores, one of each for every sample."""
        scores = np.array([float_scores, plan_scores], dtype=np.float64)
        if scores.ndim != 2 or not scores.size or not ((scores >= 0) & (scores <= 1)).all():
            raise BitsectError("a promise needs a float score and a plan score from 0 to 1 for every sample")
        pairs, count = np.unique(scores, axis=1, return_counts=True)
        return cls(count.astype(np.float64), pairs[0], pairs[1])

    @classmethod
    def expected(
        cls, samples: float, float_accuracy: float = 1.0, discordance: float = 0.0, kept: float = 1.0
    ) -> Pairs:
        """What is to be expected of so many samples.

        `discordance` is the share of samples that exactly one of the two gets right, `kept` the
        share of the float accuracy that is kept.
        """
        lost = float_accuracy * (1 - kept)
        only_float, only_plan = max(0.0, discordance + lost) / 2, max(0.0, discordance - lost) / 2
        if discordance < abs(lost):
            only_float, only_plan = max(0.0, lost), max(0.0, -lost)
        shares = (float_accuracy - only_float, only_float, only_plan, 1 - float_accuracy - only_plan)
        if min(shares) < -1e-12:
            raise BitsectError(
                f"accuracy {float_accuracy:g} with discordance {discordance:g} cannot be: no such samples"
            )
        count = np.maximum(np.array(shares), 0.0) * samples
        return cls(count, np.array([1.0, 1.0, 0.0, 0.0]), np.array([1.0, 0.0, 1.0, 0.0]))

    @property
    def samples(self) -> Any:
        return self.count.sum(axis=-1)

    def kept(self, target: Target) -> float:
        """What was seen, in the target's own terms: the share kept, or the fraction lost."""
        before, after = (float((self.count * s).sum()) for s in (self.float_score, self.plan_score))
        if target.relative is None:
            return (before - after) / float(self.samples)
        if not before:
            raise BitsectError("the float network gets no held-out sample right: check their labels")
        return after / before


def statistic(pairs: Pairs, share: Any, drop: Any = 0.0, level: float = LEVEL) -> Any:
    """z of the score test that more than `share` of the accuracy, less `drop`, is kept."""
    share, drop = (
        np.asarray(share, dtype=np.float64)[..., None],
        np.asarray(drop, dtype=np.float64)[..., None],
    )
    count, samples = pairs.count, pairs.count.sum(axis=-1, keepdims=True)
    c = pairs.plan_score - share * pairs.float_score + drop
    worst = np.maximum(share - drop, 1e-300)
    weight, unseen = _likeliest(count, c, worst, samples)
    variance = (weight * c**2).sum(axis=-1) + unseen * worst[..., 0] ** 2
    total = (count * c).sum(axis=-1) - continuity(level) * worst[..., 0]
    return total / np.sqrt(samples[..., 0] * np.maximum(variance, 1e-300))


def _likeliest(count: Numbers, c: Numbers, worst: Numbers, samples: Numbers) -> tuple[Numbers, Any]:
    """The weights p, and the weight of the worst sample where none was seen.

    Σ c p falls as λ rises to n / w; where it stays above 0 to the end, the worst sample, which was not
    seen, makes up for it. A mean that is not above 0 is no evidence: λ = 0 will do.
    """
    low, high = np.zeros(np.broadcast(samples, worst).shape), samples / worst + np.zeros_like(worst)
    for _ in range(40):
        middle = (low + high) / 2
        above = (c * count / np.maximum(samples + middle * c, 1e-300)).sum(axis=-1, keepdims=True) > 0
        low, high = np.where(above, middle, low), np.where(above, high, middle)
    p = count / np.maximum(samples + low * c, 1e-300)
    return p, np.maximum(0.0, 1 - p.sum(axis=-1))


def continuity(level: float) -> float:
    """κ: the part of a sample by which the losses count as more than were seen.

    With no loss in n samples, n large, the bound on the losses is then ln(1 / level), the exact one.

    >>> round(continuity(0.05), 3), continuity(0.01)
    (0.149, 0.0)
    """
    most = math.log(1 / level)
    return max(0.0, most - NormalDist().inv_cdf(1 - level) * math.sqrt(most))


def bound(pairs: Pairs, target: Target, level: float = LEVEL) -> float:
    """The share that is kept at least, or the fraction that is lost at most, but for an error of `level`.

    >>> always_right = Pairs.of([1] * 3000, [1] * 3000)
    >>> round(bound(always_right, Target.parse("99%")), 4)
    0.999
    >>> round(bound(Pairs.of([1] * 990 + [0] * 10, [1] * 980 + [0] * 20), Target.drop(2)), 4)
    0.0168
    """
    pairs.kept(target)  # refuses a float network that is never right
    relative = target.relative is not None
    # Nobody is promised more than float gives: few gains and no loss would prove it too easily.
    low, high = 0.0, 1.0
    for _ in range(40):
        middle = (low + high) / 2
        proven = _proven(pairs, middle if relative else 1.0, 0.0 if relative else middle, level)
        # A share is proven up to the bound, a drop from the bound on.
        low, high = (middle, high) if proven is relative else (low, middle)
    return low if relative else high


def proves(pairs: Pairs, target: Target, level: float = LEVEL) -> bool:
    """Whether the pairs prove that the target is kept, but for an error of `level`."""
    share = 1.0 if target.relative is None else float(target.relative)
    return _proven(pairs, share, float(target.max_drop or 0), level)


def _proven(pairs: Pairs, share: float, drop: float, level: float) -> bool:
    return bool(statistic(pairs, share, drop, level) >= NormalDist().inv_cdf(1 - level))


def samples_needed(
    target: Target,
    float_accuracy: float = 1.0,
    discordance: float = 0.0,
    *,
    kept: float = 1.0,
    level: float = LEVEL,
) -> int | None:
    """Held-out samples that would prove the target if a plan did on them as expected; None: no number.

    >>> samples_needed(Target.parse("99.9%")), samples_needed(Target.parse("99%"), 0.9, 0.02)
    (2993, 808)
    """

    def proven(samples: float) -> bool:
        return proves(Pairs.expected(samples, float_accuracy, discordance, kept), target, level)

    return least(proven)


def least(proven: Any) -> int | None:
    """The least whole number for which `proven` holds, where it holds for all above it too."""
    high = 1
    while not proven(high):
        if high > MOST_SAMPLES:
            return None
        high *= 2
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if proven(middle) else (middle, high)
    return high


def refutes(pairs: Pairs, target: Target, level: float = LEVEL) -> bool:
    """Whether the pairs show that the target is missed, but for an error of about `level`.

    >>> right = [1.0] * 1000
    >>> [refutes(Pairs.of(right, [0.0] * lost + right[lost:]), Target.parse("99%")) for lost in (12, 25)]
    [False, True]
    """
    share = 1.0 if target.relative is None else float(target.relative)
    c = pairs.plan_score - share * pairs.float_score + float(target.max_drop or 0)
    total, spread = float((pairs.count * c).sum()), float((pairs.count * c**2).sum()) ** 0.5
    return bool(spread > 0 and total / spread <= -NormalDist().inv_cdf(1 - level))


def split(
    samples: int, seed: int = 0, families: ArrayLike | None = None
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The samples for the search and those held out for the promise: indices, each in rising order.

    A quarter is for the search, at least 256 and at most 1,024, but never more than half: a search
    only compares plans on the same samples and is corrected by the promise, whose width is that of
    its own samples. They are drawn at random, since files are often sorted by class; whole `families`
    where these are given, so that no two parts of one are on both sides.

    >>> [[len(part) for part in split(count)] for count in (4096, 600, 100)]
    [[1024, 3072], [256, 344], [50, 50]]
    """
    searched = min(samples // 2, max(FEWEST_FOR_SEARCH, min(MOST_FOR_SEARCH, samples // 4)))
    order = np.random.default_rng(seed).permutation(samples)
    if families is not None:
        known, of = np.unique(np.asarray(families), return_inverse=True)
        place = np.random.default_rng(seed).permutation(len(known))
        order = np.argsort(place[of], kind="stable")
        ends = np.cumsum(np.bincount(place[of]))[:-1]  # of all families but the last
        if not len(ends):
            return np.arange(samples), np.arange(0)
        searched = int(ends[np.abs(ends - searched).argmin()])
    return np.sort(order[:searched]), np.sort(order[searched:])


def in_all(held_out: int) -> int:
    """Samples of which `split` holds out so many.

    >>> [len(split(in_all(held))[1]) for held in (50, 300, 700, 3000, 9000)]
    [50, 300, 700, 3000, 9000]
    """
    for searched, most in ((held_out, FEWEST_FOR_SEARCH), (FEWEST_FOR_SEARCH, 3 * FEWEST_FOR_SEARCH)):
        if held_out <= most:
            return held_out + searched
    return held_out + min(MOST_FOR_SEARCH, math.ceil(held_out / 3))


def keeps(kept: float, target: Target) -> bool:
    """Whether what was kept, or lost, is as the target asks."""
    # What was seen is a quotient of sums: equal to nine digits is equal.
    if target.relative is not None:
        return kept >= float(target.relative) - 1e-9
    return kept <= float(target.max_drop or 0) + 1e-9


def grouped(groups: ArrayLike, float_scores: ArrayLike, plan_scores: ArrayLike) -> tuple[Numbers, Numbers]:
    """The scores of whole groups, where samples of one group may be wrong together.

    The score of a group is the sum of its samples' scores over the size of the largest group: then the
    sum over groups is that over samples, whatever their sizes, and what is tested stays the mean of samples.

    >>> [scores.tolist() for scores in grouped([0, 0, 1], [1, 1, 1], [1, 0, 1])]
    [[1.0, 0.5], [0.5, 0.5]]
    """
    _, of = np.unique(np.asarray(groups), return_inverse=True)
    largest = float(np.bincount(of).max())
    before, after = (
        np.bincount(of, np.asarray(s, np.float64)) / largest for s in (float_scores, plan_scores)
    )
    return np.minimum(before, 1.0), np.minimum(after, 1.0)
