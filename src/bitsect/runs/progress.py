"""How a long stage tells where it is."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ..errors import in_python

Advance = Callable[[int], None]


class Progress:
    """Times the stages of a run, and is silent about them; the command line draws bars instead."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def stage(self, name: str, total: int | None = None) -> Iterator[Advance]:
        """A stage of `total` pieces; the function it gives is called with how many more are done."""
        start = time.perf_counter()
        try:
            with self.shown(name, total) as advance:
                yield advance
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start

    def say(self, what: str) -> None:
        """Something worth knowing before the work is done."""
        logging.getLogger("bitsect").info(in_python(what))

    @contextmanager
    def shown(self, name: str, total: int | None) -> Iterator[Advance]:
        yield lambda count: None
