"""bitsect paper: the data of the paper's figures and tables."""

from __future__ import annotations

from typing import Annotated

import typer

from .app import JsonOption, TrustOption
from .options import CsvOption, RunArgument, TaskOption, TestDataOption, command, run_folder

NAMES = (
    "figure2",
    "figure3",
    "figure4",
    "figure5",
    "error-bars",
    "greedy",
    "interlayer",
    "thresholds",
    "evaluations",
)


@command
def paper(
    name: Annotated[str, typer.Argument(metavar="NAME", help=f"{', '.join(NAMES)}.")],
    run: RunArgument,
    targets: Annotated[str | None, typer.Option(help="Others than the paper's, as 98%,99%.")] = None,
    draws: Annotated[
        int | None, typer.Option(help="Draws of the samples; default: 5 for error-bars, else 1.", min=1)
    ] = None,
    latency: Annotated[str, typer.Option(help="Latency table: a100 or FILE.json.")] = "a100",
    test_data: TestDataOption = None,
    pairs: Annotated[str, typer.Option(help="Pair losses, exact or linear.")] = "exact",
    csv: CsvOption = None,
    task: TaskOption = None,
    trust: TrustOption = False,
    json: JsonOption = False,
) -> None:
    """Make the data of one of the paper's figures or tables for the network of a run, as CSV.

    bitsect paper figure2 runs/first -o scores.csv
    """
    from ..pipeline.paper import paper as made
    from .bars import ShownProgress
    from .output import csv_text, print_json, stdout, working, write_rows

    run_folder(run)
    with working(run):
        data = made(
            name,
            run,
            targets=targets,
            draws=draws,
            latency=latency,
            test_data=test_data,
            pairs=pairs,
            task=task,
            trust=trust,
            progress=ShownProgress(),
        )
    if csv is not None:
        write_rows(csv, data.rows)
    if json:
        return print_json(data.to_json())
    if csv is None:
        stdout.print(csv_text(data.rows), markup=False, soft_wrap=True, end="")
    return None
