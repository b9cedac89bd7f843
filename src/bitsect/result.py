"""What `quantize` returns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import nn

from .program import Program, Rounding
from .run import Run
from .store import write_text
from .values import Cost, Evaluation, Plan, Scores, Target


class QuantizedModel(nn.Module):
    """A network that computes what the plan says, and returns what the original returns."""

    def __init__(self, program: Program, rounding: Rounding) -> None:
        super().__init__()
        self.program, self.rounding = program, rounding

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.program.run(kwargs if kwargs else args, self.rounding)


@dataclass(frozen=True)
class Judged:
    """A plan with how it did and what it costs: a row of the closing table."""

    name: str
    plan: Plan
    evaluation: Evaluation
    cost: Cost

    def to_json(self) -> dict[str, Any]:
        cost = {"size_mb": self.cost.size_bytes / 1e6, "size_ratio": self.cost.size_ratio}
        if self.cost.latency_ms is not None:
            cost |= {"latency_ms": self.cost.latency_ms, "latency_ratio": self.cost.latency_ratio or 0.0}
        return {
            "accuracy": self.evaluation.accuracy,
            "loss": self.evaluation.loss,
            "samples": self.evaluation.total,
            **cost,
        }


@dataclass(frozen=True)
class Test:
    """Float network and plan on samples that the search has not seen."""

    float: Evaluation
    plan: Evaluation
    target_met: bool
    rows: Mapping[str, Evaluation] = field(default_factory=dict)  # every row of the table, by its name


@dataclass(frozen=True)
class Result:
    """The plan, how well it does, and the way to it."""

    run: Run
    target: Target | None
    plan: Plan
    target_met: bool
    reason: str
    rows: tuple[Judged, ...]  # float, the uniform plans, then the plan
    test: Test | None
    scores: Scores
    evaluations: int  # plans that this search had to judge
    seconds: Mapping[str, float]
    agreement: bool = False  # there were no labels: accuracy is agreement with the float network
    notes: tuple[str, ...] = ()

    @property
    def accuracy(self) -> float:
        return self.rows[-1].evaluation.accuracy

    def model(self) -> nn.Module:
        """The quantised network as a module; it takes and returns what the original does."""
        formats = set(self.plan.values())
        return QuantizedModel(self.run.program, self.run.rounder(formats)(self.plan))

    def save(self, path: str | Path | None = None) -> Path:
        """Write the plan; by default into the run folder."""
        import json

        place = Path(path) if path is not None else self.run.folder.path / "plan.json"
        write_text(place, json.dumps(self.plan.to_json(), indent=2, ensure_ascii=False) + "\n")
        return place

    def to_json(self) -> dict[str, Any]:
        return {
            "target": str(self.target) if self.target is not None else None,
            "target_met": self.target_met,
            "float": self.rows[0].to_json(),
            "plan": self.rows[-1].to_json(),
            "uniform": {row.name: row.to_json() for row in self.rows[1:-1]},
            "test": self._test_json(),
            "formats": self.plan.counts,
            "macs_by_format": self.plan.macs(self.run.program.layers),
            "metric": self.scores.metric,
            "evaluations": self.evaluations,
            "seconds": dict(self.seconds),
            "reason": self.reason,
            "agreement": self.agreement,
            "notes": list(self.notes),
            "run": str(self.run.folder.path),
        }

    def _test_json(self) -> dict[str, Any] | None:
        if self.test is None:
            return None

        def shown(row: Judged, evaluation: Evaluation) -> dict[str, Any]:
            return Judged(row.name, row.plan, evaluation, row.cost).to_json()

        return {
            "float": shown(self.rows[0], self.test.float),
            "plan": shown(self.rows[-1], self.test.plan),
            "target_met": self.test.target_met,
        }
