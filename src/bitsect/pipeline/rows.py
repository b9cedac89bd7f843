"""Rows of the closing table: plans with how they did and what they cost."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..errors import DataError, RunError
from ..runs.opening import own_samples
from ..runs.run import Run
from ..solve.allowed import Allowed
from ..solve.costs import cost_where_run
from ..sources.data import Samples
from ..sources.data.load import MEMORY
from ..values import Cost, Evaluation, LatencyTable, Plan, Target
from .judge import Evaluate, Judge


@dataclass(frozen=True)
class Row:
    """A plan, how it did, and what it costs."""

    name: str
    plan: Plan
    evaluation: Evaluation
    cost: Cost

    def __repr__(self) -> str:
        cost = f"{self.cost.size_ratio:.1%} of the size"
        return f"Row: {self.name}, {self.evaluation.shown}, {cost}, {self.plan.counted} layers"

    def to_json(self) -> dict[str, Any]:
        loss = self.evaluation.loss
        shown = {
            "accuracy": self.evaluation.accuracy,
            "loss": loss if loss is not None and math.isfinite(loss) else None,
            "samples": self.evaluation.total,
            "size_mb": self.cost.size_bytes / 1e6,
            "size_ratio": self.cost.size_ratio,
        }
        if self.cost.latency_ms is not None:
            shown |= {"latency_ms": self.cost.latency_ms, "latency_ratio": self.cost.latency_ratio}
        return shown


@dataclass(frozen=True)
class Tested:
    """The rows on samples that the search has not seen."""

    rows: Mapping[str, Evaluation]  # by the name of the row
    target_met: bool
    data: str  # the spec of these samples
    fingerprint: str

    def __repr__(self) -> str:
        return f"Tested: {self.float.shown} → {self.plan.shown} on {self.data}"

    @property
    def float(self) -> Evaluation:
        return self.rows["float"]

    @property
    def plan(self) -> Evaluation:
        return self.rows["plan"]


def compare(
    run: Run,
    found: Plan,
    allowed: Allowed,
    judge: Judge,
    table: LatencyTable | None,
    *,
    is_cheapest: bool,
) -> tuple[Row, ...]:
    """The float network, the uniform plans, and the plan that was found, judged to the end.

    Where that is itself the cheapest plan of all, no uniform ones are judged to be shown beside it.
    """
    uniform = {} if is_cheapest else allowed.uniform()
    plans = {"float": Plan.uniform(run.layers), **uniform, "plan": found}
    with run.progress.stage("compare", len(plans)) as judge.progress:
        return tuple(
            Row(name, plan, judge(plan), cost_where_run(plan, run.layers, table))
            for name, plan in plans.items()
        )


def test_rows(
    run: Run, rows: tuple[Row, ...], target: Target | None, samples: Samples | None
) -> Tested | None:
    """The float network and the plan on samples that the search has not seen."""
    if samples is None:
        return None
    first, last = rows[0], rows[-1]
    evaluator = run.evaluator(set(last.plan.values()), samples)
    with run.progress.stage("test", 2 * len(samples)) as evaluator.progress:
        tested = {row.name: evaluator(row.plan) for row in (first, last)}
    met = target is None or tested["plan"].reaches(target.threshold(tested["float"].exact)) is True
    return Tested(tested, met, samples.spec, samples.fingerprint())


def test_samples(run: Run, model: Any, test_data: Any, evaluate: Evaluate | None) -> Samples | None:
    """The test samples: those given, those of the run's last test, or those that a zoo network brings along.

    They are needed last, but one of them is run now, so that a wrong shape is refused first.
    """
    if evaluate is not None:
        return None
    if test_data is None and isinstance(model, str) and model.startswith("zoo:"):
        test_data = own_samples(model, "test")
    samples = run.load(test_data) if test_data is not None else tested_on(run)
    if samples is not None:
        run.program.run(samples.inputs(slice(0, 1)))
    return samples


def tested_on(run: Run) -> Samples | None:
    """The samples that the run was tested on, unchanged; None if there are none that a file holds."""
    known = (run.folder.read_json("result.json") or {}).get("test") or {}
    spec = known.get("data", MEMORY)
    if spec == MEMORY:
        return None
    where = f"{run.folder.path} was tested on the samples of {spec}"
    try:
        samples = run.load(spec)
    except DataError as error:
        raise RunError(f"{where}: {error}; or pass other test samples") from None
    if samples.fingerprint() != known.get("fingerprint"):
        raise RunError(f"{where}, which have changed since: pass test samples again")
    return samples
