"""Where the time of a run goes: the network's own operators, rounding, and everything else.

    python studies/profiling.py MODEL --data DATA [--draw N] [--json]

Every operator that torch is asked for is timed on its way; those within `Grid.round` count as rounding.
What is left of a stage is outside: Python, samples, files.
Profiled are the sixteen plans of a search, from all int8 towards all int4, and the exact pairs of int8
on sixteen samples.
One thread, processor time.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode

from bitsect import Settings
from bitsect.measure.context import Context
from bitsect.measure.pairs import exact_pairs
from bitsect.measure.work import fill
from bitsect.runs.opening import open_run
from bitsect.runs.run import Run
from bitsect.values import Format, Plan
from bitsect.values.grid import Grid

INT8, INT4 = Format(8, 8), Format(4, 4)
PLANS = 16


class Clock(TorchDispatchMode):
    """Adds up the processor time that operators take, apart for those that round values."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds = {"network": 0.0, "rounding": 0.0}
        self.what = "network"

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        started = time.process_time()
        try:
            return func(*args, **(kwargs or {}))
        finally:
            self.seconds[self.what] += time.process_time() - started

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Time operators, and know which of them round."""
        whole = Grid.round

        def rounding(grid: Grid, values: Any) -> Any:
            self.what = "rounding"
            try:
                return whole(grid, values)
            finally:
                self.what = "network"

        Grid.round = rounding  # type: ignore[method-assign]
        try:
            with self:
                yield
        finally:
            Grid.round = whole  # type: ignore[method-assign]


def profiled(stage: Callable[[], Any]) -> dict[str, float]:
    """The seconds of a stage, and the shares of them by what they were spent on.

    It runs as it is, for its seconds, and with its operators timed; of both the best of two is taken.
    """
    whole, clocks = [], []
    for _ in range(2):
        started = time.process_time()
        stage()
        whole.append(time.process_time() - started)
        clocks.append(Clock())
        with clocks[-1].watching():
            stage()
    seconds = min(whole)
    shares = {name: min(clock.seconds[name] for clock in clocks) / seconds for name in clocks[0].seconds}
    return {"seconds": seconds, **shares, "outside": 1 - sum(shares.values())}


def search(run: Run) -> Callable[[], None]:
    """Plans from all int8 to all int4, a few layers more at a time, judged on all samples."""
    evaluator = run.evaluator({INT8, INT4})
    evaluator.prefixes = None  # every plan on its own: what they share is for studies/prefixes.py
    names = [layer.name for layer in run.layers]
    plans = [
        Plan.uniform(run.layers, INT8).replace(names[: len(names) * k // PLANS], INT4) for k in range(PLANS)
    ]
    evaluator.rounding(Plan.uniform(run.layers, INT8))  # weights are rounded once for a whole search
    evaluator.rounding(Plan.uniform(run.layers, INT4))

    def judge() -> None:
        evaluator.done = {}
        for plan in plans:
            evaluator(plan)

    return judge


def pairs(run: Run) -> Callable[[], Any]:
    context = Context(run.evaluator({INT8}), min(16, len(run.samples)))
    context.rounding(INT8, run.layers[0].name)
    return lambda: fill({}, exact_pairs(context, INT8))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model")
    parser.add_argument("--data")
    parser.add_argument("--draw", type=int, default=64)
    parser.add_argument("--mean", type=float, nargs="+", default=())
    parser.add_argument("--std", type=float, nargs="+", default=())
    parser.add_argument("--scale", type=float)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    pixels = {
        name: value
        for name in ("mean", "std", "scale")
        if (value := getattr(arguments, name)) not in (None, ())
    }
    pixels = {name: tuple(value) if isinstance(value, list) else value for name, value in pixels.items()}
    settings = Settings(draw=arguments.draw, range="mse", sign="auto", rounding="gptq", threads=1, **pixels)
    with open_run(arguments.model, arguments.data, settings) as run:
        run.calibrate({INT8, INT4})
        found = {"search": profiled(search(run)), "exact pairs": profiled(pairs(run))}
    if arguments.json:
        print(json.dumps({"model": arguments.model, "draw": arguments.draw, **found}, indent=2))
        return
    print("| stage | CPU seconds | network's operators | rounding | outside |\n|---|---|---|---|---|")
    for stage, shares in found.items():
        parts = " | ".join(f"{shares[name]:.1%}" for name in ("network", "rounding", "outside"))
        print(f"| {stage} | {shares['seconds']:.1f} | {parts} |")


if __name__ == "__main__":
    main()
