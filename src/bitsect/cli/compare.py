"""bitsect compare: metrics, searches and methods side by side."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from ..values import Goal, Resources, Scoring
from ..values.settings import SAMPLES
from .app import JsonOption, TrustOption
from .options import CsvOption, RunArgument, TaskOption, TestDataOption, command, run_folder

if TYPE_CHECKING:
    from ..values.trial import Compared, Setup, Standing

COMPARED = "What is compared"


@command
def compare(
    run: RunArgument,
    goal: Goal,
    scoring: Scoring,
    resources: Resources,
    metrics: Annotated[
        str | None,
        typer.Option(help="Names with commas, or all; default: the method's own.", rich_help_panel=COMPARED),
    ] = None,
    searches: Annotated[
        str | None,
        typer.Option(help="Names with commas; default: the method's own.", rich_help_panel=COMPARED),
    ] = None,
    methods: Annotated[
        str | None,
        typer.Option(
            help="Whose rounding and defaults to try, or all; default: the run's own.",
            rich_help_panel=COMPARED,
        ),
    ] = None,
    targets: Annotated[
        str | None, typer.Option(help="As 98%,99%; default: 99%.", rich_help_panel=COMPARED)
    ] = None,
    draws: Annotated[
        int,
        typer.Option(help="Draws of the samples: as many runs with other seeds.", rich_help_panel=COMPARED),
    ] = 1,
    test_data: TestDataOption = None,
    test_draw: Annotated[
        int | None, typer.Option(help="Test on so many samples; default: all.", rich_help_panel=SAMPLES)
    ] = None,
    csv: CsvOption = None,
    task: TaskOption = None,
    trust: TrustOption = False,
    json: JsonOption = False,
) -> None:
    """Compare metrics, searches and methods on a run's network, over several draws of the samples.

    bitsect compare runs/first --metrics hessian,aughessian --targets 98%,99% --draws 5
    """
    from ..errors import in_command
    from ..pipeline.compare import compare as tried
    from .bars import ShownProgress
    from .output import note, print_json, working, write_rows

    run_folder(run)
    with working(run):
        compared = tried(
            run,
            metrics=metrics,
            searches=searches,
            methods=methods,
            targets=targets,
            draws=draws,
            scoring=scoring,
            goal=goal,
            resources=resources,
            test_data=test_data,
            test_draw=test_draw,
            task=task,
            trust=trust,
            progress=ShownProgress(),
        )
    if csv is not None:
        stem = csv.removesuffix(".csv")
        write_rows(f"{stem}.csv", [standing.row() for standing in compared.standings])
        write_rows(f"{stem}-draws.csv", [trial.row() for trial in compared.trials])
    if json:
        return print_json(compared.to_json())
    for line in compared.left_out:
        note(in_command(line))
    return _show(compared)


def _show(compared: Compared) -> None:
    from ..values.trial import EVERY
    from .output import stdout
    from .tables import table_of

    contenders = {standing.setup.contender for standing in compared.standings}
    common = [len(set(each)) == 1 for each in zip(*contenders, strict=True)]
    price = "size_ratio" if compared.device is None else "latency_ratio"
    heads = {"size_ratio": "size", "latency_ratio": "latency", "kept": "kept", "test_kept": "on test"}
    for target in dict.fromkeys(standing.setup.target for standing in compared.standings):
        rows = [standing for standing in compared.standings if standing.setup.target == target]
        figures = [name for name in heads if name in rows[0].figures]
        title = "Mean over all targets" if target == EVERY else f"Target {target}"
        shown = [heads[name] for name in figures]
        table = table_of("", *shown, "plans", "s", "difference", title=f"\n{title}")
        for row in rows:
            cells = [_cell(row, name) for name in figures]
            plans = f"{row.figures['evaluations'].mean:.1f}"
            seconds = f"{row.figures['seconds'].mean:.0f}" if "seconds" in row.figures else "–"
            table.add_row(_name(row.setup, common), *cells, plans, seconds, _against(row, price))
        stdout.print(table)
    first = compared.standings[0].setup
    stdout.print(
        f"\nPer cent, mean ± standard deviation over draws; kept: of the float accuracy; difference: of "
        f"{heads[price]} to {first.name}, in points ± {compared.interval}.",
        soft_wrap=True,
    )


def _name(setup: Setup, common: list[bool]) -> str:
    """What tells a contender from the others: its method, metric or search."""
    parts = [part for part, same in zip(setup.contender, common, strict=True) if not same]
    return ", ".join(parts) or setup.name


def _cell(row: Standing, name: str) -> str:
    spread = row.figures[name]
    digits = 1 if name.endswith("ratio") else 2
    deviation = "" if spread.deviation is None else f"±{100 * spread.deviation:.1f}"
    return f"{100 * spread.mean:.{digits}f}{deviation}"


def _against(row: Standing, price: str) -> str:
    if price not in row.differences:
        return ""
    found = row.differences[price]
    if found.low is None or found.high is None:
        return f"{100 * found.mean:+.1f}"
    return f"{100 * found.mean:+.1f}±{50 * (found.high - found.low):.1f}"  # which is as far to both sides
