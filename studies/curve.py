"""Ten targets read off one walk, against separate searches: plans judged, latency, accuracy kept.

python studies/curve.py MODEL DATA [--test-data FILE] [--draw 1024] [--json]
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

import bitsect

TARGETS = ("95%", "96%", "97%", "98%", "98.5%", "99%", "99.3%", "99.5%", "99.7%", "99.9%")
SEPARATE = ("98%", "99%", "99.5%")


def measure(model: str, data: str, test_data: str | None, draw: int | None) -> dict[str, Any]:
    """What one walk and separate searches, each in a run of its own, come to."""
    options = {"method": "bitsect", "confidence": "none", "latency": "a100", "threads": 1, "draw": draw}
    searches = []
    for target in SEPARATE:
        with tempfile.TemporaryDirectory() as folder:
            found = bitsect.quantize(
                model, data, target=target, test_data=test_data, out=Path(folder) / "run", **options
            )
            searches.append(
                {
                    "target": target,
                    "evaluations": found.evaluations,
                    "latency_ratio": found.rows[-1].cost.latency_ratio,
                    "kept": found.accuracy / found.float_accuracy,
                    "test_kept": found.test and found.test.plan.accuracy / found.test.float.accuracy,
                }
            )
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        bitsect.sensitivity(model, data, method="bitsect", metric="random", out=run, threads=1, draw=draw)
        curve = bitsect.frontier(run, targets=TARGETS, latency="a100", test_data=test_data)
    return {
        "separate": searches,
        "separate_evaluations": sum(each["evaluations"] for each in searches),
        "curve_evaluations": curve.evaluations,
        "curve": [
            {
                "target": str(each.target),
                "latency_ratio": each.point.cost.latency_ratio,
                "kept": each.kept,
                "test_kept": each.test_kept,
            }
            for each in curve.read_off
        ],
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model")
    parser.add_argument("data")
    parser.add_argument("--test-data")
    parser.add_argument("--draw", type=int)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    found = measure(args.model, args.data, args.test_data, args.draw)
    if args.json:
        print(json.dumps(found, indent=2))
        return
    print(f"{len(TARGETS)} targets in one walk: {found['curve_evaluations']} plans judged")
    print(f"{len(SEPARATE)} separate searches: {found['separate_evaluations']} plans judged")
    for name in ("separate", "curve"):
        for each in found[name]:
            tested = "" if each["test_kept"] is None else f", {each['test_kept']:.2%} on test"
            kept = f"kept {each['kept']:.2%}{tested}"
            print(f"  {name} {each['target']}: latency {each['latency_ratio']:.2%}, {kept}")


if __name__ == "__main__":
    main()
