"""How long the whole will take: what is still to come, and what the like of it took so far.

Work is counted in *passes*: one sample once through the float network. Before the first stage with known work
has ended nobody knows what a pass takes here, and nothing is said. From then on

    left = rest of this stage + Σ stages to come, passes · seconds of a pass

A stage that counts its pieces is extrapolated from them; seconds of a pass are those of all stages so far,
without those that found their work done already.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

KNOWN_BEFORE = 0.2  # of the slowest stage's seconds per pass: what is faster found its work done already
LEAST_SHARE = 0.05  # of a stage's pieces, from which on it is extrapolated from them
LEAST_SECONDS = 0.5  # or so long a look


class Forecast:
    """Stages done, the one that is on, and those to come."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._ahead: dict[str, float] = {}  # stage → passes
        self._took: dict[str, tuple[float, float]] = {}  # stage → seconds, passes
        self._begun = self._stage_begun = clock()
        self._share = 0.0
        self.stage: str | None = None
        self.total: int | None = None
        self.done = 0

    def expect(self, passes: Mapping[str, float]) -> None:
        """What is to come, in passes; in place of what was expected before."""
        self._ahead = {name: count for name, count in passes.items() if count > 0}

    def begin(self, stage: str, total: int | None) -> None:
        self.stage, self.total, self.done, self._stage_begun = stage, total, 0, self._clock()

    def advance(self, count: int) -> None:
        self.done += count

    def end(self) -> None:
        assert self.stage is not None
        passes = self._ahead.pop(self.stage, None)
        if passes is not None:
            self._took[self.stage] = (self._clock() - self._stage_begun, passes)
        self.stage = None

    @property
    def elapsed(self) -> float:
        return self._clock() - self._begun

    def left(self) -> float | None:
        """Seconds to the end of the whole; None where nobody knows."""
        pace = self._pace()
        if pace is None or not (self._ahead or self._took):
            return None
        to_come = pace * sum(passes for name, passes in self._ahead.items() if name != self.stage)
        rest = self.left_of_stage()
        if rest is None:
            spent = self._clock() - self._stage_begun
            rest = max(0.0, pace * self._ahead.get(self.stage or "", 0.0) - spent)
        return rest + to_come

    def left_of_stage(self) -> float | None:
        """Seconds to the end of the stage that is on, by its own pieces."""
        if self.stage is None or not self.total or not self.done:
            return None
        spent = self._clock() - self._stage_begun
        if self.done < LEAST_SHARE * self.total and spent < LEAST_SECONDS:
            return None
        return spent * max(0, self.total - self.done) / self.done

    def share(self) -> float | None:
        """How much of the whole is done, 0 to 1; it never goes back."""
        left = self.left()
        if left is None:
            return None
        elapsed = self.elapsed
        self._share = max(self._share, elapsed / (elapsed + left) if elapsed + left > 0 else 0.0)
        return self._share

    def _pace(self) -> float | None:
        """Seconds of a pass."""
        paces = [seconds / passes for seconds, passes in self._took.values()]
        most = max(paces, default=0.0)
        if not most:
            return None
        fresh = [each for each in self._took.values() if each[0] / each[1] >= KNOWN_BEFORE * most]
        return sum(seconds for seconds, _ in fresh) / sum(passes for _, passes in fresh)


def about(seconds: float) -> str:
    """A time as people say it who do not know it exactly.

    >>> [about(each) for each in (3, 33, 70, 200, 4000, 100_000)]
    ['a few seconds', 'about 35 s', 'about 70 s', 'about 3 min', 'about 1 h 10 min', 'about 28 h']
    """
    if seconds < 8:
        return "a few seconds"
    if seconds < 60:
        return f"about {5 * round(seconds / 5)} s"
    if seconds < 95:
        return f"about {10 * round(seconds / 10)} s"
    minutes = round(seconds / 60)
    if minutes < 60:
        return f"about {minutes} min"
    if minutes < 600:
        hours, minutes = divmod(10 * round(minutes / 10), 60)
        return f"about {hours} h" + (f" {minutes} min" if minutes else "")
    return f"about {round(minutes / 60)} h"
