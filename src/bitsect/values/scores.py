"""How sensitive each layer is, and how far that can be trusted."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ..errors import BitsectError
from .format import Format
from .probing import Probing

if TYPE_CHECKING:
    from .shown import Interaction


@dataclass(frozen=True)
class Scores:
    """One number per layer: the higher, the more the network suffers from rounding it."""

    metric: str
    format: Format
    layers: tuple[str, ...]  # in graph order
    values: tuple[float, ...]
    standard_error: tuple[float, ...] | None = None  # None: too few draws to know, or none were made
    split_half: float | None = None  # rank agreement of two halves of the draws, −1 … 1
    samples: int | None = None  # that they rest on
    probes: int | None = None  # of the Hessian, each through all samples
    probing: Probing | None = None  # where they rest on traces
    pairs: Interaction | None = field(default=None, compare=False)  # where they rest on pairs of layers

    def __post_init__(self) -> None:
        if not len(self.layers) == len(self.values) == len(self.standard_error or self.values):
            raise BitsectError(
                f"metric '{self.metric}': {len(self.values)} scores for {len(self.layers)} layers"
            )
        for numbers in (self.values, self.standard_error or ()):
            for name, number in zip(self.layers, numbers, strict=False):
                if not math.isfinite(number):
                    raise BitsectError(
                        f"metric '{self.metric}' gives {number} for layer '{name}' at {self.format}"
                    )

    def __repr__(self) -> str:
        (*_, worst) = self.order() or ("none",)
        return f"Scores: {self.metric} of {len(self.layers)} layers at {self.format}, the highest of {worst}"

    def order(self) -> tuple[str, ...]:
        """The layers by rising score; equal scores in graph order.

        >>> Scores("single", Format(8, 8), ("a", "b", "c"), (2.0, 1.0, 1.0)).order()
        ('b', 'c', 'a')
        """
        score = dict(zip(self.layers, self.values, strict=True))
        return tuple(sorted(self.layers, key=score.__getitem__))

    @property
    def draws(self) -> str:
        """What they rest on, in words.

        >>> Scores("hessian", Format(8, 8), (), (), probes=16).draws
        '16 probes'
        """
        counts = {"samples": self.samples, "probes": self.probes}
        return ", ".join(f"{count} {name}" for name, count in counts.items() if count is not None)

    @property
    def called(self) -> str:
        """The metric as it is printed: traces are the Hessian's own only where the outputs are not curved.

        >>> Scores("hessian", Format(8, 8), (), (), probing=Probing("gauss-newton", 0.1, 0.1, ("fc",))).called
        'hessian (Gauss–Newton)'
        """
        part = self.probing is not None and self.probing.gauss_newton_part
        return f"{self.metric} (Gauss–Newton)" if part else self.metric

    def doubts(self) -> Iterator[str]:
        """What a reader must know of the traces behind them, if there are any."""
        if self.probing is not None:
            yield from self.probing.doubts()

    def to_json(self) -> dict[str, Any]:
        errors = self.standard_error or (None,) * len(self.layers)
        return {
            "metric": self.metric,
            "format": self.format.name,
            "split_half": self.split_half,
            "samples": self.samples,
            "probes": self.probes,
            "traces": None if self.probing is None else self.probing.to_json(),
            "layers": {
                name: {"score": value, "standard_error": error}
                for name, value, error in zip(self.layers, self.values, errors, strict=True)
            },
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Scores:
        rows = data["layers"]
        errors = tuple(row["standard_error"] for row in rows.values())
        return cls(
            data["metric"],
            Format.parse(data["format"]),
            tuple(rows),
            tuple(row["score"] for row in rows.values()),
            None if None in errors else errors,
            data["split_half"],
            data["samples"],
            data["probes"],
            Probing.from_json(data["traces"]) if data.get("traces") else None,
        )
