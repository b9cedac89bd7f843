"""The whole story, one stage per line."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import torch
from torch import nn

from .binding import Inputs
from .capture import capture
from .data import Samples, load_samples
from .data.load import MEMORY
from .errors import BitsectError, CaptureError, DataError, RunError, TargetError
from .export.deliver import Delivery, check_request, deliver
from .export.runtime import RUNTIMES, Ran, run_onnx
from .judge import Evaluate, Judge, function_name
from .latency import Budget, cost, faster_formats, latency_table
from .measure.traces import FEWEST_PROBES
from .metrics import Metric, Options, metric_named
from .models import load_model, parse_example
from .opening import is_folder, open_run
from .program import Program
from .progress import Progress
from .request import (
    check_measuring,
    parse_format,
    parse_formats,
    parse_limits,
    parse_target,
    plan_for,
    scoring_format,
    search_named,
)
from .result import Judged, Result, Test
from .run import PROBES, Run, Settings, one_of
from .search import Found, Problem, Search, high_to_low, pinned
from .search.budget import within_budget
from .tasks import task_named
from .values import FLOAT, INT4, INT8, Cost, Evaluation, Format, LatencyTable, Layer, Plan, Scores, Target

Allowed = Mapping[str, tuple[Format, ...]]

OBJECTIVES = ("latency", "size")
NO_LABELS = "no labels: accuracy is agreement with the float network's own answers"


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
    measuring: Mapping[str, Any] | None = None,
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
    or any iterable of batches. `evaluate`, a function of a module, replaces the task's accuracy; what
    it said of a plan is remembered under its name.
    """
    # Whatever can be refused is refused before the first minute of work.
    goal, limits = parse_target(target, budget, max_size), parse_limits(budget, max_size, latency)
    wanted, scored_in = parse_formats(formats), scoring_format(score_format, formats)
    chosen, find = metric_named(metric), search_named(search)
    measuring = check_measuring(measuring)
    one_of("objective", objective, OBJECTIVES)
    if evaluate is not None and test is not None:
        raise BitsectError(
            "evaluate= judges networks, not samples: leave test= out, and judge result.model()"
        )

    with open_run(model, samples, out=out, fresh=fresh, progress=progress, **opening) as run:
        layers, table = run.program.layers, _table(latency, run.program)
        unseen = _unseen(run, test) if test is not None else None
        possible = pinned(layers, wanted, keep)
        allowed = _allowed(layers, possible, table, objective)
        steps = _steps(allowed)
        judge = Judge(run, {*steps, *wanted}, evaluate)
        scores = {
            format: _scores(run, chosen, format, options, measuring)
            for format in high_to_low(map(scored_in, steps or wanted))
        }
        with run.progress.stage("search") as judge.progress:
            threshold = _threshold(goal, judge(Plan.uniform(layers)))
            order = {step: scores[scored_in(step)].order() for step in steps}
            problem = Problem(layers, allowed, order.__getitem__, threshold, judge)
            found = _search(problem, find, goal, limits, table, keep)
        evaluations = len(judge.judged)
        plans = {"float": Plan.uniform(layers)}
        plans |= {f"all {format}": Plan.uniform(layers, format) for format in wanted}
        plans["plan"] = found.plan
        with run.progress.stage("compare", len(plans)) as judge.progress:
            rows = tuple(
                Judged(name, plan, judge(plan), _cost(plan, layers, table)) for name, plan in plans.items()
            )
        result = Result(
            run=run,
            target=goal,
            plan=found.plan,
            target_met=found.met,
            reason=found.reason,
            rows=rows,
            test=_test(run, goal, plans, unseen) if unseen is not None else None,
            scores=next(iter(scores.values())),
            evaluations=evaluations,
            seconds=run.progress.seconds,
            agreement=run.samples.labels is None,
            judge=None if evaluate is None else function_name(evaluate),
            notes=(
                *_outcome(problem, found, goal),
                *_overlooked(problem, rows),
                *_notes(run, possible, steps, table, objective),
            ),
        )
        result.keep()
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
    measuring: Mapping[str, Any] | None = None,
    **opening: Any,
) -> Scores:
    """The scores of all layers, with how far they can be trusted.

    `until_stable` doubles the samples, and the probes of the Hessian, until two halves of them agree
    that well on the order.
    """
    chosen, (wanted,), measuring = metric_named(metric), parse_formats((format,)), check_measuring(measuring)
    with open_run(model, samples, out=out, fresh=fresh, progress=progress, **opening) as run:
        most = {"samples": len(run.samples), "probes": measuring.get("probes", PROBES)}
        fewest = {"samples": run.settings.batch_size, "probes": FEWEST_PROBES}
        draws = most if until_stable is None else {name: min(fewest[name], most[name]) for name in most}
        while True:
            scores = _scores(run, chosen, wanted, options, measuring | draws)
            agreed = until_stable is None or (scores.split_half or 0.0) >= until_stable
            if agreed or draws == most:
                return scores
            draws = {name: min(2 * draws[name], most[name]) for name in most}


def evaluate(
    model: Any,
    samples: Any = None,
    *,
    calibration: Any = None,
    plan: str | Path | Plan | None = None,
    format: str | Format | None = None,
    task: Any = None,
    settings: Settings | Mapping[str, Any] | None = None,
    draw: int | None = None,
    seed: int = 0,
    progress: Progress | None = None,
    **opening: Any,
) -> tuple[Judged, Judged, bool]:
    """The float network and the plan, judged; and whether accuracy is agreement for want of labels.

    Ranges come from `calibration`, those of a run from the run, else from the judged samples themselves.
    A run is judged on its own samples and by its own plan where no others are given.
    """
    wanted = parse_format(plan, format)
    drawn = {"draw": draw, "seed": seed}
    apart = calibration is not None or is_folder(model)  # ranges do not come from the judged samples
    opening |= {"task": task, "settings": settings, "progress": progress} | ({} if apart else drawn)
    with open_run(model, calibration if apart else samples, **opening) as run:
        judged = run.samples if samples is None else samples
        if apart:
            judged = run.load(judged, samples=draw, seed=seed)
        chosen = plan_for(run, plan, wanted)
        evaluator = run.evaluator(set(chosen.values()), judged if apart else None)
        rows = []
        for name, each in (("float", Plan.uniform(run.program.layers)), ("plan", chosen)):
            with run.progress.stage(f"evaluate {name}", len(evaluator.samples)) as evaluator.progress:
                rows.append(Judged(name, each, evaluator(each), cost(each, run.program.layers)))
        return rows[0], rows[1], evaluator.samples.labels is None


def export(
    run: str | Path,
    path: str | Path,
    *,
    plan: str | Path | Plan | None = None,
    format: str | Format | None = None,
    to: str = "onnx",
    made_for: str = "onnxruntime",
    test: Any = None,
    draw: int | None = None,
    seed: int = 0,
    force: bool = False,
    require_speedup: bool = False,
    trust: bool = False,
    progress: Progress | None = None,
) -> Delivery:
    """The run's plan (or another) written to `path`, and what came of proving it.

    It is proven on `test`, else on the samples that the run was tested on, else on its own.
    """
    wanted = parse_format(plan, format)
    check_request(path, to, made_for, force, require_speedup)
    with open_run(run, trust=trust, progress=progress) as opened:
        if plan is None and wanted is None and not (opened.folder.path / "plan.json").exists():
            raise RunError(f"{run} holds no plan yet: `bitsect search {run} --target 99%` finds one")
        chosen = plan_for(opened, plan, wanted)
        known = opened.folder.read_json("result.json") or {}
        goal = known.get("target") if known.get("judge") is None else None
        tested_on = (known.get("test") or {}).get("data", MEMORY)
        if test is None and tested_on != MEMORY:
            test = tested_on
        samples = opened.load(opened.samples if test is None else test, samples=draw, seed=seed)
        return deliver(
            opened,
            chosen,
            path,
            to=to,
            made_for=made_for,
            goal=None if goal is None else Target.parse(goal),
            test=samples,
            force=force,
            require_speedup=require_speedup,
        )


def evaluate_file(
    path: str | Path,
    samples: Any,
    *,
    task: Any = None,
    runtime: str = "onnxruntime",
    batch_size: int = 64,
    threads: int | None = None,
    draw: int | None = None,
    seed: int = 0,
    data_options: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
) -> Ran:
    """How the model in an ONNX file does on labelled samples in a runtime, and how fast.

    Pixels are normalised as the file says that they were when it was made, unless options are given.
    """
    one_of("runtime", runtime, RUNTIMES)
    model = RUNTIMES[runtime](path, threads=threads)
    loaded = load_samples(samples, samples=draw, seed=seed, **(data_options or model.pixels))
    with (progress or Progress()).stage("evaluate", len(loaded)) as advance:
        judge = task_named(task or "classification")
        return run_onnx(model, loaded, judge, batch_size=batch_size, progress=advance)


def capture_model(
    spec: str,
    *,
    example: Inputs = None,
    input_shape: str | None = None,
    trust: bool = False,
    embeddings: bool = False,
    device: str | torch.device | None = None,
) -> Program:
    """The program of the network that `spec` names, or that the run in this folder is of."""
    if is_folder(spec):
        with open_run(spec, trust=trust) as run:
            return run.program
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


# Stages


def _table(latency: str | LatencyTable | None, program: Program) -> LatencyTable | None:
    if latency is None or isinstance(latency, LatencyTable):
        return latency
    return latency_table(latency, program.layers)


def _allowed(
    layers: tuple[Layer, ...], pinned: Allowed, table: LatencyTable | None, objective: str
) -> Allowed:
    """The formats that each layer may take: of those it is pinned to, those that the device makes faster."""
    if table is None:
        return pinned
    if objective == "latency":
        return faster_formats(layers, table, pinned)
    allowed = {}
    for layer in layers:
        allowed[layer.name] = tuple(f for f in pinned[layer.name] if table.supports(f, layer))
        if not allowed[layer.name]:
            names = ", ".join(map(str, pinned[layer.name]))
            raise BitsectError(
                f"layer '{layer.name}' does not run in {names} on {table.device}: allow others"
            )
    return allowed


def _threshold(goal: Target | None, baseline: Evaluation) -> Fraction:
    if goal is None:
        return Fraction(0)
    if not baseline.correct:
        raise DataError(
            "the float network gets no sample right, so every plan would keep the target: "
            "check the labels and how the inputs are normalised"
        )
    return goal.threshold(baseline.exact)


def _search(
    problem: Problem,
    find: Search,
    goal: Target | None,
    limits: Budget | None,
    table: LatencyTable | None,
    keep: Sequence[str],
) -> Found:
    """The plan for the target; where that is over the budget, the most accurate one within it."""
    found = None
    if goal is not None:
        try:
            found = find(problem)
        except TargetError as error:
            pins = [f"--keep {pin}" for pin in keep if FLOAT.name not in pin.rpartition("=")[2]]
            raise TargetError(": ".join([*pins, str(error)])) from None
    if limits is None or (found is not None and limits.fits(cost(found.plan, problem.layers, table))):
        assert found is not None
        return found
    asked = [plan for plan, _ in found.evaluated] if found is not None else []
    try:
        return within_budget(problem, lambda plan: limits.excess(cost(plan, problem.layers, table)), asked)
    except TargetError as error:
        raise TargetError(f"budget {limits}: {error}") from None


def _cost(plan: Plan, layers: tuple[Layer, ...], table: LatencyTable | None) -> Cost:
    """What `plan` costs; without latency where the device does not run it."""
    runs = table is None or all(table.supports(plan[layer.name], layer) for layer in layers)
    return cost(plan, layers, table if runs else None)


def _unseen(run: Run, test: Any) -> Samples:
    """The test samples, of which one is run: they are wanted last, and refused first."""
    samples = run.load(test)
    run.program.run(samples.inputs(slice(0, 1)))
    return samples


def _test(run: Run, goal: Target | None, plans: Mapping[str, Plan], samples: Samples) -> Test:
    """The rows of the closing table on samples that the search has not seen."""
    formats = {format for plan in plans.values() for format in plan.values()}
    evaluator = run.evaluator(formats, samples)
    with run.progress.stage("test", len(samples) * len(plans)) as evaluator.progress:
        rows = {name: evaluator(plan) for name, plan in plans.items()}
    met = goal is None or rows["plan"].reaches(goal.threshold(rows["float"].exact)) is True
    return Test(rows["float"], rows["plan"], met, samples.spec, rows)


def _steps(allowed: Allowed) -> tuple[Format, ...]:
    """The formats below float that any layer may take, from high to low."""
    return high_to_low(format for ladder in allowed.values() for format in ladder if format != FLOAT)


def _outcome(problem: Problem, found: Found, goal: Target | None) -> Iterator[str]:
    """The two ends of a search, said in so many words."""
    ends = {name: ladder for name, ladder in problem.ladders.items() if len(ladder) > 1}
    if goal is not None and found.met and ends:
        if all(found.plan[name] == ladder[0] for name, ladder in ends.items()):
            yield f"nothing lower keeps the target of {goal}: every layer stays at its highest"
        if all(found.plan[name] == ladder[-1] for name, ladder in ends.items()):
            yield f"the lowest format already keeps the target of {goal} in every layer"


def _overlooked(problem: Problem, rows: Sequence[Judged]) -> Iterator[str]:
    """Uniform plans that would do with less: accuracy need not fall along the order that a search follows."""
    *others, found = rows
    for row in others:
        allowed = all(format in problem.ladders[name] for name, format in row.plan.items())
        smaller = row.cost.size_bytes < found.cost.size_bytes
        if problem.threshold and allowed and smaller and row.evaluation.reaches(problem.threshold):
            format = next(iter(row.plan.values()))
            yield (
                f"{row.name} keeps the target too and is smaller, though parts of the way there do not: "
                f"--keep '*={format}' takes it"
            )


def _notes(
    run: Run, possible: Allowed, steps: Sequence[Format], table: LatencyTable | None, objective: str
) -> Iterator[str]:
    left_out = ", ".join(str(format) for format in _steps(possible) if format not in steps)
    if table is not None and left_out and objective == "latency":
        yield f"no layer is faster in {left_out} on {table.device}: --objective size takes it all the same"
    elif table is not None and left_out:
        yield f"{table.device} runs no layer in {left_out}"
    if run.samples.labels is None:
        yield NO_LABELS


def _scores(
    run: Run, metric: Metric, format: Format, options: Options | None, measuring: Mapping[str, Any]
) -> Scores:
    scores = run.scores(metric, format, options, **measuring)
    run.folder.write_json(f"scores-{scores.metric}-{scores.format}.json", scores.to_json())
    return scores
