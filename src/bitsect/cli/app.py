"""The Typer application and the options that commands share."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from .. import __version__

app = typer.Typer(
    name="bitsect",
    help="The bit-width each layer of a trained network can bear, found by bisection, proven by running.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
)

MODEL = "zoo:NAME, paper:NAME, FILE.pt2 or package.module:function"
DATA = "FILE.npz, FILE.safetensors, a folder of images (one sub-folder per class) or zoo:NAME"

ModelArgument = Annotated[str, typer.Argument(metavar="MODEL", help=MODEL)]
ModelOrRunArgument = Annotated[
    str, typer.Argument(metavar="MODEL|RUN", help=f"{MODEL}; or the folder of a run")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.")]
DeviceOption = Annotated[str | None, typer.Option(help="cpu, cuda or mps; default: where the network is.")]
TrustOption = Annotated[
    bool, typer.Option("--trust", help="Load a .pt2 file even if that runs pickled code.")
]
EmbeddingsOption = Annotated[bool, typer.Option("--embeddings", help="Count embeddings as layers too.")]
InputShapeOption = Annotated[
    str | None,
    typer.Option(
        "--input-shape", help="Shape of one sample, as 3x224x224, where the model gives no example."
    ),
]
DataOption = Annotated[str | None, typer.Option("--data", help=f"Samples: {DATA}.")]
SamplesOption = Annotated[int | None, typer.Option("--samples", help="Draw so many samples; default: all.")]
SeedOption = Annotated[int, typer.Option("--seed", help="Seed of the draw.")]
MeanOption = Annotated[list[float] | None, typer.Option("--mean", help="Pixels become (x·scale − mean)/std.")]
StdOption = Annotated[list[float] | None, typer.Option("--std", help="See --mean; repeat for each channel.")]
ScaleOption = Annotated[float | None, typer.Option("--scale", help="See --mean; default: divide by 255.")]
TaskOption = Annotated[
    str | None, typer.Option("--task", help="classification, classification-top5 or package.module:function.")
]
PlacementOption = Annotated[
    str | None, typer.Option("--placement", help="Where values are rounded: paper or onnxruntime.")
]
RoundingOption = Annotated[
    str | None, typer.Option("--rounding", help="How weights round: squant or nearest.")
]
RangeOption = Annotated[
    str | None, typer.Option("--range", help="How ranges are set: percentile, mse or max.")
]
PercentileOption = Annotated[
    float | None, typer.Option("--percentile", help="Of |x|, for --range percentile.")
]
SignOption = Annotated[
    str | None, typer.Option("--sign", help="signed, or auto: unsigned codes where nothing is negative.")
]
BatchOption = Annotated[int | None, typer.Option("--batch-size", help="Fixed for a run: bits depend on it.")]
ThreadsOption = Annotated[int | None, typer.Option("--threads", help="Fixed for a run: bits depend on it.")]
OutOption = Annotated[
    str | None, typer.Option("--out", "-o", help="The run folder; the same one is continued.")
]
FreshOption = Annotated[bool, typer.Option("--fresh", help="Empty the run folder first.")]
PairsOption = Annotated[str, typer.Option("--pairs", help="exact, or linear: one part-pass per layer.")]
LossOption = Annotated[str, typer.Option("--loss", help="What pairs are judged by: task or kl.")]
ProbesOption = Annotated[int, typer.Option("--probes", min=1, help="Hessian probes at most.")]


def data_options(mean: list[float] | None, std: list[float] | None, scale: float | None) -> dict[str, Any]:
    """What a data spec is loaded with; a single value serves every channel."""

    def shown(values: list[float] | None) -> Any:
        return values[0] if values and len(values) == 1 else values or None

    given = {"mean": shown(mean), "std": shown(std), "scale": scale}
    return {name: value for name, value in given.items() if value is not None}


def settings(**given: Any) -> Any:
    """The settings that were given on the command line; None where none was."""
    from ..run import Settings

    chosen = {name: value for name, value in given.items() if value not in (None, False)}
    return Settings(**chosen) if chosen else None


def zoo_data(model: str, data: str | None, name: str = "calibration") -> str | None:
    """The samples that a network of the zoo brings along."""
    return f"zoo:fashion-{name}" if data is None and model.startswith("zoo:") else data


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
