"""What `quantize` returns."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import nn

from ..errors import BitsectError, ExportError, RunError, in_python
from ..exporters.deliver import Delivery, Request, deliver
from ..reports.html.page import excerpt, has_extra
from ..reports.reading import story_of
from ..rounding.model import QuantizedModel
from ..runs.disk import json_text, write_text
from ..runs.run import Run
from ..solve.search.problem import Found
from ..values import Goal, LatencyTable, Plan, Scores, Scoring, Target
from ..values.curve import Curve
from ..values.options import to_json
from .fastest import Timing
from .frontier import curve_of
from .promise import Promise, is_vouched_by_others, judged_before
from .rivals import Other
from .rows import Row, Tested
from .shown import versions


@dataclass(frozen=True)
class Result:
    """The plan, how well it does, and the way to it."""

    run: Run
    goal: Goal
    scoring: Scoring
    found: Found
    rows: tuple[Row, ...]  # float, the uniform plans, then the plan
    test: Tested | None
    evaluations: int  # plans that this search had to judge
    table: LatencyTable | None = None
    judge: str | None = None  # the user's own function, where accuracy is what that returned
    promise: Promise | None = None  # what held-out samples prove, where that was asked for
    method: str = "paper"
    remarks: tuple[str, ...] = ()  # notes, with options as they are mentioned in errors
    timing: Timing | None = None  # of files that were measured where they will run
    delivery: Delivery | None = None  # the file that was written at the end
    others: tuple[Other, ...] = ()  # files of other tools that were tried beside it
    scores: Scores | None = None  # of the layers; None where the cheapest plan of all is the answer

    @property
    def notes(self) -> tuple[str, ...]:
        """What should be known about the answer, a sentence each."""
        return tuple(map(in_python, self.remarks))

    @property
    def plan(self) -> Plan:
        return self.found.plan

    @property
    def target(self) -> Target | None:
        target: Target | None = self.goal.target
        return target

    @property
    def target_met(self) -> bool | None:
        """Whether held-out samples prove that the target is kept, or show that it is missed; else None.

        Where none were held out, whether it is kept on the samples that were searched on.
        """
        return self.found.met if self.promise is None else self.promise.met

    @property
    def reason(self) -> str:
        """Why the search ended on this plan."""
        return self.found.reason

    @property
    def accuracy(self) -> float:
        """Of the plan, on the samples that it was searched on."""
        return self.rows[-1].evaluation.accuracy

    @property
    def float_accuracy(self) -> float:
        return self.rows[0].evaluation.accuracy

    @property
    def size_ratio(self) -> float:
        """The size of the layers' weights against 16 bits."""
        return self.rows[-1].cost.size_ratio

    @property
    def agreement(self) -> bool:
        """Whether accuracy is agreement with the float network, for want of labels."""
        return self.run.samples.labels is None and not self.run.task.reference

    @property
    def seconds(self) -> Mapping[str, float]:
        return self.run.progress.seconds

    @property
    def verdict(self) -> str:
        """Whether the target is kept: as held-out samples prove it, else as the searched ones show it."""
        if self.promise is not None:
            return self.promise.verdict
        return "kept" if self.target_met else "NOT kept"

    def __repr__(self) -> str:
        """Three lines, however many layers there are."""
        kept = "" if self.target is None else f", target {self.target} {self.verdict}"
        tested = "not tested on other samples"
        if self.test is not None:
            tested = f"on test samples {self.test.float.shown} → {self.test.plan.shown}"
        before, after, where = self.rows[0].evaluation.shown, self.rows[-1].evaluation.shown, ""
        if self.promise is not None:
            before, after = (f"{self.promise.accuracy[row]:.2%}" for row in ("float", "plan"))
            where = " on held-out samples"
        return (
            f"Result: {self.plan.counted} layers, {self.size_ratio:.1%} of the size at 16 bits\n"
            f"  accuracy{where} {before} → {after}{kept}\n"
            f"  {tested}"
        )

    def _repr_html_(self) -> str | None:
        """What notebooks show: the beginning of the report; without the extra None, for plain text."""
        if not has_extra():
            return None
        try:
            with self.run.reopened() as run:
                return excerpt(story_of(run.folder))
        except BitsectError:  # the folder has moved, or somebody works in it
            return None

    def model(self) -> nn.Module:
        """The quantised network as a module; it takes and returns what the original does."""
        return QuantizedModel(self.run.program, self.run.calibrate(set(self.plan.values()))(self.plan))

    def export(
        self,
        path: str | Path,
        *,
        destination: str | None = None,
        data: Any = None,
        force: bool = False,
        require_speedup: bool = False,
    ) -> Delivery:
        """Write the quantised network to `path` and prove there that it is the one that was judged.

        The ending of `path` says in which form, as for `bitsect.export`. An ONNX file is written for
        `destination`: by default that of the goal, else ONNX Runtime. It is proven on `data`, else on
        the samples of the run. What fails raises, and leaves no file;
        with `force` the file is kept, and `.failures` say why it should not have been.
        """
        request = Request(Path(path), destination, force, require_speedup, self.goal.destination)
        with self.run.reopened() as run:
            samples = None if data is None else run.load(data)
            target = self.target if self.judge is None else None
            vouched = is_vouched_by_others(None if self.promise is None else self.verdict, run)
            before = None if self.promise is None else judged_before(self.promise.to_json())
            delivery = deliver(run, self.plan, request, target, samples, vouched=vouched, before=before)
        if delivery.failures and not force:
            raise ExportError(delivery.complaint)
        return delivery

    def frontier(self, targets: Any = None, *, test_data: Any = None) -> Curve:
        """Every plan that was evaluated in this run, and the plan for each of `targets`: see `frontier`."""
        options = {name: getattr(self.goal, name) for name in ("formats", "keep", "objective")}
        goal = Goal(**options, latency=self.table, evaluations=self.goal.evaluations)
        with self.run.reopened() as run:
            return curve_of(run, goal, Target.several(targets), test_data)

    def save(self, path: str | Path | None = None) -> Path:
        """Write the plan; by default into the run folder."""
        if path is None and self.run.temporary:
            raise BitsectError(
                "this run has no folder to save the plan in: pass a path, or [out=FOLDER] to quantize"
            )
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
        asked = " ".join(str(part) for part in (self.target, self.goal.limits) if part is not None)
        name = re.sub(r"[^\w.]+", "-", asked.replace("%", " percent ")).strip("-.")
        for number in itertools.count(1):
            numbered = name if number == 1 else f"{name}-{number}"
            if self._is_free_for_this(f"plans/{numbered}.json", f"results/{numbered}.json"):
                return numbered
        raise AssertionError("numbers do not end")

    def _is_free_for_this(self, plan: str, facts: str) -> bool:
        """Whether no other answer is written there; half of this one may be, if it was killed then."""
        folder = self.run.folder
        try:
            return folder.read_plan(plan) in (None, self.plan.to_json()) and (
                folder.read_json(facts) in (None, json.loads(json.dumps(self._facts())))
            )
        except RunError:  # something else, or damaged: not to be overwritten
            return False

    def to_json(self) -> dict[str, Any]:
        run = None if self.run.temporary else str(self.run.folder.path)
        export = None if self.delivery is None else self.delivery.to_json()
        others = [each.to_json() for each in self.others]
        return {**self._facts(), **self._effort(), "run": run, "export": export, "others": others}

    def _facts(self) -> dict[str, Any]:
        """What was asked and what came out: every figure with the options that made it."""
        return {
            "target": str(self.target) if self.target is not None else None,
            "target_met": self.target_met if self.target is not None else None,
            "float": self.rows[0].to_json(),
            "plan": self.rows[-1].to_json(),
            "uniform": {_format_of(row.name): _named(row) for row in self.rows[1:-1]},
            "test": self._test_json(),
            "formats": self.plan.counts,
            "macs_by_format": self.plan.macs(self.run.layers),
            "plan_key": self.plan.key,
            "reason": self.reason,
            "promise": None if self.promise is None else self.promise.to_json(),
            "method": self.method,
            "agreement": self.agreement,
            "judge": self.judge,
            "goal": {**to_json(self.goal), "latency": self.table and self.table.device},
            "scoring": to_json(self.scoring),
            "settings": to_json(self.run.settings),
            "latency_source": self.table and self.table.source,
            "measured": self.timing and self.timing.to_json({row.name: row.plan for row in self.rows}),
            "notes": list(self.notes),
        }

    def _effort(self) -> dict[str, Any]:
        return {"evaluations": self.evaluations, "seconds": dict(self.seconds), "versions": versions()}

    def _test_json(self) -> dict[str, Any] | None:
        if self.test is None:
            return None
        judged_on = {
            row.name: replace(row, evaluation=self.test.rows[row.name])
            for row in self.rows
            if row.name in self.test.rows
        }
        return {
            "float": judged_on["float"].to_json(),
            "plan": judged_on["plan"].to_json(),
            "target_met": self.test.target_met if self.target is not None else None,
            "data": self.test.data,
            "fingerprint": self.test.fingerprint,
        }


def _named(row: Row) -> dict[str, Any]:
    return {"name": row.name, **row.to_json()}


def _format_of(row: str) -> str:
    """The format of a uniform plan, from the name of its row."""
    return row.removeprefix("all ").removesuffix(" where allowed")
