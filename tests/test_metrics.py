"""Metrics by hand and against slow loops; scores, their standard errors and their halves."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import sys
import types
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bitsect.errors import BitsectError
from bitsect.solve.metrics import METRICS, Array, Means, Metric, metric, metric_named, tabulate
from bitsect.solve.reliability import halved, resampled, score
from bitsect.values import INT4, INT8, Losses, Measured, Noise, Scores, Scoring
from bitsect.values.ranks import ranked, spearman


def made(layers: int = 5, samples: int = 12, probes: int = 6, seed: int = 0, **changes: Any) -> Measured:
    """A network of random numbers with everything measured at int8."""
    rng = np.random.default_rng(seed)
    pairs = layers * (layers - 1) // 2
    measured = Measured(
        tuple(f"layer{i}" for i in range(layers)),
        weights=rng.integers(1, 1000, layers).astype(np.float64),
        elements=rng.integers(1, 1000, layers).astype(np.float64),
        traces=rng.normal(1, 1, (layers, 1, probes)),
        losses={
            "int8": Losses(
                rng.random(samples), rng.random((layers, samples)), rng.random((pairs, samples)) + 0.5
            )
        },
        noise={
            "int8": Noise(
                rng.random(samples) + 1,
                rng.random((layers, samples)),
                rng.random((layers, 2 * samples)),
                rng.random(layers),
                rng.random((layers, samples)),
            )
        },
    )
    return dataclasses.replace(measured, **changes)


def scored(name: str, measured: Measured, options: Scoring | None = None) -> list[float]:
    return list(score(measured, METRICS[name], INT8, options, bootstrap=0).values)


sizes = st.fixed_dictionaries(
    {
        "layers": st.integers(1, 6),
        "samples": st.integers(1, 7),
        "probes": st.integers(1, 4),
        "seed": st.integers(0, 10**6),
    }
)


# ---- slow, obvious references --------------------------------------------------------------------


def mean(numbers: Any) -> float:
    return math.fsum(numbers) / len(numbers)


def slow_hessian(measured: Measured, options: Scoring) -> list[float]:
    assert measured.traces is not None
    scores = []
    for i in range(len(measured.layers)):
        trace = max(0.0, mean(measured.traces[i].flatten()))
        scores.append(trace / measured.elements[i] if options.trace == "mean_trace" else trace)
    return scores


def slow_interlayer(measured: Measured, options: Scoring) -> list[float]:
    losses = measured.losses["int8"]
    assert losses.pair is not None
    count = len(measured.layers)
    single = [mean(row) for row in losses.single]
    excess = [[0.0] * count for _ in range(count)]
    for row, (i, j) in zip(losses.pair, itertools.combinations(range(count), 2), strict=True):
        excess[i][j] = excess[j][i] = mean(row) - max(single[i], single[j])
    if options.clip == "pair":
        return [sum(max(0.0, excess[i][j]) for j in range(count) if j != i) for i in range(count)]
    return [max(0.0, sum(excess[i][j] for j in range(count) if j != i)) for i in range(count)]


def slow_aughessian(measured: Measured, options: Scoring) -> list[float]:
    curvature, excess = slow_hessian(measured, options), slow_interlayer(measured, options)
    beta = mean(curvature) / mean(excess) if mean(excess) else 0.0
    return [h + beta * e for h, e in zip(curvature, excess, strict=True)]


def slow_sqnr(measured: Measured, options: Scoring) -> list[float]:
    noise = measured.noise["int8"]
    assert noise.signal is not None
    assert noise.noise is not None
    return [-10 * math.log10(sum(noise.signal) / sum(row)) for row in noise.noise]


def slow_hawq(measured: Measured, options: Scoring) -> list[float]:
    errors = measured.noise["int8"].weight_error
    assert errors is not None
    means = slow_hessian(measured, Scoring(trace="mean_trace"))
    return [trace * error for trace, error in zip(means, errors, strict=True)]


SLOW = {
    "hessian": slow_hessian,
    "interlayer": slow_interlayer,
    "aughessian": slow_aughessian,
    "single": lambda measured, options: [mean(row) for row in measured.losses["int8"].single],
    "sqnr": slow_sqnr,
    "fisher": lambda measured, options: [mean(row) for row in measured.noise["int8"].fisher],
    "hawq": slow_hawq,
    "damage": lambda measured, options: [mean(row) for row in measured.noise["int8"].damage],
    "random": lambda measured, options: list(
        np.random.default_rng(options.probe_seed).random(len(measured.layers))
    ),
}


@pytest.mark.parametrize("name", METRICS)
@settings(max_examples=50)
@given(
    size=sizes,
    clip=st.sampled_from(["pair", "sum"]),
    trace=st.sampled_from(["mean_trace", "trace"]),
    penalty=st.sampled_from([0.0, 0.5]),
)
def test_every_metric_equals_its_slow_reference(
    name: str, size: dict[str, int], clip: str, trace: str, penalty: float
) -> None:
    measured, options = made(**size), Scoring(clip=clip, trace=trace, size_penalty=penalty, probe_seed=3)
    expected = SLOW[name](measured, options)
    weights = measured.weights
    expected = [
        e + penalty * abs(mean(expected)) * n / mean(weights) for e, n in zip(expected, weights, strict=True)
    ]
    assert scored(name, measured, options) == pytest.approx(expected, rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("name", METRICS)
@settings(max_examples=30)
@given(size=sizes, scale=st.sampled_from([0.0, 1e-300, 1e-30, 1.0, 1e30]))
def test_every_metric_is_finite_whatever_the_size_of_the_numbers(
    name: str, size: dict[str, int], scale: float
) -> None:
    measured = made(**size)

    def scaled(value: Any) -> Any:
        return dataclasses.replace(
            value, **{f.name: scale * getattr(value, f.name) for f in dataclasses.fields(value)}
        )

    assert measured.traces is not None
    tiny = dataclasses.replace(
        measured,
        traces=scale * measured.traces,
        losses={"int8": scaled(measured.losses["int8"])},
        noise={"int8": scaled(measured.noise["int8"])},
    )
    found = score(tiny, METRICS[name], INT8, Scoring(size_penalty=1.0), bootstrap=5)
    assert all(map(math.isfinite, found.values))  # as Scores insists; errors and halves too
    json.dumps(found.to_json(), allow_nan=False)


@pytest.mark.parametrize("name", METRICS)
def test_every_metric_says_what_it_is_and_what_it_lacks(name: str) -> None:
    assert METRICS[name].summary.endswith(".")
    nothing = Measured(("a",), np.ones(1), np.ones(1))
    if METRICS[name].needs:
        with pytest.raises(BitsectError, match="were not measured"):
            score(nothing, METRICS[name], INT8)
    else:
        score(nothing, METRICS[name], INT8)


# ---- by hand -------------------------------------------------------------------------------------

# Three layers, two samples. Means: L_0 = 1, L = (1, 2, 4), L_01 = 2.5, L_02 = 3, L_12 = 8, so that
# L_ij − max(L_i, L_j) = 0.5, −1, 4.
BY_HAND = Measured(
    ("a", "b", "c"),
    weights=np.array([10.0, 30.0, 20.0]),
    elements=np.array([10.0, 30.0, 20.0]),
    traces=np.array([[[10.0, 30.0]], [[-8.0, 2.0]], [[90.0, 110.0]]]),
    losses={
        "int8": Losses(
            np.array([0.0, 2.0]),
            np.array([[1.0, 1.0], [1.0, 3.0], [4.0, 4.0]]),
            np.array([[2.0, 3.0], [3.0, 3.0], [6.0, 10.0]]),
        )
    },
    noise={
        "int8": Noise(
            np.array([60.0, 40.0]),
            np.array([[1.0, 0.0], [6.0, 4.0], [0.0, 0.0]]),
            np.array([[1.0, 3.0, 5.0], [0.0, 0.0, 0.0], [2.0, 2.0, 2.0]]),
            np.array([2.0, 3.0, 4.0]),
        )
    },
)


@pytest.mark.parametrize(
    ("name", "options", "expected"),
    [
        ("hessian", Scoring(), [2.0, 0.0, 5.0]),  # 20/10, −3 clipped, 100/20
        ("hessian", Scoring(trace="trace"), [20.0, 0.0, 100.0]),
        ("interlayer", Scoring(), [0.5, 4.5, 4.0]),
        ("interlayer", Scoring(clip="sum"), [0.0, 4.5, 3.0]),
        ("aughessian", Scoring(), [2 + 7 / 9 * 0.5, 7 / 9 * 4.5, 5 + 7 / 9 * 4]),  # β = 7/9
        ("aughessian", Scoring(clip="sum"), [2.0, 7 / 7.5 * 4.5, 5 + 7 / 7.5 * 3]),
        ("aughessian", Scoring(trace="trace"), [20 + 120 / 9 * 0.5, 120 / 9 * 4.5, 100 + 120 / 9 * 4]),
        ("single", Scoring(), [1.0, 2.0, 4.0]),
        ("single", Scoring(size_penalty=3.0), [1 + 3.5, 2 + 10.5, 4 + 7]),  # 3 · 7/3 · n / 20
        ("sqnr", Scoring(), [-20.0, -10.0, -300.0]),
        ("sqnr", Scoring(size_penalty=1.0), [-20 + 55, -10 + 165, -300 + 110]),
        ("fisher", Scoring(), [3.0, 0.0, 2.0]),
        ("hawq", Scoring(), [4.0, 0.0, 20.0]),
        ("hawq", Scoring(trace="trace"), [4.0, 0.0, 20.0]),  # always the mean trace
    ],
)
def test_by_hand(name: str, options: Scoring, expected: list[float]) -> None:
    assert scored(name, BY_HAND, options) == pytest.approx(expected)


def test_orders_by_hand() -> None:
    assert score(BY_HAND, METRICS["sqnr"], INT8).order() == ("c", "a", "b")
    assert score(BY_HAND, METRICS["aughessian"], INT8).order() == ("a", "b", "c")


@given(size=sizes)
@settings(max_examples=50)
def test_excess_is_interaction_plus_the_lesser_single_loss(size: dict[str, int]) -> None:
    needs = METRICS["interlayer"].needs | {"base"}
    (means,) = tabulate(made(**size), INT8, needs)
    single, pair, base = means["single"], means["pair"], means["base"]
    count = len(single)
    for i, j in itertools.combinations(range(count), 2):
        interaction = pair[i, j] - single[i] - single[j] + base[0]
        excess = pair[i, j] - max(single[i], single[j])
        assert excess == pytest.approx(interaction + (min(single[i], single[j]) - base[0]), abs=1e-12)


def test_interlayer_orders_by_single_loss_where_layers_do_not_interact() -> None:
    rng = np.random.default_rng(1)
    harm = rng.random(6)
    base = rng.random(8)
    i, j = np.triu_indices(6, 1)
    losses = Losses(base, base + harm[:, None], base + harm[i, None] + harm[j, None])
    measured = made(6, 8, losses={"int8": losses})
    # Σ_j min(h_i, h_j) cannot tell the two largest apart, up to rounding; all below it can.
    expected = score(measured, METRICS["single"], INT8).order()
    assert score(measured, METRICS["interlayer"], INT8).order()[:4] == expected[:4]


def test_pair_is_a_symmetric_square_with_the_single_losses_on_its_diagonal() -> None:
    (means,) = tabulate(BY_HAND, INT8, METRICS["interlayer"].needs)
    assert means["pair"].tolist() == [[1.0, 2.5, 3.0], [2.5, 2.0, 8.0], [3.0, 8.0, 4.0]]


# ---- edges ---------------------------------------------------------------------------------------


def test_beta_is_zero_where_no_pair_exceeds() -> None:
    flat = Losses(np.ones(2), np.ones((3, 2)), np.ones((3, 2)))
    measured = dataclasses.replace(BY_HAND, losses={"int8": flat})
    assert scored("aughessian", measured) == scored("hessian", measured)


def test_no_curvature_leaves_nothing_to_augment() -> None:
    measured = dataclasses.replace(BY_HAND, traces=-np.ones((3, 1, 2)))
    assert scored("aughessian", measured) == [0.0, 0.0, 0.0]  # β = 0 / mean(interlayer)


def test_the_sum_clip_can_leave_nothing_where_the_pair_clip_does_not() -> None:
    losses = Losses(np.zeros(1), np.full((3, 1), 2.0), np.array([[2.5], [1.0], [1.0]]))
    measured = dataclasses.replace(BY_HAND, losses={"int8": losses})
    assert scored("interlayer", measured, Scoring(clip="sum")) == [0.0, 0.0, 0.0]
    assert scored("interlayer", measured) == [0.5, 0.5, 0.0]


def test_one_layer_has_no_pairs() -> None:
    measured = made(layers=1)
    assert scored("interlayer", measured) == [0.0]
    assert scored("aughessian", measured) == scored("hessian", measured)
    assert score(measured, METRICS["aughessian"], INT8).split_half is None


@pytest.mark.parametrize(
    ("signal", "noise", "expected"), [(0.0, 0.0, -300), (0.0, 1.0, 300), (1.0, 0.0, -300)]
)
def test_sqnr_without_signal_or_noise_is_a_number(signal: float, noise: float, expected: float) -> None:
    table = Noise(signal=np.full(2, signal), noise=np.full((1, 2), noise))
    measured = Measured(("a",), np.ones(1), np.ones(1), noise={"int8": table})
    assert scored("sqnr", measured) == [expected]


def test_sqnr_adds_powers_before_it_divides() -> None:
    # The mean of the samples' own decibels would be 20; a sample with a small output does not decide.
    table = Noise(signal=np.array([1000.0, 10.0]), noise=np.array([[1.0, 1.0]]))
    measured = Measured(("a",), np.ones(1), np.ones(1), noise={"int8": table})
    assert scored("sqnr", measured) == pytest.approx([-10 * math.log10(505)])


def test_a_layer_without_weights_pays_no_size_penalty_and_has_a_trace_per_element() -> None:
    measured = Measured(
        ("fc", "scores"), np.array([8.0, 0.0]), np.array([8.0, 4.0]), traces=np.array([[[8.0]], [[8.0]]])
    )
    assert scored("hessian", measured) == [1.0, 2.0]
    assert scored("hessian", measured, Scoring(size_penalty=1.0)) == [1.0 + 1.5 * 2, 2.0]


def test_no_weights_anywhere_means_no_penalty() -> None:
    measured = dataclasses.replace(BY_HAND, weights=np.zeros(3))
    assert scored("single", measured, Scoring(size_penalty=1.0)) == [1.0, 2.0, 4.0]


def test_random_is_an_order_by_seed_alone() -> None:
    one, other = made(seed=1), made(seed=2)
    assert scored("random", one) == scored("random", other)
    assert scored("random", one) != scored("random", one, Scoring(probe_seed=1))


def test_equal_rows_score_equal_and_stand_in_graph_order() -> None:
    rows = np.tile(np.random.default_rng(0).random(5000).astype(np.float32), (40, 1))
    measured = made(40, 5000, losses={"int8": Losses(rows[0], rows)})
    found = score(measured, METRICS["single"], INT8, bootstrap=0)
    assert len(set(found.values)) == 1
    assert found.order() == measured.layers


def test_float32_is_averaged_in_float64() -> None:
    rows = np.full((1, 3_000_000), 0.1, np.float32)
    measured = Measured(("a",), np.ones(1), np.ones(1), losses={"int8": Losses(rows[0], rows)})
    assert scored("single", measured)[0] == pytest.approx(float(np.float32(0.1)), rel=1e-12)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"clip": "both"}, "unknown clip"),
        ({"trace": "max"}, "unknown trace"),
        ({"size_penalty": -1}, "penalty"),
    ],
)
def test_unknown_options_are_errors(options: dict[str, Any], message: str) -> None:
    with pytest.raises(BitsectError, match=message):
        Scoring(**options)


# ---- what is missing or wrong --------------------------------------------------------------------


def test_another_format_was_not_measured() -> None:
    with pytest.raises(BitsectError, match="pair losses at int4 were not measured"):
        score(BY_HAND, METRICS["interlayer"], INT4)
    score(BY_HAND, METRICS["hessian"], INT4)  # the traces are the network's, whatever the format


def test_losses_that_are_not_finite_name_the_layers() -> None:
    losses = BY_HAND.losses["int8"]
    assert losses.pair is not None
    pair = losses.pair.copy()
    pair[2, 0] = np.nan
    measured = dataclasses.replace(BY_HAND, losses={"int8": dataclasses.replace(losses, pair=pair)})
    with pytest.raises(BitsectError, match="pair losses at int8 are not finite for layers 'b' and 'c'"):
        score(measured, METRICS["aughessian"], INT8)


def test_tables_of_the_wrong_shape_are_refused() -> None:
    with pytest.raises(BitsectError, match="pair losses at int8: expected 3 × 2 numbers, got 2 × 2"):
        dataclasses.replace(BY_HAND, losses={"int8": Losses(np.ones(2), np.ones((3, 2)), np.ones((2, 2)))})
    with pytest.raises(BitsectError, match="traces: expected 3 × any × any numbers, got 4 × 1 × 2"):
        dataclasses.replace(BY_HAND, traces=np.ones((4, 1, 2)))
    with pytest.raises(BitsectError, match="not one sample"):
        scored("hessian", dataclasses.replace(BY_HAND, traces=np.ones((3, 1, 0))))


# ---- metrics from outside ------------------------------------------------------------------------


@pytest.fixture
def mylab(monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    module = types.ModuleType("mylab")

    @metric("pair")
    def worst_pair(means: Means, options: Scoring) -> Array:
        """Largest loss in a pair."""
        worst: Array = means["pair"].max(axis=1)
        return worst

    @metric("single")
    def greedy(means: Means, options: Scoring) -> Array:
        return means["traces"]

    @metric("single")
    def short(means: Means, options: Scoring) -> Array:
        return means["single"][:1]

    module.__dict__.update(
        worst_pair=worst_pair, greedy=greedy, short=short, bare=lambda means, options: means
    )
    monkeypatch.setitem(sys.modules, "mylab", module)
    return module


def test_a_metric_from_outside_is_used_like_our_own(mylab: types.ModuleType) -> None:
    outside = metric_named("mylab:worst_pair")
    assert isinstance(outside, Metric)
    assert outside.needs == {"single", "pair"}
    assert score(BY_HAND, outside, INT8).values == (3.0, 8.0, 8.0)
    assert score(BY_HAND, outside, INT8).metric == "worst_pair"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("aughesian", "did you mean 'aughessian'"),
        ("zzz", "use aughessian, hessian"),
        ("nolab:mine", "no module 'nolab'"),
        (":mine", "expected package.module:attribute"),
        ("mylab:mine", "'mylab' has no 'mine'"),
        ("mylab:bare", "does not say what it needs"),
    ],
)
def test_metrics_that_cannot_be_had_say_why(mylab: types.ModuleType, name: str, message: str) -> None:
    with pytest.raises(BitsectError, match=message):
        metric_named(name)


def test_metrics_are_found_by_name() -> None:
    assert {name: metric_named(name) for name in METRICS} == METRICS


def test_a_metric_reads_only_what_it_asks_for(mylab: types.ModuleType) -> None:
    with pytest.raises(BitsectError, match="reads 'traces' without asking"):
        score(BY_HAND, metric_named("mylab:greedy"), INT8)
    with pytest.raises(BitsectError, match="one number for each of 3 layers"):
        score(BY_HAND, metric_named("mylab:short"), INT8)
    with pytest.raises(BitsectError, match="no table is called 'pears'"):
        metric("pears")


# ---- trust ---------------------------------------------------------------------------------------


def test_the_bootstrap_finds_the_standard_error_of_a_mean() -> None:
    rng = np.random.default_rng(0)
    rows = rng.normal(0, np.arange(1, 6)[:, None], (5, 400))
    losses, noise = {"int8": Losses(rows[0], rows)}, {"int8": Noise(fisher=rows)}
    measured = made(5, 400, losses=losses, noise=noise)
    analytic = rows.std(axis=1, ddof=1) / math.sqrt(400)
    for name in ("single", "fisher"):
        found = score(measured, METRICS[name], INT8, bootstrap=2000)
        assert found.standard_error == pytest.approx(analytic, rel=0.08)
    shifted = dataclasses.replace(measured, traces=rows[:, None] + 100)  # far from the clip
    found = score(shifted, METRICS["hessian"], INT8, bootstrap=2000)
    assert found.standard_error == pytest.approx(analytic / measured.elements, rel=0.08)


def test_the_bootstrap_is_that_of_a_slow_loop() -> None:
    measured, name = made(), METRICS["aughessian"]
    losses = measured.losses["int8"]
    assert losses.pair is not None
    assert measured.traces is not None
    samples = resampled(12, np.random.default_rng([7, 0]), 50)
    probes = resampled(6, np.random.default_rng([7, 1]), 50)
    replicates = []
    for k in range(50):
        drawn = np.repeat(np.arange(12), (samples[:, k] * 11).round().astype(int))
        probed = np.repeat(np.arange(6), (probes[:, k] * 5).round().astype(int))
        again = dataclasses.replace(
            measured,
            traces=measured.traces[:, :, probed],
            losses={"int8": Losses(losses.base[drawn], losses.single[:, drawn], losses.pair[:, drawn])},
        )
        replicates.append(slow_aughessian(again, Scoring()))
    found = score(measured, name, INT8, bootstrap=50, seed=7)
    assert found.standard_error == pytest.approx(np.std(replicates, axis=0, ddof=1))


@pytest.mark.parametrize("name", METRICS)
def test_scores_are_the_same_for_the_same_seed(name: str) -> None:
    measured = made()
    one, again, other = (score(measured, METRICS[name], INT8, seed=seed) for seed in (1, 1, 2))
    assert one == again
    assert one.values == other.values
    assert (one == other) == (name == "random")


@pytest.mark.parametrize("name", METRICS)
def test_one_draw_gives_scores_without_a_claim_to_trust(name: str) -> None:
    measured = made(samples=1, probes=1)
    if name == "fisher":
        measured = made(noise={"int8": Noise(fisher=np.ones((5, 1)))})
    found = score(measured, METRICS[name], INT8)
    assert len(found.values) == 5
    assert found.standard_error is None
    assert found.split_half is None


def test_one_probe_hides_behind_no_number_of_samples() -> None:
    assert score(made(probes=1), METRICS["aughessian"], INT8).standard_error is None
    assert score(made(probes=1), METRICS["interlayer"], INT8).standard_error is not None


def test_halves_agree_without_noise() -> None:
    rows = np.repeat(np.arange(30.0)[:, None], 10, axis=1)
    measured = made(30, 10, losses={"int8": Losses(rows[0], rows)})
    found = score(measured, METRICS["single"], INT8)
    assert found.split_half == pytest.approx(1.0)
    assert found.standard_error == pytest.approx((0.0,) * 30, abs=1e-12)


def test_halves_of_pure_noise_do_not_agree() -> None:
    rows = np.random.default_rng(5).normal(size=(400, 40))
    measured = made(400, 40, losses={"int8": Losses(rows[0], rows, None)}, noise={})
    split = score(measured, METRICS["single"], INT8, bootstrap=0).split_half
    assert split == pytest.approx(0.0, abs=0.12)


def test_scores_without_any_difference_agree_on_nothing() -> None:
    measured = made(4, 6, losses={"int8": Losses(np.ones(6), np.ones((4, 6)))})
    assert score(measured, METRICS["single"], INT8).split_half == 0.0


@given(draws=st.integers(2, 30), seed=st.integers(0, 10**6))
def test_weights_are_averages(draws: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    again, halves = resampled(draws, rng, 5), halved(draws, rng, 5)
    assert again.shape == (draws, 5)
    assert again.sum(axis=0) == pytest.approx(np.ones(5))
    assert halves.sum(axis=0) == pytest.approx(np.ones(10))
    one, other = halves[:, :5] > 0, halves[:, 5:] > 0
    assert (one ^ other).all()  # disjoint, and nothing left out
    assert abs(one.sum(axis=0) - other.sum(axis=0)).max() <= 1


@given(st.lists(st.integers(-3, 3), min_size=1, max_size=9))
def test_ranks_average_ties(values: list[int]) -> None:
    def rank(value: int) -> float:
        below, equal = sum(v < value for v in values), values.count(value)
        return below + (equal + 1) / 2

    assert ranked(np.array(values, float)).tolist() == [rank(v) for v in values]


def test_spearman_by_hand() -> None:
    rising = np.arange(5.0)
    assert spearman(rising, np.exp(rising)) == pytest.approx(1.0)
    assert spearman(rising, -rising) == pytest.approx(-1.0)
    assert spearman(rising, np.zeros(5)) == 0.0
    # One neighbouring swap of five: 1 − 6 Σd² / (n (n² − 1)) = 1 − 12 / 120.
    assert spearman(rising, np.array([0.0, 2.0, 1.0, 3.0, 4.0])) == pytest.approx(0.9)


# ---- Scores --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", METRICS)
def test_scores_go_through_json_unchanged(name: str) -> None:
    found = score(made(), METRICS[name], INT8)
    assert Scores.from_json(json.loads(json.dumps(found.to_json(), allow_nan=False))) == found


def test_scores_refuse_what_is_no_number() -> None:
    with pytest.raises(BitsectError, match="metric 'mine' gives nan for layer 'b' at int8"):
        Scores("mine", INT8, ("a", "b"), (1.0, math.nan))
    with pytest.raises(BitsectError, match="1 scores for 2 layers"):
        Scores("mine", INT8, ("a", "b"), (1.0,))
