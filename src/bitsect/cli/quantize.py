"""bitsect quantize and bitsect search: a target in, a plan out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..values import Goal, Resources, Scoring, Settings
from ..values.settings import SAMPLES
from .app import JsonOption, OptionalModelArgument, TrustOption
from .options import (
    DataOption,
    ExportOption,
    FreshOption,
    MethodOption,
    OutOption,
    RecipeOption,
    RunArgument,
    TestDataOption,
    ValidationDataOption,
    command,
    run_folder,
    run_of,
)

if TYPE_CHECKING:
    from ..pipeline.result import Result
    from ..pipeline.rivals import Other


@command
def quantize(
    goal: Goal,
    scoring: Scoring,
    settings: Settings,
    resources: Resources,
    model: OptionalModelArgument = None,
    recipe: RecipeOption = None,
    method: MethodOption = None,
    data: DataOption = None,
    test_data: TestDataOption = None,
    validation_data: ValidationDataOption = None,
    out: OutOption = None,
    export: ExportOption = None,
    fresh: FreshOption = False,
    trust: TrustOption = False,
    json: JsonOption = False,
) -> None:
    """Find the format of each layer that keeps the target, and write it as a plan.

    bitsect quantize zoo:fashion-resnet --target 99% --out runs/first
    """
    from ..pipeline.quantize import quantize as find
    from ..pipeline.recipe import run_recipe
    from .bars import ShownProgress
    from .output import print_json, working

    options: dict[str, Any] = {
        "settings": settings,
        "scoring": scoring,
        "goal": goal,
        "resources": resources,
        "method": method,
        "test_data": test_data,
        "validation_data": validation_data,
        "out": out,
        "export": export,
        "fresh": fresh,
        "trust": trust,
        "progress": ShownProgress(),
    }
    if recipe is not None:
        with working(out):
            results = run_recipe(recipe, data, model=model, **options)
        if json:
            print_json({"results": [result.to_json() for result in results]})
        else:
            for result in results:
                _show(result, json)
        return _end(results)
    if model is None:
        raise typer.BadParameter("which network? Name one, or pass --recipe NAME", param_hint="MODEL")
    with working(run_of(model, out)):
        result = find(model, data, **options)
    _show(result, json)
    return _end([result])


@command
def search(
    run: RunArgument,
    goal: Goal,
    scoring: Scoring,
    resources: Resources,
    data: Annotated[
        str | None,
        typer.Option(help="Where the run's samples lie, if they have moved.", rich_help_panel=SAMPLES),
    ] = None,
    test_data: TestDataOption = None,
    validation_data: ValidationDataOption = None,
    method: MethodOption = None,
    task: Annotated[
        str | None,
        typer.Option(
            help="The run's own task again, if that is a function of yours.", rich_help_panel=SAMPLES
        ),
    ] = None,
    export: ExportOption = None,
    trust: TrustOption = False,
    json: JsonOption = False,
) -> None:
    """Solve a run again for another target, metric or budget; nothing is measured twice.

    bitsect search runs/first --target 99.9%
    """
    from ..pipeline.quantize import quantize as find
    from .bars import ShownProgress
    from .output import working

    run_folder(run)
    settings = Settings() if task is None else Settings(task=task)
    with working(run):
        result = find(
            run,
            data,
            settings=settings,
            scoring=scoring,
            goal=goal,
            resources=resources,
            method=method,
            test_data=test_data,
            validation_data=validation_data,
            export=export,
            trust=trust,
            progress=ShownProgress(),
        )
    _show(result, json)
    _end([result])


def _end(results: Sequence[Result]) -> None:
    """Everything is kept and shown; but a script must not go on with a plan that may miss its target."""
    from ..values.verdict import EXIT_CODES, MISSED, UNPROVEN
    from .output import note

    wanted = [result for result in results if result.target is not None]
    for met, outcome, words in ((False, MISSED, "not kept"), (None, UNPROVEN, "not proven to be kept")):
        targets = ", ".join(f"{result.target}" for result in wanted if result.target_met is met)
        if targets:
            note(f"Target {targets} is {words}, so the exit code is {EXIT_CODES[outcome]}")
            raise typer.Exit(EXIT_CODES[outcome])


def _show(result: Result, json: bool) -> None:
    from ..errors import in_command
    from ..values import megabytes
    from ..values.destination import BITS, destination_named
    from .output import layers_by_format, note, print_json, stdout
    from .tables import accuracy_cell, table_of

    if json:
        return print_json(result.to_json())
    where, timed = destination_named(result.goal.destination), result.rows[0].cost.latency_ms is not None
    other = " (--for says where it will run)" if where.name == BITS else ""
    stdout.print(f"For {where.name}: {where.in_words(by_table=timed)}{other}.", markup=False)
    formats = list(dict.fromkeys(format.name for row in result.rows[1:] for format in row.plan.values()))
    tested = ["held out"] if result.promise is not None else []
    tested += ["on test"] if result.test is not None else []
    table = table_of("", "accuracy", *tested, "size", *(["latency"] if timed else []), *formats)
    for row in result.rows:
        cells = [accuracy_cell(row.evaluation, counts=False)]
        if result.promise is not None:
            share = result.promise.accuracy.get(row.name)
            cells.append("–" if share is None else f"{share:.2%}")
        if result.test is not None:
            known = result.test.rows.get(row.name)
            cells.append("–" if known is None else accuracy_cell(known, counts=False))
        cells.append(f"{megabytes(row.cost.size_bytes)} {row.cost.size_ratio:4.0%}")
        if timed:
            ms, ratio = row.cost.latency_ms, row.cost.latency_ratio
            cells.append("–" if ms is None or ratio is None else f"{ms:.3g} ms {ratio:4.0%}")
        macs = row.plan.macs(result.run.layers)
        shares = [macs[name] / (sum(macs.values()) or 1) if name in macs else None for name in formats]
        digits = 1 if len(formats) + len(tested) + timed <= 4 else 0  # so that a line has room for them
        cells += ["–" if share is None else f"{share:.{digits}%}" for share in shares]
        table.add_row(row.name, *cells)
    stdout.print(table)
    stdout.print(f"Under {', '.join(formats)}: the share of the multiply-adds.\n", style="dim")
    stdout.print(f"Plan: {layers_by_format(result.plan)} layers.")
    if result.timing is not None:
        stdout.print(_measured(result), markup=False)
    stdout.print(f"Search: {in_command(result.reason)}.", markup=False)
    if result.target is not None:
        stdout.print(f"Target {result.target}: {_kept(result)}.")
    for line in result.remarks:
        stdout.print(f"Note: {in_command(line).removesuffix('.')}.", markup=False)
    seconds = ", ".join(f"{name} {value:.1f} s" for name, value in result.seconds.items())
    stdout.print(f"Plans judged by the search: {result.evaluations}. Time: {seconds}.")
    _show_file(result)
    if not result.run.temporary:
        note(f"Plan written to {result.run.folder.path / 'plan.json'}")
        if (page := result.run.folder.path / "report.html").exists():
            note(f"Report written to {page}")
    for line in _next(result):
        note(f"Next: {line}")
    return None


def _show_file(result: Result) -> None:
    """The file that was written, beside float's."""
    from ..errors import in_command
    from ..values import megabytes
    from .output import stdout

    delivery = result.delivery
    if delivery is None:
        return
    proof = delivery.proof
    parts = [f"{megabytes(proof.size_bytes)} beside {megabytes(proof.float_size_bytes)} of float's file"]
    if proof.latency_ratio is not None:
        pace = "SLOWER than float, " if proof.slower else ""
        times = f"{proof.latency_ms:.3g} ms beside {proof.float_latency_ms:.3g} ms"
        parts.append(f"{pace}{times} ({proof.latency_ratio:.2f}x)")
    before, after = result.rows[0].evaluation, result.rows[-1].evaluation
    if result.test is not None:
        before, after = result.test.float, result.test.plan
    parts.append(f"accuracy {after.shown} beside {before.shown}")
    same = proof.samples - len(proof.differing)
    parts.append(f"{same:,} of {proof.samples:,} answers are the judged model's in {proof.runtime}")
    state = f"File: {delivery.path}" if delivery.kept else f"NOT written: {in_command(delivery.complaint)}"
    stdout.print(f"{state}: {'; '.join(parts)}.", markup=False, soft_wrap=True)
    for line in delivery.remarks:
        stdout.print(f"Note: {in_command(line)}.", markup=False)
    for other in result.others:
        if other.path is not None:
            stdout.print(
                f"Better: {other.path}, made by {other.tool}: {other.ratio:.2f} of the time of float, "
                f"{megabytes(other.size_bytes or 0)}, target {result.target} {other.said}.",
                markup=False,
                soft_wrap=True,
            )
    if worse := [other for other in result.others if other.path is None]:
        stdout.print(f"Other tools: {'; '.join(map(_worse, worse))}.", markup=False, soft_wrap=True)


def _worse(other: Other) -> str:
    """Why the file of another tool is not the answer."""
    from ..values import megabytes

    if other.ratio is None or other.size_bytes is None:
        return f"{other.tool} ({other.said})"
    return f"{other.tool} ({other.ratio:.2f}x, {megabytes(other.size_bytes)}: {other.said})"


def _next(result: Result) -> list[str]:
    """Two commands to type next."""
    if result.run.temporary:
        return []
    run, delivery = result.run.folder.path, result.delivery
    if result.target is not None and not result.target_met:
        return [f"bitsect blame {run}", f"bitsect show {run}"]
    if delivery is None or not delivery.kept:
        return [f"bitsect export {run} -o FILE.onnx", f"bitsect show {run}"]
    data = "FILE" if result.test is None else result.test.data
    judged = f"bitsect evaluate {delivery.path} --data {data}" if delivery.path.suffix == ".onnx" else ""
    return [judged or f"bitsect show {run}", f"bitsect report {run} --open"]


def _measured(result: Result) -> str:
    """What the files of the rows took, beside what was predicted."""
    timing = result.timing
    assert timing is not None
    known = timing.to_json({row.name: row.plan for row in result.rows})["plans"]
    parts = []
    for name, times in known.items():
        against = times["measured_ratio"]
        share = "" if name == "float" or against is None else f" ({against:.2f} of float"
        if share and times["predicted_ratio"] is not None:
            share += f", predicted {times['predicted_ratio']:.2f}"
        parts.append(f"{name} {times['measured_ms']:.3g} ms{share + ')' if share else ''}")
    threads = "one thread" if timing.measured.threads == 1 else f"{timing.measured.threads} threads"
    length = timing.measured.length
    on = "" if length is None else f", sequences of length {length}"
    return f"Measured in {timing.measured.runtime}, {threads}{on}: {'; '.join(parts)}."


def _kept(result: Result) -> str:
    """Whether the target is kept: as held-out samples prove it, else on the searched ones; and on test."""
    tested = []
    if result.test is not None:
        tested = [f"{'kept' if result.test.target_met else 'NOT kept'} on the test samples"]
    if result.promise is None:
        first = f"{'kept' if result.target_met else 'NOT kept'} on the calibration samples"
        return ", ".join([first, *tested])
    promise = result.promise
    seen = f"{promise.samples:,} held-out samples: {promise.seen}"
    return ", ".join([f"{promise.verdict} ({seen})", *tested])
