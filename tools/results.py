"""Writes the tables of README.md, docs/results.md and docs/promise.md from the files in benchmarks/results.

    python tools/results.py

A table stands between `<!-- table: NAME -->` and `<!-- end -->`. A test fails where a page says anything else
than its files: no figure of a table is typed by hand.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

ROOT = Path(__file__).parent.parent
FIGURES = ROOT / "benchmarks" / "results"
PAGES = (ROOT / "README.md", ROOT / "docs" / "results.md", ROOT / "docs" / "promise.md")
NAMES = {
    "resnet20": "ResNet-20",
    "efficientnet-lite0": "EfficientNet-Lite0",
    "mobilenetv2": "MobileNetV2",
    "minilm-sst2": "MiniLM on SST-2",
}
OTHERS = {"minilm-squad": "MiniLM on SQuAD", "resnet50": "ResNet-50"}
Rows = list[dict[str, str]]


def read(name: str, **wanted: str) -> Rows:
    with (FIGURES / name).open(newline="") as file:
        return [
            row for row in csv.DictReader(file) if all(row[key] == value for key, value in wanted.items())
        ]


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(cells) + " |" for cells in (heads, *rows)]
    return "\n".join([lines[0], "|---" * len(heads) + "|", *lines[1:]])


def mean(rows: Rows, column: str) -> float:
    return fmean(float(row[column]) for row in rows)


def spread(rows: Rows, column: str) -> str:
    """The mean, and over several draws the standard deviation of one draw."""
    values = [100 * float(row[column]) for row in rows]
    return f"{fmean(values):.2f}" + (f" ± {stdev(values):.2f} %" if len(values) > 1 else " %")


def count(rows: Rows, test: Callable[[dict[str, str]], bool]) -> str:
    return f"{sum(map(test, rows))} of {len(rows)}"


def proven(row: dict[str, str]) -> bool:
    return row["verdict"].startswith("kept with")


def met(row: dict[str, str]) -> bool:
    return row["target_met_on_test"] == "True"


# ---- the tables ----------------------------------------------------------------------------------


def resnet20() -> str:
    """One network, both methods, by target."""
    rows = []
    for target in ("98%", "99%", "99.5%", "99.9%"):
        for method in ("bitsect", "paper"):
            found = read("methods-resnet20.csv", variant=method, target=target)
            rows.append(
                [
                    target.replace("%", " %"),
                    f"`{method}`, {len(found)} draw{'s' if len(found) > 1 else ''}",
                    f"{mean(found, 'size'):.1%}",
                    f"{mean(found, 'latency'):.1%}",
                    spread(found, "kept_on_test"),
                    count(found, met),
                    count(found, proven) if method == "bitsect" else "none is asked for",
                ]
            )
    heads = ["target", "method", "size", "latency", "kept on test", "keep the target on test", "proven"]
    return table(heads, rows)


def against_paper() -> str:
    """Every large network at two targets: the latency of each method, and what it keeps."""
    rows = []
    for target in ("99%", "99.9%"):
        ratios = []
        for network, name in NAMES.items():
            of = {"network": network, "target": target}
            file = "methods-resnet20.csv" if network == "resnet20" else "methods-large.csv"
            ours, theirs = (read(file, variant=variant, **of) for variant in ("bitsect", "paper"))
            ratios.append(mean(ours, "latency") / mean(theirs, "latency"))
            rows.append(
                [
                    f"{name}, {target.replace('%', ' %')}",
                    *_method(theirs),
                    *_method(ours),
                    f"{ratios[-1]:.2f}",
                    count(ours, proven),
                ]
            )
        rows.append([f"mean at {target.replace('%', ' %')}", "", "", "", "", f"**{fmean(ratios):.2f}**", ""])
    heads = [
        "network, target",
        "`paper`: latency",
        "kept",
        "`bitsect`: latency",
        "kept",
        "ratio of latencies",
        "proven",
    ]
    return table(heads, rows)


def _method(rows: Rows) -> tuple[str, str]:
    missed = sum(not met(row) for row in rows)
    mark = "" if not missed else ", missed" if missed == len(rows) else f", {missed} of {len(rows)} missed"
    return f"{mean(rows, 'latency'):.1%}", f"{mean(rows, 'kept_on_test'):.2%}{mark}"


def zoo() -> str:
    """The networks that come with the package: mean latency over four targets, plans that keep theirs."""
    variants = {
        "`bitsect`": "bitsect",
        "`bitsect --confidence none`": "bitsect, no confidence",
        "`paper`": "paper",
        "`paper --metric hessian`": "paper, hessian",
        "`paper --search progressive`": "paper, progressive",
    }
    networks = ("fashion-resnet", "fashion-mobilenet", "fashion-transformer")
    rows = []
    for name, variant in variants.items():
        found = [read("methods-zoo.csv", network=network, variant=variant) for network in networks]
        rows.append([name, *(f"{mean(each, 'latency'):.1%}, {count(each, met)}" for each in found)])
    return table(["method", *(f"`{network}`" for network in networks)], rows)


def promises() -> str:
    """What was said of plans, and how many of them keep their target on 10,000 other images."""
    found = read("promises.csv")
    called = {"bitsect": "`bitsect`", "bare": "a bare comparison on all samples"}
    rows = []
    for variant in dict.fromkeys(row["variant"] for row in found):
        own = [row for row in found if row["variant"] == variant]
        for proof in (True, False):
            plans = [row for row in own if proven(row) is proof]
            words = "kept with 95 % confidence" if proof else "not proven"
            if plans:
                kept = count(plans, lambda row: row["met"] == "True")
                rows.append([called[variant], words, str(len(plans)), kept, f"{mean(plans, 'size'):.1%}"])
    return table(["method", "said", "plans", "that keep their target", "mean size"], rows)


def coverage() -> str:
    """How often promises are wrong as people use them, by simulation."""
    found = read("coverage.csv")
    rows = [[r["scene"], *(f"{float(r[c]):.1%}" for c in ("wrong", "wrong_with_one_bound"))] for r in found]
    return table(["use", "a wrong promise", "by one fixed bound"], rows)


def power() -> str:
    """Samples that prove a plan in four of five cases."""
    rows = []
    for row in read("power.csv"):
        seen = (f"{float(row['target']):.1%}", row["lost_of_allowed"], row["changed_besides_of_allowed"])
        needs = (f"{int(row[f'{rule}_needs']):,}" for rule in ("fixed", "blocks", "betting"))
        rows.append([*seen, *needs, f"{int(row['blocks_judges']):,}"])
    heads = ["target", "loses", "changes", "fixed bound", "growing blocks", "betting", "judged of the blocks"]
    return table(heads, rows)


def rivals() -> str:
    """Our file and the best of the runtime's own tools, on each network in each runtime."""
    rows = []
    found = read("rivals.csv")
    for network, runtime in dict.fromkeys((row["network"], row["for"]) for row in found):
        of = [row for row in found if (row["network"], row["for"]) == (network, runtime)]
        (ours,) = (row for row in of if row["file"] == "bitsect")
        theirs = [row for row in of if row is not ours and row["time"]]
        keep = [row for row in theirs if float(row["kept"]) >= 0.99] or theirs
        best = min(keep, key=lambda row: float(row["time"]), default=None)
        rows.append([(NAMES | OTHERS).get(network, f"`{network}`"), runtime, *_cells(ours)])
        rows[-1] += ["none", "", "", ""] if best is None else [f"`{best['file']}`", *_cells(best)[:3]]
    heads = ["network", "runtime", "kept", "time", "size", "CPU s", "best of theirs", "kept", "time", "size"]
    return table(heads, rows)


def _cells(row: dict[str, str]) -> list[str]:
    proven = "" if row["outcome"] == "proven" else "*"
    kept, time, size = float(row["kept"]), float(row["time"]), float(row["size"])
    return [f"{kept:.1%}{proven}", f"{time:.3f}", f"{size:.3f}", f"{float(row['cpu_s']):.0f}"]


def passes() -> str:
    """What an answer costs, as a whole and by its longest stages."""
    rows = []
    found = read("passes.csv")
    for network in dict.fromkeys(row["network"] for row in found):
        of = [row for row in found if row["network"] == network]
        (whole,) = (row for row in of if row["stage"] == "the whole")
        stages = sorted((row for row in of if row is not whole), key=lambda row: -float(row["cpu_s"]))
        longest = ", ".join(f"{row['stage']} {float(row['passes']):.1f}" for row in stages[:3])
        name = (NAMES | OTHERS).get(network, f"`{network}`")
        rows.append([name, whole["outcome"], whole["samples"], whole["cpu_s"], whole["passes"], longest])
    return table(["network", "answer", "samples", "CPU s", "passes", "longest stages"], rows)


def predicted() -> str:
    """How far predicted times of unseen plans are from measured ones, at worst."""
    found = read("predicted.csv")
    networks = list(dict.fromkeys(row["network"] for row in found))
    rows = []
    for network in networks:
        worst = [
            max(abs(float(row["off"])) for row in found if (row["network"], row["for"]) == (network, runtime))
            for runtime in ("onnxruntime", "openvino")
        ]
        rows.append([network, *(f"{each:.1%}" for each in worst)])
    return table(["network", "ONNX Runtime", "OpenVINO"], rows)


def metrics() -> str:
    """Mean latency over the targets by metric, as a difference to the augmented Hessian with its interval."""
    networks = {
        "resnet20": "ResNet-20",
        "fashion-resnet": "`fashion-resnet`",
        "fashion-mobilenet": "`fashion-mobilenet`",
        "fashion-transformer": "`fashion-transformer`",
        "mobilenetv2": "MobileNetV2",
        "efficientnet-lite0": "EfficientNet-Lite0",
    }
    rows = []
    for metric in ("aughessian", "hessian", "interlayer", "single", "damage", "fisher", "hawq", "random"):
        cells = []
        for network in networks:
            (row,) = read(f"{network}.csv", metric=metric, search="bisection", target="mean")
            if metric == "aughessian":
                cells.append(f"{float(row['latency_ratio']):.1%}")
                continue
            middle, low, high = (100 * float(row[f"latency_ratio_{end}"]) for end in ("diff", "low", "high"))
            text = f"{middle:+.1f} [{low:+.1f}, {high:+.1f}]".replace("-", "−")
            cells.append(f"**{text}**" if low > 0 or high < 0 else text)
        rows.append([f"`{metric}`", *cells])
    return table(["metric", *networks.values()], rows)


def workers() -> str:
    """Exact pairs in two workers, against one process."""
    rows = []
    for line in (FIGURES / "scaling.jsonl").read_text().splitlines():
        found: dict[str, Any] = json.loads(line)
        if "model" in found:
            name = found["model"].partition("-")[0]
            same = "the same bytes" if found["same_bytes"] else "other bytes"
            two, ray = found["two_workers_speedup"], found["ray_speedup"]
            rows.append([name, f"{two:.2f}×", f"{ray:.2f}×", same])
    return table(["network", "two workers", "two workers of a Ray cluster", "pieces"], rows)


TABLES = {
    "resnet20": resnet20,
    "against-paper": against_paper,
    "zoo": zoo,
    "promises": promises,
    "coverage": coverage,
    "power": power,
    "rivals": rivals,
    "passes": passes,
    "predicted": predicted,
    "metrics": metrics,
    "workers": workers,
}
PLACE = re.compile(r"(<!-- table: ([\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)


def rendered(text: str) -> str:
    """A page with every table as its files have it."""
    return PLACE.sub(lambda found: f"{found[1]}{TABLES[found[2]]()}\n{found[3]}", text)


if __name__ == "__main__":
    for page in PAGES:
        page.write_text(rendered(page.read_text()))
