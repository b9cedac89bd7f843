"""The arithmetic: codes on a symmetric grid, for weights per output channel, for values per tensor.

    Q(x) = s · clip(round(x / s), low, high),   s = amax / high

with high = 2^(b−1) − 1 and low = −high for signed codes, [0, 2^b − 1] for unsigned ones.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..errors import PlanError
from ..names import choose
from ..network.layout import Layout
from ..values import Format
from . import ROUNDINGS


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
    codes = choose("rounding", rounding, ROUNDINGS)(wide / scales, qmax)

    def back(tensor: Tensor) -> Tensor:
        return layout.from_kernels(tensor.reshape(channels, inputs, taps), weight.shape)

    return Codes(back(codes).to(weight.dtype), back(scales.expand_as(codes)))
