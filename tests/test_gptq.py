"""GPTQ's arithmetic against explicit loops, and what it promises."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from bitsect.rounding import gptq
from bitsect.rounding.gptq import CLIPS, DAMPING, SWEEPS, InputMeans, Moments, fit
from bitsect.rounding.squant import nearest

QMAX = 7


def columns_of(groups: int, width: int, seed: int, count: int = 200) -> tuple[Tensor, Tensor]:
    """Columns that are alike and not centred, and the same on a coarse grid with a clip."""
    generator = torch.Generator().manual_seed(seed)
    mixing = torch.randn(groups, width, width, generator=generator, dtype=torch.float64)
    x = torch.randn(groups, count, width, generator=generator, dtype=torch.float64) @ mixing + 0.7
    return x, (x / 0.8).round().clamp(-3, 3) * 0.8


def weight_of(groups: int, channels: int, width: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(groups, channels, width, generator=generator, dtype=torch.float64)


def moments_of(weight: Tensor, *places: tuple[Tensor, Tensor], refit: bool = True) -> Moments:
    total = sum(x.shape[1] for x, _ in places)
    covariance, drift, means = torch.zeros(()), torch.zeros(()), []
    for x, z in places:
        centred = z - z.mean(1, keepdim=True)
        covariance = covariance + centred.mT @ centred / total
        drift = drift + ((x - z) @ weight.mT).mT @ centred / total
        means.append(InputMeans(x.mean(1), z.mean(1), x.shape[1] / total))
    return Moments(covariance, drift if refit else None, means)


def by_loops(weight: Tensor, moments: Moments, run: int | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """Codes, scales and the first bias, group by group, channel by channel, column by column."""
    groups, channels, width = weight.shape
    run = run or width
    codes, scales = torch.zeros_like(weight), torch.zeros(groups, channels, width // run)
    bias = torch.zeros(groups, channels, dtype=torch.float64)
    for g in range(groups):
        C = moments.covariance[g]
        H = C + DAMPING * C.diagonal().mean() * torch.eye(width, dtype=torch.float64)
        target = weight[g]
        if moments.drift is not None:
            target = target + moments.drift[g] @ torch.linalg.inv(H)
        order = sorted(range(width), key=lambda j: -float(C[j, j]))
        U = torch.linalg.cholesky(torch.linalg.inv(H[order][:, order]), upper=True)
        for c in range(channels):
            for r in range(width // run):
                piece, importance = target[c, r * run :][:run], C.diagonal()[r * run :][:run]
                least = float("inf")
                for clip in CLIPS:
                    s = (piece.abs().max() * clip / QMAX).float().double()
                    error = 0.0
                    for j in range(run):
                        q = float((piece[j] / s).round().clamp(-QMAX, QMAX))
                        error += float(importance[j] * (piece[j] - s * q) ** 2)
                    if error < least:
                        least, scales[g, c, r] = error, s
            t = target[c][order].clone()
            for k, j in enumerate(order):
                s = scales[g, c, j // run].double()
                codes[g, c, j] = (t[k] / s).round().clamp(-QMAX, QMAX)
                e = (t[k] - s * codes[g, c, j]) / U[k, k]
                for later in range(k + 1, width):
                    t[later] -= e * U[k, later]
            wide = scales[g, c].double().repeat_interleave(run)
            for j in order * SWEEPS:  # each column's best codes beside all others
                trials = codes[g, c].repeat(2 * QMAX + 1, 1)
                trials[:, j] = torch.arange(-QMAX, QMAX + 1)
                missing = target[c] - trials * wide
                codes[g, c] = trials[int((missing @ H * missing).sum(1).argmin())]
            rounded = codes[g, c] * wide
            place = moments.places[0]
            bias[g, c] = weight[g, c] @ place.x[g] - rounded @ place.z[g]
    return codes, scales, bias


def rounded(made: gptq.Fit) -> Tensor:
    return made.codes * made.scales.double().repeat_interleave(
        made.codes.shape[2] // made.scales.shape[2], dim=2
    )


def loss(made: Tensor, weight: Tensor, gram: Tensor) -> float:
    error = made - weight
    return float((error @ gram * error).sum())


@pytest.mark.parametrize("refit", [True, False])
@pytest.mark.parametrize(
    ("groups", "channels", "width", "run"), [(1, 3, 8, None), (3, 2, 5, None), (1, 2, 9, 3)]
)
def test_codes_scales_and_bias_are_those_of_explicit_loops(
    groups: int, channels: int, width: int, run: int | None, refit: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gptq, "BLOCK", 3)  # so that blocks end within the columns
    weight = weight_of(groups, channels, width)
    moments = moments_of(weight, columns_of(groups, width, 1), refit=refit)
    made = fit(weight, moments, QMAX, run=run)
    codes, scales, bias = by_loops(weight, moments, run)
    assert torch.equal(made.codes, codes)
    assert torch.allclose(made.scales, scales, rtol=1e-6)
    assert made.biases is not None
    assert torch.allclose(made.biases[0], bias)


def test_blocks_and_parts_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    weight = weight_of(2, 5, 300)
    moments = moments_of(weight, columns_of(2, 300, 3, 500))
    whole = fit(weight, moments, QMAX)
    monkeypatch.setattr(gptq, "_PART", 2 * 2 * 300)
    monkeypatch.setattr(gptq, "BLOCK", 17)
    parts = fit(weight, moments, QMAX)
    assert torch.equal(whole.codes, parts.codes)
    assert torch.equal(whole.scales, parts.scales)


def test_inputs_that_are_unrelated_and_alike_leave_nearest_codes() -> None:
    weight = weight_of(2, 4, 6)
    identity = torch.eye(6, dtype=torch.float64).expand(2, 6, 6)
    zero = torch.zeros(2, 6, dtype=torch.float64)
    made = fit(weight, Moments(identity, None, [InputMeans(zero, zero)]), QMAX)
    assert torch.equal(made.codes, nearest(weight / made.scales.double(), QMAX))
    assert made.biases is not None
    assert not made.biases[0].any()


def test_codes_stay_in_range_and_channels_of_zeros_are_zeros() -> None:
    for bits in (2, 3, 4):
        qmax = 2 ** (bits - 1) - 1
        weight = weight_of(1, 4, 12, bits)
        weight[0, 1] = 0
        made = fit(weight, moments_of(weight, columns_of(1, 12, bits)), qmax)
        assert made.codes.abs().max() == qmax
        assert torch.equal(made.codes, made.codes.round())
        assert not made.codes[0, 1].any()
        assert (made.scales > 0).all()
        assert made.biases is not None
        assert made.biases[0][0, 1] == 0


@pytest.mark.parametrize("kind", ["repeated", "dead", "constant", "one column"])
def test_a_singular_gram_is_no_obstacle(kind: str) -> None:
    width = 1 if kind == "one column" else 8
    x, z = columns_of(1, width, 5)
    if kind == "repeated":
        x, z = (each[..., :1].expand_as(each) for each in (x, z))
    elif kind == "dead":
        x[..., 2:], z[..., 2:] = 0, 0
    elif kind == "constant":
        x, z = torch.ones_like(x), torch.ones_like(z)
    weight = weight_of(1, 3, width)
    made = fit(weight, moments_of(weight, (x, z)), QMAX)
    assert made.codes.isfinite().all()
    assert made.biases is not None
    expected = (weight @ x.mean(1)[..., None])[..., 0]
    assert torch.allclose((rounded(made) @ z.mean(1)[..., None])[..., 0] + made.biases[0], expected)
    if kind == "constant":
        assert torch.equal(made.codes, nearest(weight / made.scales.double(), QMAX))


def test_outputs_change_less_than_by_rounding_to_nearest_on_the_mean() -> None:
    ratios = []
    for seed in range(20):
        weight = weight_of(1, 6, 16, seed)
        x, z = columns_of(1, 16, seed)
        made = fit(weight, moments_of(weight, (x, z), refit=False), QMAX)
        by_itself = nearest(weight / made.scales.double(), QMAX) * made.scales.double()
        gram = moments_of(weight, (x, z)).covariance
        ratios.append(loss(rounded(made), weight, gram) / loss(by_itself, weight, gram))
    assert sum(ratios) / len(ratios) < 0.85


def test_the_bias_makes_the_mean_output_that_of_the_float_layer_in_every_place() -> None:
    weight = weight_of(2, 3, 6)
    places = [columns_of(2, 6, 7), columns_of(2, 6, 8, 50)]
    made = fit(weight, moments_of(weight, *places), QMAX)
    assert made.biases is not None
    for (x, z), bias in zip(places, made.biases, strict=True):
        outputs = z @ rounded(made).mT + bias[:, None]
        assert torch.allclose(outputs.mean(1), (x @ weight.mT).mean(1))


@pytest.mark.parametrize("correct_bias", [True, False])
def test_the_refit_and_the_bias_bring_outputs_nearer_to_the_float_layer(correct_bias: bool) -> None:
    better = []
    for seed in range(10):
        weight = weight_of(1, 6, 12, seed)
        x, z = columns_of(1, 12, seed, 2000)
        errors = []
        for refit in (True, False):
            made = fit(weight, moments_of(weight, (x, z), refit=refit), QMAX, correct_bias=correct_bias)
            outputs = z @ rounded(made).mT + (made.biases[0][:, None] if made.biases else 0)
            errors.append(float((outputs - x @ weight.mT).square().mean()))
        better.append(errors[0] < errors[1])
    assert sum(better) >= 9


def test_without_a_bias_the_means_count_as_well() -> None:
    """It is then the same as if the columns had no mean but the second moments about zero."""
    weight = weight_of(1, 4, 10)
    x, z = columns_of(1, 10, 11)
    made = fit(weight, moments_of(weight, (x, z)), QMAX, correct_bias=False)
    gram = z.mT @ z / z.shape[1]
    drift = ((x - z) @ weight.mT).mT @ z / z.shape[1]
    zero = torch.zeros(1, 10, dtype=torch.float64)
    same = fit(weight, Moments(gram, drift, [InputMeans(zero, zero)]), QMAX)
    assert made.biases is None
    assert torch.equal(made.codes, same.codes)
    assert torch.equal(made.scales, same.scales)


def test_moments_of_places_that_are_alike_are_those_of_one() -> None:
    weight = weight_of(1, 4, 10)
    x, z = columns_of(1, 10, 12)
    one, two = (fit(weight, moments_of(weight, *[(x, z)] * count), QMAX) for count in (1, 2))
    assert torch.equal(one.codes, two.codes)
    moments = moments_of(weight, (x, z))
    halves = replace(moments, places=[replace(moments.places[0], share=0.5)] * 2)
    for each in (moments, halves):
        again = fit(weight, each, QMAX, correct_bias=False)
        assert torch.equal(again.codes, fit(weight, moments, QMAX, correct_bias=False).codes)
