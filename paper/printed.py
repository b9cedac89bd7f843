"""What the paper prints: its own figures, and those that it quotes of others, as data beside this file.

All figures are carried over as they stand in the tables of Schaefer et al. (2023); a row is `quoted`
where the paper took it from another work. Only relative figures compare across networks.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable
from functools import cache
from importlib.resources import files
from typing import Any

from bitsect import Layer

RESNET50, MOBILENETV2, BERT = "resnet50", "mobilenetv2", "bert-large"
TABLES = {RESNET50: 1, MOBILENETV2: 2, BERT: 3}  # the number of each network's table
OTHERS = 7  # the supplement's further rows for ResNet50
TITLES = {RESNET50: "ResNet50", MOBILENETV2: "MobileNetV2", BERT: "BERT-large"}
FIGURES = (
    "accuracy_percent",
    "kept_percent",
    "size_mb",
    "size_percent",
    "latency_ms",
    "latency_percent",
)


def most_like(layers: Iterable[Layer]) -> str:
    """The paper's network that one is most like: by attention, by depthwise convolutions, else ResNet50."""
    kinds = {layer.kind for layer in layers}
    if "matmul" in kinds:
        return BERT
    return MOBILENETV2 if "depthwise" in kinds else RESNET50


def printed_rows(table: int) -> list[dict[str, Any]]:
    """The rows of one of the paper's tables, figures as numbers, None where it prints none."""
    rows = [dict(row) for row in _read("printed.csv") if row["table"] == str(table)]
    for row in rows:
        row |= {name: float(row[name]) if row[name] else None for name in FIGURES}
    return rows


def printed_figure(experiment: str, network: str, metric: str, target: str, bits: str = "") -> float | None:
    """A figure of the supplement's tables; None where it prints none."""
    wanted = (experiment, network, metric, target, bits)
    names = ("experiment", "network", "metric", "target", "bits")
    for row in _read("printed-supplement.csv"):
        if tuple(row[name] for name in names) == wanted:
            return float(row["value"])
    return None


@cache
def _read(name: str) -> tuple[dict[str, Any], ...]:
    text = (files(__package__) / name).read_text(encoding="utf-8")
    return tuple(csv.DictReader(text.splitlines()))
