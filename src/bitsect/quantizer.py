"""The arithmetic: codes on a symmetric grid, for weights per output channel, for values per tensor.

    Q(x) = s · clip(round(x / s), low, high),   s = amax / high

with high = 2^(b−1) − 1 and low = −high for signed codes, [0, 2^b − 1] for unsigned ones.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .errors import PlanError
from .rounding import ROUNDINGS
from .values import Format, Range


@dataclass(frozen=True)
class Grid:
    """The values that a rounded tensor may take: scale × integers in [low, high]."""

    scale: float
    low: int
    high: int

    @classmethod
    def of(cls, range: Range, bits: int, *, full: bool = False) -> Grid:
        """The grid of a range; `full` adds the lowest code of two's complement to a signed one."""
        high = 2**bits - 1 if range.unsigned else 2 ** (bits - 1) - 1
        # The scale is what float32 holds of it, since that is what runtimes store and divide by.
        scale = float(torch.tensor(range.amax / high, dtype=torch.float32)) or 1.0
        return cls(scale, 0 if range.unsigned else -high - full, high)

    def is_within(self, low: float, high: float) -> bool:
        """Whether clipping to [low, high] changes no code: it begins beyond the middle of the last two."""
        return low / self.scale < self.low + 0.5 and high / self.scale > self.high - 0.5

    def codes(self, x: Tensor) -> Tensor:
        return torch.div(x, self.scale).round_().clamp_(self.low, self.high)

    def round(self, x: Tensor) -> Tensor:
        return self.codes(x).mul_(self.scale)


@dataclass(frozen=True)
class Layout:
    """Which axes of a weight are output channels, inputs and kernel taps."""

    channels: tuple[int, ...]
    inputs: tuple[int, ...]
    taps: tuple[int, ...] = ()
    groups: int = 1  # a transposed convolution keeps its groups on the input axis

    def to_kernels(self, weight: Tensor) -> Tensor:
        """`weight` as (channels, inputs of a channel, taps)."""
        groups, inputs, channels, taps = self._sizes(weight.shape)
        moved = weight.permute(*self.inputs, *self.channels, *self.taps)
        return (
            moved.reshape(groups, inputs, channels, taps)
            .transpose(1, 2)
            .reshape(groups * channels, inputs, taps)
        )

    def from_kernels(self, kernels: Tensor, shape: torch.Size) -> Tensor:
        """The inverse of `to_kernels` for a weight of `shape`."""
        groups, inputs, channels, taps = self._sizes(shape)
        order = (*self.inputs, *self.channels, *self.taps)
        moved = kernels.reshape(groups, channels, inputs, taps).transpose(1, 2)
        return (
            moved.reshape([shape[axis] for axis in order])
            .permute(*sorted(range(len(order)), key=order.__getitem__))
            .contiguous()
        )

    def _sizes(self, shape: torch.Size) -> tuple[int, int, int, int]:
        def product(axes: tuple[int, ...]) -> int:
            total = 1
            for axis in axes:
                total *= shape[axis]
            return total

        return self.groups, product(self.inputs) // self.groups, product(self.channels), product(self.taps)


@dataclass(frozen=True)
class Codes:
    """A rounded weight: integer codes, held in its dtype, and the float32 scale of each."""

    codes: Tensor
    scales: Tensor  # of the codes' shape: a channel or group repeats its own

    @property
    def weight(self) -> Tensor:
        return (self.codes * self.scales).to(self.codes.dtype)


def run_length(format: Format, inputs: int) -> int:
    """How many of a channel's `inputs` share a scale."""
    size = format.group_size
    if size is None or size >= inputs:
        return inputs
    if inputs % size:
        raise PlanError(
            f"format {format}: groups of {size} do not divide {inputs} inputs; use another group size"
        )
    return size


def quantize_weight(weight: Tensor, layout: Layout, format: Format, rounding: str = "squant") -> Codes:
    """The codes of `weight` in `format`: one scale per output channel, or per group along its input.

    Scales come from the largest magnitude; an all-zero channel gets zero codes.
    """
    assert format.weight_bits is not None
    qmax = 2 ** (format.weight_bits - 1) - 1
    kernels = layout.to_kernels(weight.detach())
    channels, inputs, taps = kernels.shape
    size = run_length(format, inputs)
    kernels = kernels.reshape(channels * (inputs // size), size, taps)
    wide = kernels.to(torch.promote_types(kernels.dtype, torch.float32))
    scales = (wide.abs().amax(dim=(1, 2), keepdim=True) / qmax).to(torch.float32)
    # An all-zero channel divides by one; so does one whose scale is too small for float32.
    scales = torch.where(scales > 0, scales, torch.ones_like(scales))
    codes = ROUNDINGS[rounding](wide / scales, qmax)

    def back(tensor: Tensor) -> Tensor:
        return layout.from_kernels(tensor.reshape(channels, inputs, taps), weight.shape)

    return Codes(back(codes).to(weight.dtype), back(scales.expand_as(codes)))
