"""The curve: every evaluated plan as a point of accuracy against cost, and what is read off it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from .cost import Cost
from .evaluation import Evaluation
from .plan import Plan
from .target import Target

SHORT = 8  # letters of a plan's key that it is called by


@dataclass(frozen=True)
class CurvePoint:
    """A plan that was evaluated, with how it did and what it costs."""

    plan: Plan
    evaluation: Evaluation  # on the run's own samples; not complete where a search stopped early
    cost: Cost
    names: tuple[str, ...] = ()  # what the run calls it besides: `99-percent`, `all int8`
    on_size_hull: bool = False
    on_latency_hull: bool = False
    damage: float | None = None  # predicted, where the trail was walked

    @property
    def key(self) -> str:
        """What the plan is called by: `export RUN --plan KEY`."""
        return self.plan.key[:SHORT]

    @property
    def on_hull(self) -> bool:
        return self.on_latency_hull if self.cost.latency_ms is not None else self.on_size_hull

    def to_json(self) -> dict[str, Any]:
        return {
            "key": self.key,
            "names": list(self.names),
            "accuracy": self.evaluation.accuracy,
            "samples": self.evaluation.seen,
            "complete": self.evaluation.complete,
            **self.cost.to_json(),
            "on_size_hull": self.on_size_hull,
            "on_latency_hull": self.on_latency_hull,
            "damage": self.damage,
            "formats": self.plan.counts,
            "layers": {name: format.name for name, format in self.plan.items()},
        }

    def row(self) -> dict[str, Any]:
        """One flat row of a table."""
        data = self.to_json()
        formats, _ = data.pop("formats"), data.pop("layers")
        return {**data, "names": " ".join(self.names), **{f"layers_{k}": v for k, v in formats.items()}}


@dataclass(frozen=True)
class ReadOff:
    """The plan for one target."""

    target: Target
    name: str  # what the run calls it: `export RUN --plan NAME`
    point: CurvePoint
    kept: float  # the share of the float accuracy on the run's samples
    test_kept: float | None = None  # on samples that were not searched on

    def to_json(self) -> dict[str, Any]:
        return {
            "target": str(self.target),
            "name": self.name,
            "kept": self.kept,
            "test_kept": self.test_kept,
            "plan": self.point.to_json(),
        }

    def row(self) -> dict[str, Any]:
        head = {"target": str(self.target), "name": self.name, "kept": self.kept, "test_kept": self.test_kept}
        return {**head, **self.point.row()}


@dataclass(frozen=True)
class Curve:
    """Accuracy against latency and size: all evaluated plans, by rising cost."""

    points: tuple[CurvePoint, ...]
    float_accuracy: float
    read_off: tuple[ReadOff, ...] = ()
    evaluations: int = 0  # plans that had to be judged for it
    device: str | None = None  # whose latency
    objective: str = "size"  # by what plans are read off

    def __iter__(self) -> Iterator[CurvePoint]:
        return iter(self.points)

    def __len__(self) -> int:
        return len(self.points)

    def __repr__(self) -> str:
        plans, best = len(self.points), len(self.hull)
        return f"Curve: {plans} plans, {best} of them on the hull, float accuracy {self.float_accuracy:.2%}"

    @property
    def hull(self) -> tuple[CurvePoint, ...]:
        return tuple(point for point in self.points if point.on_hull)

    def to_json(self) -> dict[str, Any]:
        return {
            "float_accuracy": self.float_accuracy,
            "device": self.device,
            "objective": self.objective,
            "evaluations": self.evaluations,
            "targets": [each.to_json() for each in self.read_off],
            "points": [point.to_json() for point in self.points],
        }
