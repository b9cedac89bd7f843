"""The promise: bounds against other derivations of them, and how often they hold, by simulation."""

from __future__ import annotations

import math
from itertools import product
from statistics import NormalDist

import numpy as np
import pytest

from bitsect.errors import BitsectError
from bitsect.solve.confidence import (
    LEVEL,
    Pairs,
    _likeliest,
    bound,
    continuity,
    grouped,
    proves,
    samples_needed,
    split,
    statistic,
)
from bitsect.values import Target

RIGHT = np.array([1.0, 1.0, 0.0, 0.0]), np.array([1.0, 0.0, 1.0, 0.0])  # both, only float, only plan, none
SHARE = Target.parse("99%")


def drawn(accuracy: float, lost: float, gained: float, samples: int, trials: int, seed: int = 0) -> Pairs:
    """The pairs of many experiments, and nothing of them left to chance but the samples."""
    cells = np.maximum([accuracy - lost, lost, gained, 1 - accuracy - gained], 0)
    rng = np.random.default_rng([seed, samples, round(1e6 * lost), round(1e6 * gained)])
    return Pairs(rng.multinomial(samples, cells / cells.sum(), size=trials).astype(float), *RIGHT)


def proven_wrongly(pairs: Pairs, kept: float, level: float) -> np.ndarray:
    """The experiments whose bound is above what is really kept."""
    return statistic(pairs, kept, 0.0, level) >= NormalDist().inv_cdf(1 - level)


def test_where_float_is_always_right_it_is_the_score_bound_of_one_proportion() -> None:
    z = NormalDist().inv_cdf(1 - LEVEL)
    for samples, lost in product((50, 1000, 10_000), (0, 1, 5, 20)):
        # (lost + κ p − n (1 − p))² = z² n p (1 − p), solved for p by hand: a quadratic in p.
        k = continuity(LEVEL)
        a, b = samples + k, samples - lost  # (samples right) = (n + κ) p at the bound, but for z
        roots = np.roots([a**2 + z**2 * samples, -(2 * a * b + z**2 * samples), b**2])
        pairs = Pairs.of([1.0] * samples, [0.0] * lost + [1.0] * (samples - lost))
        assert bound(pairs, SHARE) == pytest.approx(float(roots.min().real), abs=1e-9)


def test_weights_are_the_likeliest_under_the_hypothesis() -> None:
    rng = np.random.default_rng(0)
    for count in ([880, 12, 9, 99], [900, 0, 5, 95], [900, 0, 0, 100], [100, 3, 1, 40]):
        n = np.array(count, dtype=float)
        c = RIGHT[1] - 0.97 * RIGHT[0]
        weight, unseen = _likeliest(n, c, np.array([0.97]), n.sum(keepdims=True))
        cells = np.where((n == 0) & (c < 0), unseen, weight)  # the unseen cell is that of losses here
        assert cells.sum() == pytest.approx(1)
        assert cells @ c == pytest.approx(0, abs=1e-9)

        def likelihood(p: np.ndarray, n: np.ndarray = n) -> float:
            return float(n[n > 0] @ np.log(p[n > 0]))

        # No other weights that meet both conditions are likelier.
        basis = np.linalg.svd(np.stack([np.ones(4), c]))[2][2:]
        for step in rng.normal(size=(200, 2)) * 1e-3:
            other = cells + step @ basis
            if (other > 0).all():
                assert likelihood(other) <= likelihood(cells) + 1e-9


SCENES = [
    (accuracy, discordance, share)
    for accuracy, discordance, share in product((0.6, 0.9, 0.999), (0.001, 0.01, 0.1), (1.0, 0.75, 0.5))
    if discordance * (1 - share) <= 1 - accuracy
]


@pytest.mark.parametrize("samples", [200, 1000, 10_000])
def test_the_bound_holds_in_94_of_100_experiments_and_more(samples: int) -> None:
    # The share of the discordant samples that are losses: above one half, less than float is kept.
    for accuracy, discordance, share in SCENES:
        lost, gained = discordance * share, discordance * (1 - share)
        pairs = drawn(accuracy, lost, gained, samples, trials=4000)
        wrong = proven_wrongly(pairs, (accuracy - lost + gained) / accuracy, LEVEL)
        assert wrong.mean() <= 0.06, (accuracy, discordance, share)


def test_without_the_continuity_it_would_not_hold() -> None:
    lost = 2.8 / 1000  # nothing lost in 1,000 samples in 6 % of the experiments
    pairs = drawn(1.0, lost, 0.0, 1000, trials=4000)
    z = NormalDist().inv_cdf(1 - LEVEL)
    plain = statistic(pairs, 1 - lost, 0.0, 0.01)  # κ is 0 at this level
    assert (plain >= z).mean() > 0.055
    assert proven_wrongly(pairs, 1 - lost, LEVEL).mean() < 0.05


def test_it_holds_for_scores_between_right_and_wrong() -> None:
    rng = np.random.default_rng(1)
    trials, samples = 1000, 150
    before = np.minimum(1.0, rng.beta(2, 0.3, size=(trials, samples)) * 1.1)  # F1 of answers, many at 1
    worse = rng.random((trials, samples)) < 0.05
    after = np.where(worse, before * rng.random((trials, samples)), before)
    # The mean of β = min(1, 1.1 x) cancels: one in twenty keeps half on average.
    pairs = Pairs(np.ones((trials, samples)), before, after)
    assert proven_wrongly(pairs, 0.975, LEVEL).mean() <= 0.06


@pytest.mark.parametrize("target", ["90%", "99%", "99.9%", "99.99%"])
@pytest.mark.parametrize(("accuracy", "discordance"), [(1.0, 0.0), (0.9, 0.0), (0.7, 0.02)])
def test_the_best_promise_and_the_samples_needed_are_inverse(
    target: str, accuracy: float, discordance: float
) -> None:
    goal = Target.parse(target)
    needed = samples_needed(goal, accuracy, discordance)
    assert needed is not None
    assert goal.relative is not None
    assert bound(Pairs.expected(needed, accuracy, discordance), goal) >= float(goal.relative) - 1e-9
    assert bound(Pairs.expected(needed - 1, accuracy, discordance), goal) < float(goal.relative)


def test_nothing_lost_is_the_rule_of_three() -> None:
    for samples in (100, 4096, 10**6):
        least = bound(Pairs.expected(samples), SHARE)
        assert 1 - least == pytest.approx(math.log(20) / samples, rel=0.03)


def test_more_than_float_is_never_promised() -> None:
    better = Pairs.of([0.0] * 20 + [1.0] * 80, [1.0] * 100)
    assert bound(better, SHARE) == pytest.approx(1.0, abs=1e-9)
    assert bound(better, Target.drop(1)) == pytest.approx(0.0, abs=1e-9)


def test_a_largest_drop_is_bounded_in_points_of_all_samples() -> None:
    pairs = drawn(0.9, 0.012, 0.004, 5000, trials=1)
    pairs = Pairs(pairs.count[0], *RIGHT)
    seen, most = pairs.kept(Target.drop(1)), bound(pairs, Target.drop(1))
    assert 0 < seen < most < 0.02
    assert proves(pairs, Target.drop(2))
    assert not proves(pairs, Target.drop("0.5"))
    many = statistic(drawn(0.9, 0.012, 0.004, 1000, trials=4000), 1.0, 0.008)
    assert (many >= NormalDist().inv_cdf(1 - LEVEL)).mean() <= 0.06


def test_more_losses_never_raise_the_bound_nor_more_gains_lower_it() -> None:
    bounds = np.array(
        [
            [
                bound(Pairs(np.array([900.0 - lost, lost, gained, 100 - gained]), *RIGHT), SHARE)
                for lost in range(9)
            ]
            for gained in range(5)
        ]
    )
    assert (np.diff(bounds, axis=1) < 0).all()
    assert (np.diff(bounds, axis=0) >= 0).all()


@pytest.mark.parametrize("scores", [([], []), ([1.0], [1.5]), ([1.0], [math.nan]), ([1.0], [[1.0]])])
def test_scores_that_are_no_scores_are_refused(scores: tuple[list[float], list[float]]) -> None:
    with pytest.raises((BitsectError, ValueError)):
        Pairs.of(*scores)


def test_a_float_network_that_is_never_right_promises_nothing() -> None:
    with pytest.raises(BitsectError, match="gets no held-out sample right"):
        Pairs.of([0.0] * 10, [0.0] * 10).kept(SHARE)


def test_an_impossible_discordance_is_refused() -> None:
    with pytest.raises(BitsectError, match="cannot be"):
        samples_needed(SHARE, 0.99, 0.1)


def test_a_split_uses_every_sample_once_and_not_in_the_order_of_the_file() -> None:
    for count in (1, 2, 100, 512, 600, 4096, 50_000):
        search, held = split(count, seed=3)
        assert sorted([*search, *held]) == list(range(count))
        assert len(search) == min(count // 2, max(256, min(1024, count // 4)))
    assert (split(600, 3)[0] != split(600, 4)[0]).any()
    assert split(600)[0].max() > 500  # not the first ones


def test_groups_keep_what_their_samples_keep_and_are_fewer() -> None:
    rng = np.random.default_rng(0)
    groups, before = np.repeat(np.arange(40), np.arange(1, 41)), rng.random(820)
    after = before * rng.random(820)
    f, q = grouped(groups, before, after)
    assert len(f) == 40
    assert q.sum() / f.sum() == pytest.approx(after.sum() / before.sum())
    assert (f <= 1).all()
    # Copies of one sample are one piece of evidence, not ten.
    ten = np.repeat(np.arange(100), 10)
    assert not proves(Pairs.of(*grouped(ten, np.ones(1000), np.ones(1000))), SHARE)
    assert proves(Pairs.of(np.ones(1000), np.ones(1000)), SHARE)


def test_groups_that_fail_together_are_rarely_promised() -> None:
    rng, trials, wrong = np.random.default_rng(3), 400, 0
    for _ in range(trials):  # 5 % of 300 documents of 10 pieces lose half of their score
        hit = np.repeat(rng.random(300) < 0.05, 10)
        before = np.full(3000, 0.8)
        after = np.where(hit, 0.4, 0.8)
        wrong += proves(
            Pairs.of(*grouped(np.repeat(np.arange(300), 10), before, after)), Target.parse("97.5%")
        )
    assert wrong <= 0.07 * trials
