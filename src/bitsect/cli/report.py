"""bitsect report: a run as one page that explains itself."""

from __future__ import annotations

from typing import Annotated

import typer

from .app import JsonOption, TrustOption
from .options import RunArgument, TaskOption, command, run_folder


@command
def report(
    run: RunArgument,
    out: Annotated[
        str | None,
        typer.Option(
            "--out", "-o", metavar="FILE", help="Where to write it; default: report.html in the run."
        ),
    ] = None,
    open: Annotated[bool, typer.Option("--open", help="Show it in the browser.")] = False,
    blame: Annotated[
        bool, typer.Option("--blame", help="Measure first what the plan loses and to whom.")
    ] = False,
    task: TaskOption = None,
    trust: TrustOption = False,
    json: JsonOption = False,
) -> None:
    """Show a run as one HTML page: the verdict, every layer, the curve, pairs, values, settings.

    bitsect report runs/first --open
    """
    from ..pipeline.report import report as written
    from .bars import ShownProgress
    from .output import print_json, stdout, working

    run_folder(run)
    with working(run):
        path = written(run, out=out, blame=blame, task=task, trust=trust, progress=ShownProgress())
    if json:
        print_json({"report": str(path), "bytes": path.stat().st_size})
    else:
        stdout.print(f"Report written to {path}", markup=False, soft_wrap=True)
    if open:
        typer.launch(path.resolve().as_uri())
