"""The Typer application, and the arguments that every command knows."""

from __future__ import annotations

from typing import Annotated

import typer

from .. import __version__

app = typer.Typer(
    name="bitsect",
    help="The bit-width each layer of a trained network can bear, found by bisection, proven by running.",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
)

MODEL = "hf:FOLDER, zoo:NAME, paper:NAME, FILE.pt2 or package.module:function"
MACHINE = "Network and machine"

ModelArgument = Annotated[str, typer.Argument(metavar="MODEL", help=MODEL)]
ModelOrRunArgument = Annotated[
    str, typer.Argument(metavar="MODEL|RUN", help=f"{MODEL}; or the folder of a run")
]
OptionalModelArgument = Annotated[
    str | None, typer.Argument(metavar="[MODEL|RUN]", help=f"{MODEL}; or the folder of a run")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.")]
DeviceOption = Annotated[
    str | None,
    typer.Option(help="cpu, cuda or mps; default: where the network is.", rich_help_panel=MACHINE),
]
TrustOption = Annotated[
    bool,
    typer.Option(
        "--trust",
        help="Load a .pt2 file even if that can run its author's code, and import the code that a run or a "
        "recipe in a file names.",
        rich_help_panel=MACHINE,
    ),
]
EmbeddingsOption = Annotated[
    bool, typer.Option("--embeddings", help="Count embeddings as layers too.", rich_help_panel=MACHINE)
]
InputShapeOption = Annotated[
    str | None,
    typer.Option(
        help="Shape of one sample, as 3x224x224, where the model gives no example.", rich_help_panel=MACHINE
    ),
]


def _version(show: bool) -> None:
    if show:
        typer.echo(f"bitsect {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """The bit-width each layer of a trained network can bear, found by bisection, proven by running."""
