"""The story of a run: everything that is shown of it, as plain values that every page is made of."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any

from ..runs.folder import MODEL_FILE
from ..values.layer import Skipped
from ..values.scores import Scores
from ..values.shown import Interaction, LayerValues
from ..values.target import Target

GOOD, UNSURE, BAD, OPEN = "good", "unsure", "bad", "open"


@dataclass(frozen=True)
class Seen:
    """Accuracy on some samples, with the interval that so many samples leave open."""

    accuracy: float
    samples: int
    low: float | None = None  # of a 95 % interval; None where accuracy is no mean over samples
    high: float | None = None

    @classmethod
    def of(cls, accuracy: float, samples: int) -> Seen:
        """With Wilson's interval for a share of `samples`.

        >>> seen = Seen.of(0.9, 100)
        >>> round(seen.low, 3), round(seen.high, 3)
        (0.826, 0.945)
        """
        if samples < 2 or not 0 <= accuracy <= 1:
            return cls(accuracy, samples)
        z = 1.959963984540054  # of the normal distribution, for 95 % between both ends
        middle = (accuracy + z**2 / (2 * samples)) / (1 + z**2 / samples)
        spread = math.sqrt(accuracy * (1 - accuracy) / samples + z**2 / (4 * samples**2))
        half = z * spread / (1 + z**2 / samples)
        return cls(accuracy, samples, max(0.0, middle - half), min(1.0, middle + half))


@dataclass(frozen=True)
class ShownRow:
    """A plan of the closing table: float, one format for all layers, or the plan that was found."""

    name: str
    searched: Seen  # on the samples that were searched on
    size_bytes: float
    size_ratio: float
    loss: float | None = None
    held_out: Seen | None = None
    tested: Seen | None = None
    latency_ms: float | None = None  # predicted
    latency_ratio: float | None = None
    measured_ms: float | None = None  # of its file, where it will run
    measured_ratio: float | None = None

    @property
    def unseen(self) -> Seen | None:
        """On samples that the search has not seen: those of the promise, else those of the test."""
        return self.held_out or self.tested


@dataclass(frozen=True)
class ShownPromise:
    """What held-out samples prove."""

    verdict: str
    proven: bool
    samples: int
    confidence: float
    kept: float | None  # the share of the float accuracy; None where the target is in points
    lost: float | None  # the fraction lost, where the target is in points
    bound: float | None  # of either, at that confidence; None where other plans were tried first


@dataclass(frozen=True)
class ShownVerdict:
    """Whether the target is kept, said first."""

    tone: str  # GOOD, UNSURE, BAD or OPEN
    headline: str
    evidence: str  # on which samples, how many, how sure


@dataclass(frozen=True)
class LayerStory:
    """One layer: what it is, what it takes, and what that costs."""

    name: str
    kind: str
    weights: int
    macs: int
    weight_shape: tuple[int, ...] | None = None
    format: str | None = None  # None while no plan is found
    float_ms: float | None = None
    ms: float | None = None  # in its format
    reason: str | None = None  # why it stays in float, where it does


@dataclass(frozen=True)
class Scored:
    """The scores of all layers by one metric at one format, and where the plan cuts them."""

    scores: Scores
    threshold: float | None  # layers below it go to `format` or lower, and no others; None where no cut does
    own: bool = False  # whether the search went by them

    @property
    def name(self) -> str:
        return f"{self.scores.called} at {self.scores.format}"


@dataclass(frozen=True)
class ShownPoint:
    """An evaluated plan on the curve."""

    key: str
    names: tuple[str, ...]
    accuracy: float
    samples: int
    complete: bool  # whether on all samples
    size_ratio: float
    latency_ratio: float | None
    latency_ms: float | None
    on_hull: bool
    formats: Mapping[str, int]
    order: int | None = None  # which of the evaluated plans it was, the first being 0
    is_plan: bool = False

    @property
    def label(self) -> str:
        return ", ".join(self.names) or self.key


@dataclass(frozen=True)
class CurveStory:
    """Accuracy against cost."""

    points: tuple[ShownPoint, ...]
    float_accuracy: float
    device: str | None
    needed: float | None = None  # the least accuracy that keeps the target

    @property
    def timed(self) -> bool:
        return any(point.latency_ratio is not None for point in self.points)


@dataclass(frozen=True)
class Remedied:
    """A change to one layer that was tried: what it wins back of the damage, and what it costs."""

    words: str
    recovers: float  # the share of what the layer back in float would win back
    size_ratio: float
    latency_ratio: float | None
    chosen: bool  # whether it is the one to take


@dataclass(frozen=True)
class Blamed:
    """What one layer costs the plan: the damage that is gone with it back in float."""

    name: str
    format: str
    share: float  # of the plan's damage
    error: float  # standard error of the share
    weights: float | None  # share that is gone with only its weights back in float
    activations: float | None
    causes: tuple[str, ...]
    remedies: tuple[Remedied, ...]


@dataclass(frozen=True)
class BlameStory:
    """What the plan loses and to whom, the worst first."""

    samples: int
    damage: float
    layers: tuple[Blamed, ...]
    pairs: tuple[tuple[str, str, float, float], ...]  # two layers, excess together, its standard error
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Story:
    """A run, finished or not; what is not known is None or empty."""

    folder: str
    network: str
    data: str
    task: str
    method: str | None = None
    destination: str | None = None
    target: str | None = None
    verdict: ShownVerdict = ShownVerdict(OPEN, "This run is not finished", "no plan has been found yet")
    finished: bool = False
    rows: tuple[ShownRow, ...] = ()
    promise: ShownPromise | None = None
    layers: tuple[LayerStory, ...] = ()
    skipped: tuple[Skipped, ...] = ()
    scored: tuple[Scored, ...] = ()
    pairs: tuple[Interaction, ...] = ()
    curve: CurveStory | None = None
    values: Mapping[str, LayerValues] = field(default_factory=dict)
    blame: BlameStory | None = None
    notes: tuple[str, ...] = ()
    reason: str | None = None  # why the search ended where it did
    agreement: bool = False  # whether accuracy is agreement with the float network, for want of labels
    judge: str | None = None  # the user's own function, where accuracy is what that returned
    settings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # Settings, Scoring, Goal
    fingerprints: Mapping[str, str] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    seconds: Mapping[str, float] = field(default_factory=dict)
    evaluations: int | None = None
    device: str | None = None  # whose latency
    latency_source: str | None = None
    runtime: str | None = None  # that files were timed in
    command: str = ""  # that makes it again
    faults: tuple[str, ...] = ()  # files of the run that cannot be read, and why

    @property
    def title(self) -> str:
        """What the network is called above a page."""
        if self.network == MODEL_FILE:
            return "a network given in Python"
        return PurePath(self.network).name if self.network.endswith(".pt2") else self.network

    @property
    def float_row(self) -> ShownRow | None:
        return self.rows[0] if self.rows else None

    @property
    def plan_row(self) -> ShownRow | None:
        return self.rows[-1] if self.rows else None

    @property
    def target_share(self) -> float | None:
        """The share of the float accuracy that is to be kept; None where the target is in points, or none."""
        relative = None if self.target is None else Target.parse(self.target).relative
        return None if relative is None else float(relative)

    @property
    def plan_misses_on_searched(self) -> bool:
        """Whether the plan keeps its target where that is proven, but not on the samples that steer."""
        if self.curve is None or self.curve.needed is None or self.plan_row is None:
            return False
        return self.verdict.tone == GOOD and self.plan_row.searched.accuracy < self.curve.needed

    @property
    def formats(self) -> tuple[str, ...]:
        """The formats of the layers, from the most bits to the fewest."""
        from ..values.format import Format, high_to_low

        taken = {layer.format for layer in self.layers if layer.format is not None}
        return tuple(each.name for each in high_to_low(map(Format.parse, taken)))

    @property
    def counts(self) -> dict[str, int]:
        """Layers in each format."""
        return {name: sum(layer.format == name for layer in self.layers) for name in self.formats}
