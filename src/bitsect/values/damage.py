"""The damage that a plan is predicted to do, from what single layers were seen to do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import BitsectError
from .format import Format
from .scores import Scores

Array = NDArray[np.floating[Any]]
Change = tuple[str, Format]  # one layer in one format, all others in float


@dataclass(frozen=True, eq=False)
class Damage:
    """The predicted damage of every plan: D(plan) = Σ G[c, c'] over the changes c, c' that it makes.

    A change is one layer in one format. G[c, c'] is the mean over samples of d_cᵀ M d_c', where d_c is
    how the change moves the outputs and M what a move costs: the outputs of a plan are taken for
    those of the float network plus the sum of its moves.

    >>> a, b = ("a", Format(8, 8)), ("b", Format(8, 8))
    >>> damage = Damage((a, b), np.array([[1.0, 0.5], [0.5, 2.0]]))
    >>> damage({"a": Format(8, 8), "b": Format()}), damage(dict((a, b)))
    (1.0, 4.0)
    """

    changes: tuple[Change, ...]
    gram: Array  # [C, C], symmetric
    measure: str = "damage"  # what the numbers are, in words
    samples: int | None = None  # that they rest on
    split_half: float | None = None  # rank agreement of two halves of the samples, −1 … 1
    standard_error: Array | None = None  # [C] of each change's own damage

    def __post_init__(self) -> None:
        count = len(self.changes)
        if self.gram.shape != (count, count):
            raise BitsectError(
                f"{self.measure}: {' × '.join(map(str, self.gram.shape))} numbers for {count} changes"
            )
        broken = np.argwhere(~np.isfinite(self.gram))
        if len(broken):
            layer, format = self.changes[int(broken[0][0])]
            raise BitsectError(f"{self.measure} of layer '{layer}' at {format} is not finite")

    @classmethod
    def separable(cls, single: Mapping[Change, float], measure: str = "damage") -> Damage:
        """A damage that is a sum over layers."""
        return cls(tuple(single), np.diag([float(value) for value in single.values()]), measure)

    @cached_property
    def index(self) -> dict[Change, int]:
        """Where each change stands; float is no change."""
        return {change: index for index, change in enumerate(self.changes)}

    def place(self, layer: str, format: Format) -> int | None:
        """The row of a change in `gram`; None for float."""
        if format.is_float:
            return None
        if (layer, format) not in self.index:
            raise BitsectError(f"{self.measure} of layer '{layer}' at {format} was not measured")
        return self.index[layer, format]

    def __call__(self, plan: Mapping[str, Format]) -> float:
        places = [self.place(layer, format) for layer, format in plan.items()]
        rows = [place for place in places if place is not None]
        return float(self.gram[np.ix_(rows, rows)].sum())

    def single(self, format: Format) -> dict[str, float]:
        """The damage of each layer alone in `format`, of those that were measured in it."""
        return {layer: float(self.gram[i, i]) for i, (layer, f) in enumerate(self.changes) if f == format}

    def scores(self, layers: Sequence[str], format: Format) -> Scores:
        """The damage of every layer alone in `format`, as scores; 0 for a layer that does not take it."""
        single = self.single(format)
        errors = None
        if self.standard_error is not None:
            known = {
                name: float(self.standard_error[i]) for (name, f), i in self.index.items() if f == format
            }
            errors = tuple(known.get(name, 0.0) for name in layers)
        values = tuple(single.get(name, 0.0) for name in layers)
        return Scores("damage", format, tuple(layers), values, errors, self.split_half, self.samples)

    def order(self, format: Format) -> Sequence[str]:
        """The layers by rising damage alone in `format`; equal ones in graph order."""
        single = self.single(format)
        return tuple(sorted(single, key=single.__getitem__))
