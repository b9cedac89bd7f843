"""How much a plan may cost at most."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from decimal import Decimal

from ..errors import BitsectError
from .cost import Cost

# Unit → (field of Cost that it limits, size of the unit there). Megabytes are decimal, as the paper's.
LATENCY_UNITS = {
    "x": ("latency_ratio", "1"),
    "%": ("latency_ratio", "0.01"),
    "ms": ("latency_ms", "1"),
    "us": ("latency_ms", "0.001"),
}
SIZE_UNITS = {
    "x": ("size_ratio", "1"),
    "%": ("size_ratio", "0.01"),
    "B": ("size_bytes", "1"),
    "kB": ("size_bytes", "1e3"),
    "MB": ("size_bytes", "1e6"),
    "GB": ("size_bytes", "1e9"),
}


@dataclass(frozen=True)
class Budget:
    """Upper limits on the fields of a Cost of the same names; None is no limit.

    >>> budget = Budget.parse(latency="0.8x", size="12.5MB")
    >>> budget.latency_ratio, budget.size_bytes
    (0.8, 12500000.0)
    """

    latency_ms: float | None = None
    latency_ratio: float | None = None
    size_bytes: float | None = None
    size_ratio: float | None = None

    @classmethod
    def parse(cls, latency: str | None = None, size: str | None = None) -> Budget:
        """The budget of `latency` (0.8x or 3ms) and `size` (12MB, 900kB or 0.5x)."""
        limits: dict[str, float] = {}
        if latency is not None:
            limits.update([_limit(latency, LATENCY_UNITS, "latency", "0.8x or 3ms")])
        if size is not None:
            limits.update([_limit(size, SIZE_UNITS, "size", "12MB, 900kB or 0.5x")])
        return cls(**limits)

    def fits(self, cost: Cost) -> bool:
        return self.excess(cost) <= 0

    def excess(self, cost: Cost) -> float:
        """How far `cost` is over: max over limits of value/limit − 1; 0 or less fits, 0.1 is 10 % over.

        Without any limit everything fits: −1.
        """
        shares = []
        for field in fields(self):
            limit = getattr(self, field.name)
            if limit is None:
                continue
            value = getattr(cost, field.name)
            if value is None:
                raise BitsectError(f"a latency budget of {self} needs a latency table: pass [latency=FILE]")
            shares.append(value / limit - 1)
        return max(shares, default=-1.0)

    def __str__(self) -> str:
        size, unit = (self.size_bytes or 0.0), "B"
        while size >= 1000 and unit != "GB":
            size, unit = size / 1000, {"B": "kB", "kB": "MB", "MB": "GB"}[unit]
        limits = (
            (self.latency_ms, "ms"),
            (self.latency_ratio, "x latency"),
            (size, unit),
            (self.size_ratio, "x size"),
        )
        return ", ".join(f"{limit:g}{unit}" for limit, unit in limits if limit) or "no budget"


def _limit(text: str, units: dict[str, tuple[str, str]], what: str, examples: str) -> tuple[str, float]:
    match = re.fullmatch(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*([A-Za-z]+|%)\s*", text, re.ASCII)
    # Nobody means millibytes: 12mb is 12 megabytes.
    field = (
        {unit.lower(): meaning for unit, meaning in units.items()}.get(match[2].lower()) if match else None
    )
    if match is None or field is None:
        raise BitsectError(f"{what} budget '{text}' is not a number and a unit such as {examples}")
    limit = float(Decimal(match[1]) * Decimal(field[1]))
    if not limit > 0:
        raise BitsectError(f"{what} budget '{text}' must be above 0")
    return field[0], limit
