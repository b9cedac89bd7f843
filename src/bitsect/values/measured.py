"""What the network was asked: tables of numbers, from which every metric is made."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import BitsectError
from .format import Format
from .probing import Probing

Array = NDArray[np.floating[Any]]


@dataclass(frozen=True, eq=False)
class Losses:
    """Per-sample losses of S samples with nothing, one layer, or two of L layers in a format."""

    base: Array  # [S] the float network
    single: Array  # [L, S] only layer i
    pair: Array | None = None  # [L (L − 1) / 2, S] layers i < j, in the order of np.triu_indices(L, 1)


@dataclass(frozen=True, eq=False)
class Noise:
    """What rounding one layer to a format does; None where it was not measured."""

    signal: Array | None = None  # [S] squared norm of the network's float output
    noise: Array | None = None  # [L, S] squared norm of the output's change with only layer i in the format
    fisher: Array | None = None  # [L, S'] squared gradient × noise power, over weights and activations
    weight_error: Array | None = None  # [L] ‖Q(W) − W‖²
    damage: Array | None = None  # [L, S] how far the outputs move with only layer i in the format


# Table → where it is held, and what it is called in a sentence.
TABLES = {
    "traces": ("network", "traces"),
    "base": ("losses", "float losses"),
    "single": ("losses", "single-layer losses"),
    "pair": ("losses", "pair losses"),
    "signal": ("noise", "output powers"),
    "noise": ("noise", "output noise"),
    "fisher": ("noise", "Fisher terms"),
    "weight_error": ("noise", "weight errors"),
    "damage": ("noise", "output damages"),
}


@dataclass(frozen=True, eq=False)
class Measured:
    layers: tuple[str, ...]  # L names in graph order
    weights: Array  # [L] number of weights; 0 for a matmul of two activations
    elements: Array  # [L] what the trace runs over: weights, or elements of both operands per sample
    # [L, M, P] estimates on each of M mini-batches by P probes: independent, and their mean is the trace
    traces: Array | None = None
    losses: Mapping[str, Losses] = field(default_factory=dict)  # by format name
    noise: Mapping[str, Noise] = field(default_factory=dict)  # by format name
    probing: Probing | None = None  # of the traces

    def __post_init__(self) -> None:
        count = len(self.layers)
        _expect("weights", self.weights, (count,))
        _expect("elements", self.elements, (count,))
        _expect("traces", self.traces, (count, None, None))
        for name, losses in self.losses.items():
            samples = losses.base.shape[0]
            _expect(f"single-layer losses at {name}", losses.single, (count, samples))
            _expect(f"pair losses at {name}", losses.pair, (count * (count - 1) // 2, samples))
        for name, noise in self.noise.items():
            samples = None if noise.signal is None else noise.signal.shape[0]
            _expect(f"output noise at {name}", noise.noise, (count, samples))
            _expect(f"Fisher terms at {name}", noise.fisher, (count, None))
            _expect(f"weight errors at {name}", noise.weight_error, (count,))
            _expect(f"output damages at {name}", noise.damage, (count, None))

    def table(self, name: str, format: Format) -> Array:
        """The table called `name`, for layers in `format` where it depends on one."""
        if name not in TABLES:
            raise BitsectError(f"no table is called '{name}': there are {', '.join(TABLES)}")
        place, _ = TABLES[name]
        holder = self if place == "network" else getattr(self, place).get(format.name)
        found: Array | None = getattr(holder, name, None)
        if found is None:
            raise BitsectError(f"{self.words(name, format)} were not measured")
        return found

    def words(self, name: str, format: Format) -> str:
        """What the table is called in a sentence."""
        place, words = TABLES[name]
        return words if place == "network" else f"{words} at {format}"

    def row(self, name: str, index: int) -> str:
        """Which layers the row `index` of a table is about, in words."""
        if name in ("base", "signal"):
            return "the float network"
        if name == "pair":
            first, second = np.triu_indices(len(self.layers), 1)
            return f"layers '{self.layers[first[index]]}' and '{self.layers[second[index]]}'"
        return f"layer '{self.layers[index]}'"


def _expect(what: str, array: Array | None, shape: tuple[int | None, ...]) -> None:
    if array is None:
        return
    if len(array.shape) != len(shape) or any(
        n is not None and n != m for n, m in zip(shape, array.shape, strict=True)
    ):
        wanted = " × ".join("any" if n is None else str(n) for n in shape)
        raise BitsectError(f"{what}: expected {wanted} numbers, got {' × '.join(map(str, array.shape))}")
