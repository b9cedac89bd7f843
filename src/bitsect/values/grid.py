"""The grid that a rounded tensor lies on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from .ranges import Range

if TYPE_CHECKING:
    from torch import Tensor


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
        scale = float(np.float32(range.amax / high)) or 1.0
        return cls(scale, 0 if range.unsigned else -high - full, high)

    def is_within(self, low: float, high: float) -> bool:
        """True if clipping to [low, high] before rounding gives the same codes.

        Each limit then lies beyond the midpoint of the last two codes, so that a clipped value still
        rounds to the last one.
        """
        return low / self.scale < self.low + 0.5 and high / self.scale > self.high - 0.5

    def codes(self, x: Tensor) -> Tensor:
        return x.div(self.scale).round_().clamp_(self.low, self.high)

    def round(self, x: Tensor) -> Tensor:
        return self.codes(x).mul_(self.scale)
