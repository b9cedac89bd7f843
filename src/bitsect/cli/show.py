"""bitsect show: the story of a run on one screen."""

from __future__ import annotations

from typing import Annotated

import typer

from .app import JsonOption, app
from .options import RunArgument, run_folder


@app.command()
def show(
    run: RunArgument,
    width: Annotated[
        int | None, typer.Option(help="Columns; default: as wide as the terminal, at most 200.", min=40)
    ] = None,
    json: JsonOption = False,
) -> None:
    """Show a run on one screen: the verdict, before and after, the format of every layer, who is sensitive.

    bitsect show runs/first
    """
    from ..reports.reading import read_story
    from ..reports.terminal import screen
    from ..reports.text import as_json
    from .output import print_json, stdout

    run_folder(run)
    story = read_story(run)
    if json:
        return print_json(as_json(story))
    for line in screen(story, width or min(stdout.width, 200)):
        stdout.print(line, soft_wrap=True)
    return None
