"""How well two halves of the samples agree on the order of the layers, for every metric.

    python studies/reliability.py MODEL|RUN [--data DATA --samples N --out RUN] [--pairs exact|linear]

Rank correlation (Spearman), averaged over 20 random splits: task loss against divergence, int8 against int4.
"""

from __future__ import annotations

import argparse
import json

from bitsect.runs.opening import open_run
from bitsect.solve.metrics import METRICS
from bitsect.values import INT4, INT8, Scoring, Settings

LOSS_METRICS = ("aughessian", "interlayer", "single")  # those that a choice of loss changes


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model")
    parser.add_argument("--data")
    parser.add_argument("--samples", type=int)
    parser.add_argument("--out")
    parser.add_argument("--pairs", default="exact")
    parser.add_argument("--probes", type=int, default=64)
    parser.add_argument("--mean", type=float)
    parser.add_argument("--std", type=float)
    parser.add_argument("--scale", type=float)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    pixels = {
        name: getattr(given, name) for name in ("mean", "std", "scale") if getattr(given, name) is not None
    }
    data = given.data or ("zoo:fashion-calibration" if given.model.startswith("zoo:") else None)
    drawn = {} if given.samples is None else {"draw": given.samples}
    run = open_run(given.model, data, Settings(**drawn, **pixels), out=given.out)
    rows = []
    for name in METRICS:
        if name == "random":
            continue
        for loss in ("task", "kl") if name in LOSS_METRICS else ("task",):
            row: dict[str, object] = {"metric": name, "loss": loss if name in LOSS_METRICS else "–"}
            for format in (INT8, INT4):
                scoring = Scoring(metric=name, pairs=given.pairs, loss=loss, probes=given.probes)
                row[format.name] = run.score(scoring, format).split_half
            rows.append(row)
            if not given.json:
                print(
                    "  ".join(f"{v:6.3f}" if isinstance(v, float) else f"{v!s:<11}" for v in row.values()),
                    flush=True,
                )
    if given.json:
        print(json.dumps({"model": given.model, "samples": len(run.samples), "rows": rows}, indent=2))


if __name__ == "__main__":
    main()
