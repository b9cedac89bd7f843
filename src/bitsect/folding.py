"""Batch norm and bias of a layer as kernels take them: one folded into the weight, the other an integer.

    γ/σ·(w∗x + b − mean) + β  =  (γ/σ·w)∗x + b′,    b′ ≈ n·(input scale × weight scale) with n an integer

An integer kernel adds n to its products before it scales them. What this rounding adds to the bias is
a tiny part of a step of the output, but a judged network that left it out would give other answers on
more samples than all other differences of arithmetic together.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.fx import Node

from .operators import CONVOLUTIONS, LINEAR, TRANSPOSED_CONVOLUTIONS, operator_name
from .program import Multiply, Program
from .values import Format

LARGEST = 2**30  # an int32 bias; as much again is left for the products that are added to it
WITH_BIAS = LINEAR | CONVOLUTIONS | TRANSPOSED_CONVOLUTIONS  # their third argument
INTEGER_CONVOLUTIONS = ("conv1d", "conv2d", "conv3d", "depthwise")
PRECISION = 2**22  # steps of a bias whose scale can be chosen


@dataclass(frozen=True)
class BatchNorm:
    """y = x·factor + shift, per channel, in float64; `node` is the value it makes."""

    factor: Tensor
    shift: Tensor
    node: Node

    @classmethod
    def after(cls, program: Program, multiply: Multiply) -> BatchNorm | None:
        """The batch norm that alone reads what `multiply` makes, over the channels of its weight."""
        source = multiply.node
        if source.target not in WITH_BIAS or multiply.weight is None or len(source.users) != 1:
            return None
        norm = next(iter(source.users))
        if norm.op != "call_function" or operator_name(norm.target) != "_native_batch_norm_legit_no_training":
            return None
        outputs = list(norm.users)
        if norm.args[0] is not source or len(outputs) != 1 or outputs[0].target is not operator.getitem:
            return None
        if source.target in LINEAR and source.meta["val"].ndim != 2:
            return None  # it norms another axis than that of the outputs
        mean, variance = (program.constant(node).double() for node in norm.args[3:5])  # type: ignore[arg-type]
        gamma, beta = (
            program.constant(node).double() if isinstance(node, Node) else None for node in norm.args[1:3]
        )
        factor = (variance + float(norm.args[6])).rsqrt()  # type: ignore[arg-type]
        factor = factor if gamma is None else factor * gamma
        shift = -mean * factor
        return cls(factor, shift if beta is None else shift + beta, outputs[0])


def has_integer_kernel(multiply: Multiply, format: Format) -> bool:
    """Whether ONNX Runtime adds the bias of this layer to a sum of integers."""
    if format.activation_bits is None or format.group_size is not None or multiply.weight is None:
        return False
    if multiply.node.target in LINEAR:
        return bool(multiply.node.meta["val"].ndim == 2)
    return multiply.place.signature.kind in INTEGER_CONVOLUTIONS


@dataclass(frozen=True)
class IntegerBias:
    """The bias of an integer kernel, per channel: `codes` × `steps`, steps = input scale × `scales`."""

    codes: Tensor
    steps: Tensor
    scales: Tensor  # of the folded weight
    divisors: Tensor  # of the weight's codes: 1, or more where the bias would not fit into int32
    error: Tensor  # what rounding adds

    @classmethod
    def of(cls, bias: Tensor, scales: Tensor, input_scale: float) -> IntegerBias:
        """`bias` in steps of a weight with `scales`, which are zero where a channel is.

        A channel of zeros may have any scale: it gets one that holds its bias well. Where a bias would
        not fit into int32, the channel's scale is doubled until it does.
        """
        wide = scales.float().double()
        fine = bias.abs() / (input_scale * PRECISION)
        fine = torch.where(fine > torch.finfo(torch.float32).tiny, fine, 1.0)
        wide = torch.where(wide > 0, wide, fine)
        excess = (bias.abs() / (wide * input_scale * LARGEST)).clamp(min=1)
        divisors = torch.exp2(torch.log2(excess).ceil())
        final = (wide * divisors).float()
        steps = final * torch.tensor(input_scale, dtype=torch.float32)
        codes = (bias / steps.double()).round()
        return cls(codes, steps, final, divisors, codes * steps.double() - bias)


@dataclass(frozen=True)
class Folded:
    """A layer's batch norm and bias in one."""

    multiply: Multiply
    norm: BatchNorm | None
    bias: Tensor | None  # per channel, in float64

    @classmethod
    def of(cls, program: Program, multiply: Multiply) -> Folded:
        norm = BatchNorm.after(program, multiply)
        bias = None
        if multiply.node.target in WITH_BIAS and multiply.weight is not None:
            node = (*multiply.node.args, None, None)[2] or multiply.node.kwargs.get("bias")
            bias = program.constant(node).double() if isinstance(node, Node) else None
        if norm is None:
            return cls(multiply, None, bias)
        return cls(multiply, norm, norm.shift if bias is None else norm.shift + bias * norm.factor)

    @property
    def node(self) -> Node:
        """Whose value holds the bias."""
        return self.multiply.node if self.norm is None else self.norm.node

    def integer_bias(self, scales: Tensor, input_scale: float) -> IntegerBias | None:
        """The bias of an integer kernel whose weight has `scales` before folding."""
        if self.bias is None:
            return None
        wide = scales.double() if self.norm is None else scales.double() * self.norm.factor.abs()
        return IntegerBias.of(self.bias, wide, input_scale)

    def broadcast(self, channels: Tensor) -> Tensor:
        """One number per channel, to be added to the value that holds the bias."""
        spatial = len(self.multiply.place.signature.stride)
        return channels.to(self.node.meta["val"].dtype).reshape(-1, *[1] * spatial)
