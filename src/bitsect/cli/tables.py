"""Tables as the terminal shows them."""

from __future__ import annotations

from rich.box import SIMPLE_HEAD
from rich.table import Table

from ..values import Evaluation


def table_of(first: str, *others: str, title: str | None = None) -> Table:
    """A table whose first column holds names and whose others hold numbers; words where they have no name."""
    table = Table(
        title=title,
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


def accuracy_cell(evaluation: Evaluation, *, counts: bool = True) -> str:
    if not counts or evaluation.total == 1:  # a figure that is no mean over samples
        return evaluation.shown
    return f"{evaluation.shown} ({evaluation.correct:g}/{evaluation.total})"
