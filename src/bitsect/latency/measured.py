"""Whole models timed against each other, in turns, in the runtime and on the machine where they will run."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import BitsectError
from ..exporters.runtimes.apart import Apart, Fault, Model
from ..exporters.runtimes.onnxruntime import feed_of
from ..values import Plan
from .clock import Clock, time_wholes


@dataclass(frozen=True)
class MeasuredFiles:
    """Milliseconds of plans whose files ran here; and why others did not."""

    runtime: str
    threads: int
    ms: Mapping[Plan, float]
    faults: Mapping[Plan, str]
    length: int | None = None  # of the sequences that they ran on, where any will do

    def ratio(self, plan: Plan, baseline: Plan) -> float | None:
        """How long `plan` takes against `baseline`, where both were timed."""
        if plan not in self.ms or baseline not in self.ms:
            return None
        return self.ms[plan] / self.ms[baseline]


def measure(
    runtime: str, plans: list[Plan], write: Callable[[Plan, Path], Path], inputs: Any, threads: int
) -> MeasuredFiles:
    """How long the written models of `plans` take on the inputs of one sample."""
    with tempfile.TemporaryDirectory() as name, Apart(runtime) as apart:
        folder = Path(name)
        models = {str(number): plan for number, plan in enumerate(plans)}
        paths = {number: write(plan, folder / f"{number}.onnx") for number, plan in models.items()}
        feed = folder / "feed.npz"
        np.savez(feed, **feed_of(paths["0"], inputs))  # type: ignore[arg-type]
        clock = Clock.made(apart, threads, folder)
        found = time_wholes(clock, [Model(number, path, feed) for number, path in paths.items()])
        ran = {number: clock.ms([times]) for number, times in found.items() if not isinstance(times, Fault)}
        faults = {models[n]: times.why for n, times in found.items() if isinstance(times, Fault)}
        if not ran:
            raise BitsectError(f"no model runs in {runtime} here: {next(iter(faults.values()))}")
        version = f"{runtime} {apart.version}"
    return MeasuredFiles(version, threads, {models[n]: ms for n, ms in ran.items()}, faults)
