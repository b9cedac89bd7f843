"""bitsect paper: the paper's figures and tables, from runs."""

from __future__ import annotations

from typing import Annotated

import typer

from .app import JsonOption, TrustOption
from .options import TaskOption, TestDataOption, command, run_folder

NAMES = (
    "table",
    "figure2",
    "figure3",
    "scores",
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
    names: Annotated[
        str, typer.Argument(metavar="NAMES", help=f"{', '.join(NAMES)}; several with commas, or all.")
    ],
    runs: Annotated[list[str], typer.Argument(metavar="RUN…", help="The folders of runs, a network each.")],
    out: Annotated[
        str | None,
        typer.Option(
            "--out",
            "-o",
            metavar="DIR|FILE.csv",
            help="A folder for CSV, SVG, PNG and a page of Markdown; or a file for the figures of one NAME.",
        ),
    ] = None,
    targets: Annotated[str | None, typer.Option(help="Others than the paper's, as 98%,99%.")] = None,
    draws: Annotated[
        int | None, typer.Option(help="Draws of the samples; default: 5 for error-bars, else 1.", min=1)
    ] = None,
    latency: Annotated[str, typer.Option(help="Latency table: a100 or FILE.json.")] = "a100",
    test_data: TestDataOption = None,
    pairs: Annotated[str, typer.Option(help="Pair losses, exact or linear.")] = "exact",
    methods: Annotated[str, typer.Option(help="Whose rows stand in the tables.")] = "paper,bitsect",
    task: TaskOption = None,
    trust: TrustOption = False,
    json: JsonOption = False,
) -> None:
    """Make the paper's figures and tables for the networks of runs, beside what the paper prints.

    bitsect paper all runs/resnet20 runs/mobilenetv2 -o paper
    """
    from ..pipeline.paper import paper as made
    from ..reports.text import csv_text
    from .bars import ShownProgress
    from .output import note, print_json, stdout, working, write_rows

    for run in runs:
        run_folder(run)
    folder = None if out is None or out.endswith(".csv") else out
    one = "," not in names and names != "all"
    if folder is None and not (one or json):
        raise typer.BadParameter("several figures need a folder: --out DIR", param_hint="NAMES")
    with working(runs[0]):
        found = made(
            names,
            runs,
            targets=targets,
            draws=draws,
            latency=latency,
            test_data=test_data,
            pairs=pairs,
            methods=methods,
            task=task,
            trust=trust,
            out=folder,
            progress=ShownProgress(),
        )
    if folder is not None:
        note(f"Written to {folder}/README.md, with CSV, SVG and PNG beside it")
    elif out is not None:
        write_rows(out, found.rows)
    if json:
        return print_json(found.to_json())
    if out is None:
        stdout.print(csv_text(found.rows), markup=False, soft_wrap=True, end="")
    return None
