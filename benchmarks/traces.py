"""Whether probing all layers at once or in groups knows the Hessian traces sooner.

`python benchmarks/traces.py MODEL --data DATA [--samples N] [--groups 1 4 all] [--json]`

Probing g layers at once costs one Hessian product where single layers cost g, and adds the cross terms
of the g layers to the noise of each. What counts is variance × time: for every layer the seconds until
the standard error of its trace is 5 % of it, (standard deviation / trace)² · seconds per probe / 0.05².
The ways take turns, probe by probe; a probe's time is the median. With one mini-batch (`--batch-size`
at least `--samples`) the variance is that of the probes alone; mini-batches add their own, the same
for every way, which only speaks for cheaper probes.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

from bitsect.capture import capture
from bitsect.data import load_samples
from bitsect.evaluate import Done, Evaluator
from bitsect.measure import Context, hessian_traces
from bitsect.measure.traces import stacked
from bitsect.models import load_model
from bitsect.rounder import Rounder
from bitsect.tasks import task_named

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
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--groups", nargs="+", default=["1", "4", "all"], help="layers probed at once")
    parser.add_argument("--probes", type=int, default=40)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    arguments = parser.parse_args()

    torch.set_num_threads(arguments.threads)
    samples = load_samples(
        arguments.data,
        samples=arguments.samples,
        mean=arguments.mean,
        std=arguments.std,
        scale=arguments.scale,
    )
    network = load_model(arguments.model)
    program = capture(network.model, network.example)
    task = task_named("classification")
    context = Context(Evaluator(program, Rounder(program), samples, task, batch_size=arguments.batch_size))

    groups = {name: None if name == "all" else int(name) for name in arguments.groups}
    done: dict[str, Done] = {name: {} for name in groups}
    seconds: dict[str, list[float]] = {name: [] for name in groups}
    order = list(groups)
    for probe in range(arguments.probes):
        for name in order:
            start = time.perf_counter()
            # A seed of its own for each way, so that none has luck in common with another.
            hessian_traces(
                context,
                done[name],
                probes=probe + 1,
                tolerance=0.0,
                group=groups[name],
                seed=arguments.groups.index(name),
            )
            seconds[name].append(time.perf_counter() - start)
        order = order[1:] + order[:1]

    estimates = {name: stacked(each, arguments.probes) for name, each in done.items()}
    # The trace itself, from every way's mean by how well that is known.
    means = np.stack([each.mean(axis=1) for each in estimates.values()])
    weights = 1 / np.stack([each.var(axis=1, ddof=1) for each in estimates.values()])
    traces = (means * weights).sum(axis=0) / weights.sum(axis=0)
    ways = {}
    for name, each in estimates.items():
        spread = (each.std(axis=1, ddof=1) / np.abs(traces)) ** 2
        probe_seconds = float(np.median(seconds[name]))
        needed = spread * probe_seconds / ERROR**2
        ways[name] = {
            "seconds_per_probe": round(probe_seconds, 3),
            "relative_deviation": round(float(np.median(np.sqrt(spread))), 3),
            "seconds_median_layer": round(float(np.median(needed)), 1),
            "seconds_mean_of_layers": round(float(needed.mean()), 1),
            "seconds_worst_layer": round(float(needed.max()), 1),
        }
    report = {
        "model": Path(arguments.model).name,
        "layers": len(context.layers),
        "samples": len(samples),
        "batch_size": arguments.batch_size,
        "threads": arguments.threads,
        "probes": arguments.probes,
        "groups": ways,
        "best": min(ways, key=lambda name: ways[name]["seconds_median_layer"]),
    }
    if arguments.json:
        print(json.dumps(report))
        return
    print(
        f"{report['model']}: {report['layers']} layers, {report['samples']} samples; time to an error of 5 %"
    )
    for name, way in ways.items():
        print(f"{name:>4} at once", *(f"  {key.replace('_', ' ')} {value}" for key, value in way.items()))
    print(f"sooner for the median layer: {report['best']} at once")


if __name__ == "__main__":
    main()
