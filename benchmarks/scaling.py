"""How the work grows, and how it is shared: workers, a cluster, and the number of layers.

`python benchmarks/scaling.py MODEL --data DATA [--samples N] [--every K] [--json]`   how it is shared
`python benchmarks/scaling.py --growth [--json]`                                       how it grows

Shared: the pieces of exact pairs (every K-th of them: pieces are alike) in this process with one thread, in
two workers with one thread each, and in two workers on a Ray cluster of this machine. The three take turns
`--repeats` times, all of them open and warm before; a figure is the best time of one process over the
best of the others, the load average stands beside it, and the pieces must be the same bytes. From the times
of single pieces and of opening a worker, a simulation says what 100 machines would take for
`--target-samples` samples: machines of several speeds, pieces that take five times as long, machines that are
lost.

Growth: chains of 10 to 300 convolutions. Exponents of processor time ÷ that of one pass against the number of
layers, for exact pairs (from a sample of their rows) and for linear ones; of the time of capture as it is.
"""

from __future__ import annotations

import argparse
import heapq
import os
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

from bitsect.measure.context import Context
from bitsect.measure.evaluator import Evaluator
from bitsect.measure.pairs import exact_pairs, linear_pairs
from bitsect.measure.work import Work, fill
from bitsect.network.capture import capture
from bitsect.rounding.ranges import calibrate
from bitsect.rounding.rounder import Rounder
from bitsect.runs.opening import open_run
from bitsect.sources.data import load_samples
from bitsect.sources.tasks.task import task_named
from bitsect.values import INT8, Resources, Settings
from bitsect.values.pieces import Piece
from shown import show  # beside this file

WAYS = {
    "one process": Resources(),
    "two workers": Resources(workers=2),
    "ray": Resources(ray="auto", workers=2),
}
LAYERS = (10, 30, 100, 300)
ROWS = 8  # of exact pairs that are timed in each chain
MACHINES, LOST_PER_HOUR, SLOW_SHARE, SLOW_FACTOR, SPREAD = 100, 0.5, 0.02, 5.0, 0.2


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def seconds(do: Callable[[], Any]) -> float:
    start = time.perf_counter()
    do()
    return time.perf_counter() - start


# How it is shared


def shared(arguments: argparse.Namespace) -> dict[str, Any]:
    names = arguments.ways.split(",") if arguments.ways else list(WAYS)
    settings = Settings(
        draw=arguments.samples,
        batch_size=arguments.batch_size,
        threads=1,
        **{name: getattr(arguments, name) for name in ("mean", "std", "scale") if getattr(arguments, name)},
    )
    with ExitStack() as stack:
        works: dict[str, Work] = {}
        opening: dict[str, float] = {}
        for name in names:
            run = stack.enter_context(open_run(arguments.model, arguments.data, settings, WAYS[name]))
            works[name] = exact_pairs(Context(run.evaluator((INT8,))), INT8)
            work = works[name]
            # The last row of every batch is short: it opens workers, rounds weights and runs every batch.
            short = [piece for piece in work.pieces if piece.endswith(f"/{len(run.layers) - 1}")]
            opening[name] = seconds(lambda work=work, short=short: fill({}, only(work, [*short, *short])))
            say(f"{name}: open after {opening[name]:.1f} s")
        best = dict.fromkeys(names, float("inf"))
        found: dict[str, dict[str, Piece]] = {}
        pieces = works[names[0]].pieces[:: arguments.every]
        loads = []
        for repeat in range(arguments.repeats):
            for name in names[repeat % len(names) :] + names[: repeat % len(names)]:
                found[name] = {}
                took = seconds(lambda name=name: fill(found[name], only(works[name], pieces)))
                best[name] = min(best[name], took)
                loads.append(round(os.getloadavg()[0], 2))
                say(f"{repeat + 1}: {name} {took:.2f} s, load average {loads[-1]}")
        same = all(as_bytes(found[name]) == as_bytes(found[names[0]]) for name in names)
        alone = works[names[0]]
        each = {piece: seconds(lambda piece=piece: alone.do(piece)) for piece in pieces}
    base = best["one process"]
    return {
        "model": Path(arguments.model).name,
        "samples": arguments.samples,
        "batch_size": arguments.batch_size,
        "pieces": len(pieces),
        "seconds": {name: round(took, 3) for name, took in best.items()},
        "two_workers_speedup": ratio(base, best.get("two workers")),
        "ray_speedup": ratio(base, best.get("ray")),
        "same_bytes": same,
        "load_average": [min(loads), max(loads)],
        "opening_seconds": {name: round(took, 2) for name, took in opening.items()},
        "on_100_machines": on_machines(
            list(each.values()),
            arguments.every * arguments.target_samples / arguments.samples,
            opening.get("ray", max(opening.values())),
        ),
    }


def only(work: Work, names: Sequence[str]) -> Work:
    """The same work, of these pieces alone."""
    return Work(tuple(dict.fromkeys(names)), work.do, work.group, work.order, work.crew)


def ratio(base: float, other: float | None) -> float | None:
    return None if other is None else round(base / other, 3)


def as_bytes(done: dict[str, Piece]) -> dict[str, Any]:
    return {name: {key: array.tobytes() for key, array in piece.items()} for name, piece in done.items()}


def on_machines(times: list[float], more: float, opening: float, seed: int = 0) -> dict[str, Any]:
    """What `more` times these pieces would take on 100 machines of one worker each, by simulation.

    A free machine takes the next piece, the long ones first. Speeds vary by SPREAD, SLOW_SHARE of the pieces
    take SLOW_FACTOR times as long; a machine is lost LOST_PER_HOUR times an hour, its piece is done again and
    a new machine has to open the run first.
    """
    random = np.random.default_rng(seed)
    pieces = sorted(times * max(1, round(more)), reverse=True)
    alone = sum(pieces)
    speed = np.exp(random.normal(0, SPREAD, MACHINES))
    free = [(opening, machine) for machine in range(MACHINES)]
    heapq.heapify(free)
    waiting, lost, end = pieces[::-1], 0, 0.0
    while waiting:
        now, machine = heapq.heappop(free)
        piece = waiting.pop()
        took = piece / speed[machine] * (SLOW_FACTOR if random.random() < SLOW_SHARE else 1.0)
        left = random.exponential(3600 / LOST_PER_HOUR)
        if left < took:
            lost += 1
            waiting.append(piece)
            heapq.heappush(free, (now + left + opening, machine))
        else:
            end = max(end, now + took)
            heapq.heappush(free, (now + took, machine))
    return {
        "pieces": len(pieces),
        "one_machine_seconds": round(alone, 1),
        "seconds": round(end, 1),
        "speedup": round(alone / end, 1),
        "machines_lost": lost,
        "longest_piece_seconds": round(pieces[0], 2),
    }


# How it grows


def chain(layers: int, channels: int) -> nn.Module:
    torch.manual_seed(0)
    convolutions = [nn.Conv2d(channels, channels, 3, padding=1) for _ in range(layers - 1)]
    steps: list[nn.Module] = []
    for convolution in convolutions:
        nn.init.orthogonal_(convolution.weight)
        steps += [convolution, nn.ReLU()]
    return nn.Sequential(*steps, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 10)).eval()


def context_of(layers: int, channels: int, pixels: int, rows: int) -> Context:
    inputs = torch.randn(rows, channels, pixels, pixels, generator=torch.Generator().manual_seed(1))
    program = capture(chain(layers, channels), inputs[:2])
    samples = load_samples((inputs, torch.arange(rows) % 10))
    settings = Settings(batch_size=rows)
    rounder = Rounder(program, calibrate(program, samples, settings, (8,)))
    return Context(Evaluator(program, rounder, samples, task_named("classification"), batch_size=rows))


def best_of(repeats: int, do: Callable[[], Any]) -> float:
    """Processor seconds, which other work on the machine changes least."""

    def once() -> float:
        start = time.process_time()
        do()
        return time.process_time() - start

    return min(once() for _ in range(repeats))


def growth(repeats: int) -> dict[str, Any]:
    found: dict[str, list[float]] = {"capture": [], "exact": [], "linear": []}
    for layers in LAYERS:
        found["capture"].append(
            best_of(repeats, lambda n=layers: capture(chain(n, 4), torch.zeros(2, 4, 8, 8)))
        )
        small = context_of(layers, 16, 16, 8)
        found["exact"].append(exact_time(small, min(2, repeats)) / pass_time(small))
        large = context_of(layers, 16, 16, 16)
        linear = linear_pairs(large, INT8)
        linear.do("0")
        found["linear"].append(best_of(repeats, lambda work=linear: work.do("0")) / pass_time(large))
        say(f"{layers} layers: " + ", ".join(f"{name} {values[-1]:.3g}" for name, values in found.items()))
    exponents = {f"{name}_exponent": exponent(values) for name, values in found.items()}
    return {
        "layers": list(LAYERS),
        "capture_seconds": [round(value, 3) for value in found["capture"]],
        "exact_passes": [round(value, 1) for value in found["exact"]],
        "linear_passes": [round(value, 1) for value in found["linear"]],
        **exponents,
        "load_average": round(os.getloadavg()[0], 2),
    }


def pass_time(context: Context) -> float:
    inputs, _ = context.evaluator.batch(0)
    return best_of(7, lambda: context.program.run(inputs))


def exact_time(context: Context, repeats: int) -> float:
    """The time of all rows of exact pairs, from some: its root falls evenly from the first to the last."""
    work, last = exact_pairs(context, INT8), len(context.layers) - 1
    rows = np.unique(np.linspace(0, last, min(ROWS, last + 1)).round().astype(int))
    work.do(f"0/{last}")  # the float pass
    times = [best_of(repeats, lambda row=row: work.do(f"0/{row}")) for row in rows]
    return float(np.square(np.interp(np.arange(last + 1), rows, np.sqrt(times))).sum())


def exponent(values: Sequence[float]) -> float:
    """The slope of log(value) against log(layers)."""
    return round(float(np.polyfit(np.log(LAYERS), np.log(values), 1)[0]), 3)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", nargs="?", help="zoo:NAME, FILE.pt2 or package.module:function")
    parser.add_argument("--data")
    parser.add_argument("--samples", type=int, default=128)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--every", type=int, default=1, help="take every K-th piece")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--ways", help=f"some of {', '.join(WAYS)}, with commas; default: all")
    parser.add_argument("--target-samples", type=int, default=1024, help="of the simulation")
    parser.add_argument("--mean", type=float, nargs="+")
    parser.add_argument("--std", type=float, nargs="+")
    parser.add_argument("--scale", type=float)
    parser.add_argument("--growth", action="store_true")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.growth:
        report = growth(min(arguments.repeats, 3))
    elif arguments.model and arguments.data:
        report = shared(arguments)
    else:
        parser.error("a model and --data, or --growth")
    show(report, arguments.json)


if __name__ == "__main__":
    main()
