"""Which axes of a weight are output channels, inputs and kernel taps."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


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
