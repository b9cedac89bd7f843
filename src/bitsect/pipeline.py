"""The whole story, one stage per line."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import torch
from torch import nn

from .capture import capture
from .data import Samples, load_samples
from .errors import BitsectError, CaptureError, TargetError
from .evaluate import Evaluator
from .latency import Budget, cost, faster_formats, latency_table
from .metrics import Options, metric_named
from .models import load_model, parse_example
from .program import Inputs, Program
from .progress import Progress
from .result import Judged, QuantizedModel, Result, Test
from .run import Run, Settings, open_run
from .search import SEARCHES, Found, Problem, pinned
from .search.budget import within_budget
from .values import FLOAT, INT4, INT8, Evaluation, Format, LatencyTable, Plan, Scores, Target

Evaluate = Callable[[nn.Module], float]


def quantize(
    model: Any,
    samples: Any = None,
    *,
    target: str | float | Target | None = None,
    test: Any = None,
    formats: Sequence[str | Format] = (INT8, INT4),
    metric: str = "aughessian",
    search: str = "bisection",
    keep: Sequence[str] = (),
    score_format: str | None = None,
    options: Options | None = None,
    measuring: dict[str, Any] | None = None,
    latency: str | LatencyTable | None = None,
    objective: str = "latency",
    budget: str | None = None,
    max_size: str | None = None,
    evaluate: Evaluate | None = None,
    out: str | Path | None = None,
    fresh: bool = False,
    progress: Progress | None = None,
    **opening: Any,
) -> Result:
    """The plan of least bits that keeps the target, and everything about it.

    `model` is a network, a model spec or the folder of a run; `samples` a data spec, tensors (x, y),
    or any iterable of batches. `evaluate`, a function of a module, replaces the task's accuracy.
    """
    goal = _target(target, budget, max_size)
    run = open_run(model, samples, out=out, fresh=fresh, progress=progress, **opening)
    wanted = tuple(Format.parse(f) if isinstance(f, str) else f for f in formats)
    allowed = pinned(run.program.layers, wanted, keep)
    table = _table(latency, run.program)
    limits = Budget.parse(latency=budget, size=max_size) if budget or max_size else None
    if table is not None and objective == "latency":
        allowed = faster_formats(run.program.layers, table, allowed)
    ladder = {format for layer_formats in allowed.values() for format in layer_formats}
    run.ranges_for(ladder)
    judge = _Judge(run, ladder, evaluate)
    scores = _orders(run, metric, wanted, score_format, options, measuring or {})
    baseline = judge(Plan.uniform(run.program.layers))
    threshold = goal.threshold(baseline.exact) if goal is not None else Fraction(0)
    problem = Problem(run.program.layers, allowed, lambda f: scores(f).order(), threshold, judge)
    with run.progress.stage("search"):
        found = _search(problem, search, goal, limits, table, keep)
    evaluations = judge.judged
    result = _conclude(run, goal, found, wanted, judge, scores(wanted[0]), table, test, evaluations)
    result.save()
    run.folder.write_json("result.json", result.to_json())
    return result


def sensitivity(
    model: Any,
    samples: Any = None,
    *,
    metric: str = "aughessian",
    format: str | Format = INT8,
    options: Options | None = None,
    until_stable: float | None = None,
    out: str | Path | None = None,
    fresh: bool = False,
    progress: Progress | None = None,
    measuring: dict[str, Any] | None = None,
    **opening: Any,
) -> tuple[Scores, int]:
    """The scores of all layers, and how many samples they rest on.

    `until_stable` doubles the samples until two halves of them agree that well on the order.
    """
    run = open_run(model, samples, out=out, fresh=fresh, progress=progress, **opening)
    wanted = Format.parse(format) if isinstance(format, str) else format
    chosen, measuring = metric_named(metric), dict(measuring or {})
    total = len(run.samples)
    count = total if until_stable is None else min(total, run.settings.batch_size)
    while True:
        scores = run.scores(chosen, wanted, options, samples=count, **measuring)
        agreed = until_stable is None or (scores.split_half or 0.0) >= until_stable
        if agreed or count == total:
            break
        count = min(total, 2 * count)
    _keep_scores(run, scores)
    return scores, count


def evaluate(
    model: Any,
    samples: Any,
    *,
    calibration: Any = None,
    plan: str | Path | Plan | None = None,
    format: str | Format | None = None,
    task: Any = None,
    settings: Settings | None = None,
    progress: Progress | None = None,
    **opening: Any,
) -> tuple[Judged, Judged, bool]:
    """The float network and the plan, judged; and whether accuracy is agreement for want of labels.

    Ranges come from `calibration`, or from the judged samples themselves.
    """
    run = open_run(
        model,
        samples if calibration is None else calibration,
        task=task,
        settings=settings,
        progress=progress,
        **(opening if calibration is None else {**opening, "draw": None}),
    )
    judged: Samples | None = None
    if calibration is not None:
        options = opening.get("data_options") or {}
        judged = load_samples(samples, samples=opening.get("draw"), seed=opening.get("seed", 0), **options)
    chosen = _plan(plan, format, run.program)
    formats = set(chosen.values())
    evaluator = run.evaluator(formats, judged)
    rows = []
    for name, each in (("float", Plan.uniform(run.program.layers)), ("plan", chosen)):
        with run.progress.stage(f"evaluate {name}", len(evaluator.samples)) as evaluator.progress:
            rows.append(Judged(name, each, evaluator(each), cost(each, run.program.layers)))
    return rows[0], rows[1], evaluator.samples.labels is None


def capture_model(
    spec: str,
    *,
    example: Inputs = None,
    input_shape: str | None = None,
    trust: bool = False,
    embeddings: bool = False,
    device: str | torch.device | None = None,
) -> Program:
    """The program of the network that `spec` names."""
    network = load_model(spec, trust=trust)
    if input_shape is not None:
        example = parse_example(input_shape)
    if example is None:
        example = network.example
    if example is None and isinstance(network.model, nn.Module):
        raise CaptureError(
            f"model '{spec}' gives no example input: pass --input-shape 3x224x224, or return a pair"
        )
    return capture(network.model, example, embeddings=embeddings, device=device)


class _Judge:
    """The question that a search asks, counted: plans known from before cost nothing."""

    def __init__(self, run: Run, formats: set[Format], function: Evaluate | None) -> None:
        self.run, self.function = run, function
        self.evaluator: Evaluator = run.evaluator(formats)
        self.judged = 0

    def __call__(self, plan: Plan, threshold: Fraction | None = None) -> Evaluation:
        before = self.evaluator.judged_batches
        evaluation = self._by_function(plan) if self.function else self.evaluator(plan, threshold)
        is_float = all(format == FLOAT for format in plan.values())
        self.judged += self.evaluator.judged_batches > before and not is_float
        return evaluation

    def _by_function(self, plan: Plan) -> Evaluation:
        """The user's own figure, remembered like a sample of its own."""
        import numpy as np

        assert self.function is not None
        done, key = self.evaluator.done, f"{plan.key}/own"
        if key not in done:
            value = float(self.function(QuantizedModel(self.run.program, self.evaluator.rounder(plan))))
            if not 0 <= value < float("inf"):
                raise BitsectError(f"evaluate= returned {value}: expected a finite number, at least 0")
            done[key] = {"value": np.array([value])}
            self.evaluator.judged_batches += 1
        return Evaluation(float(done[key]["value"][0]), 1, 1)


def _target(target: str | float | Target | None, budget: str | None, max_size: str | None) -> Target | None:
    if isinstance(target, Target):
        return target
    if target is not None:
        return Target.parse(target)
    if budget or max_size:
        return None
    raise BitsectError(
        "what must be kept? pass --target 99.9%, --max-drop 0.5, --budget 0.8x or --max-size 12MB"
    )


def _table(latency: str | LatencyTable | None, program: Program) -> LatencyTable | None:
    if latency is None or isinstance(latency, LatencyTable):
        return latency
    return latency_table(latency, program.layers)


def _orders(
    run: Run,
    metric: str,
    formats: tuple[Format, ...],
    score_format: str | None,
    options: Options | None,
    measuring: dict[str, Any],
) -> Callable[[Format], Scores]:
    """The scores that order the layers for each format's step; the paper uses those of the first for all."""
    chosen = metric_named(metric)
    known: dict[Format, Scores] = {}

    def scores(format: Format) -> Scores:
        if score_format is None:
            format = formats[0]
        elif score_format != "each":
            format = Format.parse(score_format)
        if format not in known:
            known[format] = run.scores(chosen, format, options, **measuring)
            _keep_scores(run, known[format])
        return known[format]

    scores(formats[0])
    return scores


def _keep_scores(run: Run, scores: Scores) -> None:
    run.folder.write_json(f"scores-{scores.metric.replace(':', '.')}-{scores.format}.json", scores.to_json())


def _search(
    problem: Problem,
    search: str,
    goal: Target | None,
    limits: Budget | None,
    table: LatencyTable | None,
    keep: Sequence[str],
) -> Found:
    """The plan for the target; where that is over the budget, the most accurate one within it."""
    if search not in SEARCHES:
        raise BitsectError(f"unknown search '{search}': use {', '.join(SEARCHES)}")
    found = None
    if goal is not None:
        try:
            found = SEARCHES[search](problem)
        except TargetError as error:
            raise TargetError(f"--keep {' --keep '.join(keep)}: {error}" if keep else str(error)) from None
    if limits is None or (found is not None and limits.fits(cost(found.plan, problem.layers, table))):
        assert found is not None
        return found
    return within_budget(problem, lambda plan: limits.excess(cost(plan, problem.layers, table)))


def _conclude(
    run: Run,
    goal: Target | None,
    found: Found,
    formats: tuple[Format, ...],
    judge: _Judge,
    scores: Scores,
    table: LatencyTable | None,
    test: Any,
    evaluations: int,
) -> Result:
    """Judge the plans of the closing table, on the calibration and on the test samples."""
    layers = run.program.layers
    plans = {"float": Plan.uniform(layers)}
    plans |= {f"all {format}": Plan.uniform(layers, format) for format in formats}
    plans["plan"] = found.plan
    with run.progress.stage("compare"):
        rows = tuple(
            Judged(name, plan, judge(plan), cost(plan, layers, table if _runs(plan, table) else None))
            for name, plan in plans.items()
        )
    tested = None
    if test is not None:
        with run.progress.stage("test"):
            tested = _test(run, goal, plans, test)
    return Result(
        run=run,
        target=goal,
        plan=found.plan,
        target_met=found.met,
        reason=found.reason,
        rows=rows,
        test=tested,
        scores=scores,
        evaluations=evaluations,
        seconds=run.progress.seconds,
        agreement=run.samples.labels is None,
    )


def _runs(plan: Plan, table: LatencyTable | None) -> bool:
    return table is None or all(table.supports(format) for format in set(plan.values()))


def _test(run: Run, goal: Target | None, plans: dict[str, Plan], test: Any) -> Test:
    samples = test if isinstance(test, Samples) else load_samples(test)
    formats = {format for plan in plans.values() for format in plan.values()}
    evaluator = run.evaluator(formats, samples)
    rows = {name: evaluator(plan) for name, plan in plans.items()}
    met = goal is None or rows["plan"].reaches(goal.threshold(rows["float"].exact)) is True
    return Test(rows["float"], rows["plan"], met, rows)


def _plan(plan: str | Path | Plan | None, format: str | Format | None, program: Program) -> Plan:
    if plan is not None and format is not None:
        raise BitsectError("pass either a plan or a format, not both")
    if isinstance(plan, Plan):
        return plan
    if plan is not None:
        return Plan.read(Path(plan), program.layers)
    wanted = Format.parse(format) if isinstance(format, str) else format
    return Plan.uniform(program.layers, wanted or INT8)
