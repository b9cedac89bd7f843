"""A clock that goes slower when the machine does: a fixed kernel that takes turns with all that is timed.

Another process on the same core may halve the speed of everything for a while. What is timed beside the
reference is then as many times slower as that, so a visit is corrected by what the reference took in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import numpy as np

from ..errors import BitsectError
from ..exporters.onnx.pieces import reference_model
from ..exporters.runtimes.apart import Apart, Fault, Model, Times

REFERENCE = "reference"
LEAST_SPREAD = 0.02  # of the time: what two measurements on a quiet machine differ by
LEAST_SPREAD_MS = 0.0005
VISIT_SECONDS = 0.02  # of a whole model
WHOLE_VISITS, WHOLE_SECONDS = 8, 10.0  # of each whole model; of all of them together, about


@dataclass
class Clock:
    """Times models in a runtime, in units of the least time that the reference was ever seen to take."""

    apart: Apart
    threads: int
    reference: Model
    best_ms: float = field(default=float("inf"))

    @classmethod
    def made(cls, apart: Apart, threads: int, folder: Path) -> Clock:
        path = folder / "reference.onnx"
        np.savez(path.with_suffix(".npz"), **reference_model(path))  # type: ignore[arg-type]
        return cls(apart, threads, Model(REFERENCE, path, path.with_suffix(".npz")))

    def time(self, models: Sequence[Model], visits: int, visit_seconds: float) -> dict[str, Times | Fault]:
        """How long each model takes, each visit in units of what the reference took in it."""
        found = self.apart.time(
            [self.reference, *models], threads=self.threads, visits=visits, visit_seconds=visit_seconds
        )
        beside = found.pop(REFERENCE)
        if isinstance(beside, Fault):
            if all(isinstance(times, Fault) for times in found.values()):
                return found
            raise BitsectError(f"{self.apart.engine} does not multiply two matrices here: {beside.why}")
        self.best_ms = min(self.best_ms, *beside.least)
        return {
            name: times
            if isinstance(times, Fault)
            else Times(
                tuple(ms / by for ms, by in zip(times.least, beside.least, strict=True)),
                tuple(ms / by for ms, by in zip(times.mean, beside.least, strict=True)),
            )
            for name, times in found.items()
        }

    def ms(self, passes: Sequence[Times]) -> float:
        """Milliseconds on a machine that does nothing else: the middle of all visits."""
        return self.best_ms * median([value for times in passes for value in times.least])

    def spread_ms(self, passes: Sequence[Times], ms: float) -> float:
        """By how much another measurement of a kernel may differ: as passes and visits of this one do."""
        middles = [median(times.least) for times in passes]
        visits = sorted(value for times in passes for value in times.least)
        inner = visits[(3 * len(visits)) // 4] - visits[len(visits) // 4]
        widest = self.best_ms * max(max(middles) - min(middles), inner)
        return max(widest, LEAST_SPREAD * ms, LEAST_SPREAD_MS)


def time_wholes(clock: Clock, models: Sequence[Model]) -> dict[str, Times | Fault]:
    """How long whole models take, in turns; the slower they are, the fewer visits."""
    first = clock.apart.time(models[:1], threads=clock.threads, visits=1, visit_seconds=0.0)
    once = next((min(t.least) / 1000 for t in first.values() if isinstance(t, Times)), 1.0)
    visits = int(WHOLE_SECONDS / (len(models) * max(once, 0.01) * 2))
    return clock.time(models, min(max(visits, 3), WHOLE_VISITS), VISIT_SECONDS)
