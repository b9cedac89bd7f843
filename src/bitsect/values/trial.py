"""Trials: one search on one draw of the samples each, and what many of them come to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from .cost import Cost


@dataclass(frozen=True)
class Setup:
    """What a trial is a trial of, besides its samples: a method's rounding, a metric, a search, a target."""

    method: str
    metric: str
    search: str
    target: str

    @property
    def contender(self) -> tuple[str, str, str]:
        """What is compared: the set-up without its target."""
        return self.method, self.metric, self.search

    @property
    def name(self) -> str:
        """The contender in words.

        >>> Setup("paper", "hessian", "bisection", "99%").name
        'hessian, bisection'
        >>> Setup("bitsect", "damage", "frontier", "99%").name
        'damage, frontier (bitsect)'
        """
        return f"{self.metric}, {self.search}{'' if self.method == 'paper' else f' ({self.method})'}"


@dataclass(frozen=True)
class Trial:
    """What one search found on one draw, and what that took."""

    setup: Setup
    draw: int  # the seed of the order in which samples were taken
    plan: str  # the key of the plan
    layers: Mapping[str, str]  # the format of each, in graph order
    met: bool  # whether it keeps the target on the samples that were searched on
    formats: Mapping[str, int]  # layers in each format
    bits: float  # of the mean weight
    size_ratio: float
    latency_ratio: float | None  # without a latency table none
    bit_operations_ratio: float
    evaluations: int  # plans that the search asked about
    evaluations_by_format: Mapping[str, int]  # of these, by the lowest format in the plan
    # For what the metric needs measured and for these evaluations, as if done for it alone; None where
    # some of it was known before, or was killed on the way.
    seconds: float | None
    accuracy: float  # on the samples that were searched on
    float_accuracy: float
    test_accuracy: float | None  # on samples that the search has not seen
    test_float_accuracy: float | None

    @property
    def kept(self) -> float:
        """The share of the float accuracy that is kept on the searched samples."""
        return self.accuracy / self.float_accuracy if self.float_accuracy else 1.0

    @property
    def test_kept(self) -> float | None:
        if self.test_accuracy is None or not self.test_float_accuracy:
            return None
        return self.test_accuracy / self.test_float_accuracy

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"kept": self.kept, "test_kept": self.test_kept}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Trial:
        known = {name: value for name, value in data.items() if name not in ("kept", "test_kept")}
        return cls(**{**known, "setup": Setup(**known["setup"])})

    def row(self) -> dict[str, Any]:
        """One flat row of a table; a count of layers and of evaluations for each format."""
        data = self.to_json()
        setup, formats, asked, _ = (
            data.pop(name) for name in ("setup", "formats", "evaluations_by_format", "layers")
        )
        counts = {f"layers_{name}": count for name, count in formats.items()}
        return {**setup, **data, **counts, **{f"evaluations_{name}": n for name, n in asked.items()}}


FIGURES = (
    "bits",
    "size_ratio",
    "latency_ratio",
    "bit_operations_ratio",
    "evaluations",
    "seconds",
    "kept",
    "test_kept",
    "accuracy",
    "test_accuracy",
)
DIFFERENCE = {"diff": "mean", "low": "low", "high": "high"}  # column → field of a Difference
EVERY = "mean"  # stands for a target where figures are means over all targets of a draw


@dataclass(frozen=True)
class Spread:
    """The mean of a figure over draws, with its standard deviation where there are two draws or more."""

    mean: float
    deviation: float | None
    draws: int


@dataclass(frozen=True)
class Difference:
    """The mean of paired differences over draws, and an interval that holds its true value."""

    mean: float
    low: float | None  # None: one draw says nothing of others
    high: float | None
    draws: int

    @property
    def verdict(self) -> str:
        """`less` or `more` where the interval leaves no doubt, else `no difference seen`."""
        if self.low is None or self.high is None or self.low <= 0 <= self.high:
            return "no difference seen"
        return "less" if self.high < 0 else "more"


@dataclass(frozen=True)
class Standing:
    """A contender at one target, or over all of them: every figure over draws, and against the first."""

    setup: Setup
    met: int  # draws in which the target was kept on the searched samples
    draws: int
    figures: Mapping[str, Spread]
    differences: Mapping[str, Difference]  # of the same draws; none for the first contender itself

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def row(self) -> dict[str, Any]:
        flat: dict[str, Any] = {**asdict(self.setup), "draws": self.draws, "met": self.met}
        # Seconds have their columns even where they are not known, as of what was continued.
        for name in _with_seconds(self.figures):
            spread = self.figures.get(name)
            flat |= {name: spread and spread.mean, f"{name}_sd": spread and spread.deviation}
        for name in _with_seconds(self.differences):
            each = self.differences.get(name)
            flat |= {f"{name}_{part}": each and getattr(each, key) for part, key in DIFFERENCE.items()}
        return flat


def _with_seconds(known: Mapping[str, object]) -> list[str]:
    """The figures that are known, in their order, and seconds; none where nothing is."""
    return [name for name in FIGURES if name in known or (known and name == "seconds")]


@dataclass(frozen=True)
class Compared:
    """Every trial, and what they come to over the draws."""

    trials: tuple[Trial, ...]
    standings: tuple[Standing, ...]
    interval: str  # which interval the differences have, in words
    left_out: tuple[str, ...] = ()  # set-ups that do not go together, in words
    test: str | None = None  # the samples of the test
    device: str | None = None  # whose latency
    samples: str | None = None  # those of the run's own draw
    float_cost: Cost | None = None  # that the ratios of trials are of

    def to_json(self) -> dict[str, Any]:
        return {
            "trials": [trial.to_json() for trial in self.trials],
            "standings": [standing.to_json() for standing in self.standings],
            "interval": self.interval,
            "left_out": list(self.left_out),
            "test": self.test,
            "device": self.device,
            "samples": self.samples,
            "float_cost": self.float_cost and self.float_cost.to_json(),
        }

    def __repr__(self) -> str:
        contenders = len({each.setup for each in self.standings})
        return f"Compared: {len(self.trials)} trials of {contenders} contenders; means in .standings"

    def standing(self, metric: str, search: str, target: str = EVERY) -> Standing:
        """The first standing of a metric and a search at a target."""
        found = (
            each
            for each in self.standings
            if (each.setup.metric, each.setup.search, each.setup.target) == (metric, search, target)
        )
        return next(found)
