"""How far every tensor reaches, streamed over the calibration samples in one pass.

The percentile is exact: the range is the (⌊(1 − p)·N⌋ + 1)-th largest of all N magnitudes, and since
that tail is tiny, the largest k of each batch are merged into those kept so far. k comes from the
first batch, as if every batch were as large: no value is dropped that may be wanted.

The mean squared error is minimised over a histogram whose bins are the leading bits of the float32
representation: each value is known to a relative 2⁻¹¹, whatever its size, and batches merge by
addition. Clips are tried in steps of 0.2 % from the maximum down to where clipping alone costs more
than the best one. Since the error of a value is its distance to the nearest level, the root mean
square error of the clip found exceeds that of the best clip up to the maximum by at most
2·2⁻¹¹ + ½·0.2 % < 0.2 % of the root mean square of the values.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from fractions import Fraction
from typing import Protocol

import torch
from torch import Tensor

from ..errors import BitsectError, DataError
from ..names import choose
from ..network.operators import never_negative
from ..network.program import Program
from ..sources.data import Samples
from ..values import PAPER, Format, Plan, Range, Ranges, Settings
from ..values.settings import ROWS
from . import RANGES
from .placements.integers import KERNEL_BITS
from .rounder import Rounder

MANTISSA_BITS = 10  # of the histogram's bins
CLIP_STEP = 0.002


def calibrate(
    program: Program,
    samples: Samples,
    settings: Settings,
    bits: Iterable[int] = (8, 4),
    progress: Callable[[int], None] = lambda rows: None,
) -> Ranges:
    """The ranges of every layer input, layer output and residual sum, as `settings` has them.

    Seen under 8-bit weights and float activations, as in the paper.
    """
    if not len(samples):
        raise DataError("calibration needs at least one sample")
    batch_size = settings.batch_size or ROWS
    batch_size = min(batch_size, program.fixed_batch or batch_size)
    method = choose("range", settings.range, RANGES)
    alike = _like_the_first(samples, batch_size)
    seen = {
        name: _Seen(name, method(alike, settings), name in program.layer_tensors, len(program.nodes_of(name)))
        for name in program.tensors
    }
    eight_bits = Plan.uniform(program.layers, Format(8, None))
    rounding = Rounder(program, rounding=settings.rounding)(eight_bits)
    for batch in samples.batches(batch_size):
        rows = len(batch.indices)
        see = {name: tensor.look(rows) for name, tensor in seen.items()}
        program.observe(batch.inputs, see, rounding)
        progress(rows)
    widths = sorted({KERNEL_BITS, *bits}, reverse=True)
    sign = settings.sign or PAPER.sign
    table = {}
    for name, tensor in seen.items():
        positive = all(map(never_negative, program.nodes_of(name))) or tensor.low >= 0
        if tensor.finite and tensor.seen:
            table[name] = tensor.ranges(widths, unsigned=sign == "auto" and positive)
    unseen = tuple(name for name, tensor in seen.items() if tensor.finite and not tensor.seen)
    for name in unseen:
        positive = sign == "auto" and never_negative(program.tensors[name])
        table[name] = _like(name, {other: table[other] for other in table if other not in unseen}, positive)
    return Ranges(settings.range, sign, settings.percentile, len(samples), table, unseen)


def _like_the_first(samples: Samples, batch_size: int) -> int:
    """How many samples like those of the first batch hold as many values as all samples, at least.

    Of a longer sequence tensors hold more values: attention as many more as the square of its length.
    """
    lengths = samples.source.lengths
    if lengths is None:
        return len(samples)
    first = int(lengths[samples.parts(batch_size)[0][0]])
    return math.ceil(len(samples) * max(1.0, int(lengths.max()) / first) ** 2)


def _like(name: str, table: Mapping[str, Mapping[int, Range]], unsigned: bool) -> dict[int, Range]:
    """The widest ranges of tensors whose names differ in one number, as those of other experts; else of all.

    A range that is too wide costs precision, one that is too narrow cuts values off.
    """
    parts = re.split(r"(\d+)", name)
    alike = []
    for other, ranges in table.items():
        theirs = re.split(r"(\d+)", other)
        apart = sum(one != two for one, two in zip(parts[1::2], theirs[1::2], strict=False))
        if theirs[::2] == parts[::2] and apart == 1:
            alike.append(ranges)
    widest: dict[int, Range] = {}
    for ranges in alike or table.values():
        for bits, known in ranges.items():
            amax = max(known.amax, widest[bits].amax if bits in widest else 0.0)
            widest[bits] = Range(amax, unsigned)
    return widest


class RangeMethod(Protocol):
    """How far the codes of a tensor reach, from the magnitudes of its values."""

    def __init__(self, samples: int, settings: Settings) -> None: ...

    def add(self, magnitudes: Tensor, rows: int) -> None:
        """See the values of a batch of `rows` samples."""

    def clip(self, bits: int, unsigned: bool, largest: float) -> float:
        """The range; `largest` is the largest magnitude of all."""


class Maximum:
    """The largest magnitude."""

    def __init__(self, samples: int, settings: Settings) -> None: ...

    def add(self, magnitudes: Tensor, rows: int) -> None: ...

    def clip(self, bits: int, unsigned: bool, largest: float) -> float:
        return largest


class Percentile:
    """The magnitude below which the given share of all values lies, exactly."""

    def __init__(self, samples: int, settings: Settings) -> None:
        self.samples = samples
        self.beyond = 1 - Fraction(str(settings.percentile)) / 100  # the share of values above
        self.count = self.kept = 0
        self.top = torch.empty(0)

    def add(self, magnitudes: Tensor, rows: int) -> None:
        self.count += len(magnitudes)
        self.kept = self.kept or int(self.beyond * len(magnitudes) * -(-self.samples // rows)) + 1
        if len(self.top) == self.kept:
            magnitudes = magnitudes[magnitudes > self.top[-1]]
        magnitudes = torch.cat([self.top.to(magnitudes.device), magnitudes])
        self.top = magnitudes.topk(min(self.kept, len(magnitudes))).values

    def clip(self, bits: int, unsigned: bool, largest: float) -> float:
        # Where batches hold ever more values, fewer are kept than the percentile asks for: the range is
        # then that of a higher one. A tensor that is nearly all zeros still has a range.
        return float(self.top[min(int(self.beyond * self.count), len(self.top) - 1)]) or largest


class LeastError:
    """The clip of least mean squared rounding error, for each number of bits."""

    def __init__(self, samples: int, settings: Settings) -> None:
        self.histogram: Tensor | None = None

    def add(self, magnitudes: Tensor, rows: int) -> None:
        bins = magnitudes.view(torch.int32) >> (23 - MANTISSA_BITS)
        counts = torch.bincount(bins, minlength=1 << (8 + MANTISSA_BITS))
        self.histogram = counts if self.histogram is None else self.histogram + counts

    def clip(self, bits: int, unsigned: bool, largest: float) -> float:
        assert self.histogram is not None
        bins = self.histogram.nonzero().flatten()
        counts = self.histogram[bins].double()
        half = 1 << (22 - MANTISSA_BITS)  # the middle of a bin
        values = ((bins << (23 - MANTISSA_BITS)) + half).to(torch.int32).view(torch.float32).double()
        values[bins == 0] = 0
        levels = 2**bits - 1 if unsigned else 2 ** (bits - 1) - 1

        best, least, clip = largest, float("inf"), largest
        while clip > 0:
            scale = clip / levels
            rounded = (values / scale).round_().clamp_(max=levels).mul_(scale)
            error = float((rounded - values).square_() @ counts)
            if error < least:
                best, least = clip, error
            # Every smaller clip costs at least what this one cuts off.
            if float((values - clip).clamp_(min=0).square_() @ counts) >= least:
                break
            clip *= 1 - CLIP_STEP
        return best


class _Seen:
    """What has been seen of one tensor."""

    def __init__(self, name: str, method: RangeMethod, of_layer: bool, nodes: int) -> None:
        self.name, self.method, self.of_layer = name, method, of_layer
        self.nodes = nodes  # that make its values, each a part of them
        self.parts: list[Tensor] = []
        self.low, self.high = float("inf"), 0.0
        self.finite, self.seen = True, False

    def look(self, rows: int) -> Callable[[Tensor], None]:
        return lambda values: self._gather(values, rows)

    def _gather(self, values: Tensor, rows: int) -> None:
        self.parts.append(values)
        if len(self.parts) == self.nodes:
            whole = values if self.nodes == 1 else torch.cat([part.reshape(-1) for part in self.parts])
            self.parts.clear()
            self._add(whole, rows)

    def _add(self, values: Tensor, rows: int) -> None:
        if not values.numel():  # an expert that this batch gives no rows
            return
        low, high = (float(bound) for bound in torch.aminmax(values))
        if not (abs(low) < float("inf") and abs(high) < float("inf")):  # false for NaN too
            if self.of_layer:
                raise BitsectError(
                    f"'{self.name}' is the first tensor to hold NaN or infinity: check the layer before it"
                )
            self.finite = False  # a sum may be −∞ on purpose, as masked attention scores are
        if not self.finite:
            return
        self.seen = True
        self.low, self.high = min(self.low, low), max(self.high, abs(low), abs(high))
        self.method.add(values.reshape(-1).abs().float(), rows)

    def ranges(self, widths: Sequence[int], unsigned: bool) -> dict[int, Range]:
        return {bits: Range(self.method.clip(bits, unsigned, self.high), unsigned) for bits in widths}
