"""Ranges against those of all values at once, and the two placements against a forward written by hand."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

from bitsect.errors import BitsectError, DataError, OptionError, PlanError
from bitsect.network.capture import capture
from bitsect.network.operators import never_negative
from bitsect.network.program import Program
from bitsect.rounding.ranges import CLIP_STEP, MANTISSA_BITS
from bitsect.rounding.rounder import Rounder
from bitsect.sources.data import load_samples
from bitsect.values import INT4, INT8, ONNXRUNTIME, PAPER, PLACEMENTS, Format, Placement, Plan, Range, Ranges
from odd_models import Block, Experts, program_of
from short import calibrate
from tiny import Residual, images, judge, refill, residual, seeded

calm = settings(max_examples=50)
PERCENTILES = [50.0, 90.0, 99.0, 99.9, 99.999, 100.0]


@cache
def plain(width: int) -> Program:
    """One linear layer: its input is the samples as they are."""
    return capture(refill(nn.Sequential(nn.Linear(width, 2))), torch.zeros(2, width))


def ranges_of(x: Tensor, **options: object) -> dict[int, Range]:
    return dict(calibrate(plain(x.shape[1]), load_samples(x), **options).table["0.input"])  # type: ignore[arg-type]


# Percentiles


def percentile_at_once(x: Tensor, percentile: float) -> float:
    """The (⌊(1 − p)·N⌋ + 1)-th largest magnitude; the maximum where that is 0."""
    magnitudes = sorted(x.abs().flatten().tolist(), reverse=True)
    place = math.floor(round((100 - percentile) * 1e6) * len(magnitudes) / 1e8)
    return magnitudes[min(place, len(magnitudes) - 1)] or magnitudes[0]


@calm
@given(
    st.integers(1, 40),
    st.integers(1, 50),
    st.sampled_from(PERCENTILES),
    st.integers(0, 9),
    st.sampled_from([1.0, 0.3, 0.02]),
)
@example(40, 39, 50.0, 0, 1.0)
@example(40, 1, 99.0, 1, 0.02)
def test_a_percentile_is_that_of_all_values_for_any_batches(
    count: int, batch_size: int, percentile: float, seed: int, share: float
) -> None:
    """A coarse grid gives ties, a small share of values that are not 0 a percentile that is."""
    generator = torch.Generator().manual_seed(seed)
    x = (torch.randn(count, 5, generator=generator) * 4).round() / 4
    x = x * (torch.rand(count, 5, generator=generator) < share)
    found = ranges_of(x, percentile=percentile, batch_size=batch_size, bits=(8, 4, 3))
    expected = percentile_at_once(x, percentile)
    assert {bits: range.amax for bits, range in found.items()} == dict.fromkeys((8, 4, 3), expected)


def test_the_default_percentile_drops_the_tail_of_many_values() -> None:
    x = seeded(2000, 150)  # 300,000 values: the four largest are one too many
    x[77, 3], x[1999, 0], x[5, 5] = 1e3, -2e3, 3e3
    found = ranges_of(x, batch_size=64)[8].amax
    assert found == x.abs().flatten().sort(descending=True).values[3].item()
    assert found < 10


def test_a_tensor_of_nearly_only_zeros_falls_back_to_its_maximum() -> None:
    x = torch.zeros(100, 10)
    x[40, 2] = -3.5
    assert ranges_of(x, percentile=99.0)[8] == Range(3.5)
    assert ranges_of(torch.zeros(4, 10))[8] == Range(0.0)


def test_a_tensor_without_a_batch_axis_has_an_exact_percentile_too() -> None:
    """A kernel that each batch makes anew: as many values for a small last batch as for the others."""
    seen: list[Tensor] = []

    def run(self: Block, x: Tensor) -> Tensor:
        kernel = x.mean(0)
        return F.linear(x, kernel.expand(3, -1) * self.scale)

    program = capture(Block(run, scale=torch.arange(1.0, 4).unsqueeze(1)), torch.zeros(2, 20))
    x = seeded(10, 20)
    (name,) = [name for name, node in program.tensors.items() if "mul" in node.name]
    ranges = calibrate(program, load_samples(x), percentile=80.0, batch_size=4)
    for batch in load_samples(x).batches(4):
        program.observe(batch.inputs, {name: seen.append})
    assert [value.numel() for value in seen] == [60, 60, 60]
    assert ranges[name, 8].amax == percentile_at_once(torch.stack(seen), 80.0)


# Least squared error


def error(x: Tensor, clip: float, levels: int) -> float:
    """Root mean square of what rounding the magnitudes of x changes, in double precision."""
    magnitudes, scale = x.double().abs().flatten(), clip / levels
    rounded = (magnitudes / scale).round().clamp(max=levels) * scale
    return float((rounded - magnitudes).square().mean().sqrt())


def least_error(x: Tensor, levels: int) -> float:
    """By brute force: every clip of a dense grid, then of a denser one around the best few."""
    high = float(x.abs().max())
    clips = high * np.linspace(1 / 2000, 1, 2000)
    errors = np.array([error(x, clip, levels) for clip in clips])
    for centre in clips[np.argsort(errors)[:5]]:
        for clip in np.linspace(centre - high / 2000, centre + high / 2000, 101):
            if 0 < clip <= high:
                errors = np.append(errors, error(x, clip, levels))
    return float(errors.min())


DISTRIBUTIONS: dict[str, Callable[[], Tensor]] = {
    "normal": lambda: seeded(300, 5),
    "heavy tails": lambda: seeded(300, 5) ** 5,
    "one outlier": lambda: torch.cat([seeded(299, 5), torch.full((1, 5), 60.0)]),
    "whole numbers": lambda: (seeded(300, 5) * 3).round(),
    "two values": lambda: torch.where(seeded(300, 5) > 0.5, 2.37, 0.41),
    "nearly one size": lambda: 1 + seeded(300, 5) * 1e-3,
    "many sizes": lambda: torch.exp(seeded(300, 5) * 4),
    "tiny": lambda: seeded(300, 5) * 1e-30,
}


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_the_clip_of_least_error_keeps_the_stated_bound(name: str) -> None:
    x = DISTRIBUTIONS[name]()
    bound = 2 * 2.0 ** -(MANTISSA_BITS + 1) + CLIP_STEP / 2
    assert bound < 0.002
    for sign in ("signed", "auto"):
        found = ranges_of(x, method="mse", bits=(8, 4, 3, 2), sign=sign, batch_size=64)
        for bits, range in found.items():
            assert range.unsigned == (sign == "auto" and bool((x >= 0).all()))
            levels = 2**bits - 1 if range.unsigned else 2 ** (bits - 1) - 1
            assert 0 < range.amax <= x.abs().max()
            excess = error(x, range.amax, levels) - least_error(x, levels)
            assert excess <= bound * float(x.double().square().mean().sqrt())


def test_the_clip_of_least_error_is_far_better_than_its_bound_on_smooth_values() -> None:
    x = seeded(2000, 10)
    for bits, range in ranges_of(x, method="mse", bits=(8, 4)).items():
        levels = 2 ** (bits - 1) - 1
        assert error(x, range.amax, levels) <= 1.002 * least_error(x[::5], levels) * 1.05
        assert range.amax < x.abs().max()


@pytest.mark.parametrize("outlier", [40.0, 1e6])
def test_an_outlier_is_cut_off_only_where_that_is_best(outlier: float) -> None:
    """The best clip can be at a small part of the maximum, or at the maximum itself."""
    x = seeded(2000, 5)
    x[3, 3] = outlier
    amax = ranges_of(x, method="mse", bits=(2,))[2].amax
    assert amax == pytest.approx(outlier if outlier > 100 else 1.2, rel=0.3)
    assert error(x, amax, 1) <= least_error(x, 1) * 1.001


@calm
@given(st.integers(1, 40), st.integers(0, 5))
def test_least_error_and_maximum_are_the_same_for_any_batches(batch_size: int, seed: int) -> None:
    x = seeded(33, 5, seed=seed)
    for method in ("mse", "max"):
        assert ranges_of(x, method=method, batch_size=batch_size) == ranges_of(x, method=method)


def test_the_maximum() -> None:
    x = seeded(33, 5)
    assert ranges_of(x, method="max", bits=(4,)) == dict.fromkeys((8, 4), Range(float(x.abs().max())))


def test_zeros_have_a_range_of_zero_by_every_method() -> None:
    for method in ("percentile", "mse", "max"):
        assert ranges_of(torch.zeros(3, 5), method=method)[8] == Range(0.0)


# Signs


def test_operators_that_rule_negative_values_out() -> None:
    def run(self: Block, x: Tensor) -> dict[str, Tensor]:
        relu, relu6, softmax = F.relu(x), F.relu6(x), x.softmax(1)
        return {
            "relu": relu,
            "relu6": relu6,
            "softmax": softmax,
            "sigmoid": torch.sigmoid(x),
            "clamp": x.clamp(min=0.5),
            "max pool": F.max_pool2d(relu, 2),
            "average pool": F.avg_pool2d(relu6, 2),
            "adaptive": F.adaptive_avg_pool2d(softmax, 1),
            "sum": relu + relu6,
            "mean": relu.mean((2, 3)),
            "flat": F.max_pool2d(relu + softmax, 2).flatten(1),
            "joined": torch.cat([relu, softmax], 1),
            "NOT input": x,
            "NOT sum": relu + x,
            "NOT difference": relu - relu6,
            "NOT negated sum": torch.add(relu, relu6, alpha=-1),
            "NOT pool": F.max_pool2d(x, 2),
            "NOT scaled": relu * -0.5,
            "NOT clamp": x.clamp(min=-0.5),
            "NOT gelu": F.gelu(relu),
            "NOT tanh": torch.tanh(x),
        }

    program = capture(Block(run), seeded(2, 3, 4, 4))
    names = list(program.run(seeded(2, 3, 4, 4)))
    for name, node in zip(names, program._outputs, strict=True):
        assert never_negative(node) == (not name.startswith("NOT")), name


def test_auto_takes_unsigned_codes_by_operator_and_by_what_was_seen() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2))
    program = capture(refill(model), torch.zeros(2, 4))
    x = seeded(9, 4)
    for data, inputs in ((x, False), (x.abs(), True)):
        auto = calibrate(program, load_samples(data), sign="auto")
        signs = {name: by_bits[8].unsigned for name, by_bits in auto.table.items()}
        assert signs["0.input"] == inputs
        assert signs["0.output"]
        assert not signs["4.input"]
        assert {range.unsigned for by_bits in auto.table.values() for range in by_bits.values()} == {
            True,
            False,
        }
        signed = calibrate(program, load_samples(data))
        assert not any(range.unsigned for by_bits in signed.table.values() for range in by_bits.values())
        assert {n: r[8].amax for n, r in signed.table.items()} == {
            n: r[8].amax for n, r in auto.table.items()
        }


def test_one_negative_value_in_the_last_batch_makes_a_tensor_signed() -> None:
    x = seeded(9, 5).abs()
    assert ranges_of(x, sign="auto", batch_size=2)[8].unsigned
    x[8, 4] = -1e-6
    assert not ranges_of(x, sign="auto", batch_size=2)[8].unsigned


# What is observed


def test_widths_asked_for_and_the_kernels_own() -> None:
    assert sorted(ranges_of(seeded(3, 5))) == [4, 8]
    assert sorted(ranges_of(seeded(3, 5), bits=(5, 2))) == [2, 5, 8]
    assert sorted(ranges_of(seeded(3, 5), bits=())) == [8]


@pytest.mark.parametrize("rounding", ["squant", "nearest"])
def test_weights_have_8_bits_while_observing_and_activations_none(rounding: str) -> None:
    model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))
    program = capture(refill(model), torch.zeros(2, 4))
    x = seeded(7, 4)
    found = calibrate(program, load_samples(x), method="max", rounding=rounding, batch_size=7)
    rounder = Rounder(program, rounding=rounding)
    first, second = (
        rounder.weight(m.layer, m.weight, Format(8, None)) for m in program.multiplies if m.weight is not None
    )
    hidden = torch.tanh(F.linear(x, first, model[0].bias))
    outputs = F.linear(hidden, second, model[2].bias)
    assert found["2.input", 8].amax == hidden.abs().max().item()
    assert found["2.output", 8].amax == outputs.abs().max().item()
    assert outputs.abs().max() != model(x).abs().max()


def test_a_tensor_that_two_layers_read_has_one_range() -> None:
    _, program = residual()
    inputs = {m.layer: m.activations[0].tensor for m in program.multiplies}
    assert inputs["c"] == inputs["e"]
    assert "e.input" not in program.tensors
    # Pooling makes a tensor of its own; a rectifier belongs to the convolution before it.
    assert inputs["a"] == "a.input"
    assert inputs["b"] == "a.output"


def test_a_weight_in_two_places_has_a_range_for_each() -> None:
    program = program_of("module_used_twice")
    (layer,) = program.layers
    assert len(layer.places) == 2
    x = seeded(6, 5, 8)
    ranges = calibrate(program, load_samples(x), method="max")
    first, second = (m.activations[0].tensor for m in program.multiplies)
    assert first is not None
    assert second is not None
    assert ranges[first, 8].amax == x.abs().max().item()
    assert ranges[second, 8].amax != ranges[first, 8].amax
    rounding = Rounder(program, ranges)(Plan.uniform(program.layers, INT8))
    assert len({grid.scale for grid in rounding.inputs.values()}) == 2
    assert len({id(weight) for weight in rounding.weights.values()}) == 1


@pytest.mark.parametrize("method", ["percentile", "mse", "max"])
@pytest.mark.parametrize("sign", ["signed", "auto"])
def test_experts_without_rows_have_the_widest_range_of_their_like(method: str, sign: str) -> None:
    torch.manual_seed(0)
    program = capture(Experts(4, never=(1,)).eval(), seeded(2, 8))
    ranges = calibrate(program, load_samples(seeded(9, 8)), batch_size=2, method=method, sign=sign)
    assert set(ranges.unseen) == {f"experts.1.{end}" for end in ("0.input", "0.output", "2.output")}
    for unseen in ranges.unseen:
        like = [ranges[unseen.replace("s.1.", f"s.{n}."), 8] for n in (0, 2, 3)]
        rectified = sign == "auto" and unseen.endswith("0.output")
        assert ranges[unseen, 8] == Range(max(r.amax for r in like), rectified)
    assert Ranges.from_json(ranges.to_json()) == ranges


def test_a_percentile_of_ever_more_values_is_not_too_low() -> None:
    """The first batch sends one row through, the second all of them."""
    model = Block(lambda self, x: self.a(x[x[:, 0] > 0]).sum(0), a=nn.Linear(8, 4))
    x = seeded(40, 8).abs()
    x[1:20, 0] = -1
    program = capture(model, seeded(2, 8).abs())
    ranges = calibrate(program, load_samples(x), batch_size=20, percentile=50.0)
    seen = x[x[:, 0] > 0]
    assert percentile_at_once(seen, 50.0) <= ranges["a.input", 8].amax <= float(seen.max())


def test_masked_scores_have_no_range_and_stop_nobody() -> None:
    def run(self: Block, x: Tensor, keep: Tensor) -> Tensor:
        scores = x @ x.transpose(1, 2)
        scores = scores + torch.where(keep, 0.0, float("-inf"))
        return self.out(scores.softmax(-1) @ x)

    inputs = (seeded(4, 5, 8), torch.ones(4, 5, 5, dtype=torch.bool).tril())
    program = capture(refill(Block(run, out=nn.Linear(8, 3))), inputs)
    assert len(program.sums) == 1
    ranges = calibrate(program, load_samples([(inputs, torch.zeros(4))]), sign="auto")
    assert program.sums[0].tensor not in ranges.table
    assert ranges.table.keys() == program.layer_tensors
    assert program.run(inputs, Rounder(program, ranges)(Plan.uniform(program.layers, INT8))).isfinite().all()


@pytest.mark.parametrize("made", [float("nan"), float("inf")])
def test_nan_and_infinity_name_the_first_tensor_that_holds_them(made: float) -> None:
    model = refill(nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2)))
    with torch.no_grad():
        model[2].bias[1] = made
    program = capture(model, torch.zeros(2, 4))
    with pytest.raises(BitsectError, match=r"^'2\.output' is the first tensor"):
        calibrate(program, load_samples(seeded(3, 4)))


def test_a_fixed_batch_is_calibrated_in_batches_of_that_size() -> None:
    program = program_of("fixed_view")
    assert program.fixed_batch == 2
    x = seeded(5, 5, 8)
    ranges = calibrate(program, load_samples(x), method="max", batch_size=64)
    assert ranges["a.input", 8].amax == x.abs().max().item()
    assert ranges["b.input", 8].amax <= ranges["a.output", 8].amax
    whole = calibrate(program, load_samples(x), percentile=60.0)
    assert whole["a.input", 8].amax == percentile_at_once(x, 60.0)


def test_ranges_survive_json() -> None:
    ranges = calibrate(plain(5), load_samples(seeded(9, 5)), sign="auto", method="mse")
    assert Ranges.from_json(ranges.to_json()) == ranges


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"method": "entropy"}, "unknown range 'entropy': use percentile, mse or max"),
        ({"sign": "both"}, "unknown sign 'both': use signed or auto"),
        ({"percentile": 0.0}, "percentile 0 is not above 0 and up to 100"),
        ({"percentile": 100.1}, "percentile 100.1 is not above 0"),
        ({"percentile": float("nan")}, "percentile nan is not a number"),
        ({"rounding": "up"}, "unknown rounding 'up': use squant, nearest or gptq"),
    ],
)
def test_what_is_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(BitsectError, match=f"^{message}"):
        ranges_of(seeded(3, 5), **options)


def test_no_samples_are_refused() -> None:
    class Nothing:
        def __len__(self) -> int:
            return 0

    with pytest.raises(DataError, match="at least one sample"):
        calibrate(plain(5), Nothing())  # type: ignore[arg-type]


# Placements, by a forward written by hand


class ByHand:
    """The residual network once more: every place where something may be rounded has a name."""

    def __init__(self, model: nn.Module, rounded: dict[str, int], placement: Placement) -> None:
        assert isinstance(model, Residual)
        self.model, self.rounded, self.placement = model, rounded, placement
        self.amax: dict[str, float] = {}  # seen in a first pass
        self.observing = True

    def weight(self, name: str) -> Tensor:
        weight = getattr(self.model, name).weight.detach()
        bits = 8 if self.observing else self.rounded.get(name)
        if bits is None:
            return weight
        flat, qmax = weight.flatten(1), 2 ** (bits - 1) - 1
        scale = (flat.abs().amax(1) / qmax)[:, None]
        return (torch.round(flat / scale).clamp(-qmax, qmax) * scale).reshape(weight.shape)

    def at(
        self, place: str, x: Tensor, layers: str, bits: int | None = None, positive: bool = False
    ) -> Tensor:
        """x, rounded if each of `layers` is and the placement says so."""
        if self.observing:
            self.amax[place] = percentile_at_once(x, 90.0)
            return x
        if not all(name in self.rounded for name in layers.split()):
            return x
        bits = bits or self.rounded[layers]
        unsigned = positive and self.placement is ONNXRUNTIME
        high = 2**bits - 1 if unsigned else 2 ** (bits - 1) - 1
        self.scale = scale = torch.tensor(self.amax[place] / high)
        low = 0 if unsigned else -high - (self.placement is ONNXRUNTIME and bits == 8)  # it saturates at −128
        return torch.round(x / scale).clamp(low, high) * scale

    def result(self, place: str, x: Tensor, layers: str, positive: bool) -> Tensor:
        """What an integer kernel hands on, at 8 bits."""
        if self.placement is PAPER and not self.observing:
            return x
        return self.at(place, x, layers, 8, positive)

    def integer(self, name: str, x: Tensor) -> tuple[Tensor, Tensor]:
        """ONNX Runtime's sums of codes with the bias in integers, and what one unit of them is worth."""
        layer, norm = getattr(self.model, name), getattr(self.model.norms, name, None)
        scales = layer.weight.detach().flatten(1).abs().amax(1) / (2 ** (self.rounded[name] - 1) - 1)
        spread = (-1, *[1] * (x.ndim - 2))
        codes = (self.weight(name) / scales.reshape(-1, *[1] * (layer.weight.ndim - 1))).round().double()
        bias = 0.0 if layer.bias is None else layer.bias.detach().double()
        if norm is not None:
            factor = norm.weight.double() * (norm.running_var.double() + norm.eps).rsqrt()
            bias = norm.bias.double() + bias * factor - norm.running_mean.double() * factor
            codes = codes * factor.sign().reshape(-1, 1, 1, 1)
            scales = (scales.double() * factor.abs()).float()
        taken = (x / self.scale).round().double()  # the last value that was rounded is the layer's input
        if x.ndim == 2:
            total = F.linear(taken, codes)
        else:
            total = F.conv2d(taken, codes, None, layer.stride, layer.padding, layer.dilation, layer.groups)
        units = self.scale * scales
        return (total + (bias / units.double()).round().reshape(spread)).float(), units.reshape(spread)

    def add(self, place: str, addends: dict[str, tuple[Tensor, bool]], layers: str) -> Tensor:
        """The sum of named addends (and whether they are signed), rectified and rounded if one of them is;
        computed in integers where both are."""
        first, second = (x for x, _ in addends.values())
        rounded = [name for name in layers.split() if name in self.rounded]
        if self.observing or self.placement is PAPER or len(rounded) < 2:
            return self.result(place, F.relu(first + second), rounded[0] if rounded else layers, True)
        zeros = [128 * signed for _, signed in addends.values()]
        a, b = (torch.tensor(self.amax[p] / (127 if s else 255)) for p, (_, s) in addends.items())
        c = torch.tensor(self.amax[place] / 255)
        rest = 0 - ((a / c) * zeros[0] + (b / c) * zeros[1])
        part = ((second / b).round().double() + zeros[1]) * (b / c).double() + rest.double()
        total = ((first / a).round().double() + zeros[0]) * (a / c).double() + part.float().double()
        return total.float().round().clamp(0, 255) * c

    def conv(self, name: str, x: Tensor, after: Callable[[Tensor], Tensor] | None = None) -> Tensor:
        layer = getattr(self.model, name)
        if self.placement is ONNXRUNTIME and name in self.rounded and not self.observing:
            total, units = self.integer(name, x)
            high = 127 if after is None else 255
            scale = torch.tensor(self.amax[f"{name}.output"] / high)
            return (total * (units / scale)).round().clamp(-128 if after is None else 0, high) * scale
        y = F.conv2d(
            x, self.weight(name), layer.bias, layer.stride, layer.padding, layer.dilation, layer.groups
        )
        y = self.model.norms[name](y) if name in self.model.norms else y
        y = y if after is None else after(y)
        return self.result(f"{name}.output", y, name, after is not None)

    def pooled(self, x: Tensor, source: str, reader: str, rounded: str) -> tuple[Tensor, Tensor]:
        """x pooled, and how `reader` takes it: at 8 bits on the grid that its values have already."""
        pooled = F.max_pool2d(x, 2)
        bits = self.rounded.get(reader)
        on_grid = (
            self.placement is ONNXRUNTIME and bits == 8 and any(n in self.rounded for n in rounded.split())
        )
        taken = self.at(f"{reader}.input", pooled, reader, bits, True)
        if on_grid and not self.observing:
            taken = self.at(source, pooled, reader, 8, True)
        return pooled, taken

    def __call__(self, x: Tensor) -> Tensor:
        x = self.conv("stem", self.at("stem.input", x, "stem"), F.relu)
        x, taken = self.pooled(x, "stem.output", "a", "stem")
        y = self.conv("a", taken, F.relu)
        y = self.conv("b", self.at("a.output", y, "b", self.rounded.get("b"), True))
        x = self.add("sum 1", {"b.output": (y, True), "stem.output": (x, False)}, "b stem")
        y = self.conv("c", self.at("sum 1", x, "c", self.rounded.get("c"), True), F.relu6)
        y = self.conv("d", self.at("c.output", y, "d", self.rounded.get("d"), True))
        z = self.conv("e", self.at("sum 1", x, "e", self.rounded.get("e"), True))
        x = self.add("sum 2", {"d.output": (y, True), "e.output": (z, True)}, "d e")
        x, taken = self.pooled(x, "sum 2", "f", "d e")
        y = self.conv("f", taken, F.relu)
        x = self.result("head", (y + x * 0.5).flatten(1), "f", True)  # one addend is no kernel's: a float sum
        taken = self.at("head", x, "head", self.rounded.get("head"), True)
        if self.placement is ONNXRUNTIME and "head" in self.rounded and not self.observing:
            total, units = self.integer("head", taken)
            return total * units
        return F.linear(taken, self.weight("head"), self.model.head.bias)


ALL = ("stem", "a", "b", "c", "d", "e", "f", "head")
PLANS = {
    "all int8": dict.fromkeys(ALL, 8),
    "all int4": dict.fromkeys(ALL, 4),
    "mixed": {"stem": 8, "a": 4, "b": 8, "d": 4, "e": 8, "f": 8},
    "one": {"d": 8},
    "an addend in float": {"b": 8, "c": 8, "d": 8, "head": 4},
    "none": {},
}


@pytest.mark.parametrize("placement", PLACEMENTS.values(), ids=PLACEMENTS)
@pytest.mark.parametrize("name", PLANS)
def test_a_placement_rounds_what_the_forward_by_hand_rounds(name: str, placement: Placement) -> None:
    model, program = residual()
    x, labels = images(6)
    # With a percentile, unlike the maximum, what is pooled has another range than its source.
    evaluator = judge(
        program,
        (x, labels),
        placement=placement,
        rounding="nearest",
        batch_size=6,
        method="percentile",
        percentile=90.0,
    )
    by_hand = ByHand(model, PLANS[name], placement)
    with torch.no_grad():
        by_hand(x)
        by_hand.observing = False
        expected = by_hand(x)
    formats = {"float": Format(), 8: INT8, 4: INT4}
    plan = Plan({layer: formats[PLANS[name].get(layer, "float")] for layer in ALL})
    assert torch.equal(program.run(x, evaluator.rounder(plan)), expected)


def test_the_placements_differ_and_so_do_their_sets_of_rounded_values() -> None:
    _, program = residual()
    data = images(6)
    paper, runtime = (judge(program, data, placement=placement) for placement in (PAPER, ONNXRUNTIME))
    plan = Plan.uniform(program.layers, INT8)
    assert not paper.rounder(plan).results
    assert len(paper.rounder(plan).inputs) == len(program.multiplies) == 8
    results = runtime.rounder(plan).results
    assert len(results) == 7 + 3  # every convolution and every sum; not the linear head
    assert all(grid.high in (127, 255) for grid in results.values())
    assert len(runtime.rounder(Plan.uniform(program.layers, INT4)).results) == 10
    assert {grid.high for grid in runtime.rounder(Plan.uniform(program.layers, INT4)).inputs.values()} == {
        7,
        15,
    }


def test_a_weight_only_format_leaves_activations_and_their_matmuls_in_float() -> None:
    program = program_of("attention")
    x = seeded(4, 5, 16)
    kinds = {layer.name: layer.kind for layer in program.layers}
    assert sorted(kinds.values()) == ["linear", "linear", "matmul", "matmul"]
    ranges = calibrate(program, load_samples(x))
    for placement in PLACEMENTS.values():
        rounder = Rounder(program, ranges, placement)
        rounding = rounder(Plan.uniform(program.layers, Format.parse("w4a16")))
        assert len(rounding.weights) == 2
        assert not rounding.inputs
        assert not rounding.results
        assert len(rounder(Plan.uniform(program.layers, INT8)).inputs) == 2 + 2 * 2
    matmuls = [name for name, kind in kinds.items() if kind == "matmul"]
    plan = Plan.uniform(program.layers).replace(matmuls, Format.parse("w4a16"))
    assert torch.equal(program.run(x, Rounder(program)(plan)), program.run(x))


def test_a_weight_is_rounded_once_per_format() -> None:
    _, program = residual()
    rounder = Rounder(program)
    one, other = (rounder(Plan.uniform(program.layers, Format(4, None))) for _ in range(2))
    assert all(weight is other.weights[key] for key, weight in one.weights.items())


def test_what_a_rounder_refuses() -> None:
    _, program = residual()
    plan = Plan.uniform(program.layers, INT8)
    with pytest.raises(OptionError, match="unknown rounding 'up': use squant, nearest or gptq"):
        Rounder(program, rounding="up")
    with pytest.raises(PlanError, match="needs calibrated ranges"):
        Rounder(program)(plan)
    ranges = calibrate(program, load_samples(images(2)), bits=(8,))
    with pytest.raises(PlanError, match=r"no 4-bit range of 'stem\.input' was calibrated"):
        Rounder(program, ranges)(Plan.uniform(program.layers, INT4))
    with pytest.raises(PlanError, match="layer 'e' is in the network but not in the plan"):
        Rounder(program, ranges)(Plan({name: format for name, format in plan.items() if name != "e"}))
    with pytest.raises(PlanError, match="layer 'extra' is in the plan but not in it"):
        Rounder(program, ranges)(Plan({**plan, "extra": INT8}))


@pytest.mark.parametrize("name", ["half", "attention_half", "double_precision"])
@pytest.mark.parametrize("method", ["percentile", "mse", "max"])
def test_other_precisions_are_calibrated_and_rounded(name: str, method: str) -> None:
    program = program_of(name)
    x = program.example
    ranges = calibrate(program, load_samples(x), method=method, sign="auto")
    for placement in PLACEMENTS.values():
        outputs = program.run(x, Rounder(program, ranges, placement)(Plan.uniform(program.layers, INT8)))
        assert outputs.dtype == program.run(x).dtype
        torch.testing.assert_close(outputs, program.run(x), rtol=0.1, atol=0.1)
