"""Methods side by side: the paper's, bitsect's, and bitsect's with one part at a time as the paper has it.

    python benchmarks/methods.py --files DIR --networks resnet20 --draws 5 --out /tmp/methods

DIR holds `models/` and `data/`; networks of the zoo need none. Every row is one `quantize`: a network,
a variant, a draw (the seed that samples are taken by) and a target. Rows go to OUT/methods.csv as they come
(OUT/methods-bits.csv with `--latency none`), run folders to OUT/runs: what is there is not done again, and
the targets of a draw share their measurements. Nothing is chosen by the test samples. `--summary` prints the
table of a CSV.
"""

from __future__ import annotations

import argparse
import csv
import time
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import bitsect
from bitsect import Settings
from bitsect.values.options import names_of


@dataclass(frozen=True)
class Network:
    """A network with the samples to search and to test on, below the folder of files."""

    model: str
    data: str
    test: str
    options: dict[str, Any] = field(default_factory=dict)
    paper: dict[str, Any] = field(default_factory=dict)  # of the paper's method alone


PIXELS = {"std": (128.0,), "scale": 1.0}
LARGE = {"pairs": "linear"}  # where all pairs would take hours, they are estimated
NETWORKS = {
    "resnet20": Network(
        "models/resnet20-cifar10.pt2",
        "data/cifar10-calibration.npz",
        "data/cifar10-test.npz",
    ),
    "efficientnet-lite0": Network(
        "models/efficientnet-lite0-imagenet.pt2",
        "data/imagenet-val-a",
        "data/imagenet-val-b",
        {"mean": (127.0,), **PIXELS},
        LARGE,
    ),
    "mobilenetv2": Network(
        "models/mobilenetv2-imagenet.pt2",
        "data/imagenet-val-a",
        "data/imagenet-val-b",
        {"mean": (127.5,), "std": (127.5,), "scale": 1.0},
        LARGE,
    ),
    "minilm-sst2": Network(
        "hf:models/minilm-sst2",
        "data/sst2-calibration.tsv",
        "data/sst2-test.tsv",
        {"draw": 4096},
        LARGE,
    ),
    **{
        f"fashion-{name}": Network(f"zoo:fashion-{name}", "zoo:fashion-calibration", "zoo:fashion-test")
        for name in ("resnet", "mobilenet", "transformer")
    },
}

BARE = {"confidence": "none", "hold_out": True}  # on the samples that a promise would leave for the search
# Every variant is given the same samples: with a promise some are held out to prove it, without one all are
# searched on, but for those of `BARE`, whose measurements are shared with `bitsect`.
VARIANTS: dict[str, dict[str, Any]] = {
    "bitsect": {"method": "bitsect"},
    "paper": {"method": "paper"},
    "paper, promised": {"method": "paper", "confidence": "95%"},
    "paper, hessian": {"method": "paper", "metric": "hessian"},
    "paper, progressive": {"method": "paper", "search": "progressive"},
    "paper, hessian, progressive": {"method": "paper", "metric": "hessian", "search": "progressive"},
    "bitsect, bare": {"method": "bitsect", "confidence": "none", "hold_out": False},
    # Searches and metrics beside each other, without the promise, which hides their differences.
    "bitsect, no confidence": {"method": "bitsect", **BARE},
    "bitsect, 7 plans judged": {"method": "bitsect", "evaluations": 7, **BARE},
    "bitsect, bisection": {"method": "bitsect", "search": "bisection", "score_format": "each", **BARE},
    "bitsect, progressive": {"method": "bitsect", "search": "progressive", "score_format": "each", **BARE},
    "bitsect, aughessian": {"method": "bitsect", "search": "bisection", "metric": "aughessian", **BARE},
    # One part of the quantiser at a time as the paper has it.
    "bitsect, squant": {"method": "bitsect", "rounding": "squant"},
    "bitsect, no re-fit": {"method": "bitsect", "refit": False},
    "bitsect, no bias": {"method": "bitsect", "bias_correction": False},
    "bitsect, percentile": {"method": "bitsect", "range": "percentile"},
    "bitsect, signed": {"method": "bitsect", "sign": "signed"},
}

COLUMNS = [
    "network",
    "variant",
    "draw",
    "target",
    "latency",
    "size",
    "int8",
    "int4",
    "float",
    "searched",
    "held_out",
    "proven",
    "verdict",
    "test_float",
    "test",
    "kept_on_test",
    "target_met_on_test",
    "evaluations",
    "looks",
    "cpu_seconds",
]


def path_of(spec: str, files: Path) -> str:
    scheme, colon, rest = spec.rpartition(":")
    return spec if scheme == "zoo" else f"{scheme}{colon}{files / rest}"


def folder_of(network: str, options: dict[str, Any], draw: int) -> str:
    """Variants with the same settings share a run, and with it what was measured."""
    promised = options.get("confidence", "95%" if options["method"] == "bitsect" else "none") != "none"
    settings = {"hold_out": promised} | {key: options[key] for key in names_of(Settings) if key in options}
    own = [f"{key}-{value}" for key, value in settings.items()]
    return "-".join([network, str(options["method"]), *own, str(draw)])


def row_of(name: str, variant: str, draw: int, target: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """One call of `quantize`, as a row."""
    network, options = NETWORKS[name], VARIANTS[variant]
    own = network.paper if options["method"] == "paper" else {}
    asked = {**network.options, **own, **options}
    started = time.process_time()
    result = bitsect.quantize(
        path_of(network.model, arguments.files),
        path_of(network.data, arguments.files),
        test_data=path_of(network.test, arguments.files),
        target=target,
        latency=arguments.latency,
        seed=draw,
        threads=1,
        out=arguments.out / "runs" / folder_of(name, options, draw),
        **asked,
    )
    assert result.test is not None
    facts, promise = result.to_json(), result.promise
    before, after = result.test.float.accuracy, result.test.plan.accuracy
    counts = result.plan.counts
    return {
        "network": name,
        "variant": variant,
        "draw": draw,
        "target": target,
        "latency": facts["plan"].get("latency_ratio", ""),
        "size": result.size_ratio,
        **{key: counts.get(key, 0) for key in ("int8", "int4", "float")},
        "searched": result.accuracy / result.float_accuracy,
        "held_out": promise.accuracy["plan"] / promise.accuracy["float"] if promise else "",
        "proven": promise.look.bound if promise and promise.look.bound is not None else "",
        "verdict": result.verdict,
        "test_float": before,
        "test": after,
        "kept_on_test": after / before,
        "target_met_on_test": result.test.target_met,
        "evaluations": result.evaluations,
        "looks": promise.looks if promise else "",
        "cpu_seconds": round(time.process_time() - started, 1),
    }


def summary(path: Path) -> None:
    """Means over draws, with standard deviations of what is kept on test."""
    groups: dict[tuple[str, ...], list[dict[str, str]]] = defaultdict(list)
    with path.open() as file:
        for row in csv.DictReader(file):
            groups[row["network"], row["target"], row["variant"]].append(row)
    titles = [
        "network",
        "target",
        "variant",
        "draws",
        "latency",
        "size",
        "kept-on-test",
        "met-on-test",
        "proven",
        "evaluations",
    ]
    print(f"| {' | '.join(titles)} |")
    print("|---" * len(titles) + "|")
    for (network, target, variant), rows in sorted(groups.items()):

        def mean(column: str, rows: list[dict[str, str]] = rows) -> float:
            return fmean(float(row[column] or "nan") for row in rows)

        kept = [float(row["kept_on_test"]) for row in rows]
        spread = f" ± {100 * stdev(kept):.2f}" if len(kept) > 1 else ""
        met = sum(row["target_met_on_test"] == "True" for row in rows)
        proven = sum("confidence" in row["verdict"] for row in rows)
        print(
            f"| {network} | {target} | {variant} | {len(rows)} | {mean('latency'):.4f} | {mean('size'):.1%} "
            f"| {100 * fmean(kept):.2f}{spread} % | {met} | {proven} | {mean('evaluations'):.1f} |"
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--files", type=Path, default=Path(), help="folder with models/ and data/")
    parser.add_argument("--networks", nargs="+", choices=NETWORKS, default=list(NETWORKS))
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=["bitsect", "paper"])
    parser.add_argument("--targets", nargs="+", default=["98%", "99%", "99.5%", "99.9%"])
    parser.add_argument("--draws", type=int, default=5, help="seeds 0 … draws − 1")
    parser.add_argument("--latency", default="a100", help="latency table, or none to count bits")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--summary", action="store_true", help="only print what is there")
    arguments = parser.parse_args()
    arguments.latency = None if arguments.latency == "none" else arguments.latency
    arguments.out.mkdir(parents=True, exist_ok=True)
    table = arguments.out / ("methods.csv" if arguments.latency else "methods-bits.csv")
    if not arguments.summary:
        done = set()
        if table.exists():
            with table.open() as file:
                done = {tuple(row[key] for key in COLUMNS[:4]) for row in csv.DictReader(file)}
        wanted = [
            (network, variant, draw, target)
            for network in arguments.networks
            for draw in range(arguments.draws)
            for variant in arguments.variants
            for target in arguments.targets
        ]
        for network, variant, draw, target in wanted:
            if (network, variant, str(draw), target) in done:
                continue
            row = row_of(network, variant, draw, target, arguments)
            new = not table.exists()
            with table.open("a", newline="") as file:
                writer = csv.DictWriter(file, COLUMNS)
                if new:
                    writer.writeheader()
                writer.writerow({k: round(v, 6) if isinstance(v, float) else v for k, v in row.items()})
            print(
                *(
                    f"{key}={row[key]}"
                    for key in ("network", "variant", "draw", "target", "kept_on_test", "verdict")
                )
            )
    summary(table)


if __name__ == "__main__":
    main()
