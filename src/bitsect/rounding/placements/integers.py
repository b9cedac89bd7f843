"""Layers and sums in ONNX Runtime's own integer arithmetic, so that what is judged is what will run.

Rounding makes a network chaotic: let one code of 100,000 differ after the first layer, and after thirty
layers a third of them do, and some predictions with them. So it is not enough to round at the same
places: the sums of codes, the bias in integers and each float32 operation after them are done here as
its kernels do them, to the last bit. (Its QLinearAdd computes like this on x86; elsewhere sums may differ.)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node
from torch.nn.functional import linear

from ...network.grouped import GROUPED, group_of_rows, grouped_mm
from ...network.layout import Layout
from ...network.operators import LINEAR, aten, is_rectifier, rectifier_bounds
from ...network.parts import Multiply
from ...values import Format
from ...values.grid import Grid
from ..folding import Folded
from ..weights import Codes

PRODUCTS = {aten.matmul.default, aten.mm.default, aten.addmm.default}
KERNEL_BITS = 8  # what integer kernels hand on, whatever their operands are
INTEGER_CONVOLUTIONS = ("conv1d", "conv2d", "conv3d", "depthwise")
LARGEST_BIAS = 2**30  # in int32; as much again is left for the products that are added to it
BIAS_STEPS = 2**22  # of a bias whose scale can be chosen
EXACT = 2**24  # float32 holds all integers below


def has_integer_kernel(multiply: Multiply, format: Format) -> bool:
    """Whether ONNX Runtime adds the bias of this layer to a sum of integers."""
    if format.activation_bits is None or format.group_size is not None or multiply.weight is None:
        return False
    made = multiply.node.meta["val"]
    if made.dtype != torch.float32:
        return False
    if multiply.node.target in LINEAR:
        return bool(made.ndim == 2)
    return multiply.place.signature.kind in INTEGER_CONVOLUTIONS


@dataclass(frozen=True)
class IntegerBias:
    """A bias in integers, per channel: `codes` × (input scale × `scales`), `scales` being the weight's."""

    codes: Tensor
    scales: Tensor
    divisors: Tensor  # of the weight's codes: 1, or more where the bias would not fit into int32

    @classmethod
    def of(cls, bias: Tensor, scales: Tensor, input_scale: float) -> IntegerBias:
        """The bias as int32 codes with step input_scale × weight scale.

        A channel of zeros may have any scale: it gets one that holds its bias well. Where a bias would
        not fit into int32, the channel's scale is doubled until it does.
        """
        fine = bias.abs() / (input_scale * BIAS_STEPS)
        fine = torch.where(fine > torch.finfo(torch.float32).tiny, fine, 1.0)
        wide = torch.where(scales > 0, scales.double(), fine)
        excess = (bias.abs() / (wide * input_scale * LARGEST_BIAS)).clamp(min=1)
        divisors = torch.exp2(torch.log2(excess).ceil())
        final = (wide * divisors).float()
        return cls((bias / (_float32(input_scale) * final).double()).round(), final, divisors)


@dataclass(frozen=True)
class IntegerLayer:
    """A convolution or linear layer on codes.

        y = round(m·(Σ q·c + n))·output scale,    m = input scale × weight scale / output scale

    with codes c of the input, q of the weight, n of the bias; a linear layer leaves y in float:
    y = (input scale × weight scale)·(Σ q·c + n).
    """

    input: Grid
    codes: Tensor  # of the weight, with the sign of what is folded into it
    scales: Tensor  # of the weight, per channel, in float32
    bias: IntegerBias | None
    output: Grid | None

    @classmethod
    def of(
        cls, made: Codes, layout: Layout, folded: Folded, input: Grid, output: Grid | None
    ) -> IntegerLayer:
        kernels, scales = layout.to_kernels(made.codes), layout.to_kernels(made.scales)[:, 0, 0]
        if folded.factor is not None:
            scales = (scales * folded.factor.abs()).float()
            kernels = kernels * folded.factor.sign().float()[:, None, None]
        alive = (scales > 0) & kernels.flatten(1).any(1)
        kernels = torch.where(alive[:, None, None], kernels, 0)
        scales = torch.where(alive, scales, 0)
        bias = None if folded.bias is None else IntegerBias.of(folded.bias, scales, input.scale)
        if bias is None:
            scales = torch.where(alive, scales, 1)
        else:
            scales, kernels = bias.scales, (kernels / bias.divisors.float()[:, None, None]).round()
        return cls(input, layout.from_kernels(kernels, made.codes.shape), scales, bias, output)

    @property
    def steps(self) -> Tensor:
        """What one unit of the integer sum is worth, per channel."""
        return self.scales * _float32(self.input.scale)

    @cached_property
    def _small_bias(self) -> bool:
        return self.bias is not None and bool((self.bias.codes.abs() < EXACT // 2).all())

    def __call__(
        self, step: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any], rows: int
    ) -> Tensor:
        others = {name: value for name, value in kwargs.items() if name != "bias"}
        bias = self.bias.codes.float() if self.bias is not None and self._small_bias else None
        total: Tensor = step(self.input.codes(args[0]), self.codes, bias, *args[3:], **others)
        spread = (-1, *[1] * (self.codes.ndim - 2))
        if self.bias is not None and bias is None:
            total = total.to(torch.int32).add_(self.bias.codes.to(torch.int32).reshape(spread)).float()
        if self.output is None:
            return total.mul_(self.steps)
        total = total.mul_((self.steps / _float32(self.output.scale)).reshape(spread)).round_()
        return total.clamp_(self.output.low, self.output.high).mul_(self.output.scale)


def is_integer_product(multiply: Multiply, format: Format) -> bool:
    """Whether ONNX Runtime multiplies codes here, and scales the sum before a bias is added in float."""
    if format.activation_bits is None or format.group_size is not None or multiply.weight is None:
        return False
    node = multiply.node
    if node.meta["val"].dtype != torch.float32 or multiply.operands[0].layout is not None:
        return False
    if node.target in LINEAR or node.target == GROUPED:
        return True
    return node.target in PRODUCTS and not node.kwargs and len(multiply.place.signature.operand) == 2


@dataclass(frozen=True)
class IntegerProduct:
    """A matrix product of codes: y = (input scale × weight scale)·Σ q·c + bias."""

    input: Grid
    codes: Tensor  # of the weight
    scales: Tensor  # of the weight, per channel, in float32; by groups where it has groups
    fitted_bias: Tensor | None = None  # of a fitted weight, which is added to the layer's own

    @classmethod
    def of(
        cls, made: Codes, layout: Layout, input: Grid, fitted_bias: Tensor | None = None
    ) -> IntegerProduct:
        scales = layout.to_kernels(made.scales)[:, 0, 0]
        groups = made.codes.shape[:-2]
        return cls(input, made.codes, scales.reshape(*groups, -1) if groups else scales, fitted_bias)

    def __call__(
        self, step: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any], rows: int
    ) -> Tensor:
        steps = self.scales * _float32(self.input.scale)
        if step == GROUPED:
            taken, _, ends = args
            total: Tensor = grouped_mm(self.input.codes(taken), self.codes, ends)
            return total.mul_(steps[group_of_rows(len(taken), ends)])
        given, bias = args[0], (*args, None, None)[2]
        if step == aten.addmm.default:
            bias, given = args[:2]
        codes = self.input.codes(given)
        total = linear(codes, self.codes) if step in LINEAR else torch.matmul(codes, self.codes)
        total = total.mul_(steps)
        biases = [each for each in (bias, self.fitted_bias) if each is not None]
        return total.add_(sum(biases)) if biases else total


@dataclass(frozen=True)
class IntegerSum:
    """Two rounded values added.

        y = round(a·(A/C) + (b·(B/C) + z))·C

    for scales A, B, C and codes a, b as uint8 holds them; z is what all zero points come to, and each
    product and sum are rounded as one.
    """

    first: Grid
    second: Grid
    output: Grid

    def __call__(
        self, step: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any], rows: int
    ) -> Tensor:
        scale, zero = _float32(self.output.scale), _zero_point(self.output)
        first, second = _float32(self.first.scale) / scale, _float32(self.second.scale) / scale
        rest = zero - (first * _zero_point(self.first) + second * _zero_point(self.second))
        a, b = (
            torch.div(value, grid.scale).round_().double().add_(_zero_point(grid))
            for value, grid in zip(args[:2], (self.first, self.second), strict=True)
        )
        # A product of these is exact in float64, which makes a fused multiply-add of float32.
        part = b.mul_(second.double()).add_(rest.double()).float()
        total = a.mul_(first.double()).add_(part).float().round_().sub_(zero)
        return total.clamp_(self.output.low, self.output.high).mul_(self.output.scale)


def absorbed(source: Node, end: Node, grid: Grid) -> set[str] | None:
    """Names of the steps between `source` and `end` that become no-ops because `grid` already clips there.

    There is at most one such step, a ReLU or clamp; None if it still has an effect.
    """
    if end is source:
        return set()
    if end.args[0] is not source or not is_rectifier(end):
        return None
    return {end.name} if grid.is_within(*rectifier_bounds(end)) else None


def _float32(value: float) -> Tensor:
    return torch.tensor(value, dtype=torch.float32)


def _zero_point(grid: Grid) -> int:
    return 128 if grid.low < 0 else 0
