"""What pair losses cost: exact with the prefix used again, and linear, against whole passes.

`python studies/pairs.py MODEL --data DATA [--samples N] [--json]`

The three methods take every batch in turn, in an order that rotates, and the whole `--repeats` times;
a method's time is the sum over batches of its best. All l(l + 1)/2 naive passes are made, none is
extrapolated. `max_loss_difference` is over every single and pair loss of every sample, task loss and
divergence; `rank_agreement` is Spearman's, of the interlayer scores by task loss (`…_kl`: by divergence).
`peak_mb` is the largest resident size of the process when the exact method has run and neither of
the others, `before_mb` when it had not run yet. The `cpu` ratios count processor time, which other
work on the machine disturbs less.
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

from bitsect.measure.context import Context
from bitsect.measure.evaluator import Evaluator
from bitsect.measure.pairs import exact_pairs, linear_pairs
from bitsect.measure.work import fill
from bitsect.network.capture import capture
from bitsect.rounding.ranges import calibrate
from bitsect.rounding.rounder import Rounder
from bitsect.solve.metrics import METRICS
from bitsect.solve.reliability import score, spearman
from bitsect.sources.data import Samples, load_samples
from bitsect.sources.models import load_model
from bitsect.sources.tasks.task import task_named
from bitsect.values import Format, Losses, Measured, Settings, placement_named
from bitsect.values.pieces import Done, Piece

LOSSES = ("task", "kl")


def losses(context: Context, float_outputs: Any, outputs: Any) -> Piece:
    _, labels = context.evaluator.batch(0)
    found = {"task": context.task_loss(outputs, labels), "kl": context.kl(float_outputs, outputs)}
    return {name: loss.double().numpy() for name, loss in found.items() if loss is not None}


def naive(context: Context, format: Format) -> Done:
    """Every loss by a whole pass of its own."""
    program, done = context.program, {}
    inputs, _ = context.evaluator.batch(0)
    outputs = program.run(inputs)
    done["0/float"] = losses(context, outputs, outputs)
    for i, layer in enumerate(context.layers):
        piece = losses(context, outputs, program.run(inputs, context.rounding(format, layer)))
        pairs = [
            losses(context, outputs, program.run(inputs, context.rounding(format, layer, other)))
            for other in context.layers[i + 1 :]
        ]
        stacked = {f"pair_{name}": np.stack([pair[name] for pair in pairs]) for name in piece if pairs}
        done[f"0/{i}"] = {**piece, **stacked}
    return done


def exact(context: Context, format: Format) -> Done:
    done: Done = {}
    fill(done, exact_pairs(context, format))
    return done


def linear(context: Context, format: Format) -> Done:
    done: Done = {}
    fill(done, linear_pairs(context, format))
    return done


METHODS: dict[str, Callable[[Context, Format], Done]] = {"naive": naive, "exact": exact, "linear": linear}


def tables(context: Context, done: Done, loss: str) -> tuple[np.ndarray, np.ndarray]:
    """Single [L, samples] and pair losses [L (L − 1)/2, samples] of one batch."""
    if "0" in done:  # a piece for the batch: of linear pairs
        return done["0"][f"single_{loss}"], done["0"][f"pair_{loss}"]
    rows = [done[f"0/{i}"] for i in range(len(context.layers))]
    pairs = np.concatenate([row[f"pair_{loss}"] for row in rows[:-1]])
    return np.stack([row[loss] for row in rows]), pairs


def interlayer(contexts: list[Context], done: list[Done], format: Format, loss: str) -> np.ndarray:
    layers = contexts[0].layers
    parts = [tables(context, each, loss) for context, each in zip(contexts, done, strict=True)]
    single, pair = (np.concatenate(arrays, axis=1) for arrays in zip(*parts, strict=True))
    ones = np.ones(len(layers))
    measured = Measured(layers, ones, ones, losses={format.name: Losses(single[0], single, pair)})
    return np.array(score(measured, METRICS["interlayer"], format, bootstrap=0).values)


def batch_contexts(arguments: argparse.Namespace, samples: Samples, format: Format) -> list[Context]:
    """A context for every batch, its inputs in memory: reading files is no part of the comparison."""
    network = load_model(arguments.model)
    program = capture(network.model, network.example)
    placement = placement_named(arguments.placement)
    bits = [format.activation_bits] if format.activation_bits else []
    settings = Settings(sign=placement.sign, batch_size=arguments.batch_size)
    ranges = calibrate(program, samples, settings, bits)
    rounder = Rounder(program, ranges, placement)
    task = task_named("classification")
    labels = Evaluator(program, rounder, samples, task, batch_size=arguments.batch_size).labels
    return [
        Context(
            Evaluator(
                program,
                rounder,
                load_samples([(batch.inputs, labels[batch.indices])]),
                task,
                batch_size=len(batch.indices),
            )
        )
        for batch in samples.batches(arguments.batch_size)
    ]


def resident_mb() -> float:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (1e6 if sys.platform == "darwin" else 1e3)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", help="zoo:NAME, FILE.pt2 or package.module:function")
    parser.add_argument("--data", required=True)
    parser.add_argument("--samples", type=int, help="random draw of so many; all if left out")
    parser.add_argument("--mean", type=float, nargs="+")
    parser.add_argument("--std", type=float, nargs="+")
    parser.add_argument("--scale", type=float)
    parser.add_argument("--format", default="int8")
    parser.add_argument("--placement", default="paper")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    arguments = parser.parse_args()

    torch.set_num_threads(arguments.threads)
    format = Format.parse(arguments.format)
    samples = load_samples(
        arguments.data,
        draw=arguments.samples,
        mean=arguments.mean,
        std=arguments.std,
        scale=arguments.scale,
    )
    contexts = batch_contexts(arguments, samples, format)
    before_mb = resident_mb()
    exact(contexts[0], format)
    peak_mb = resident_mb()

    best = {name: np.full((len(contexts), 2), np.inf) for name in METHODS}  # wall and processor seconds
    results: dict[str, list[Done]] = {name: [{} for _ in contexts] for name in METHODS}
    order = list(METHODS)
    for repeat in range(arguments.repeats):
        for number, context in enumerate(contexts):
            for name in order:
                start = time.perf_counter(), time.process_time()
                results[name][number] = METHODS[name](context, format)
                spent = time.perf_counter() - start[0], time.process_time() - start[1]
                best[name][number] = np.minimum(best[name][number], spent)
            order = order[1:] + order[:1]
            so_far = {name: spent[: number + 1].sum(0).round(1).tolist() for name, spent in best.items()}
            print(
                f"repeat {repeat + 1}, batch {number + 1} of {len(contexts)}: "
                f"best wall and processor seconds so far {so_far}",
                file=sys.stderr,
                flush=True,
            )

    difference = 0.0
    for context, one, other in zip(contexts, results["naive"], results["exact"], strict=True):
        for loss in LOSSES:
            for left, right in zip(tables(context, one, loss), tables(context, other, loss), strict=True):
                difference = max(difference, float(np.abs(left - right).max()))
    agreement = {
        loss: spearman(*(interlayer(contexts, results[name], format, loss) for name in ("linear", "exact")))
        for loss in LOSSES
    }
    seconds = {name: spent.sum(0) for name, spent in best.items()}
    count = len(contexts[0].layers)
    report = {
        "model": Path(arguments.model).name,
        "layers": count,
        "naive_passes": count * (count + 1) // 2,
        "samples": len(samples),
        "batch_size": arguments.batch_size,
        "threads": arguments.threads,
        "format": format.name,
        "placement": arguments.placement,
        "repeats": arguments.repeats,
        "seconds": {name: round(float(spent[0]), 3) for name, spent in seconds.items()},
        "exact_over_naive": round(float(seconds["exact"][0] / seconds["naive"][0]), 4),
        "linear_over_naive": round(float(seconds["linear"][0] / seconds["naive"][0]), 4),
        "exact_over_naive_cpu": round(float(seconds["exact"][1] / seconds["naive"][1]), 4),
        "linear_over_naive_cpu": round(float(seconds["linear"][1] / seconds["naive"][1]), 4),
        "max_loss_difference": difference,
        "rank_agreement": round(agreement["task"], 4),
        "rank_agreement_kl": round(agreement["kl"], 4),
        "peak_mb": round(peak_mb),
        "before_mb": round(before_mb),
    }
    if arguments.json:
        print(json.dumps(report))
        return
    for name, value in report.items():
        print(f"{name:24} {value}")


if __name__ == "__main__":
    main()
