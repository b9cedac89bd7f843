"""What it saves that plans share their beginnings: the plans of a real search, judged with and without.

    python studies/prefixes.py RUN [--samples N] [--json]

RUN is a run folder of `bitsect quantize` or `search`. The plans that it judged are judged again in the same
order, on its first N samples and in one thread, once on their own and once with what they share; the two take
turns, and processor seconds are the best of two. Scores and losses must be the same bytes.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import torch

from bitsect.measure.evaluator import Evaluator
from bitsect.measure.prefixes import Prefixes
from bitsect.runs.opening import open_run
from bitsect.values import FLOAT, INT4, INT8, Plan
from bitsect.values.pieces import Done


def judged(evaluator: Evaluator, plans: list[Plan]) -> tuple[float, Done]:
    """The processor seconds that judging `plans` takes, and every score."""
    evaluator.done = {}
    started = time.process_time()
    for plan in plans:
        evaluator(plan)
    return time.process_time() - started, evaluator.done


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run", type=Path)
    parser.add_argument("--samples", type=int, default=256)
    parser.add_argument("--room", type=float, default=1e9, help="bytes for what plans share")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    lines = (given.run / "plans.jsonl").read_text().splitlines()
    torch.set_num_threads(1)
    with open_run(given.run) as run:
        named = {format.name: format for format in (FLOAT, INT8, INT4)}
        plans = [Plan({k: named[f] for k, f in json.loads(line)["layers"].items()}) for line in lines]
        formats = {format for plan in plans for format in plan.values()}
        evaluator = run.evaluator(
            formats, run.samples.select(torch.arange(min(given.samples, len(run.samples))))
        )
        for plan in plans:
            evaluator.rounding(plan)  # weights are rounded once for all
        times: dict[str, list[float]] = {"alone": [], "shared": []}
        found: dict[str, Any] = {}
        for _ in range(2):
            for way in times:
                evaluator.prefixes = Prefixes(run.program, given.room) if way == "shared" else None
                seconds, done = judged(evaluator, plans)
                times[way].append(seconds)
                found[way] = {
                    key: {name: array.tobytes() for name, array in done[key].items()} for key in done
                }
    best = {way: min(seconds) for way, seconds in times.items()}
    facts = {
        "plans": len(plans),
        "samples": given.samples,
        "seconds": best,
        "ratio": best["shared"] / best["alone"],
        "same_bytes": found["alone"] == found["shared"],
    }
    print(json.dumps(facts) if given.json else "\n".join(f"{key}: {value}" for key, value in facts.items()))


if __name__ == "__main__":
    main()
