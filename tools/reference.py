"""The pages of the documentation that are made from the program: commands, Python, names to choose from.

A hook of MkDocs: the pages exist only while the site is built, so that they are never out of date.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Iterator
from typing import Any

import click
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from typer.main import get_command

import bitsect
from bitsect.names import choose
from bitsect.reports.text import markdown_table


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the generated pages to those that were written."""
    pages = {"commands": commands_page(), "python": python_page(), "names": names_page()}
    for name, text in pages.items():
        files.append(File.generated(config, f"reference/{name}.md", content=text))
    return files


# ---- commands ------------------------------------------------------------------------------------


def commands_page() -> str:
    """Every command with its options, as `--help` has them."""
    from bitsect.cli import app

    parts = [
        "# Commands\n\nMade from the program: what `--help` says, on one page. Every option of a command is a keyword "
        "argument of the same name in Python.\n"
    ]
    for name, command in _commands(get_command(app), "bitsect"):
        parts += _command(name, command)
    return "\n".join(parts)


def _commands(command: click.Command, name: str) -> Iterator[tuple[str, click.Command]]:
    if not isinstance(command, click.Group):
        yield name, command
        return
    for each in sorted(command.commands):
        yield from _commands(command.commands[each], f"{name} {each}")


def _command(name: str, command: click.Command) -> Iterator[str]:
    text, _, example = inspect.cleandoc(command.help or "").partition("\n\n")
    yield f"## {name}\n\n{text}\n"
    arguments = [each for each in command.params if isinstance(each, click.Argument)]
    usage = " ".join(each.make_metavar(click.Context(command)) for each in arguments)
    yield f"    {name} {usage} [OPTIONS]\n"
    if example:
        yield "For example:\n\n" + "\n".join(f"    {line}" for line in example.splitlines()) + "\n"
    if arguments:
        rows = [[each.make_metavar(click.Context(command)), getattr(each, "help", "") or ""] for each in arguments]
        yield markdown_table(["argument", ""], rows) + "\n"
    panels: dict[str, list[list[str]]] = {}
    for each in command.params:
        if isinstance(each, click.Option) and not each.hidden:
            panel = getattr(each, "rich_help_panel", None) or "Options"
            panels.setdefault(panel, []).append([_flags(each, command), each.help or ""])
    for panel, rows in panels.items():
        yield f"**{panel}**\n\n{markdown_table(['option', ''], rows)}\n"


def _flags(option: click.Option, command: click.Command) -> str:
    flags = ", ".join([*option.opts, *option.secondary_opts])
    value = "" if option.is_flag else f" {option.make_metavar(click.Context(command))}"
    return f"{flags}{value}"


# ---- Python --------------------------------------------------------------------------------------


def python_page() -> str:
    """Every public name with its signature and documentation."""
    groups: dict[str, list[str]] = {"Functions": [], "Values": [], "Errors": []}
    for name in bitsect.__all__:
        thing = getattr(bitsect, name)
        if inspect.isfunction(thing):
            groups["Functions"].append(name)
        elif inspect.isclass(thing):
            groups["Errors" if issubclass(thing, Exception) else "Values"].append(name)
    parts = ["# Python\n\nMade from the program. Everything that a user meets is importable from `bitsect`.\n"]
    for group, names in groups.items():
        parts.append(f"## {group}\n")
        for name in names:
            thing = getattr(bitsect, name)
            parts.append(f"::: {thing.__module__}.{thing.__qualname__}\n    options:\n      heading: bitsect.{name}\n")
    return "\n".join(parts)


# ---- names ---------------------------------------------------------------------------------------


def names_page() -> str:
    """The tables that names in options come from, each entry with the first line of its documentation."""
    from bitsect.exporters import EXPORTERS
    from bitsect.latency import TABLES
    from bitsect.rounding import RANGES, ROUNDINGS
    from bitsect.solve.metrics import METRICS
    from bitsect.solve.search import SEARCHES
    from bitsect.sources.recipes import RECIPES, read_recipe
    from bitsect.sources.tasks import TASKS
    from bitsect.values.destination import DESTINATIONS
    from bitsect.values.method import METHODS
    from bitsect.values.placement import PLACEMENTS

    parts = [
        "# Names to choose from\n\nMade from the program: the tables that the names in options come from. A function of your own, "
        "`package.module:function`, stands for an entry of most of them.\n",
        _table("Metrics", "--metric", METRICS, {name: _first(m.function) for name, m in METRICS.items()}),
        _table("Searches", "--search", SEARCHES),
        _table("Ranges", "--range", RANGES),
        _table("Roundings", "--rounding", ROUNDINGS, {"gptq": "Second-order rounding of weights of up to 4 bits."}),
        _table("Placements", "--placement", PLACEMENTS, dict.fromkeys(PLACEMENTS, "")),
        _table("Destinations", "--for", DESTINATIONS, {n: f"{d.about}." for n, d in DESTINATIONS.items()}),
        _table("Latency", "--latency", TABLES, dict.fromkeys(TABLES, "")),
        _table("Methods", "--method", METHODS, dict.fromkeys(METHODS, "")),
        _table("Tasks", "--task", TASKS, dict.fromkeys(TASKS, "")),
        _table("Recipes", "--recipe", RECIPES, {name: read_recipe(name).model or "" for name in RECIPES}),
        _table("Files", "bitsect export -o", EXPORTERS, dict.fromkeys(EXPORTERS, "")),
    ]
    return "\n".join(parts)


def _table(title: str, option: str, table: Iterable[str], words: dict[str, str] | None = None) -> str:
    known = words or {}
    entries: dict[str, Any] = table if isinstance(table, dict) else dict.fromkeys(table)
    rows = [[name, known[name] if name in known else _first(choose(title, name, entries))] for name in entries]
    if not any(about for _, about in rows):
        return f"## {title}\n\n`{option}`: {', '.join(f'`{name}`' for name, _ in rows)}.\n"
    return f"## {title}\n\n`{option}`\n\n{markdown_table(['name', ''], rows)}\n"


def _first(thing: Any) -> str:
    """The first sentence of what is said of it."""
    text = re.split(r"\n\s*\n", inspect.getdoc(thing) or "")[0]
    return " ".join(text.split())
