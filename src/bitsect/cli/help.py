"""Help that one reads: what is needed every day on one screen, and the rest by subject with --help-all."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

FLAGS_WIDTH = 24  # columns that names of options have
START = (
    "bitsect quantize zoo:fashion-resnet --target 99% --out runs/first",
    "bitsect show runs/first",
    "bitsect export runs/first --out first.onnx",
)


@dataclass(frozen=True)
class About:
    """What a command is for: said in the list of commands and in its own help."""

    wanted: str  # what one wants: the heading under which the command is listed
    everyday: str  # the options that everyday help shows, in this order
    says: str
    more: str  # another paragraph
    examples: tuple[str, ...]

    @classmethod
    def of(cls, wanted: str, everyday: str, text: str) -> About:
        """What a docstring says: a sentence, perhaps a paragraph, and examples."""
        says, *more, examples = inspect.cleandoc(text).split("\n\n")
        return cls(wanted, everyday, says, " ".join(more), tuple(examples.splitlines()))


ABOUT: dict[str, About] = {}
ORDER = ("Choose", "Look", "Why", "Deliver", "Compare", "Besides")


class Helped(TyperCommand):
    """A command whose help is what one needs every day."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        formatter.write("\n".join(_everyday(self, ABOUT[self.name or ""], formatter.width)))


class Root(TyperGroup):
    """The list of commands, by what one wants."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        formatter.write("\n".join(_root(self, formatter.width)))


def help_all(ctx: typer.Context, wanted: bool) -> None:
    """Print every option of a command and leave."""
    if wanted:
        typer.echo("\n".join(_all(ctx.command, ABOUT[ctx.command.name or ""], 78)))
        raise typer.Exit


def _root(group: Any, width: int) -> Iterator[str]:
    yield from textwrap.wrap(group.help, width)
    yield from ["", _heading("To begin with"), *(f"  {line}" for line in START)]
    for wanted in ORDER:
        yield from ["", _heading(wanted)]
        for name, about in ABOUT.items():
            if about.wanted == wanted:
                yield from _row(name, about.says, width, 16)
    for name, command in group.commands.items():
        if name not in ABOUT:  # no verb
            yield from _row(name, textwrap.shorten(command.help, 60, placeholder=" …"), width, 16)
    yield from ["", "bitsect COMMAND -h shows its options; besides: --version, --install-completion."]


def _everyday(command: Any, about: About, width: int) -> Iterator[str]:
    options = {each.name: each for each in command.params}
    arguments = [each for each in command.params if each.param_type_name == "argument"]
    yield from _head(command, about, arguments, width)
    for name in about.everyday.split():
        yield from _row(_flags(options[name], brief=True), _brief(options[name].help, width), width)
    yield from ["", _heading("For example"), *(f"  {line}" for line in about.examples), ""]
    yield f"Also --json, -q/--quiet, -v/--verbose; --help-all shows all {len(options)} options."


def _all(command: Any, about: About, width: int) -> Iterator[str]:
    arguments = [each for each in command.params if each.param_type_name == "argument"]
    yield from _head(command, about, arguments, width)
    panels: dict[str, list[Any]] = {}
    for each in command.params:
        if each.param_type_name == "option":
            panels.setdefault(each.rich_help_panel, []).append(each)
    panels["Output"] = panels.pop("Output")  # last: it is the same everywhere
    for panel, options in panels.items():
        yield from ["", _heading(panel)]
        for each in options:
            yield from _row(_flags(each), each.help, width)


def _head(command: Any, about: About, arguments: Iterable[Any], width: int) -> Iterator[str]:
    words = " ".join([command.name, *(each.metavar for each in arguments), "[OPTIONS]"])
    yield from [f"Usage: bitsect {words}", "", *textwrap.wrap(about.says, width)]
    if about.more:
        yield from ["", *textwrap.wrap(about.more, width)]
    yield ""
    for each in arguments:
        yield from _row(each.metavar.strip("[]"), _brief(each.help, width), width)


def _brief(text: str, width: int) -> str:
    """All of `text` where two lines have room for it, else its first clause, which says what a thing is."""
    room = 2 * (width - FLAGS_WIDTH) - 10
    return text if len(text) <= room else text.split(";")[0].removesuffix(".") + "."


def _flags(option: Any, *, brief: bool = False) -> str:
    """The names of an option; in `brief` without its other long ones."""
    names = [option.opts[0], *(each for each in option.opts[1:] if not brief or each[:2] != "--")]
    flags = "/".join([", ".join(names), *option.secondary_opts])
    return flags if getattr(option, "is_flag", False) else f"{flags} {option.metavar or 'TEXT'}"


def _row(name: str, text: str, width: int, column: int = FLAGS_WIDTH) -> Iterator[str]:
    """A name and what is said of it beside it; below it, if the name is too long."""
    lines = textwrap.wrap(text, width - column - 2, break_on_hyphens=False)
    first = f"  {typer.style(name, bold=True)}"
    if len(name) < column - 1:
        yield first + " " * (column - len(name)) + lines.pop(0)
    else:
        yield first
    yield from (" " * (column + 2) + line for line in lines)


def _heading(words: str) -> str:
    return typer.style(words, bold=True, underline=True)
