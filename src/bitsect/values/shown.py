"""What only the network can tell and people want to see, as plain numbers that a run keeps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import BitsectError
from .damage import Damage
from .format import Format
from .layer import KINDS, Skipped
from .measured import Losses

Array = NDArray[np.float64]
DIGITS = 4  # that a number keeps which is only looked at


@dataclass(frozen=True)
class LayerFacts:
    """A layer as it is listed: what it is and how large."""

    name: str
    kind: str
    weight_shape: tuple[int, ...] | None
    weights: int
    macs: int  # multiply-adds per sample
    places: int = 1

    def to_json(self) -> dict[str, Any]:
        return {**vars(self), "weight_shape": self.weight_shape and list(self.weight_shape)}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> LayerFacts:
        shape = data["weight_shape"]
        kind = data["kind"] if data["kind"] in KINDS else "layer"
        sizes = (int(data[name]) for name in ("weights", "macs", "places"))
        return cls(str(data["name"]), kind, None if shape is None else tuple(map(int, shape)), *sizes)


@dataclass(frozen=True)
class Structure:
    """The layers of a network in graph order, and what stays in float whatever a plan says."""

    layers: tuple[LayerFacts, ...] = ()
    skipped: tuple[Skipped, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return {
            "layers": [layer.to_json() for layer in self.layers],
            "skipped": [vars(item) for item in self.skipped],
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Structure:
        skipped = (
            Skipped(*(str(item[k]) for k in ("name", "operator", "reason"))) for item in data["skipped"]
        )
        return cls(tuple(map(LayerFacts.from_json, data["layers"])), tuple(skipped))


@dataclass(frozen=True)
class Choices:
    """What every layer could have taken, and what it takes there in milliseconds, where that is known."""

    allowed: dict[str, tuple[str, ...]]  # layer → formats from high to low
    ms: dict[str, dict[str, float]]  # layer → format → milliseconds
    device: str | None = None
    rest_ms: float = 0.0  # of the network besides its layers
    pinned: tuple[str, ...] = ()  # layers that the user let take float alone

    def to_json(self) -> dict[str, Any]:
        return {
            "allowed": {name: list(formats) for name, formats in self.allowed.items()},
            "ms": self.ms,
            "device": self.device,
            "rest_ms": self.rest_ms,
            "pinned": list(self.pinned),
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Choices:
        allowed = {str(name): tuple(map(str, formats)) for name, formats in data["allowed"].items()}
        ms = {str(n): {str(f): float(t) for f, t in row.items()} for n, row in data["ms"].items()}
        device = None if data["device"] is None else str(data["device"])
        return cls(allowed, ms, device, float(data["rest_ms"]), tuple(map(str, data["pinned"])))


@dataclass(frozen=True, eq=False)
class Interaction:
    """How much worse two layers are together, for every pair of L layers: a symmetric table."""

    measure: str  # what the numbers are, in words
    format: str
    layers: tuple[str, ...]
    table: Array  # [L, L]; the diagonal holds what each layer does alone
    standard_error: Array | None = None  # [L, L], over samples; None where it is not known

    def __post_init__(self) -> None:
        count = len(self.layers)
        if self.table.shape != (count, count):
            raise BitsectError(f"{self.measure}: {self.table.shape} numbers for {count} layers")

    @classmethod
    def of_losses(cls, losses: Losses, format: str, layers: tuple[str, ...]) -> Interaction:
        """The excess loss of pairs, as the paper has it: L_ij − max(L_i, L_j); alone, L_i − L_0."""
        assert losses.pair is not None
        single, base = losses.single.mean(axis=1), losses.base.mean()
        table = np.diag(single - base).astype(np.float64)
        error = np.full_like(table, np.nan)
        for row, (i, j) in enumerate(zip(*np.triu_indices(len(layers), 1), strict=True)):
            excess = losses.pair[row].astype(np.float64) - losses.single[i if single[i] >= single[j] else j]
            table[i, j] = table[j, i] = excess.mean()
            if len(excess) > 1:
                error[i, j] = error[j, i] = excess.std(ddof=1) / len(excess) ** 0.5
        return cls("excess loss", format, layers, table, error)

    @classmethod
    def of_damage(cls, damage: Damage, format: Format) -> Interaction:
        """What two layers do to the outputs together beyond what each does alone: 2 G_ij; alone, G_ii."""
        rows = [i for i, (_, each) in enumerate(damage.changes) if each == format]
        table = 2.0 * damage.gram[np.ix_(rows, rows)].astype(np.float64)
        np.fill_diagonal(table, damage.gram.diagonal()[rows])
        return cls("excess damage", format.name, tuple(damage.changes[i][0] for i in rows), table)

    def worst(self, count: int) -> list[tuple[str, str, float]]:
        """The pairs with the most, the worst first."""
        first, second = np.triu_indices(len(self.layers), 1)
        values = self.table[first, second]
        order = [i for i in np.argsort(-values, kind="stable") if np.isfinite(values[i])][:count]
        return [(self.layers[first[i]], self.layers[second[i]], float(values[i])) for i in order]

    def to_json(self) -> dict[str, Any]:
        upper = self.table[np.triu_indices(len(self.layers))]
        return {
            "measure": self.measure,
            "format": self.format,
            "layers": list(self.layers),
            "upper": short(upper),
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Interaction:
        layers = tuple(map(str, data["layers"]))
        table = np.full((len(layers), len(layers)), np.nan)
        upper = np.triu_indices(len(layers))
        table[upper] = [np.nan if value is None else float(value) for value in data["upper"]]
        table.T[upper] = table[upper]
        return cls(str(data["measure"]), str(data["format"]), layers, table)


@dataclass(frozen=True)
class Histogram:
    """How often values of a tensor were seen, in bins of equal width from `low` to `high`."""

    low: float
    high: float
    counts: tuple[int, ...]
    bits: int | None = None  # that the values are rounded to; None where they stay in float
    clip: tuple[float, float] | None = None  # what codes reach; of weights, in the widest channel
    step: float | None = None  # between two codes; of weights, in the widest channel
    beyond: float = 0.0  # the share of the values that lie outside the clip

    def to_json(self) -> dict[str, Any]:
        return {**vars(self), "counts": list(self.counts), "clip": self.clip and list(self.clip)}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Histogram:
        clip, step, bits = data["clip"], data["step"], data["bits"]
        return cls(
            float(data["low"]),
            float(data["high"]),
            tuple(map(int, data["counts"])),
            None if bits is None else int(bits),
            None if clip is None else (float(clip[0]), float(clip[1])),
            None if step is None else float(step),
            float(data["beyond"]),
        )


@dataclass(frozen=True)
class LayerValues:
    """The weights and the inputs of a layer, as its format rounds them."""

    format: str
    weights: Histogram | None
    inputs: Histogram | None

    def to_json(self) -> dict[str, Any]:
        return {
            "format": self.format,
            "weights": self.weights and self.weights.to_json(),
            "inputs": self.inputs and self.inputs.to_json(),
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> LayerValues:
        weights, inputs = (data[name] and Histogram.from_json(data[name]) for name in ("weights", "inputs"))
        return cls(str(data["format"]), weights, inputs)


def short(values: Sequence[float] | Array) -> list[float | None]:
    """`values` to a few digits; None where they are not finite, for JSON has no NaN."""
    return [float(f"{v:.{DIGITS}g}") if np.isfinite(v) else None for v in map(float, values)]
