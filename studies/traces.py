"""How soon each way of probing knows the Hessian traces.

`python studies/traces.py MODEL --data DATA [--samples N] [--ways gauss-newton 1 all] [--json]`

Ways: gauss-newton probes, or Hutchinson's with so many layers probed at once. What counts is variance ×
time: for every layer the CPU seconds until the standard error of its trace over these samples is 5 % of
it, (standard deviation of a probe / trace)² · seconds per probe / 0.05². So the seconds are extrapolated
by 1/√n from the variance of few probes, `--probes` of each. A probe goes through all samples in
mini-batches of `--mini-batch` (Hutchinson's, `--hutchinson-batch`). The ways take turns, probe by probe;
a probe's time is the median.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

from bitsect.measure import traces
from bitsect.measure.context import Context
from bitsect.measure.evaluator import Evaluator
from bitsect.network.capture import capture
from bitsect.rounding.rounder import Rounder
from bitsect.sources.data import load_samples
from bitsect.sources.models import load_model
from bitsect.sources.tasks.task import task_named
from bitsect.values.pieces import Done

ERROR = 0.05


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", help="zoo:NAME, FILE.pt2 or package.module:function")
    parser.add_argument("--data", required=True)
    parser.add_argument("--samples", type=int, default=64)
    parser.add_argument("--mean", type=float, nargs="+")
    parser.add_argument("--std", type=float, nargs="+")
    parser.add_argument("--scale", type=float)
    parser.add_argument("--mini-batch", type=int, default=traces.MINI_BATCH)
    parser.add_argument("--hutchinson-batch", type=int, default=traces.MINI_BATCH)
    parser.add_argument(
        "--ways", nargs="+", default=["gauss-newton", "1", "all"], help="or a number of layers at once"
    )
    parser.add_argument("--probes", type=int, default=20)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    arguments = parser.parse_args()

    torch.set_num_threads(arguments.threads)
    samples = load_samples(
        arguments.data,
        draw=arguments.samples,
        mean=arguments.mean,
        std=arguments.std,
        scale=arguments.scale,
    )
    network = load_model(arguments.model)
    program = capture(network.model, network.example)
    evaluator = Evaluator(program, Rounder(program), samples, task_named("classification"), batch_size=64)
    estimates, seconds = _probe_in_turns(Context(evaluator), arguments)
    report = {
        "model": Path(arguments.model).name,
        "layers": len(program.layers),
        "samples": len(samples),
        "threads": arguments.threads,
        "probes": arguments.probes,
        "ways": _compare(estimates, seconds),
    }
    if arguments.json:
        print(json.dumps(report))
        return
    print(f"{report['model']}: {len(program.layers)} layers, {len(samples)} samples; CPU time to 5 %")
    for name, way in report["ways"].items():
        print(f"{name:>12}", *(f"  {key.replace('_', ' ')} {value}" for key, value in way.items()))


def _probe_in_turns(
    context: Context, arguments: argparse.Namespace
) -> tuple[dict[str, np.ndarray[Any, Any]], dict[str, float]]:
    """The estimates [layers, mini-batches, probes] of every way, and its median CPU seconds for a probe."""
    ways = {name: _estimator(name) for name in arguments.ways}
    batch = {
        name: arguments.mini_batch if name == "gauss-newton" else arguments.hutchinson_batch for name in ways
    }
    done: dict[str, Done] = {name: {} for name in ways}
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    found: dict[str, np.ndarray[Any, Any]] = {}
    order = list(ways)
    for probe in range(arguments.probes):
        for name in order:
            traces.MINI_BATCH = batch[name]
            start = time.process_time()
            # A seed of its own for each way, so that none has luck in common with another.
            found[name] = traces.estimate_traces(
                context, done[name], ways[name], probe + 1, 0.0, seed=arguments.ways.index(name)
            )
            seconds[name].append(time.process_time() - start)
        order = order[1:] + order[:1]
    return found, {name: float(np.median(each)) for name, each in seconds.items()}


def _estimator(name: str) -> traces.Estimate:
    if name == "gauss-newton":
        return traces.gauss_newton
    return traces.hutchinson(None if name == "all" else int(name))


def _compare(
    estimates: dict[str, np.ndarray[Any, Any]], seconds: dict[str, float]
) -> dict[str, dict[str, float]]:
    """Seconds to an error of 5 %, and how the means of two ways differ in standard errors."""
    variances = {
        name: each.var(axis=2, ddof=1).sum(axis=1) / each.shape[1] ** 2 for name, each in estimates.items()
    }
    means = {name: each.mean(axis=(1, 2)) for name, each in estimates.items()}
    best = min(variances, key=lambda name: float(np.median(variances[name] / means[name] ** 2)))
    ways = {}
    for name in estimates:
        probes = estimates[name].shape[2]
        spread = variances[name] / means[best] ** 2
        needed = spread * seconds[name] / ERROR**2
        apart = means[name] - means[best]
        error = np.sqrt((variances[name] + variances[best]) / probes)
        ways[name] = {
            "seconds_per_probe": round(seconds[name], 3),
            "relative_deviation": round(float(np.median(np.sqrt(spread))), 3),
            "seconds_median_layer": round(float(np.median(needed)), 1),
            "seconds_worst_layer": round(float(needed.max()), 1),
            f"rms_z_to_{best}": round(float(np.sqrt(np.mean((apart / error) ** 2))), 2),
            f"trace_over_{best}": round(float(np.median(means[name] / means[best])), 3),
        }
    return ways


if __name__ == "__main__":
    main()
