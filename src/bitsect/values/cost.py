"""What a plan costs to run and to hold."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Cost:
    """Latency, size and bit operations of a plan, each also relative to the plan left in float.

    Latency is None where no latency table was given; nothing is guessed for it.
    """

    size_bytes: float  # weights of the layers, as Plan.size_bytes
    size_ratio: float
    bit_operations: int  # Σ multiply-adds · weight bits · activation bits, 16 for float
    bit_operations_ratio: float
    latency_ms: float | None = None
    latency_ratio: float | None = None

    def price(self, objective: str) -> float:
        """What a plan is to have little of: latency, where that is known and the objective; else size."""
        if objective == "latency" and self.latency_ms is not None:
            return self.latency_ms
        return self.size_bytes

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def megabytes(size_bytes: float) -> str:
    """A size as people read it.

    >>> megabytes(1_234_567), megabytes(1_234)
    ('1.23 MB', '1.2 kB')
    """
    return f"{size_bytes / 1e6:.2f} MB" if size_bytes >= 1e5 else f"{size_bytes / 1e3:.1f} kB"
