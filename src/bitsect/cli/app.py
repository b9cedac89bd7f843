"""The Typer application: what every command is part of."""

from __future__ import annotations

from typing import Annotated

import typer

from .. import __version__
from .help import Root

app = typer.Typer(
    name="bitsect",
    cls=Root,
    add_completion=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(show: bool) -> None:
    if show:
        typer.echo(f"bitsect {__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def _root(
    ctx: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """The bit-width each layer of a trained network can bear, found by bisection, proven by running."""
    if ctx.invoked_subcommand is None:
        typer.echo(ctx.get_help())
        raise typer.Exit(2)
