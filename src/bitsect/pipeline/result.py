"""What `quantize` returns."""

from __future__ import annotations

import itertools
import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from torch import nn

from ..errors import BitsectError, ExportError, RunError
from ..exporters.deliver import Delivery, deliver
from ..rounding.model import QuantizedModel
from ..runs.disk import json_text, write_text
from ..runs.run import Run
from ..sources.data.load import MEMORY
from ..values import Cost, Evaluation, Format, Plan, Scores, Target


@dataclass(frozen=True)
class Judged:
    """A plan with how it did and what it costs: a row of the closing table."""

    name: str
    plan: Plan
    evaluation: Evaluation
    cost: Cost

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


def uniform_name(plan: Plan, format: Format) -> str:
    """What the row of a uniform plan is called; pins may keep layers out of its format."""
    return f"all {format}" if set(plan.values()) == {format} else f"{format} where allowed"


def uniform_format(name: str) -> str:
    return name.removeprefix("all ").removesuffix(" where allowed")


@dataclass(frozen=True)
class Test:
    """Float network and plan on samples that the search has not seen."""

    float: Evaluation
    plan: Evaluation
    target_met: bool
    data: str = MEMORY  # the spec of these samples
    fingerprint: str | None = None
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
    judge: str | None = None  # the user's own function, where accuracy is what that returned
    budget: str | None = None  # what the plan may cost, where that was limited
    notes: tuple[str, ...] = ()

    @property
    def accuracy(self) -> float:
        return self.rows[-1].evaluation.accuracy

    def model(self) -> nn.Module:
        """The quantised network as a module; it takes and returns what the original does."""
        formats = set(self.plan.values())
        return QuantizedModel(self.run.program, self.run.rounder(formats)(self.plan))

    def export(
        self,
        path: str | Path,
        *,
        to: str = "onnx",
        made_for: str = "onnxruntime",
        test: Any = None,
        force: bool = False,
        require_speedup: bool = False,
    ) -> Delivery:
        """Write the quantised network to `path` and prove there that it is the one that was judged.

        It is proven on `test`, else on the samples of the run. What fails raises, and leaves no file;
        with `force` the file is kept, and `.failures` say why it should not have been.
        """
        with self.run.reopened() as run:
            samples = None if test is None else run.load(test)
            goal = self.target if self.judge is None else None
            delivery = deliver(
                run,
                self.plan,
                path,
                to=to,
                made_for=made_for,
                goal=goal,
                test=samples,
                force=force,
                require_speedup=require_speedup,
            )
        if delivery.failures and not force:
            raise ExportError(delivery.complaint)
        return delivery

    def save(self, path: str | Path | None = None) -> Path:
        """Write the plan; by default into the run folder."""
        if path is None and self.run.temporary:
            raise BitsectError("this run has no folder to save the plan in: pass a path, or out= to quantize")
        place = Path(path) if path is not None else self.run.folder.path / "plan.json"
        write_text(place, json_text(self.plan.to_json()))
        return place

    def keep(self) -> None:
        """Write everything into the run folder: under the name of what was asked, and as the last answer.

        What it took is written apart, since that differs from call to call.
        """
        folder, name, plan, facts = self.run.folder, self._free_name(), self.plan.to_json(), self._facts()
        folder.write_plain(f"plans/{name}.json", plan)
        folder.write_json(f"results/{name}.json", facts)
        folder.write_json("result.json", facts)
        folder.write_plain("plan.json", plan)
        folder.write_json("effort.json", self._effort())

    def _free_name(self) -> str:
        """A file name for this answer, such as `99.9-percent`; another answer to the same keeps its own."""
        asked = " ".join(str(part) for part in (self.target, self.budget) if part is not None)
        name = re.sub(r"[^\w.]+", "-", asked.replace("%", " percent ")).strip("-.")
        for number in itertools.count(1):
            numbered = name if number == 1 else f"{name}-{number}"
            if self._is_free_for_this(f"plans/{numbered}.json", f"results/{numbered}.json"):
                return numbered
        raise AssertionError("numbers do not end")

    def _is_free_for_this(self, plan: str, facts: str) -> bool:
        """Whether no other answer is written there; half of this one may be, if it was killed then."""
        folder = self.run.folder
        path = folder.inside(plan)
        try:
            return (not path.exists() or path.read_text() == json_text(self.plan.to_json())) and (
                folder.read_json(facts) in (None, json.loads(json.dumps(self._facts())))
            )
        except (RunError, OSError, UnicodeDecodeError):  # something else, or damaged: not to be overwritten
            return False

    def to_json(self) -> dict[str, Any]:
        run = None if self.run.temporary else str(self.run.folder.path)
        return {**self._facts(), **self._effort(), "run": run}

    def _facts(self) -> dict[str, Any]:
        return {
            "target": str(self.target) if self.target is not None else None,
            "target_met": self.target_met if self.target is not None else None,
            "float": self.rows[0].to_json(),
            "plan": self.rows[-1].to_json(),
            "uniform": {uniform_format(row.name): row.to_json() for row in self.rows[1:-1]},
            "test": self._test_json(),
            "formats": self.plan.counts,
            "macs_by_format": self.plan.macs(self.run.program.layers),
            "plan_key": self.plan.key,
            "budget": self.budget,
            "metric": self.scores.metric,
            "reason": self.reason,
            "agreement": self.agreement,
            "judge": self.judge,
            "notes": list(self.notes),
        }

    def _effort(self) -> dict[str, Any]:
        return {"evaluations": self.evaluations, "seconds": dict(self.seconds)}

    def _test_json(self) -> dict[str, Any] | None:
        if self.test is None:
            return None
        judged_on = {row.name: replace(row, evaluation=self.test.rows[row.name]) for row in self.rows}
        return {
            "float": judged_on["float"].to_json(),
            "plan": judged_on["plan"].to_json(),
            "target_met": self.test.target_met if self.target is not None else None,
            "data": self.test.data,
            "fingerprint": self.test.fingerprint,
        }
