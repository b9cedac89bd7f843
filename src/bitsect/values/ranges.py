"""How far each rounded tensor reaches: the largest magnitude its codes must hold."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Range:
    """The range of one tensor at one width: codes cover [−amax, amax], or [0, amax] if unsigned."""

    amax: float
    unsigned: bool = False


@dataclass(frozen=True)
class Ranges:
    """(tensor, activation bits) → range, and how they were chosen."""

    method: str  # percentile | mse | max
    sign: str  # signed | auto
    percentile: float
    samples: int
    table: Mapping[str, Mapping[int, Range]]
    unseen: tuple[str, ...] = ()  # tensors that no sample reached: their ranges are those of others

    def __getitem__(self, key: tuple[str, int]) -> Range:
        tensor, bits = key
        return self.table[tensor][bits]

    def to_json(self) -> dict[str, Any]:
        return {
            "method": self.method,
            "sign": self.sign,
            "percentile": self.percentile,
            "samples": self.samples,
            "tensors": {
                tensor: {str(bits): [r.amax, r.unsigned] for bits, r in by_bits.items()}
                for tensor, by_bits in self.table.items()
            },
            "unseen": list(self.unseen),
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Ranges:
        """The ranges in `data`; ValueError, TypeError or KeyError where it holds none."""
        table = {
            tensor: {
                int(bits): Range(_finite(amax), bool(unsigned)) for bits, (amax, unsigned) in row.items()
            }
            for tensor, row in data["tensors"].items()
        }
        unseen = tuple(str(name) for name in data.get("unseen", ()))
        return cls(data["method"], data["sign"], data["percentile"], data["samples"], table, unseen)


def _finite(amax: Any) -> float:
    if not math.isfinite(amax) or amax < 0:
        raise ValueError(f"a range of {amax}")
    return float(amax)
