"""Progress of the commands on stderr."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from ..errors import in_command
from ..runs.bar import Bar
from ..runs.progress import Advance
from .output import note, stderr


class ShownProgress(Bar):
    """One bar for the whole; in a pipe or a log, a line when a stage begins."""

    def __init__(self, *, verbose: bool = False) -> None:
        super().__init__()
        self.verbose = verbose

    @property
    def watched(self) -> bool:
        return super().watched and not stderr.quiet

    def say(self, what: str) -> None:
        note(in_command(what))

    @contextmanager
    def shown(self, name: str, total: int | None) -> Iterator[Advance]:
        if not self.watched:
            stderr.print(f"{name} …")
        begun = time.perf_counter()
        with super().shown(name, total) as advance:
            yield advance
        if self.verbose:
            note(f"{name}: {time.perf_counter() - begun:.1f} s")
