"""What a layer multiplies its weight by: a column for every position of its output.

    output[position] = W · column[position],   W as (channels, inputs × taps)

A convolution reads for each tap t of its kernel, along every axis, the input at o·stride + t·dilation −
padding to make the output at o; a transposed one the input i for which i·stride = o + padding − t·dilation,
where there is one. What lies outside is zero.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node

from ..network.operators import CONVOLUTIONS, LINEAR, MATMULS, TRANSPOSED_CONVOLUTIONS
from ..network.parts import Multiply


def are_known(multiply: Multiply) -> bool:
    """Whether the columns that `multiply` reads are known: it multiplies them all by one weight."""
    weight, target = multiply.weight, multiply.node.target
    if weight is None or len(multiply.operands) != 2:
        return False
    if target in LINEAR or target in CONVOLUTIONS or target in TRANSPOSED_CONVOLUTIONS:
        return True
    shape = weight.node.meta["val"].shape
    stacked = any(size != 1 for size in shape[:-2])
    scaled = any(multiply.node.kwargs.get(name, 1) != 1 for name in ("alpha", "beta"))
    return target in MATMULS and not stacked and not scaled


def channel_axis(multiply: Multiply) -> int | None:
    """The axis of the output that the channels of the weight lie on, counted from the end."""
    weight, (activation,) = multiply.weight, multiply.activations
    assert weight is not None
    shape = weight.node.meta["val"].shape
    if multiply.node.target in CONVOLUTIONS or multiply.node.target in TRANSPOSED_CONVOLUTIONS:
        return 1 - len(shape)
    if len(shape) == 1:
        return None
    left = multiply.operands[0] is weight
    return -2 if left and activation.node.meta["val"].ndim > 1 else -1


@dataclass(frozen=True)
class Columns:
    """The columns of a batch, taken by their position in the flattened output, channels apart."""

    rows: Tensor  # (positions of the input, channels of the input)
    window: _Window | None = None  # of a convolution

    @classmethod
    def of(cls, multiply: Multiply, value: Tensor) -> Columns:
        """The columns in `value`, which the multiply reads."""
        target, weight = multiply.node.target, multiply.weight
        assert weight is not None
        if target in CONVOLUTIONS or target in TRANSPOSED_CONVOLUTIONS:
            axes = len(weight.node.meta["val"].shape) - 2
            value = value if value.ndim == axes + 2 else value[None]
            window = _Window.of(multiply.node, weight.node, value.shape[2:])
            return cls(value.movedim(1, -1).flatten(0, -2), window)
        left = target not in LINEAR and multiply.operands[0] is weight
        if left and value.ndim > 1:
            value = value.movedim(-2, -1)
        return cls(value.reshape(-1, value.shape[-1]))

    def __len__(self) -> int:
        if self.window is None:
            return len(self.rows)
        return len(self.rows) // self.window.inputs.numel() * self.window.outputs.numel()

    def take(self, positions: Tensor) -> Tensor:
        """The columns at `positions`: (groups, positions, inputs × taps)."""
        if self.window is None:
            return self.rows[positions][None]
        sources, inside = self.window.sources(positions)
        taken = self.rows[sources] * inside[..., None]
        count, taps, channels = taken.shape
        groups = self.window.groups
        grouped = taken.reshape(count, taps, groups, channels // groups).permute(2, 0, 3, 1)
        return grouped.contiguous().view(groups, count, -1)


@dataclass(frozen=True)
class _Window:
    """Which positions of its input a convolution reads for a position of its output."""

    inputs: torch.Size
    outputs: torch.Size
    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]  # before the input
    dilation: tuple[int, ...]
    transposed: bool
    groups: int

    @classmethod
    def of(cls, node: Node, weight: Node, inputs: torch.Size) -> _Window:
        names = (argument.name for argument in node.target._schema.arguments)  # type: ignore[union-attr]
        given = {**dict(zip(names, node.args, strict=False)), **node.kwargs}
        kernel = tuple(weight.meta["val"].shape[2:])
        stride, dilation, more = (
            _for_axes(given.get(name, default), len(kernel))
            for name, default in (("stride", 1), ("dilation", 1), ("output_padding", 0))
        )
        transposed = node.target in TRANSPOSED_CONVOLUTIONS or bool(given.get("transposed"))
        reach = [step * (size - 1) for step, size in zip(dilation, kernel, strict=True)]
        padding = given.get("padding", 0)
        if padding == "same":
            before, after = [r // 2 for r in reach], [r - r // 2 for r in reach]
        else:
            before = after = list(_for_axes(0 if padding == "valid" else padding, len(kernel)))
        axes = zip(inputs, stride, before, after, reach, more, strict=True)
        outputs = (
            (i - 1) * s - b - a + r + m + 1 if transposed else (i + b + a - r - 1) // s + 1
            for i, s, b, a, r, m in axes
        )
        return cls(
            inputs,
            torch.Size(outputs),
            kernel,
            stride,
            tuple(before),
            dilation,
            transposed,
            given.get("groups", 1),
        )

    def sources(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """For every position and tap the row of the input that is read, and whether it is inside."""
        count = len(positions)
        sources = torch.div(positions, self.outputs.numel(), rounding_mode="floor")[:, None]
        inside = torch.ones_like(sources, dtype=torch.bool)
        places = torch.unravel_index(positions % self.outputs.numel(), self.outputs)
        axes = zip(places, self.inputs, self.kernel, self.stride, self.padding, self.dilation, strict=True)
        for place, size, kernel, stride, padding, dilation in axes:
            taps = torch.arange(kernel, device=positions.device) * dilation
            if self.transposed:
                steps = place[:, None] + padding - taps
                source = torch.div(steps, stride, rounding_mode="floor")
                read = steps % stride == 0
            else:
                source = place[:, None] * stride + taps - padding
                read = torch.ones_like(source, dtype=torch.bool)
            read = read & (source >= 0) & (source < size)
            sources = sources[:, :, None] * size + source.clamp(0, size - 1)[:, None]
            inside = inside[:, :, None] & read[:, None]
            sources, inside = sources.reshape(count, -1), inside.reshape(count, -1)
        return sources, inside


def _for_axes(value: Any, axes: int) -> tuple[int, ...]:
    values = tuple(value) if isinstance(value, list | tuple) else (value,)
    return values * axes if len(values) == 1 else values
