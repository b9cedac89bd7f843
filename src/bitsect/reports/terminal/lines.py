"""Lines as a terminal shows them: the kinds of lines, tables, and figures in words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from ...errors import in_command
from ...values.cost import megabytes
from ...values.evaluation import Evaluation

if TYPE_CHECKING:
    from ...pipeline.rows import Row


class Aside(str):
    """A line that is about the answer and no part of it: it goes to stderr."""

    __slots__ = ()


class Wrapped(Text):
    """A line that is wrapped between words; others are one line, so that a path in them can be copied."""


Lines = Iterator[str | Wrapped | Table]


def wrapped(text: str, style: str = "") -> Wrapped:
    """`text` wrapped between words, with its options as the command line has them."""
    return Wrapped(in_command(text), style)


def table_of(first: str, *others: str, title: str | None = None) -> Table:
    """A table whose first column holds names and whose others hold numbers; words where they have no name."""
    table = Table(
        title=None if title is None else Text(title),
        title_justify="left",
        show_edge=False,
        box=SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        pad_edge=False,
    )
    table.add_column(first, overflow="fold")  # a name that is too long goes on below, and is never cut
    for heading in others:
        table.add_column(heading, justify="right" if heading else "left", overflow="fold")
    return table


def add_row(table: Table, *cells: str) -> None:
    """A row of cells that are text, whatever brackets are in it."""
    table.add_row(*map(Text, cells))


def accuracy_cell(evaluation: Evaluation, *, counts: bool = True) -> str:
    """An accuracy, with how many samples it is of."""
    if not counts or evaluation.total == 1:  # a figure that is no mean over samples
        return evaluation.shown
    return f"{evaluation.shown} ({evaluation.correct:g}/{evaluation.total})"


def size_cell(row: Row) -> str:
    """The size of a plan, and its share of float's."""
    return f"{megabytes(row.cost.size_bytes)} {row.cost.size_ratio:4.0%}"


def layers_by_format(plan: Mapping[str, object]) -> str:
    """How many layers take each format, as `3 float, 19 int8`."""
    names = [str(format) for format in plan.values()]
    return ", ".join(f"{names.count(name)} {name}" for name in dict.fromkeys(names))


def count(number: int) -> str:
    """12,345 up to a million, then 1.23 M, 4.56 G."""
    for unit, size in (("G", 1e9), ("M", 1e6)):
        if number >= size:
            return f"{number / size:.2f} {unit}"
    return f"{number:,}"
