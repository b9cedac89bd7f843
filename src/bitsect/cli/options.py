"""Options of the command line, made of the parameters of verbs and of the fields of option values."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated, Any

import typer

from ..errors import SHORT, RunError
from ..values.goal import GOAL
from ..values.method import default_words
from ..values.options import Help, described
from ..values.settings import MACHINE, SAMPLES
from .help import help_all
from .verbs import NEEDED, Parameter

Option = tuple[str, Any, Any]  # the name, the annotated type and the default that Typer makes an option of
RUN, COMPARED, OUTPUT = "Run", "What is compared", "Output"
TYPES = {"int": int, "int | None": int, "float | None": float, "bool": bool}
METAVARS = {int: "N", float: "X", list[float]: "X", str: "TEXT", list[str]: "TEXT"}
ARGUMENTS = {"model": "MODEL|RUN", "run": "RUN", "float_file": "FLOAT", "files": "FILE…"}
PYTHON = {"progress", "evaluate", "example"}  # parameters that take functions and tensors
# What a parameter is called on the command line, where that is not its name alone.
FLAGS = {
    "path": ("--out", "-o"),
    "out": ("--out", "-o"),
    "csv": ("--csv", "-o"),
    "table": ("--for", "--table"),
    "timed": ("--time/--no-time",),
    "quiet": ("--quiet", "-q"),
    "verbose": ("--verbose", "-v"),
}
PLACES = {
    **dict.fromkeys(("data", "test_data", "validation_data", "calibration"), "DATA"),
    **dict.fromkeys(("path", "export", "page", "csv", "plan"), "FILE"),
    "out": "PATH",
    "model": "MODEL",
}
PANELS = {
    **dict.fromkeys(("method", "recipe", "targets", "target", "max_drop", "confidence"), GOAL),
    **dict.fromkeys(("data", "test_data", "validation_data", "calibration"), SAMPLES),
    **dict.fromkeys(("draw", "test_draw", "task"), SAMPLES),
    **dict.fromkeys(("out", "export", "fresh"), RUN),
    **dict.fromkeys(("trust", "device", "runtime", "input_shape", "embeddings", "threads"), MACHINE),
    **dict.fromkeys(("metrics", "searches", "methods", "draws"), COMPARED),
    **dict.fromkeys(("csv", "json", "quiet", "verbose"), OUTPUT),
}
# The tables whose names a shell completes.
TABLES = {
    "method": "bitsect.values.method:METHODS",
    "destination": "bitsect.values.destination:DESTINATIONS",
    "table": "bitsect.values.destination:DESTINATIONS",
    "recipe": "bitsect.sources.recipes:RECIPES",
}
# What only a command line has.
OWN = {
    name: Parameter(name, kind, None, text)
    for name, kind, text in (
        ("csv", "str", "Write the figures as CSV, too."),
        ("open", "bool", "Show it in the browser."),
        ("width", "int | None", "Columns; default: those of the terminal, at most 200."),
        ("json", "bool", "Print one JSON object on stdout."),
        ("quiet", "bool", "Say nothing but the answer and errors."),
        ("verbose", "bool", "Say how long each stage took, and show where an error arose."),
    )
}
COMMON = ("json", "quiet", "verbose")
HELP_ALL = typer.Option(
    "--help-all",
    is_eager=True,
    callback=help_all,
    help="Show every option, by subject.",
    rich_help_panel=OUTPUT,
)


def of_parameter(each: Parameter) -> Option:
    """A parameter of a verb as an argument or an option; None stands for what was not given."""
    kind: Any = TYPES.get(each.type, str)
    if each.name in ARGUMENTS and each.default is NEEDED:
        kind = list[str] if each.name == "files" else str
        argument = typer.Argument(metavar=ARGUMENTS[each.name], help=each.text)
        return each.name, Annotated[kind, argument], inspect.Parameter.empty
    text = each.text
    if kind is not bool and each.default not in (None, NEEDED) and "default" not in text:
        text = f"{text.removesuffix('.')}; default: {each.default}."
    option = _option(each.name, kind, Help(text, PANELS.get(each.name, "Options")), text)
    if each.default is NEEDED:
        return each.name, Annotated[kind, option], inspect.Parameter.empty
    return each.name, Annotated[kind | None, option], None


def perhaps(option: Option) -> Option:
    """An argument that a command does without."""
    name, kind, _ = option
    argument = typer.Argument(metavar=f"[{ARGUMENTS[name]}]", help=kind.__metadata__[0].help)
    return name, Annotated[str | None, argument], None


def of_fields(kind: type[Any], left_out: set[str]) -> list[Option]:
    """The fields of an option value; None stands for an option that was not given."""
    return [
        (name, Annotated[about.type | None, _option(name, about.type, about, line, switch=True)], None)
        for name, default, about in described(kind)
        if name not in left_out
        for line in [about.line(default_words(kind, name, default))]
    ]


def _option(name: str, kind: Any, about: Help, text: str, *, switch: bool = False) -> Any:
    flag = f"--{name.replace('_', '-')}"
    if switch and kind is bool:  # whose default may be true
        flag = f"{flag}/--no-{flag[2:]}"
    flags = (f"--{SHORT[name]}", flag) if name in SHORT else FLAGS.get(name, (flag,))
    known = Help("", "", choices=TABLES[name]) if name in TABLES else about
    return typer.Option(
        *flags,
        help=text,
        rich_help_panel=about.panel,
        metavar=PLACES.get(name, METAVARS.get(kind)),
        min=about.least,
        autocompletion=completed_by(known.names) if known.choices else None,
        show_default=False,
    )


def completed_by(names: Callable[[], Iterable[str]]) -> Callable[[str], list[str]]:
    """What a shell completes an option with."""
    return lambda incomplete: [name for name in names() if name.startswith(incomplete)]


def run_folder(run: str) -> None:
    """Refuse what is not the folder of a run."""
    if not Path(run).is_dir():
        raise RunError(f"{run} is not the folder of a run: `bitsect quantize MODEL --out {run}` makes one")
