"""How far every tensor reaches, streamed over the calibration samples in one pass.

The percentile is exact: the range is the (⌊(1 − p)·N⌋ + 1)-th largest of all N magnitudes, and since
that tail is tiny, the largest k of each batch are merged into those kept so far. N is known before
the first value is dropped, because every sample has as many elements as the first.

The mean squared error is minimised over a histogram whose bins are the leading bits of the float32
representation: each value is known to a relative 2⁻¹¹, whatever its size, and batches merge by
addition. The clip found is within 0.2 % of the best on that histogram.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from fractions import Fraction

import torch
from torch import Tensor

from .data import Samples
from .errors import BitsectError, DataError
from .operators import never_negative
from .program import Program
from .rounder import KERNEL_BITS, Rounder
from .values import Format, Plan, Range, Ranges

METHODS = ("percentile", "mse", "max")
SIGNS = ("signed", "auto")
MANTISSA_BITS = 10  # of the histogram's bins


def calibrate(
    program: Program,
    samples: Samples,
    *,
    method: str = "percentile",
    percentile: float = 99.999,
    sign: str = "signed",
    bits: Iterable[int] = (8, 4),
    rounding: str = "squant",
    batch_size: int = 64,
    progress: Callable[[int], None] = lambda rows: None,
) -> Ranges:
    """The ranges of every layer input, layer output and residual sum.

    Seen under 8-bit weights and float activations, as in the paper.
    """
    _check(method, sign, percentile, len(samples))
    seen = {name: _Seen(name, len(samples), method, percentile) for name in program.tensors}
    eight_bit_weights = Rounder(program, rounding=rounding)(Plan.uniform(program.layers, Format(8, None)))
    for batch in samples.batches(batch_size):
        rows = len(batch.indices)
        see = {name: tensor.look(rows) for name, tensor in seen.items()}
        program.observe(batch.inputs, see, eight_bit_weights)
        progress(rows)
    widths = sorted({KERNEL_BITS, *bits}, reverse=True)
    table = {}
    for name, tensor in seen.items():
        positive = never_negative(program.tensors[name]) or tensor.low >= 0
        table[name] = tensor.ranges(widths, unsigned=sign == "auto" and positive)
    return Ranges(method, sign, percentile, len(samples), table)


def _check(method: str, sign: str, percentile: float, samples: int) -> None:
    if method not in METHODS:
        raise BitsectError(f"unknown range method '{method}': use {', '.join(METHODS)}")
    if sign not in SIGNS:
        raise BitsectError(f"unknown sign '{sign}': use {' or '.join(SIGNS)}")
    if not 0 < percentile <= 100:
        raise BitsectError(f"percentile {percentile} is not above 0 and up to 100")
    if samples == 0:
        raise DataError("calibration needs at least one sample")


class _Seen:
    """What has been seen of one tensor."""

    def __init__(self, name: str, samples: int, method: str, percentile: float) -> None:
        self.name, self.samples, self.method = name, samples, method
        self.beyond = 1 - Fraction(str(percentile)) / 100  # the share of values above the percentile
        self.low, self.high = float("inf"), 0.0
        self.top: Tensor | None = None
        self.histogram: Tensor | None = None

    def look(self, rows: int) -> Callable[[Tensor], None]:
        return lambda values: self._add(values, rows)

    def _add(self, values: Tensor, rows: int) -> None:
        low, high = (float(bound) for bound in torch.aminmax(values))
        if not (abs(low) < float("inf") and abs(high) < float("inf")):  # false for NaN too
            raise BitsectError(
                f"'{self.name}' is the first tensor to hold NaN or infinity: check the layer before it"
            )
        self.low, self.high = min(self.low, low), max(self.high, abs(low), abs(high))
        magnitudes = values.reshape(-1).abs().float()
        if self.method == "percentile":
            total = magnitudes.numel() // rows * self.samples
            self._keep_largest(magnitudes, int(self.beyond * total) + 1)
        elif self.method == "mse":
            bins = magnitudes.view(torch.int32) >> (23 - MANTISSA_BITS)
            counts = torch.bincount(bins, minlength=1 << (8 + MANTISSA_BITS))
            self.histogram = counts if self.histogram is None else self.histogram + counts

    def _keep_largest(self, magnitudes: Tensor, k: int) -> None:
        if self.top is not None:
            if len(self.top) == k:
                magnitudes = magnitudes[magnitudes > self.top[-1]]
            magnitudes = torch.cat([self.top, magnitudes])
        self.top = magnitudes.topk(min(k, len(magnitudes))).values

    def ranges(self, widths: Sequence[int], unsigned: bool) -> dict[int, Range]:
        if self.method == "mse":
            return {bits: Range(self._least_error_clip(bits, unsigned), unsigned) for bits in widths}
        amax = self.high
        if self.method == "percentile":
            assert self.top is not None
            amax = float(self.top[-1]) or self.high  # a tensor that is nearly all zeros still has a range
        return {bits: Range(amax, unsigned) for bits in widths}

    def _least_error_clip(self, bits: int, unsigned: bool) -> float:
        assert self.histogram is not None
        bins = self.histogram.nonzero().flatten()
        counts = self.histogram[bins].double()
        half = 1 << (22 - MANTISSA_BITS)  # the middle of a bin
        values = ((bins << (23 - MANTISSA_BITS)) + half).to(torch.int32).view(torch.float32).double()
        values[bins == 0] = 0
        levels = 2**bits - 1 if unsigned else 2 ** (bits - 1) - 1

        def error(clip: float) -> float:
            scale = clip / levels
            rounded = (values / scale).round_().clamp_(max=levels).mul_(scale)
            return float((rounded - values) ** 2 @ counts)

        if self.high == 0:
            return 0.0
        coarse = min((self.high * 0.97**step for step in range(200)), key=error)
        fine = [coarse * (1 + 0.002 * step) for step in range(-15, 16)]
        return min(min(fine, key=error), self.high)
