"""The whole story, one stage per line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ..errors import BitsectError, CaptureError, DataError, RunError, TargetError
from ..exporters.deliver import Delivery, check_request, deliver
from ..exporters.runtimes.onnxruntime import RUNTIMES, OnnxModel, Ran, run_onnx
from ..latency import latency_table
from ..network.binding import Inputs
from ..network.capture import capture
from ..network.program import Program
from ..network.remarks import remarks, unseen_layers
from ..runs.opening import is_folder, open_run
from ..runs.progress import Progress
from ..runs.run import PROBES, Run, Settings, one_of
from ..solve.costs import cost, faster_formats
from ..solve.metrics import Metric, Options, metric_named
from ..solve.search import SEARCHES, Found, Problem, Search, high_to_low, pinned, uniform_plan
from ..solve.search.uniform import or_cheaper_uniform
from ..solve.search.within_budget import within_budget
from ..sources.data import Samples, load_samples
from ..sources.models import load_model, parse_example
from ..sources.tasks import TASKS, Task, task_named
from ..values import FLOAT, INT4, INT8, Cost, Evaluation, Format, LatencyTable, Layer, Plan, Scores, Target
from ..values.budget import Budget
from .judge import Evaluate, Judge, function_name
from .notes import (
    Allowed,
    about_device,
    about_output,
    about_rounding,
    about_samples,
    about_search,
    about_uniform,
)
from .request import (
    check_measuring,
    parse_format,
    parse_formats,
    parse_limits,
    parse_target,
    plan_for,
    scoring_format,
    search_named,
    tested_on,
    unseen_samples,
)
from .result import Judged, Result, Test, uniform_name

OBJECTIVES = ("latency", "size")


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
        unseen = unseen_samples(run, test) if evaluate is None else None
        possible = pinned(layers, wanted, keep)
        allowed = _allowed(layers, possible, table, objective)
        steps = _steps(allowed)
        judge = Judge(run, evaluate)
        float_network = judge.float_network()
        threshold = _threshold(goal, float_network)
        labels = judge.evaluator.labels if evaluate is None else None
        notes = tuple(about_samples(run, labels, float_network, goal))
        for note in notes:
            run.progress.say(note)
        judge.calibrate({*steps, *wanted})
        scores = {
            format: _scores(run, chosen, format, options, measuring)
            for format in high_to_low(map(scored_in, steps or wanted))
        }
        with run.progress.stage("search") as judge.progress:
            order = {step: scores[scored_in(step)].order() for step in steps}
            problem = Problem(layers, allowed, order.__getitem__, threshold, judge)
            found = _search(problem, find, goal, limits, table, objective, keep)
        evaluations = len(judge.judged)
        plans = {"float": Plan.uniform(layers)}
        for format in wanted:
            uniform = uniform_plan(possible, format)
            plans[uniform_name(uniform, format)] = uniform
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
            budget=None if limits is None else str(limits),
            notes=(
                *about_search(problem, found, goal),
                *about_uniform(problem, rows, objective),
                *about_device(possible, steps, table, objective),
                *notes,
                *remarks(run.program),
                *about_rounding(run),
                *unseen_layers(run.program, run.ranges_for(())),
                *next(iter(scores.values())).doubts(),
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
        for note in about_output(run):
            run.progress.say(note)
        most = {"samples": len(run.samples), "probes": measuring.get("probes", PROBES)}
        fewest = {"samples": run.settings.batch_size, "probes": 2}
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
    seed: int | None = None,
    progress: Progress | None = None,
    **opening: Any,
) -> tuple[Judged, Judged, bool]:
    """The float network and the plan, judged; and whether accuracy is agreement for want of labels.

    Ranges come from `calibration`, those of a run from the run, else from the judged samples themselves.
    A run is judged on its own samples and by its own plan where no others are given; samples that are its
    own are known again wherever they lie.
    """
    wanted = parse_format(plan, format)
    drawn = {"draw": draw, "seed": seed}
    apart = calibration is not None or is_folder(model)  # ranges do not come from the judged samples
    opening |= {"task": task, "settings": settings, "progress": progress} | ({} if apart else drawn)
    opening |= {"elsewhere": samples} if apart else {}
    with open_run(model, calibration if apart else samples, **opening) as run:
        for note in about_output(run):
            run.progress.say(note)
        judged = run.samples if samples is None else samples
        if apart:
            judged = run.load(judged, samples=draw, seed=seed)
        chosen = plan_for(run, plan, wanted)
        rows = []
        for name, each in (("float", Plan.uniform(run.program.layers)), ("plan", chosen)):
            formats = (
                None if name == "float" else set(chosen.values())
            )  # labels are refused before calibration
            evaluator = run.evaluator(formats, judged if apart else None)
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
    seed: int | None = None,
    force: bool = False,
    require_speedup: bool = False,
    task: Any = None,
    trust: bool = False,
    progress: Progress | None = None,
) -> Delivery:
    """The run's plan (or another) written to `path`, and what came of proving it.

    It is proven on `test`, else on the samples that the run was tested on, else on its own.
    """
    wanted = parse_format(plan, format)
    check_request(path, to, made_for, force, require_speedup)
    with open_run(run, task=task, trust=trust, progress=progress, elsewhere=test) as opened:
        chosen, known = plan_for(opened, plan, wanted), opened.folder.read_json("result.json")
        own = plan is None and wanted is None
        if own and not (opened.folder.path / "plan.json").exists():
            raise RunError(f"{run} holds no plan yet: `bitsect search {run} --target 99%` finds one")
        if own and known is None:
            raise RunError(
                f"{run} holds no result.json, so that its target is not known: `bitsect search {run} "
                f"--target 99%` makes it again; --plan {run}/plan.json exports without a target"
            )
        known = known or {}
        goal = known.get("target") if known.get("judge") is None else None
        samples = tested_on(opened) if test is None else None
        samples = opened.load(samples or (opened.samples if test is None else test), samples=draw, seed=seed)
        delivery = deliver(
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
    if own and known.get("plan_key") != chosen.key:
        edited = f"plan.json of {run} is not the plan that its last search found: it was edited"
        delivery = replace(delivery, remarks=(edited,))
    return delivery


def evaluate_file(
    path: str | Path,
    samples: Any,
    *,
    task: Any = None,
    output: str | None = None,
    runtime: str = "onnxruntime",
    batch_size: int = 64,
    threads: int | None = None,
    draw: int | None = None,
    seed: int | None = None,
    data_options: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
) -> Ran:
    """How the model in an ONNX file does on labelled samples in a runtime, and how fast.

    Pixels are normalised, and the task and output are, as the file says that they were when it was made,
    unless others are given.
    """
    one_of("runtime", runtime, RUNTIMES)
    model = RUNTIMES[runtime](path, threads=threads)
    loaded = load_samples(samples, samples=draw, seed=seed, **(data_options or model.pixels))
    output = output or model.metadata.get("bitsect.output")
    judge = _task_of(model, task).on(output, model.run(loaded.inputs(slice(0, 1))))
    with (progress or Progress()).stage("evaluate", len(loaded)) as advance:
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


def _task_of(model: OnnxModel, task: Any) -> Task:
    """The task that is asked for, else the one that the file was judged by, if that is one of ours."""
    known = model.metadata.get("bitsect.task", "classification")
    if task is None and known not in TASKS:
        raise BitsectError(f"{model.path} was judged by the task '{known}': pass it again with --task")
    return task_named(task or known)


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
    objective: str,
    keep: Sequence[str],
) -> Found:
    """The plan for the target; where that is over the budget, the most accurate one within it."""

    def spent(plan: Plan) -> Cost:
        return cost(plan, problem.layers, table)

    def price(plan: Plan) -> float:
        latency = spent(plan).latency_ms if objective == "latency" else None
        return spent(plan).size_bytes if latency is None else latency

    found = None
    if goal is not None:
        try:
            found = find(problem)
        except TargetError as error:
            pins = [f"--keep {pin}" for pin in keep if FLOAT.name not in pin.rpartition("=")[2]]
            raise TargetError(": ".join([*pins, str(error)])) from None
        if find is not SEARCHES["literal"]:  # which is there to show what the printed one comes to
            found = or_cheaper_uniform(problem, found, price)
    if limits is None or (found is not None and limits.fits(spent(found.plan))):
        assert found is not None
        return found
    asked = [problem.uniform(format) for format in problem.formats]
    asked += [plan for plan, _ in found.evaluated] if found is not None else []
    try:
        return within_budget(problem, lambda plan: limits.excess(spent(plan)), asked)
    except TargetError as error:
        raise TargetError(f"budget {limits}: {error}") from None


def _cost(plan: Plan, layers: tuple[Layer, ...], table: LatencyTable | None) -> Cost:
    """What `plan` costs; without latency where the device does not run it."""
    runs = table is None or all(table.supports(plan[layer.name], layer) for layer in layers)
    return cost(plan, layers, table if runs else None)


def _test(run: Run, goal: Target | None, plans: Mapping[str, Plan], samples: Samples) -> Test:
    """The rows of the closing table on samples that the search has not seen."""
    formats = {format for plan in plans.values() for format in plan.values()}
    evaluator = run.evaluator(formats, samples)
    with run.progress.stage("test", len(samples) * len(plans)) as evaluator.progress:
        rows = {name: evaluator(plan) for name, plan in plans.items()}
    met = goal is None or rows["plan"].reaches(goal.threshold(rows["float"].exact)) is True
    return Test(rows["float"], rows["plan"], met, samples.spec, samples.fingerprint(), rows)


def _steps(allowed: Allowed) -> tuple[Format, ...]:
    """The formats below float that any layer may take, from high to low."""
    return high_to_low(format for ladder in allowed.values() for format in ladder if format != FLOAT)


def _scores(
    run: Run, metric: Metric, format: Format, options: Options | None, measuring: Mapping[str, Any]
) -> Scores:
    scores = run.scores(metric, format, options, **measuring)
    run.folder.write_json(f"scores-{scores.metric}-{scores.format}.json", scores.to_json())
    return scores
