"""Options of the commands, made from the fields of the option values."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import is_dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from ..values.method import METHODS, default_words
from ..values.options import Help, described, names_of
from ..values.settings import SAMPLES
from .app import app

DATA = (
    "FILE.npz, .safetensors, .csv, .tsv, .jsonl, .json (SQuAD), .txt, a folder of images (one sub-folder per "
    "class), datasets:NAME or zoo:NAME"
)
RUN = "Run"
METAVARS = {int: "N", float: "X", list[float]: "X", str: "TEXT", list[str]: "TEXT"}

RunArgument = Annotated[str, typer.Argument(metavar="RUN", help="The folder of a run.")]
DataOption = Annotated[str | None, typer.Option(help=f"{DATA}.", rich_help_panel=SAMPLES)]
TestDataOption = Annotated[
    str | None, typer.Option(help="Samples that the search does not see.", rich_help_panel=SAMPLES)
]
ValidationDataOption = Annotated[
    str | None,
    typer.Option(
        help="Samples to prove the target on, in place of held-out ones of --data.", rich_help_panel=SAMPLES
    ),
]
MethodOption = Annotated[
    str | None,
    typer.Option(
        help=f"Named defaults for all options: {' or '.join(METHODS)}; default: bitsect, or the run's own.",
        autocompletion=lambda incomplete: [name for name in METHODS if name.startswith(incomplete)],
        rich_help_panel="Goal",
    ),
]
RecipeOption = Annotated[
    str | None,
    typer.Option(help="A recipe, or a TOML file like one: `bitsect recipe list`.", rich_help_panel="Goal"),
]
TaskOption = Annotated[
    str | None,
    typer.Option(help="The run's own task again, if that is a function of yours.", rich_help_panel=SAMPLES),
]
CsvOption = Annotated[
    str | None, typer.Option("--csv", "-o", metavar="FILE", help="Write the figures as CSV, too.")
]
OutOption = Annotated[
    str | None,
    typer.Option("--out", "-o", help="The run folder; the same one is continued.", rich_help_panel=RUN),
]
ExportOption = Annotated[
    str | None,
    typer.Option(
        metavar="FILE",
        help="The file to write at the end; default: model.onnx in the run folder, for a runtime here.",
        rich_help_panel=RUN,
    ),
]
FreshOption = Annotated[
    bool,
    typer.Option("--fresh", help="Start anew: remove the run in the folder.", rich_help_panel=RUN),
]


def command(function: Callable[..., None]) -> Callable[..., None]:
    """Make `function` a command; a parameter that is an option value becomes an option for each field."""
    signature = inspect.signature(function, eval_str=True)
    groups: dict[str, Any] = {
        name: parameter.annotation
        for name, parameter in signature.parameters.items()
        if is_dataclass(parameter.annotation)
    }

    def call(**given: Any) -> None:
        for name, kind in groups.items():
            fields = {field: given.pop(field) for field in names_of(kind)}
            given[name] = kind(
                **{field: _value(value) for field, value in fields.items() if value is not None}
            )
        function(**given)

    parameters = []
    for name, parameter in signature.parameters.items():
        if name in groups:
            parameters += [
                (field, _annotated(field, default_words(groups[name], field, default), about), None)
                for field, default, about in described(groups[name])
            ]
        else:
            parameters.append((name, parameter.annotation, parameter.default))
    call.__name__, call.__doc__ = function.__name__, function.__doc__
    call.__annotations__ = {name: annotation for name, annotation, _ in parameters}
    vars(call)["__signature__"] = inspect.Signature(
        [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=annotation, default=default)
            for name, annotation, default in parameters
        ]
    )
    app.command()(call)
    return function


def _annotated(name: str, default: str, about: Help) -> Any:
    """The type and the Typer option of a field; None stands for an option that was not given."""
    flag = f"--{name.replace('_', '-')}"
    if about.type is bool:
        flag = f"{flag}/--no-{name.replace('_', '-')}"
    option = typer.Option(
        *([flag] if about.also is None else [f"--{about.also}", flag]),
        help=about.line(default),
        rich_help_panel=about.panel,
        metavar=METAVARS.get(about.type),  # short, so that names in the help are not cut
        min=about.least,
        autocompletion=completed_by(about.names) if about.choices else None,
        show_default=False,
    )
    return Annotated[about.type | None, option]


def _value(value: Any) -> Any:
    """A list of one number serves every channel."""
    return value[0] if isinstance(value, list) and len(value) == 1 and isinstance(value[0], float) else value


def completed_by(names: Callable[[], tuple[str, ...]]) -> Callable[[str], list[str]]:
    """What a shell completes an option with."""

    def complete(incomplete: str) -> list[str]:
        return [name for name in names() if name.startswith(incomplete)]

    return complete


def run_folder(run: str) -> None:
    """Refuse what is not the folder of a run."""
    from ..errors import RunError

    if not Path(run).is_dir():
        raise RunError(f"{run} is not the folder of a run: `bitsect quantize MODEL --out {run}` makes one")


def run_of(model: str, out: str | None = None) -> str | None:
    """The folder that keeps what a command finds, if there is one."""
    return out or (model if Path(model).is_dir() else None)
