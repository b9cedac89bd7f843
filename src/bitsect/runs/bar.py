"""One bar for the whole, with about how long it will take: in a terminal, and in a notebook."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from html import escape
from typing import Any

from .forecast import about
from .progress import Advance, Progress

OFTEN = 0.2  # seconds between two pictures in a notebook


class Bar(Progress):
    """A bar that is drawn while a stage is on, and gone between and after."""

    @property
    def watched(self) -> bool:
        """Whether anybody would see it."""
        return in_notebook() or sys.stderr.isatty()

    @contextmanager
    def shown(self, name: str, total: int | None) -> Iterator[Advance]:
        if not self.watched:
            yield lambda count: None
        elif in_notebook():
            with self._in_notebook() as advance:
                yield advance
        else:
            with self._in_terminal() as advance:
                yield advance

    def words(self) -> str:
        """Where the whole is: the stage, its pieces, and what is left of the whole or of the stage."""
        forecast = self.forecast
        parts = [] if (share := forecast.share()) is None else [f"{share:4.0%}"]
        pieces = f" {min(forecast.done, forecast.total):,}/{forecast.total:,}" if forecast.total else ""
        parts.append(f"{forecast.stage}{pieces}")
        if (left := forecast.left()) is not None:
            parts.append(f"{about(left)} left")
        elif (rest := forecast.left_of_stage()) is not None:
            parts.append(f"{about(rest)} left of this stage")
        return " · ".join(parts)

    @contextmanager
    def _in_terminal(self) -> Iterator[Advance]:
        from rich.console import Console
        from rich.live import Live
        from rich.progress_bar import ProgressBar
        from rich.table import Table

        def picture() -> Table:
            share = self.forecast.share()
            line = Table.grid(padding=(0, 1))
            line.add_column(width=24)
            line.add_column(no_wrap=True)
            bar = ProgressBar(1.0, share or 0.0, width=24, pulse=share is None)
            line.add_row(bar, self.words())
            return line

        with Live(get_renderable=picture, console=Console(stderr=True), transient=True, refresh_per_second=8):
            yield lambda count: None

    @contextmanager
    def _in_notebook(self) -> Iterator[Advance]:
        from IPython.display import HTML, display

        handle, drawn = display(HTML(self._html()), display_id=True), time.perf_counter()

        def advance(count: int) -> None:
            nonlocal drawn
            if time.perf_counter() - drawn >= OFTEN:
                handle.update(HTML(self._html()))
                drawn = time.perf_counter()

        try:
            yield advance
        finally:
            handle.update(HTML(""))

    def _html(self) -> str:
        share = self.forecast.share()
        value = "" if share is None else f" value='{share:.3f}'"
        return f"<progress max='1'{value}></progress> <code>{escape(self.words())}</code>"


def in_notebook() -> bool:
    """Whether the program runs in the kernel of a notebook."""
    interactive: Any = sys.modules.get("IPython")
    shell = interactive.get_ipython() if interactive is not None else None
    return type(shell).__name__ == "ZMQInteractiveShell"
