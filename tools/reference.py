"""The pages of the documentation that are made from the program: commands, Python, names to choose from.

A hook of MkDocs: the pages exist only while the site is built, so that they are never out of date.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Iterator
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from typer.main import get_command

import bitsect
from bitsect.names import choose


def markdown_table(heads: list[str], rows: Iterable[Iterable[str]]) -> str:
    """A table of Markdown whose cells show their text, whatever is in it."""
    shown = [re.sub(r"([\\`*_\[\]|<>])", r"\\\1", "\0".join(row)).split("\0") for row in rows]
    lines = [f"| {' | '.join(' '.join(cell.split()) for cell in row)} |" for row in (heads, *shown)]
    return "\n".join([lines[0], "|---" * len(heads) + "|", *lines[1:]])


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the generated pages to those that were written."""
    pages = {"commands": commands_page(), "python": python_page(), "names": names_page()}
    for name, text in pages.items():
        files.append(File.generated(config, f"reference/{name}.md", content=text))
    return files


# ---- commands ------------------------------------------------------------------------------------


def commands_page() -> str:
    """Every command with its options, as `--help-all` has them."""
    from bitsect.cli import app

    parts = [
        "# Commands\n\nMade from the program: what `--help-all` says, on one page. Every option of a command "
        "is a keyword argument of the same name in Python.\n"
    ]
    for name, command in _commands(get_command(app), "bitsect"):
        parts += _command(name, command)
    return "\n".join(parts)


def _commands(command: Any, name: str) -> Iterator[tuple[str, Any]]:
    below: dict[str, Any] = getattr(command, "commands", {})
    for each in sorted(below):
        yield from _commands(below[each], f"{name} {each}")
    if not below:
        yield name, command


def _command(name: str, command: Any) -> Iterator[str]:
    text, _, example = inspect.cleandoc(command.help or "").rpartition("\n\n")
    if not example.startswith("bitsect "):
        text, example = inspect.cleandoc(command.help or ""), ""
    arguments = [each for each in command.params if each.param_type_name == "argument"]
    options = [each for each in command.params if each.param_type_name == "option" and not each.hidden]
    usage = " ".join([name, *(each.metavar for each in arguments), "[OPTIONS]"])
    yield f"## {name}\n\n{text}\n\n    {usage}\n"
    if example:
        yield "For example:\n\n" + "\n".join(f"    {line}" for line in example.splitlines()) + "\n"
    if arguments:
        yield markdown_table(["argument", ""], [[each.metavar, each.help or ""] for each in arguments]) + "\n"
    panels: dict[str, list[list[str]]] = {}
    for each in options:
        panels.setdefault(each.rich_help_panel or "Options", []).append([_flags(each), each.help or ""])
    for panel, rows in panels.items():
        yield f"**{panel}**\n\n{markdown_table(['option', ''], rows)}\n"


def _flags(option: Any) -> str:
    flags = ", ".join([*option.opts, *option.secondary_opts])
    return flags if option.is_flag else f"{flags} {option.metavar or option.name.upper()}"


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
    parts = [
        "# Python\n\nMade from the program. Everything that a user meets is importable from `bitsect`.\n"
    ]
    for group, names in groups.items():
        parts.append(f"## {group}\n")
        for name in names:
            thing = getattr(bitsect, name)
            parts.append(
                f"::: {thing.__module__}.{thing.__qualname__}\n    options:\n      heading: bitsect.{name}\n"
            )
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
        "# Names to choose from\n\nMade from the program: the tables that the names in options come from. A "
        "function of your own, `package.module:function`, stands for an entry of most of them.\n",
        _table("Metrics", "--metric", METRICS, {name: _first(m.function) for name, m in METRICS.items()}),
        _table("Searches", "--search", SEARCHES),
        _table("Ranges", "--range", RANGES),
        _table(
            "Roundings",
            "--rounding",
            ROUNDINGS,
            {"gptq": "Second-order rounding of weights of up to 4 bits."},
        ),
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
    rows = [
        [name, known[name] if name in known else _first(choose(title, name, entries))] for name in entries
    ]
    if not any(about for _, about in rows):
        return f"## {title}\n\n`{option}`: {', '.join(f'`{name}`' for name, _ in rows)}.\n"
    return f"## {title}\n\n`{option}`\n\n{markdown_table(['name', ''], rows)}\n"


def _first(thing: Any) -> str:
    """The first sentence of what is said of it."""
    text = re.split(r"\n\s*\n", inspect.getdoc(thing) or "")[0]
    return " ".join(text.split())
