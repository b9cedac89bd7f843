"""How often promises are kept: networks × draws × targets, each plan judged on thousands of other images.

    python benchmarks/promises.py --images fashion-mnist.npz --out /tmp/promises

The population is the images that the networks of the zoo were trained on (all but the last 4,096): a draw
takes some of them to search and to prove the target on, and its plan is then judged on 10,000 others. `bare`
compares accuracies on all samples of the draw, as the paper does, with everything else as in `bitsect`.
Rows go to OUT/promises.csv as they come; what is there is not done again.
"""

from __future__ import annotations

import argparse
import csv
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file

import bitsect
from bitsect.sources.models import load_model
from bitsect.sources.models.zoo import data_path

NETWORKS = ("fashion-resnet", "fashion-mobilenet", "fashion-transformer")
TARGETS = ("98%", "99%", "99.5%")
VARIANTS: dict[str, dict[str, Any]] = {
    "bitsect": {},
    "bare": {"confidence": "none"},
}
COLUMNS = ("network", "draw", "variant", "target", "verdict", "size", "seen", "bound", "kept", "met")


def right(model: torch.nn.Module, x: torch.Tensor, y: torch.Tensor) -> int:
    with torch.inference_mode():
        return sum(
            int((model(some).argmax(1) == labels).sum())
            for some, labels in zip(x.split(64), y.split(64), strict=True)
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--images", type=Path, required=True, help="all of Fashion-MNIST: x, y (.npz)")
    parser.add_argument("--networks", nargs="+", choices=NETWORKS, default=list(NETWORKS))
    parser.add_argument("--draws", type=int, default=5)
    parser.add_argument("--samples", type=int, default=2048, help="of a draw")
    parser.add_argument("--test", type=int, default=10_000, help="other images that a plan is judged on")
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    arguments.out.mkdir(parents=True, exist_ok=True)
    table = arguments.out / "promises.csv"
    done = set()
    if table.exists():
        with table.open() as file:
            done = {tuple(row[key] for key in COLUMNS[:4]) for row in csv.DictReader(file)}
    statistics = load_file(data_path("fashion-calibration"))
    with np.load(arguments.images) as archive:
        pixels, labels = (torch.from_numpy(archive[key][:-4096].astype(np.int64)) for key in ("x", "y"))

    def inputs(chosen: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = (pixels[chosen].float()[..., None] / 255 - statistics["mean"]) / statistics["std"]
        return x.permute(0, 3, 1, 2).contiguous(), labels[chosen]

    for name in arguments.networks:
        network = load_model(f"zoo:{name}").model.eval()
        for draw in range(arguments.draws):
            # No image is in two draws, so that each has held-out samples of its own.
            order = torch.randperm(len(pixels), generator=torch.Generator().manual_seed(0))
            samples = inputs(order[arguments.samples * draw :][: arguments.samples])
            test = inputs(order[-arguments.test :])
            before = None
            for variant, options in VARIANTS.items():
                for target in TARGETS:
                    if (name, str(draw), variant, target) in done:
                        continue
                    before = before or right(network, *test)
                    out = (
                        arguments.out / "runs" / f"{name}-{draw}-{variant}" / "run"
                    )  # with a ledger of its own
                    result = bitsect.quantize(
                        network, samples, target=target, threads=1, seed=draw, out=out, **options
                    )
                    kept = right(result.model(), *test) / before
                    promise = result.promise
                    row = {
                        "network": name,
                        "draw": draw,
                        "variant": variant,
                        "target": target,
                        "verdict": result.verdict,
                        "size": round(result.size_ratio, 4),
                        "seen": round(
                            promise.look.kept if promise else result.accuracy / result.float_accuracy, 5
                        ),
                        "bound": round(promise.look.bound, 5)
                        if promise and promise.look.bound is not None
                        else "",
                        "kept": round(kept, 5),
                        "met": kept >= float(target.rstrip("%")) / 100,
                    }
                    new = not table.exists()
                    with table.open("a", newline="") as file:
                        writer = csv.DictWriter(file, COLUMNS)
                        if new:
                            writer.writeheader()
                        writer.writerow(row)
                    print(*row.values(), flush=True)
    summarise(table)


def summarise(table: Path) -> None:
    with table.open() as file:
        rows = list(csv.DictReader(file))
    for variant in VARIANTS:
        of = [row for row in rows if row["variant"] == variant]
        called = [row for row in of if row["verdict"].startswith("kept with") or row["verdict"] == "kept"]
        met = sum(row["met"] == "True" for row in called)
        size = np.mean([float(row["size"]) for row in of])
        print(
            f"{variant}: {len(of)} plans, {len(called)} called kept, {met} of these are; mean size {size:.1%}"
        )


if __name__ == "__main__":
    main()
