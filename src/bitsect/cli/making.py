"""Commands made of verbs: their options, the call, and what is said of what was found."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer

from ..errors import BitsectError
from ..values.options import names_of
from .app import app
from .bars import ShownProgress
from .help import ABOUT, About, Helped
from .options import COMMON, HELP_ALL, OWN, PYTHON, of_fields, of_parameter, perhaps, run_folder
from .output import note, print_json, print_lines, stderr, working, write_rows
from .verbs import verb

Asked = dict[str, Any]  # the options that were given


@dataclass
class Said:
    """What a command says of what its verb found."""

    json: Callable[[], Any]
    lines: Iterable[Any]
    csv: Mapping[str, Sequence[Any]] = field(default_factory=dict)  # rows, by the ending of the file's name
    notes: Sequence[str] = ()
    code: int = 0
    error: BitsectError | None = None


Say = Callable[[Any, Asked], Said]


def made_of(
    reference: str,
    wanted: str,
    everyday: str,
    *,
    own: str = "",
    also: Mapping[str, str] | None = None,
    choose: Callable[[Asked], str] | None = None,
) -> Callable[[Say], Say]:
    """A decorator: the verb at `reference` becomes a command, and the function says what it found.

    The docstring of the function is what the command is for, with examples; `wanted` and `everyday` are as
    in `About`. Besides the options of its verb the command has those in `own`, which only a command line has,
    and those in `also`, each of another verb; `choose` names the verb that is called for what was asked.
    """

    def decorate(say: Say) -> Say:
        def call(**given: Any) -> None:
            asked = {name: _plain(value) for name, value in given.items() if value is not None}
            _run(reference if choose is None else choose(asked), asked, say)

        options = _options(reference, own, also or {})
        call.__annotations__ = {name: kind for name, kind, _ in options}
        vars(call)["__signature__"] = inspect.Signature(
            [
                inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=kind, default=default)
                for name, kind, default in options
            ]
        )
        name = say.__name__.replace("_", "-")
        ABOUT[name] = About.of(wanted, everyday, say.__doc__ or "")
        app.command(name, cls=Helped, help=inspect.cleandoc(say.__doc__ or ""))(call)
        return say

    return decorate


def _options(reference: str, own: str, also: Mapping[str, str]) -> list[Any]:
    """The options of a command, each with its type and default."""
    whole = verb(reference)
    options = [of_parameter(each) for each in whole.parameters if each.name not in PYTHON]
    if "recipe" in also:  # which may name the network
        options[0] = perhaps(options[0])
    for name, other in also.items():
        (each,) = (each for each in verb(other).parameters if each.name == name)
        options.append((name, of_parameter(each)[1], None))
    names = {name for name, _, _ in options} | {*whole.refused}
    for group in whole.groups:
        options += of_fields(group, names)
    options += [of_parameter(OWN[name]) for name in (*own.split(), *COMMON)]
    return [*options, ("help_all", Annotated[bool, HELP_ALL], False)]


def _run(reference: str, asked: Asked, say: Say) -> None:
    """Call a verb with what was asked for, and say what it found."""
    stderr.quiet = asked.get("quiet", False)
    if "run" in asked:
        run_folder(asked["run"])
    whole, (module, _, name) = verb(reference), reference.partition(":")
    names = {each.name for each in whole.parameters}.union(*map(names_of, whole.groups))
    options = {name: value for name, value in asked.items() if name in names}
    if "progress" in names:
        options["progress"] = ShownProgress(verbose=asked.get("verbose", False))
    with working(_folder(asked)):
        found = getattr(import_module(f"bitsect.pipeline.{module}"), name)(**options)
    said = say(found, asked)
    for ending, rows in said.csv.items():
        if "csv" in asked:
            write_rows(f"{asked['csv'].removesuffix('.csv')}{ending}.csv", [row.row() for row in rows])
    print_json(said.json()) if asked.get("json") else print_lines(said.lines)
    for line in said.notes:
        note(line)
    if said.error is not None:
        raise said.error
    if said.code:
        raise typer.Exit(said.code)


def _folder(asked: Asked) -> str | None:
    """The folder that keeps what a command finds, if there is one."""
    model: str = asked.get("model", "")
    return asked.get("run") or asked.get("out") or (model if model and Path(model).is_dir() else None)


def _plain(value: Any) -> Any:
    """A list of one number serves every channel."""
    return value[0] if isinstance(value, list) and len(value) == 1 and isinstance(value[0], float) else value
