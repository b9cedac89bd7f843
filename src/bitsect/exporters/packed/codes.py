"""Codes as bytes: several to a byte where they have few bits."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from ...network.layout import Layout
from ...rounding.weights import Codes, run_length
from ...values import Format

WIDTHS = (2, 4, 8)  # bits that a code takes in a file


def width_of(bits: int) -> int:
    """How many bits hold a code of `bits` bits.

    >>> [width_of(bits) for bits in (2, 3, 4, 5, 8)]
    [2, 4, 4, 8, 8]
    """
    return next(width for width in WIDTHS if width >= bits)


def pack(codes: Tensor, bits: int) -> Tensor:
    """Signed codes in a row of bytes, the first in the lowest bits; codes of 8 bits as they are.

    >>> pack(torch.tensor([-7.0, 7.0, 0.0]), 4)
    tensor([241,   8], dtype=torch.uint8)
    """
    width = width_of(bits)
    flat = codes.reshape(-1).to(torch.int16)
    if width == 8:
        return flat.to(torch.int8)
    each = 8 // width
    flat = torch.nn.functional.pad(flat + 2 ** (width - 1), (0, -len(flat) % each))
    shifted = flat.reshape(-1, each) << (width * torch.arange(each, dtype=torch.int16))
    return shifted.sum(1).to(torch.uint8)


def unpack(packed: Tensor, count: int, bits: int) -> Tensor:
    """The `count` codes that `pack` put into bytes.

    >>> unpack(pack(torch.tensor([-7.0, 7.0, 0.0]), 4), 3, 4)
    tensor([-7,  7,  0], dtype=torch.int16)
    """
    width = width_of(bits)
    if width == 8:
        return packed.to(torch.int16)
    shifts = width * torch.arange(8 // width, dtype=torch.int16, device=packed.device)
    spread = (packed.to(torch.int16)[:, None] >> shifts) & (2**width - 1)
    codes: Tensor = spread.reshape(-1)[:count] - 2 ** (width - 1)
    return codes


def packed_size(count: int, bits: int) -> int:
    """How many numbers `pack` makes of `count` codes."""
    return math.ceil(count * width_of(bits) / 8)


def narrowest(value: Tensor) -> Tensor:
    """`value` in half the bytes where that loses nothing, as where a network was stored in float16."""
    if value.dtype == torch.float32:
        for narrow in (value.to(torch.float16), value.to(torch.bfloat16)):
            if torch.equal(narrow.to(torch.float32), value):
                return narrow
    return value


@dataclass(frozen=True)
class HeldCodes:
    """How the weight of a layer is held: its shape and type, which axes are what, and its format."""

    shape: torch.Size
    dtype: torch.dtype
    layout: Layout
    format: Format

    @property
    def bits(self) -> int:
        assert self.format.weight_bits is not None
        return self.format.weight_bits

    @property
    def kernels(self) -> tuple[int, int, int]:
        channels, inputs, taps = self.layout.to_kernels(torch.empty(self.shape, device="meta")).shape
        return channels, inputs, taps

    @property
    def scale_count(self) -> int:
        channels, inputs, _ = self.kernels
        return channels * (inputs // run_length(self.format, inputs))

    def pack(self, made: Codes) -> tuple[Tensor, Tensor]:
        """The codes in bytes, channel by channel, and one scale for each channel or group of it."""
        scales = self.layout.to_kernels(made.scales).reshape(self.scale_count, -1)
        assert bool((scales == scales[:, :1]).all())
        return pack(self.layout.to_kernels(made.codes), self.bits), scales[:, 0].clone(
            memory_format=torch.contiguous_format
        )

    def unpack(self, packed: Tensor, scales: Tensor) -> Codes:
        """The same codes and scales that were packed."""
        codes = unpack(packed, self.shape.numel(), self.bits).to(self.dtype)
        run = self.shape.numel() // self.scale_count
        spread = scales[:, None].expand(self.scale_count, run)

        def back(values: Tensor) -> Tensor:
            return self.layout.from_kernels(values.reshape(self.kernels), self.shape)

        return Codes(back(codes), back(spread))
