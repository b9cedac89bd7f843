"""Progress as bars on stderr, with the time left."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    ProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.progress import Progress as Bars

from ..errors import in_command
from ..runs.progress import Advance, Progress
from .output import note, stderr


class ShownProgress(Progress):
    """A bar for every stage; in a pipe or a log, a line when a stage begins."""

    def say(self, what: str) -> None:
        note(in_command(what))

    @contextmanager
    def shown(self, name: str, total: int | None) -> Iterator[Advance]:
        if not stderr.is_terminal:
            stderr.print(f"{name} …")
            yield lambda count: None
            return
        columns: list[ProgressColumn] = [TextColumn("{task.description:>14}"), BarColumn()]
        if total is not None:
            columns += [MofNCompleteColumn(), TextColumn("left"), TimeRemainingColumn(), TextColumn("after")]
        with Bars(*columns, TimeElapsedColumn(), console=stderr, transient=True) as bars:
            task = bars.add_task(name, total=total)
            yield lambda count: bars.advance(task, count)
