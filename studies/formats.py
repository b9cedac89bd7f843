"""Uniform int8 and int4 under every rounding, sign, range and placement: one accuracy table.

python studies/formats.py MODEL --data TEST --calibration CALIBRATION [--samples N] [--json]
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys

import torch

from bitsect.measure.evaluator import Evaluator
from bitsect.pipeline.layers import layers
from bitsect.rounding.ranges import calibrate
from bitsect.rounding.rounder import Rounder
from bitsect.sources.data import load_samples
from bitsect.sources.tasks.task import task_named
from bitsect.values import INT4, INT8, PLACEMENTS, Plan, Settings


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model")
    parser.add_argument("--data", required=True)
    parser.add_argument("--calibration", required=True)
    parser.add_argument("--samples", type=int, help="judge on so many; default all")
    parser.add_argument("--calibration-samples", type=int)
    parser.add_argument("--mean", type=float)
    parser.add_argument("--std", type=float)
    parser.add_argument("--scale", type=float)
    parser.add_argument("--batch-size", type=int, default=50)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    pixels = {
        name: getattr(given, name) for name in ("mean", "std", "scale") if getattr(given, name) is not None
    }
    program = layers(given.model)
    test = load_samples(given.data, draw=given.samples, **pixels)
    calibration = load_samples(given.calibration, draw=given.calibration_samples, **pixels)
    task = task_named("classification")

    def accuracy(rounder: Rounder, plan: Plan) -> float:
        return Evaluator(program, rounder, test, task, batch_size=given.batch_size)(plan).accuracy

    table = {"float": accuracy(Rounder(program), Plan.uniform(program.layers)), "rows": []}
    print(f"float {table['float']:.4f}", file=sys.stderr)
    for method, sign in itertools.product(("percentile", "mse"), ("signed", "auto")):
        settings = Settings(range=method, sign=sign, batch_size=given.batch_size)
        ranges = calibrate(program, calibration, settings)
        for placement, rounding in itertools.product(PLACEMENTS.values(), ("squant", "nearest")):
            rounder = Rounder(program, ranges, placement, rounding)
            row = {"range": method, "sign": sign, "placement": placement.name, "rounding": rounding}
            row |= {f.name: accuracy(rounder, Plan.uniform(program.layers, f)) for f in (INT8, INT4)}
            table["rows"].append(row)
            if not given.json:
                print(
                    "  ".join(f"{v:.4f}" if isinstance(v, float) else f"{v:<11}" for v in row.values()),
                    flush=True,
                )
    if given.json:
        print(json.dumps(table, indent=2))


if __name__ == "__main__":
    main()
