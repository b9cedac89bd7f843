"""frontier: accuracy against latency and size, and the plan for any target."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import BitsectError, OptionError, RunError
from ..latency import TABLES, TIMED
from ..runs.opening import open_run
from ..runs.progress import Progress
from ..runs.run import Run
from ..solve.allowed import Allowed, allowed_formats
from ..solve.answer import threshold
from ..solve.curve import curve_points, read_off
from ..solve.search.walk import Walk
from ..values import Damage, Evaluation, Goal, LatencyTable, Plan, Resources, Scoring, Target
from ..values.curve import SHORT, Curve, CurvePoint, ReadOff
from ..values.options import given, on_top_of
from .asked import TERMS, Asked
from .judge import Judge
from .keywords import with_options
from .latency import table_for
from .methods import DAMAGE, FRONTIER, destined
from .plans import evaluated_plans, own_plan, same_task
from .problem import state_problem

NAME = "frontier-"  # of the files of plans that were read off
# Options of a goal that a curve has no use for: the command does not offer them.
REFUSED = ("target", "max_drop", "max_perplexity", "budget", "max_size", "confidence", "search")


@with_options(goal=Goal, resources=Resources)
def frontier(
    run: str | Path,
    *,
    targets: Any = None,
    goal: Goal,
    resources: Resources,
    test_data: Any = None,
    task: Any = None,
    trust: bool = False,
    progress: Progress | None = None,
) -> Curve:
    """Every plan that was evaluated in a run, as a point of accuracy against latency and size.

    With `targets` the trail of least predicted damage is walked once for all of them, at most
    `evaluations` plans are judged besides those known, and the plan for each target is read off and
    kept in the run as `plans/frontier-99-percent.json`. What is read off keeps its target on the
    samples that were searched on; `search` with [confidence=95%] promises it.

    Arguments:
        run: the folder of a run.
        targets: as 98%,99%,99.9%; without any, nothing is judged.
        test_data: samples to try the plans on that were read off.
        task: the run's own task again, if that is a function of yours.
        trust, progress: as for `quantize`.
    """
    settings, goal = same_task(task), Asked.of(run).on_goal(goal, {*TERMS} - {"keep"})
    if goal.destination is not None:
        _, settings, goal = destined(run, None, settings, goal)
    with open_run(run, None, settings, resources, trust=trust, progress=progress) as opened:
        return curve_of(opened, goal, Target.several(targets), test_data)


def curve_of(run: Run, goal: Goal, targets: Sequence[Target], test_data: Any = None) -> Curve:
    """The curve of an open run; what is not asked for is as in its last search."""
    known = run.folder.read_json("result.json") or {}
    if known.get("judge") is not None:
        raise RunError(
            f"{run.folder.path} was judged by your function {known['judge']}, and a curve is of the task's "
            "accuracy: make a run without [evaluate=]"
        )
    asked, goal = given(goal), _completed(goal, known.get("goal") or {}, targets)
    if targets and goal.keep and "keep" not in asked:
        run.progress.say(f"layers are limited as in the last search: [keep={','.join(map(str, goal.keep))}]")
    table, _ = table_for(run, goal)
    judge = Judge(run, None)
    float_network = judge.float_network()
    damage: Damage | None = None
    if targets:
        damage = _walk(run, goal, targets, judge, float_network, table)
    points = evaluated_points(
        run, judge, float_network, allowed_formats(run.layers, goal, table), table, damage
    )
    objective = goal.objective if table is not None else "size"
    found = _ReadingOff(run, points, float_network, objective).all(targets, test_data)
    device = None if table is None else table.device
    curve = Curve(points, float_network.accuracy, found, len(judge.judged), device, objective)
    keep_curve(run, curve)
    return curve


def evaluated_points(
    run: Run,
    judge: Judge,
    float_network: Evaluation,
    allowed: Allowed,
    table: LatencyTable | None,
    damage: Damage | None = None,
) -> tuple[CurvePoint, ...]:
    """Every plan that was evaluated in the run, as a point of the curve."""
    evaluated = {Plan.uniform(run.layers): float_network}
    for plan in evaluated_plans(run).values():
        evaluation = judge.evaluator.known(plan)
        if evaluation is not None:
            evaluated[plan] = evaluation
    return curve_points(evaluated, run.layers, table, _names(run, allowed), damage)


def keep_curve(run: Run, curve: Curve) -> None:
    """Keep the curve in the run, to look at; with the order in which plans were evaluated."""
    order = {key[:SHORT]: number for number, key in enumerate(evaluated_plans(run))}
    data = curve.to_json()
    points = [{**each, "layers": None, "order": order.get(each["key"])} for each in data["points"]]
    run.folder.write_json("curve.json", {**data, "targets": [], "points": points})


def _completed(goal: Goal, known: dict[str, Any], targets: Sequence[Target]) -> Goal:
    """`goal` with what the last search allowed, where nothing else is asked for."""
    for name in REFUSED:
        if name in given(goal) and getattr(goal, name) is not None:
            raise OptionError(f"[{name}=] does not apply to a curve: name what to keep as [targets=98%,99%]")
    before: dict[str, Any] = {name: known[name] for name in ("formats", "keep", "objective") if name in known}
    device = str(known.get("latency")).lower()
    before["latency"] = device if device in (*TABLES, *TIMED) else None
    before["runtime_threads"] = known.get("runtime_threads", 1)
    return on_top_of(on_top_of(Goal(**before), goal), Goal(search=FRONTIER))


def _walk(
    run: Run,
    goal: Goal,
    targets: Sequence[Target],
    judge: Judge,
    float_network: Evaluation,
    table: LatencyTable | None,
) -> Damage | None:
    """Judge plans along the trail for all targets at once; returns the damage that it was made of."""
    thresholds = [threshold(target, float_network) for target in targets]
    allowed = allowed_formats(run.layers, goal, table)
    run.calibrate(allowed.all)
    judge.allow(allowed.all)
    scoring = Scoring(metric=DAMAGE)
    problem, _ = state_problem(run, scoring, goal, allowed, min(thresholds), judge, table)
    with run.progress.stage("frontier", goal.evaluations) as judge.progress:
        Walk(problem, thresholds).run(goal.evaluations)
    return problem.damage


def _names(run: Run, allowed: Allowed) -> dict[str, list[str]]:
    """What the run calls plans, by their keys: uniform ones, and its answers."""
    names: dict[str, list[str]] = {Plan.uniform(run.layers).key: ["float"]}
    for name, plan in allowed.uniform().items():
        names.setdefault(plan.key, []).append(name)
    for path in sorted((run.folder.path / "plans").glob("*.json")):
        if not path.name.startswith(NAME):
            with suppress(BitsectError):  # a file that was spoilt has no name to give
                if (kept := own_plan(run, f"plans/{path.name}")) is not None:
                    names.setdefault(kept.key, []).append(path.stem)
    return names


@dataclass(frozen=True)
class _ReadingOff:
    """Plans read off a curve."""

    run: Run
    points: tuple[CurvePoint, ...]
    float_network: Evaluation
    objective: str

    def all(self, targets: Sequence[Target], test_data: Any) -> tuple[ReadOff, ...]:
        """The plan for each target, kept in the run under its name."""
        found = []
        tested = self._tester(test_data)
        for target in targets:
            point = read_off(self.points, threshold(target, self.float_network), self.objective)
            if point is not None:  # the float network keeps every target, unless it cannot run
                name = NAME + re.sub(r"[^\w.]+", "-", str(target).replace("%", " percent")).strip("-.")
                self.run.folder.write_plain(f"plans/{name}.json", point.plan.to_json())
                kept = point.evaluation.accuracy / self.float_network.accuracy
                found.append(ReadOff(target, name, point, kept, tested(point.plan)))
        return tuple(found)

    def _tester(self, test_data: Any) -> Any:
        if test_data is None:
            return lambda plan: None
        samples = self.run.load(test_data)
        formats = {format for point in self.points for format in point.plan.values()}
        evaluator = self.run.evaluator(formats, samples)
        before = evaluator(Plan.uniform(self.run.layers)).accuracy
        return lambda plan: evaluator(plan).accuracy / before if before else None
