"""bitsect quantize and bitsect search: a target in, a plan out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from .app import JsonOption, ModelOrRunArgument, TrustOption
from .options import (
    SAMPLES,
    FreshOption,
    Goal,
    Measuring,
    Opening,
    OutOption,
    RunArgument,
    SeedOption,
    TaskOption,
    TestDataOption,
    command,
    run_folder,
    run_of,
    zoo_data,
)

if TYPE_CHECKING:
    from ..pipeline.result import Result


@command
def quantize(
    model: ModelOrRunArgument,
    goal: Goal,
    measuring: Measuring,
    opening: Opening,
    test_data: TestDataOption = None,
    out: OutOption = None,
    fresh: FreshOption = False,
    json: JsonOption = False,
) -> None:
    """Find the format of each layer that keeps the target, and write it as a plan."""
    from ..pipeline.quantize import quantize as find
    from .bars import ShownProgress
    from .output import working

    with working(run_of(model, out)):
        result = find(
            model,
            zoo_data(model, opening.data),
            test=zoo_data(model, test_data, "test"),
            out=out,
            fresh=fresh,
            progress=ShownProgress(),
            **goal.arguments(),
            **measuring.arguments(opening.seed),
            **opening.arguments(),
        )
    _show(result, json)


@command
def search(
    run: RunArgument,
    goal: Goal,
    measuring: Measuring,
    test_data: TestDataOption = None,
    data: Annotated[
        str | None,
        typer.Option(help="Where the run's samples lie, if they have moved.", rich_help_panel=SAMPLES),
    ] = None,
    task: TaskOption = None,
    seed: SeedOption = 0,
    trust: TrustOption = False,
    json: JsonOption = False,
) -> None:
    """Solve a run again for another target, metric or budget; nothing is measured twice."""
    from ..pipeline.quantize import quantize as find
    from .bars import ShownProgress
    from .output import working

    run_folder(run)
    with working(run):
        result = find(
            run,
            data,
            test=test_data,
            task=task,
            trust=trust,
            progress=ShownProgress(),
            **goal.arguments(),
            **measuring.arguments(seed),
        )
    _show(result, json)


def _show(result: Result, json: bool) -> None:
    from ..values import megabytes
    from .output import layers_by_format, note, print_json, stdout
    from .tables import accuracy_cell, table_of

    if json:
        return print_json(result.to_json())
    timed = result.rows[0].cost.latency_ms is not None
    formats = list(dict.fromkeys(format.name for row in result.rows for format in row.plan.values()))
    tested = ["on test"] if result.test is not None else []
    table = table_of("", "accuracy", *tested, "size", *(["latency"] if timed else []), *formats)
    for row in result.rows:
        cells = [accuracy_cell(row.evaluation, counts=False)]
        if result.test is not None:
            cells.append(accuracy_cell(result.test.rows[row.name], counts=False))
        cells.append(f"{megabytes(row.cost.size_bytes)} {row.cost.size_ratio:4.0%}")
        if timed:
            ms, ratio = row.cost.latency_ms, row.cost.latency_ratio
            cells.append("–" if ms is None or ratio is None else f"{ms:.3g} ms {ratio:4.0%}")
        macs = row.plan.macs(result.run.program.layers)
        shares = [macs[name] / (sum(macs.values()) or 1) if name in macs else None for name in formats]
        digits = 1 if len(formats) <= 3 else 0  # so that a line has room for them
        cells += ["–" if share is None else f"{share:.{digits}%}" for share in shares]
        table.add_row(row.name, *cells)
    stdout.print(table)
    stdout.print(f"Under {', '.join(formats)}: the share of the multiply-adds.\n", style="dim")
    stdout.print(f"Plan: {layers_by_format(result.plan)} layers.")
    stdout.print(f"Search: {result.reason}.")
    if result.target is not None:
        on = [("calibration", result.target_met)]
        on += [("test", result.test.target_met)] if result.test is not None else []
        held = ", ".join(f"{'kept' if met else 'NOT kept'} on the {samples} samples" for samples, met in on)
        stdout.print(f"Target {result.target}: {held}.")
    for line in result.notes:
        stdout.print(f"Note: {line}.")
    seconds = ", ".join(f"{name} {value:.1f} s" for name, value in result.seconds.items())
    stdout.print(f"Plans judged by the search: {result.evaluations}. Time: {seconds}.")
    if not result.run.temporary:
        note(f"Plan written to {result.run.folder.path / 'plan.json'}")
    return None
