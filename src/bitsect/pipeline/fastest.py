"""Measured last: the files of a handful of plans run where they will run, and the fastest is taken."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from ..exporters.onnx.write import write_onnx
from ..exporters.subject import Subject
from ..latency.machine import Machine, here
from ..latency.measured import MeasuredFiles, measure
from ..runs.disk import fingerprint_json, reading
from ..runs.run import Run
from ..solve.allowed import Allowed
from ..solve.costs import latency_ms
from ..solve.search.problem import Found, Problem
from ..values import Goal, LatencyTable, Plan
from ..values.destination import Destination

OTHERS = 4  # plans on the way whose files are timed beside the found one
GAIN = 0.02  # of the time: what is less faster than this is not told apart


@dataclass(frozen=True)
class Timing:
    """What plans were predicted to take, and what their files took."""

    measured: MeasuredFiles
    predicted_ms: dict[Plan, float]
    baseline: Plan  # float

    def ratios(self, plan: Plan) -> tuple[float | None, float | None]:
        """Predicted and measured time of a plan, each against float."""
        base = self.predicted_ms.get(self.baseline)
        predicted = self.predicted_ms[plan] / base if base and plan in self.predicted_ms else None
        return predicted, self.measured.ratio(plan, self.baseline)

    def to_json(self, rows: dict[str, Plan]) -> dict[str, Any]:
        plans = {name: plan for name, plan in rows.items() if plan in self.measured.ms}
        return {
            "runtime": self.measured.runtime,
            "threads": self.measured.threads,
            "length": self.measured.length,
            "plans": {
                name: {
                    "predicted_ms": self.predicted_ms.get(plan),
                    "measured_ms": self.measured.ms[plan],
                    "predicted_ratio": self.ratios(plan)[0],
                    "measured_ratio": self.ratios(plan)[1],
                }
                for name, plan in plans.items()
            },
        }


class Fastest:
    """Times plans of a run in the runtime of its destination; what was timed once is kept in the run."""

    def __init__(
        self,
        run: Run,
        problem: Problem,
        goal: Goal,
        destination: Destination,
        table: LatencyTable | None,
        allowed: Allowed,
    ) -> None:
        self.run, self.problem, self.goal, self.destination = run, problem, goal, destination
        self.table, self.pinned = table, allowed.possible
        self.float = Plan.uniform(run.layers)
        self.timing: Timing | None = None
        self._plans: list[Plan] = []  # asked about so far

    @property
    def applies(self) -> bool:
        """Whether there is a runtime to time in, and latency is what is asked for."""
        placed = self.run.settings.placement == self.destination.placement.name
        return self.destination.runtime is not None and placed and self.goal.objective == "latency"

    def among(self, found: Found, uniform: Iterable[Plan]) -> Found:
        """`found`, or the plan on the way or of one format that keeps the target and is clearly faster."""
        if not self.applies or self.goal.limits is not None:
            return found
        uniform = [plan for plan in uniform if self.fits(plan)]
        judged = {plan: self.problem.judge(plan, self.problem.threshold) for plan in uniform}
        judged |= dict(found.evaluated)
        passed = [plan for plan, each in judged.items() if each.reaches(self.problem.threshold) is True]
        others = sorted({*passed} - {found.plan}, key=lambda plan: (self._predicted(plan), plan.key))
        plans = [self.float, found.plan, *uniform, *others[:OTHERS]]
        self._measure(plans)
        assert self.timing is not None
        kept = [self.float, *(plan for plan in plans if plan in {found.plan, *passed})]
        return self._taken(found, kept)

    def of(self, plans: Sequence[Plan]) -> Plan:
        """The plan of `plans` whose file runs fastest; float, where none is clearly faster than that."""
        self._measure([self.float, *plans])
        assert self.timing is not None
        ms = self.timing.measured.ms
        ran = [plan for plan in plans if plan in ms]
        best = min(ran, key=lambda plan: (ms[plan], plan.key), default=self.float)
        return best if ms[best] <= (1 - GAIN) * ms[self.float] else self.float

    def on(self, problem: Problem) -> Fastest:
        """The same, for the problem with its layers scored."""
        self.problem = problem
        return self

    def or_float(self, found: Found) -> Found:
        """`found`, or float where the file of `found` is not clearly faster."""
        if not self.applies or found.plan == self.float:
            return found
        self._measure([self.float, found.plan])
        return self._taken(found, [self.float, found.plan])

    def _taken(self, found: Found, plans: list[Plan]) -> Found:
        assert self.timing is not None
        ms = self.timing.measured.ms
        ran = [plan for plan in plans if plan in ms]
        allowed = [plan for plan in ran if plan != self.float or not self.problem.bound]
        if not allowed:
            return found
        best = min(allowed, key=lambda plan: (ms[plan], plan.key))
        ours = ms.get(found.plan)
        if ours is not None and ms[best] > (1 - GAIN) * ours:
            best = found.plan
        if self.float in allowed and ms[best] > (1 - GAIN) * ms[self.float]:
            best = self.float  # what gains nothing is not worth rounding for
        if best == found.plan and best != self.float:
            return found
        if best == found.plan:  # it was found without asking about any other
            return replace(found, reason=f"no layer gains enough in {self.destination.name} to leave float")
        if best == self.float:
            faster = f"nothing that keeps the target is faster than float in {self.destination.name} here"
        else:
            gain = 0.0 if ours is None else 1 - ms[best] / ours
            faster = (
                f"taken instead is a plan on the way that is {gain:.0%} faster in {self.destination.name}"
            )
        judged = dict(found.evaluated).get(best)
        evaluation = self.problem.judge(best, None) if judged is None or not judged.complete else judged
        return replace(found, plan=best, evaluation=evaluation, met=True, reason=f"{found.reason}; {faster}")

    def fits(self, plan: Plan) -> bool:
        """Whether pins allow the plan, and the device is known to run it."""
        allowed = all(format in self.pinned[name] for name, format in plan.items())
        return allowed and self._is_known(plan)

    def _is_known(self, plan: Plan) -> bool:
        return self.table is not None and all(
            self.table.supports(plan[layer.name], layer) for layer in self.run.layers
        )

    def _predicted(self, plan: Plan) -> float:
        return latency_ms(plan, self.run.layers, self.table) if self.table is not None else 0.0

    def _measure(self, plans: list[Plan]) -> None:
        """Time those plans whose files were not timed yet in this run, beside float."""
        assert self.destination.runtime is not None
        inputs, threads = self.run.samples.typical(), self.goal.runtime_threads
        length = self.run.program.length_of(inputs)
        kept = Kept.of(self.run, here(self.destination.runtime, threads), length)
        asked = list(dict.fromkeys([self.float, *self._plans, *plans]))
        wanted = [plan for plan in asked if not kept.knows(plan)]
        if wanted:
            every = list(dict.fromkeys([self.float, *wanted]))
            rounder = self.run.calibrate({format for plan in every for format in plan.values()})

            def write(plan: Plan, path: Path) -> Path:
                subject = Subject(self.run.program, rounder, plan, self.run.task)
                return write_onnx(subject, path, self.destination.name).path

            with self.run.progress.stage("measure"):
                kept.add(measure(self.destination.runtime, every, write, inputs, threads), self.float)
        self._plans = asked
        ms = {plan: kept.ms[plan.key] for plan in asked if plan.key in kept.ms}
        faults = {plan: kept.faults[plan.key] for plan in asked if plan.key in kept.faults}
        predicted = {plan: self._predicted(plan) for plan in ms if self._is_known(plan)}
        self.timing = Timing(MeasuredFiles(kept.runtime, threads, ms, faults, length), predicted, self.float)


@dataclass
class Kept:
    """What files of plans took, by the keys of the plans, kept in a run: it goes on as it began."""

    run: Run
    name: str
    runtime: str = ""
    ms: dict[str, float] = field(default_factory=dict)
    faults: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, run: Run, machine: Machine, length: int | None) -> Kept:
        asked = {"machine": asdict(machine), "length": length}
        name = f"measured-{machine.runtime}-{fingerprint_json(asked)[:8]}.json"
        known = run.folder.read_json(name) or {"runtime": "", "ms": {}, "faults": {}}
        with reading(run.folder.path / name, "remove it, and it is measured again"):
            ms = {str(key): float(value) for key, value in known["ms"].items()}
            return cls(run, name, str(known["runtime"]), ms, dict(known["faults"]))

    def knows(self, plan: Plan) -> bool:
        return plan.key in self.ms or plan.key in self.faults

    def add(self, measured: MeasuredFiles, baseline: Plan) -> None:
        """Keep what was measured now, in the scale of before: `baseline` is in every group of files."""
        known, now = self.ms.get(baseline.key), measured.ms.get(baseline)
        scale = 1.0 if known is None or now is None else known / now
        self.ms = {plan.key: value * scale for plan, value in measured.ms.items()} | self.ms
        self.faults |= {plan.key: why for plan, why in measured.faults.items()}
        self.runtime = measured.runtime
        self.run.folder.write_json(self.name, {"runtime": self.runtime, "ms": self.ms, "faults": self.faults})
