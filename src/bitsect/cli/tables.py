"""Tables as the terminal shows them."""

from __future__ import annotations

from rich.table import Table

from ..values import Evaluation


def table_of(first: str, *numbers: str, title: str | None = None) -> Table:
    """A table whose first column holds names and whose others hold numbers."""
    table = Table(title=title, title_justify="left", show_edge=False)
    table.add_column(first)
    for heading in numbers:
        table.add_column(heading, justify="right")
    return table


def accuracy_cell(evaluation: Evaluation, *, counts: bool = True) -> str:
    if evaluation.total == 1:  # a figure that is no mean over samples
        return f"{evaluation.accuracy:.4f}"
    shown = f"{evaluation.accuracy:.2%}"
    return f"{shown} ({evaluation.correct:g}/{evaluation.total})" if counts else shown
