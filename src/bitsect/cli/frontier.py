"""bitsect frontier: accuracy against latency and size, and the plan for any target."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Annotated

import typer

from ..values import Goal, Resources
from .app import JsonOption, TrustOption
from .options import CsvOption, RunArgument, TaskOption, TestDataOption, command, run_folder

if TYPE_CHECKING:
    from ..values.curve import Curve, CurvePoint


@command
def frontier(
    run: RunArgument,
    goal: Goal,
    resources: Resources,
    targets: Annotated[
        str | None,
        typer.Option(help="As 98%,99%,99.9%; without any, nothing is judged.", rich_help_panel="Goal"),
    ] = None,
    test_data: TestDataOption = None,
    csv: CsvOption = None,
    task: TaskOption = None,
    trust: TrustOption = False,
    json: JsonOption = False,
) -> None:
    """Show accuracy against cost for every plan that was judged, and read off the plan for each target.

    bitsect frontier runs/first --targets 97%,98%,99%,99.5%
    """
    from ..pipeline.frontier import frontier as curve_of
    from .bars import ShownProgress
    from .output import print_json, working, write_rows

    run_folder(run)
    with working(run):
        curve = curve_of(
            run,
            targets=targets,
            goal=goal,
            resources=resources,
            test_data=test_data,
            task=task,
            trust=trust,
            progress=ShownProgress(),
        )
    if csv is not None:
        stem = csv.removesuffix(".csv")
        write_rows(f"{stem}.csv", [point.row() for point in curve.points])
        if curve.read_off:
            write_rows(f"{stem}-targets.csv", [each.row() for each in curve.read_off])
    print_json(curve.to_json()) if json else _show(run, curve)


def _show(run: str, curve: Curve) -> None:
    from .output import layers_by_format, stdout
    from .tables import table_of

    timed = curve.device is not None
    costs = ["size", *(["latency"] if timed else [])]
    table = table_of("plan", "accuracy", *costs, "", title="Plans on the hull")
    for point in curve.hull:
        named = ", ".join([point.key, *point.names])
        cells = [point.evaluation.shown, *_costs(point, timed)]
        table.add_row(named, *cells, layers_by_format(point.plan))
    stdout.print(table)
    judged = f", {curve.evaluations} judged now" if curve.evaluations else ""
    stdout.print(f"{len(curve)} plans evaluated{judged}, {len(curve.hull)} on the hull.\n")
    if not curve.read_off:
        stdout.print("--targets 98%,99% reads off the plan for each; --csv FILE holds every point.")
        return
    tested = any(each.test_kept is not None for each in curve.read_off)
    heads = ["kept", *(["on test"] if tested else []), *costs]
    table = table_of("target", *heads, "plan", "", title="Read off")
    for each in curve.read_off:
        cells = [f"{each.kept:.2%}", *([f"{each.test_kept or 0:.2%}"] if tested else [])]
        cells += _costs(each.point, timed)
        table.add_row(str(each.target), *cells, each.point.key, layers_by_format(each.point.plan))
    stdout.print(table)
    last = curve.read_off[-1]
    stdout.print(
        "Kept on the samples that were searched on. "
        f"`bitsect export {shlex.quote(str(run))} --plan {last.name} -o FILE.onnx` exports a plan by name.",
        soft_wrap=True,
        style="dim",
    )


def _costs(point: CurvePoint, timed: bool) -> list[str]:
    ratio = point.cost.latency_ratio
    return [f"{point.cost.size_ratio:.1%}", *(["–" if ratio is None else f"{ratio:.1%}"] if timed else [])]
