"""Blame: what a plan loses and to whom, why, and what would help."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .format import Format
from .plan import Plan

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Gain:
    """A mean over samples with its standard error: what would be won back."""

    mean: float
    error: float

    @classmethod
    def of(cls, values: Array) -> Gain | None:
        """The mean of what was seen on each sample; None where nothing was."""
        if not len(values) or not np.isfinite(values).all():
            return None
        error = float(values.std(ddof=1)) / len(values) ** 0.5 if len(values) > 1 else 0.0
        return cls(float(values.mean()), error)


@dataclass(frozen=True, eq=False)
class Facts:
    """What was measured of a layer's own values: float inputs and outputs, weights, ranges."""

    layer: str
    weights: int
    all_weights: int  # of the network
    largest: float = 0.0  # input value by magnitude
    nearly_all: float = 0.0  # the magnitude that 99.9 % of the input values stay within
    range: float | None = None  # that the codes of the input reach; None where it is not rounded
    input_channels: Array | None = None  # [C] the largest magnitude of each
    output_channels: Array | None = None
    weight_channels: Array | None = None  # [C] the largest weight of each output channel
    addends: tuple[float, ...] = ()  # ranges of the values whose sum it reads


@dataclass(frozen=True)
class Cause:
    """A measured fact that makes a layer sensitive."""

    kind: str
    words: str
    times: float  # how far from ordinary it is; causes are ordered by it

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Remedy:
    """What a change to one layer would win back, measured, and what it costs."""

    words: str  # the format, or what else is done
    format: Format | None  # None where the format stays as it is
    gain: Gain  # of damage
    recovers: float  # the share of what the layer back in float would win back
    size_ratio: float  # by which the size of all weights grows, as a share of that at 16 bits
    latency_ratio: float | None  # likewise

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "format": None if self.format is None else self.format.name}


@dataclass(frozen=True)
class LayerBlame:
    """What one layer costs the plan: the damage that is gone with it, or a part of it, back in float."""

    name: str
    format: Format
    gain: Gain  # the whole layer back in float
    share: float  # of the plan's damage
    weights: Gain | None  # only its weights back in float; None where the parts cannot be told apart
    activations: Gain | None
    accuracy: Gain  # the whole layer back in float, in accuracy
    causes: tuple[Cause, ...] = ()
    remedies: tuple[Remedy, ...] = ()

    @property
    def remedy(self) -> Remedy | None:
        """The cheapest that wins back most of the damage; else the one that wins back the most."""
        able = [each for each in self.remedies if each.recovers >= 0.7]
        if able:
            return min(able, key=lambda each: (each.latency_ratio or 0.0, each.size_ratio, -each.recovers))
        return max(self.remedies, key=lambda each: each.recovers, default=None)

    def to_json(self) -> dict[str, Any]:
        return {
            **asdict(self),
            "format": self.format.name,
            "causes": [cause.to_json() for cause in self.causes],
            "remedies": [remedy.to_json() for remedy in self.remedies],
            "remedy": None if self.remedy is None else self.remedy.words,
        }

    def row(self) -> dict[str, Any]:
        """One flat row of a table."""
        flat: dict[str, Any] = {"layer": self.name, "format": self.format.name, "share": self.share}
        for name in ("gain", "weights", "activations", "accuracy"):
            known: Gain | None = getattr(self, name)
            flat |= {name: known and known.mean, f"{name}_error": known and known.error}
        causes = "; ".join(cause.words for cause in self.causes)
        return {**flat, "causes": causes, "remedy": "" if self.remedy is None else self.remedy.words}


@dataclass(frozen=True)
class PairBlame:
    """Two layers alone in the plan's formats: what they do together beyond what each does by itself."""

    first: str
    second: str
    together: float  # damage with both, all others in float
    alone: tuple[float, float]  # damage with one of them
    excess: Gain

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Blame:
    """What a plan loses and to whom: layers and pairs, the worst first."""

    plan: Plan
    samples: int
    float_accuracy: float
    accuracy: float
    damage: Gain  # of the plan
    layers: tuple[LayerBlame, ...]
    pairs: tuple[PairBlame, ...]
    notes: tuple[str, ...] = ()

    def __repr__(self) -> str:
        worst = ", ".join(blamed.name for blamed in self.layers[:3])
        lost = f"{self.float_accuracy:.2%} → {self.accuracy:.2%}"
        return f"Blame: {lost} on {self.samples:,} samples, most by {worst}"

    def to_json(self) -> dict[str, Any]:
        return {
            "plan": self.plan.key,
            "formats": self.plan.counts,
            "samples": self.samples,
            "float_accuracy": self.float_accuracy,
            "accuracy": self.accuracy,
            "damage": asdict(self.damage),
            "layers": [layer.to_json() for layer in self.layers],
            "pairs": [pair.to_json() for pair in self.pairs],
            "notes": list(self.notes),
        }
