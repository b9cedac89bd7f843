"""How a long stage tells where it is."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from ..errors import in_python
from .forecast import Forecast

Advance = Callable[[int], None]


class Progress:
    """Times the stages of a run, forecasts their end, and is silent about them."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.forecast = Forecast()

    @contextmanager
    def stage(self, name: str, total: int | None = None) -> Iterator[Advance]:
        """A stage of `total` pieces; the function it gives is called with how many more are done."""
        start = time.perf_counter()
        self.forecast.begin(name, total)
        try:
            with self.shown(name, total) as advance:

                def both(count: int) -> None:
                    self.forecast.advance(count)
                    advance(count)

                yield both
        finally:
            self.forecast.end()
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start

    def expect(self, passes: Mapping[str, float]) -> None:
        """What stages are still to come: each with how often a sample goes once through the network."""
        self.forecast.expect(passes)

    def say(self, what: str) -> None:
        """Something worth knowing before the work is done."""
        logging.getLogger("bitsect").info(in_python(what))

    @contextmanager
    def shown(self, name: str, total: int | None) -> Iterator[Advance]:
        """Show a stage while it is on: for subclasses, which know how."""
        yield lambda count: None
