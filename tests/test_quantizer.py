"""The arithmetic of weights and values: layouts, scales and grids, against loops over single numbers."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

from bitsect.errors import PlanError
from bitsect.network.capture import capture
from bitsect.network.layout import Layout
from bitsect.rounding import ROUNDINGS
from bitsect.rounding.rounder import Rounder
from bitsect.rounding.weights import Codes, quantize_weight
from bitsect.values import INT8, Format, Plan, Range
from bitsect.values.grid import Grid

calm = settings(max_examples=60)
SIZES = st.integers(1, 4)
BITS = range(2, 9)


def seeded(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


# Layouts


@st.composite
def weights(draw: st.DrawFn) -> tuple[Tensor, Layout, str]:
    """A weight of distinct numbers with its layout, of every kind that a network may hold."""
    kind = draw(
        st.sampled_from(["linear", "conv", "transposed", "right", "left", "vector", "heads", "einsum"])
    )
    a, b, c = draw(SIZES), draw(SIZES), draw(SIZES)
    taps = tuple(draw(st.lists(SIZES, min_size=1, max_size=3)))
    axes = tuple(range(2, 2 + len(taps)))
    groups = draw(st.integers(1, 3))
    shape, layout = {
        "linear": ((a, b), Layout((0,), (1,))),
        "conv": ((groups * a, b, *taps), Layout((0,), (1,), axes)),
        "transposed": ((groups * a, b, *taps), Layout((1,), (0,), axes, groups)),
        "right": ((a, b), Layout((1,), (0,))),
        "left": ((a, b), Layout((0,), (1,))),
        "vector": ((a,), Layout((), (0,))),
        "heads": ((a, b, c), Layout((0, 2), (1,))),
        "einsum": ((a, b, c), Layout((1,), (0, 2))),
    }[kind]
    order = draw(st.permutations(range(math.prod(shape))))
    return torch.tensor(order, dtype=torch.float32).reshape(shape), layout, kind


@calm
@given(weights())
def test_kernels_go_back_to_the_weight(drawn: tuple[Tensor, Layout, str]) -> None:
    weight, layout, _ = drawn
    kernels = layout.to_kernels(weight)
    assert kernels.ndim == 3
    assert sorted(kernels.flatten().tolist()) == sorted(weight.flatten().tolist())
    back = layout.from_kernels(kernels, weight.shape)
    assert torch.equal(back, weight)
    assert back.is_contiguous()


@calm
@given(weights())
def test_a_channel_is_what_one_output_reads(drawn: tuple[Tensor, Layout, str]) -> None:
    """The weights of a channel, by running the multiply itself: those whose gradient one output has."""
    weight, layout, kind = drawn
    leaf = weight.clone().requires_grad_()
    run = {
        "linear": lambda w: F.linear(torch.ones(1, w.shape[1]), w)[0],
        "right": lambda w: (torch.ones(1, w.shape[0]) @ w)[0],
        "left": lambda w: (w @ torch.ones(w.shape[1], 1))[:, 0],
        "vector": lambda w: torch.ones(1, len(w)) @ w,
        "heads": lambda w: (torch.ones(1, 1, w.shape[1]) @ w).flatten(),
        "einsum": lambda w: torch.einsum("ik,ijk->j", torch.ones(w.shape[0], w.shape[2]), w),
        "conv": lambda w: w.flatten(1).sum(1),
        "transposed": lambda w: _transposed_sums(w, layout.groups),
    }[kind]
    outputs = run(leaf)
    kernels = layout.to_kernels(weight)
    assert len(outputs) == len(kernels)
    for output, channel in zip(outputs, kernels, strict=True):
        (gradient,) = torch.autograd.grad(output, leaf, retain_graph=True)
        assert sorted(weight[gradient != 0].tolist()) == sorted(channel.flatten().tolist())


def _transposed_sums(weight: Tensor, groups: int) -> Tensor:
    """One number for each output channel, from torch's own transposed convolution."""
    run = [F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d][weight.ndim - 3]
    x = torch.ones(1, weight.shape[0], *(1 for _ in weight.shape[2:]))
    return run(x, weight, groups=groups)[0].flatten(1).sum(1)


def test_taps_stay_with_their_kernel() -> None:
    weight = seeded(6, 2, 3, 5)
    transposed = Layout((1,), (0,), (2, 3), groups=3).to_kernels(weight)
    assert torch.equal(transposed[3], weight[2:4, 1].flatten(1))  # the second channel of the second group
    assert torch.equal(Layout((0,), (1,), (2, 3)).to_kernels(weight)[4], weight[4].flatten(1))


# Weights


def slowly(weight: Tensor, layout: Layout, bits: int, group: int | None) -> tuple[Tensor, Tensor]:
    """Codes and scales, one number after the other, rounded to nearest."""
    qmax = 2 ** (bits - 1) - 1
    kernels = layout.to_kernels(weight)
    codes, scales = torch.zeros_like(kernels), torch.zeros_like(kernels)
    for c, channel in enumerate(kernels):
        step = group if group is not None and group < len(channel) else len(channel)
        for start in range(0, len(channel), step):
            part = channel[start : start + step]
            scale = float(torch.tensor(float(part.abs().max()) / qmax, dtype=torch.float32)) or 1.0
            for i in range(start, start + step):
                for t in range(kernels.shape[2]):
                    ratio = (kernels[c, i, t] / torch.tensor(scale)).item()
                    codes[c, i, t] = max(-qmax, min(qmax, round(ratio)))
                    scales[c, i, t] = scale
    return layout.from_kernels(codes, weight.shape), layout.from_kernels(scales, weight.shape)


@calm
@given(weights(), st.sampled_from(BITS), st.integers(0, 99))
def test_a_scale_for_each_channel(drawn: tuple[Tensor, Layout, str], bits: int, seed: int) -> None:
    shaped, layout, _ = drawn
    weight = seeded(*shaped.shape, seed=seed)
    found = quantize_weight(weight, layout, Format(bits, bits), "nearest")
    codes, scales = slowly(weight, layout, bits, None)
    assert torch.equal(found.codes, codes)
    assert torch.equal(found.scales, scales)
    assert torch.equal(found.weight, codes * scales)


@pytest.mark.parametrize("rounding", ROUNDINGS)
@pytest.mark.parametrize("bits", BITS)
def test_codes_are_whole_in_range_and_reach_its_end(rounding: str, bits: int) -> None:
    weight = seeded(16, 8, 3, 3)
    qmax = 2 ** (bits - 1) - 1
    found = quantize_weight(weight, Layout((0,), (1,), (2, 3)), Format(bits, None), rounding)
    assert torch.equal(found.codes, found.codes.round())
    assert found.codes.abs().flatten(1).amax(1).tolist() == [qmax] * 16
    assert ((found.weight - weight).abs() <= found.scales * (1 + 1e-6)).all()


@pytest.mark.parametrize("rounding", ROUNDINGS)
def test_a_channel_of_zeros_has_zero_codes(rounding: str) -> None:
    weight = seeded(3, 4)
    weight[1] = 0
    found = quantize_weight(weight, Layout((0,), (1,)), INT8, rounding)
    assert found.codes[1].tolist() == [0] * 4
    assert found.weight.isfinite().all()
    assert found.codes[0].any()
    every = quantize_weight(torch.zeros(3, 4), Layout((0,), (1,)), INT8, rounding)
    assert not every.weight.any()


def test_weights_too_small_for_a_float32_scale_become_zero() -> None:
    found = quantize_weight(torch.full((2, 3), 1e-45), Layout((0,), (1,)), INT8)
    assert not found.weight.any()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_precisions_keep_their_dtype_and_their_scale(dtype: torch.dtype) -> None:
    weight = (seeded(4, 32) * 1e-3).to(dtype)
    found = quantize_weight(weight, Layout((0,), (1,)), INT8)
    assert found.weight.dtype == dtype
    assert found.scales.dtype == torch.float32  # at half precision a scale would lose the last codes
    wide = quantize_weight(weight.double(), Layout((0,), (1,)), INT8)
    torch.testing.assert_close(found.scales, wide.scales, rtol=1e-6, atol=0)
    assert (found.codes.double() - wide.codes).abs().max() <= 1
    assert torch.equal(
        found.weight,
        (found.codes.float() * found.scales).to(dtype)
        if dtype != torch.float64
        else found.codes * found.scales,
    )


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_network_in_half_precision_runs_in_int8(dtype: torch.dtype) -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 3)).to(dtype).eval()
    x = seeded(2, 3, 8, 8).to(dtype)
    program = capture(model, x)
    rounding = Rounder(program)(Plan.uniform(program.layers, Format(8, None)))
    outputs, exact = program.run(x, rounding), program.run(x)
    assert outputs.dtype == dtype
    assert 0 < (outputs - exact).abs().max() < 0.1


# Groups along the input


@pytest.mark.parametrize("name", ["w4a16g32", "w4a16g8", "w2a8g16", "int4"])
@pytest.mark.parametrize("shape", [(3, 64), (2, 64, 3)])
def test_groups_have_their_own_scale(name: str, shape: tuple[int, ...]) -> None:
    format, weight = Format.parse(name), seeded(*shape)
    assert format.weight_bits is not None
    layout = Layout((0,), (1,), (2,) if len(shape) == 3 else ())
    found = quantize_weight(weight, layout, format, "nearest")
    codes, scales = slowly(weight, layout, format.weight_bits, format.group_size)
    assert torch.equal(found.codes, codes)
    assert torch.equal(found.scales, scales)
    groups = 64 // (format.group_size or 64)
    assert all(len(channel.unique()) == groups for channel in found.scales)


@pytest.mark.parametrize("rounding", ROUNDINGS)
def test_a_group_is_a_channel_to_rounding(rounding: str) -> None:
    weight, layout = seeded(3, 64), Layout((0,), (1,))
    grouped = quantize_weight(weight, layout, Format.parse("w4a16g32"), rounding)
    apart = quantize_weight(weight.reshape(6, 32), layout, Format.parse("w4a16"), rounding)
    assert torch.equal(grouped.weight, apart.weight.reshape(3, 64))


def test_a_group_larger_than_the_input_is_the_channel() -> None:
    weight, layout = seeded(3, 20), Layout((0,), (1,))
    whole = quantize_weight(weight, layout, Format.parse("w4a16"))
    for size in (20, 32, 1000):
        assert torch.equal(quantize_weight(weight, layout, Format(4, None, size)).weight, whole.weight)


def test_size_counts_the_scales_that_files_hold() -> None:
    """Those of groups and of rows, 16 bits each as all that is float; those of channels are not counted."""
    network = nn.Sequential(
        nn.Embedding(50, 8), nn.ConvTranspose1d(4, 6, 3), nn.Conv1d(6, 4, 3), nn.Flatten()
    )
    network.append(nn.Linear(32, 256))
    program = capture(network, torch.zeros(2, 4, dtype=torch.int64), embeddings=True)
    table, up, down, last = program.layers
    for layer, name, scales in (
        (table, "int8", 50),
        (table, "w4a16", 50),
        (table, "float", 0),
        (last, "w4a16", 0),
        (last, "int4", 0),
        (last, "w4a16g32", 256),
        (last, "w4a16g128", 256),
        (last, "w4a16g16", 512),
        (up, "w4a16g2", 12),
        (up, "w2a8g128", 6),
        (down, "w4a16g3", 8),
    ):
        format = Format.parse(name)
        assert format.size_bytes(layer) == (layer.weights * format.stored_bits + 16 * scales) / 8
    plans = [Plan.uniform(program.layers, Format.parse(f"w{n}")) for n in ("4a16", "4a16g32", "4a16g16")]
    sizes = [plan.size_bytes([last]) for plan in plans]
    assert sizes == sorted(set(sizes))


def test_groups_that_do_not_divide_are_refused_with_the_layer() -> None:
    program = capture(nn.Sequential(nn.Linear(20, 3)), torch.zeros(2, 20))
    with pytest.raises(PlanError, match=r"layer '0': format w4a16g8: groups of 8 do not divide 20 inputs"):
        Rounder(program)(Plan.uniform(program.layers, Format.parse("w4a16g8")))


# The axis of output channels is that of the multiply


class Transposed(nn.Module):
    """A linear layer as GPT-2 holds it."""

    def __init__(self, weight: Tensor, bias: Tensor) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(weight.t().contiguous()), nn.Parameter(bias)

    def forward(self, x: Tensor) -> Tensor:
        return torch.addmm(self.bias, x, self.weight)


@pytest.mark.parametrize("format", ["int8", "int4", "w4a16", "w4a16g4"])
@pytest.mark.parametrize("rounding", ["squant", "nearest"])  # gptq is no function of the weight alone
def test_a_transposed_weight_gives_what_its_linear_twin_gives(format: str, rounding: str) -> None:
    linear = nn.Linear(12, 5)
    with torch.no_grad():
        linear.weight.copy_(seeded(5, 12) * torch.tensor([1.0, 10, 0.1, 3, 0.01])[:, None])
    twins = nn.Sequential(linear), nn.Sequential(Transposed(linear.weight.data, linear.bias.data))
    weights = []
    for model in twins:
        program = capture(model, torch.zeros(2, 12))
        operand = program.multiplies[0].weight
        assert operand is not None
        weights.append(Rounder(program, rounding=rounding).weight("0", operand, Format.parse(format)))
    assert torch.equal(weights[0], weights[1].t())


# Grids


@calm
@given(
    st.lists(st.floats(-30, 30, width=32), min_size=1, max_size=40),
    st.floats(0.01, 20),
    st.sampled_from(BITS),
    st.booleans(),
)
def test_a_grid_by_the_formula(values: list[float], amax: float, bits: int, unsigned: bool) -> None:
    grid = Grid.of(Range(amax, unsigned), bits)
    high = 2**bits - 1 if unsigned else 2 ** (bits - 1) - 1
    low = 0 if unsigned else -high
    assert (grid.low, grid.high) == (low, high)
    scale = torch.tensor(amax / high, dtype=torch.float32)
    assert grid.scale == scale.item()
    x = torch.tensor(values)
    before = x.clone()
    codes = [min(high, max(low, round((value / scale).item()))) for value in x]
    assert grid.round(x).tolist() == [(code * scale).item() for code in codes]
    assert torch.equal(x, before)
    assert torch.equal(grid.round(grid.round(x)), grid.round(x))


def test_a_grid_rounds_half_to_even_and_clips() -> None:
    x = torch.tensor([-9.0, -2.5, -1.5, -0.5, 0.5, 1.5, 2.5, 9.0])
    assert Grid.of(Range(7.0), 4).round(x).tolist() == [-7, -2, -2, 0, 0, 2, 2, 7]
    assert Grid.of(Range(15.0, True), 4).round(x).tolist() == [0, 0, 0, 0, 0, 2, 2, 9]
    assert Grid.of(Range(15.0, True), 4).round(torch.tensor([15.5, 99.0])).tolist() == [15, 15]


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("unsigned", [False, True])
def test_a_grid_has_as_many_levels_as_its_bits_allow(bits: int, unsigned: bool) -> None:
    levels = Grid.of(Range(1.0, unsigned), bits).round(torch.linspace(-2, 2, 10_001)).unique()
    assert len(levels) == (2**bits if unsigned else 2**bits - 1)
    assert levels.max() == 1.0


@pytest.mark.parametrize("amax", [0.0, 1e-60])
def test_a_tensor_without_extent_rounds_to_zero(amax: float) -> None:
    assert Grid.of(Range(amax), 8).round(torch.tensor([0.0, 1e-50])).tolist() == [0, 0]


def test_nan_is_not_rounded_away() -> None:
    assert Grid.of(Range(1.0), 8).round(torch.tensor([float("nan")])).isnan().all()


def test_rounding_does_not_write_into_a_repeated_value() -> None:
    x = torch.tensor([[0.3], [0.7]]).expand(2, 3)
    assert Grid.of(Range(1.0), 2).round(x).tolist() == [[0, 0, 0], [1, 1, 1]]
    assert x[0, 0] == torch.tensor(0.3)


def test_codes_are_the_weight() -> None:
    assert Codes(torch.tensor([[1.0, -2]]), torch.tensor([[0.5, 0.5]])).weight.tolist() == [[0.5, -1]]
