"""Latency tables against the paper's totals and rows, profiler files, costs, filters and budgets."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bitsect.errors import BitsectError
from bitsect.latency import TABLES, import_cutlass, latency_table
from bitsect.latency.a100 import microseconds, steps
from bitsect.solve.costs import cost, cost_table, describe, faster_formats, latency_ms
from bitsect.values import FLOAT, INT4, INT8, Cost, Format, LatencyTable, Layer, Place, Plan, Signature
from bitsect.values.budget import Budget
from bitsect.values.latency_table import place_key

W4A8, W4A16 = Format(4, 8), Format(4, None)
SAMPLES = Path(__file__).parent / "data" / "cutlass"  # the profiler's columns, times made up
GEMM, CONV2D = SAMPLES / "sample.gemm.csv", SAMPLES / "sample.conv2d.csv"

# The paper's three networks, written down from their architectures.


def convolution(name: str, c: int, o: int, size: int, k: int, stride: int = 1, groups: int = 1) -> Layer:
    kind = "depthwise" if groups > 1 else "conv2d"
    pad = k // 2
    out = (size + 2 * pad - k) // stride + 1
    weight = (o, c // groups, k, k)
    signature = Signature(
        *(kind, (1, c, size, size), weight, (1, o, out, out)),
        *((stride, stride), (pad, pad), (1, 1), groups),
    )
    return Layer(name, kind, weight, (Place(name, signature, math.prod(weight) * out * out),))


def linear(name: str, rows: tuple[int, ...], k: int, n: int) -> Layer:
    signature = Signature("linear", (1, *rows, k), (n, k), (1, *rows, n))
    return Layer(name, "linear", (n, k), (Place(name, signature, math.prod(rows) * k * n),))


def matmul(name: str, heads: int, m: int, k: int, n: int) -> Layer:
    signature = Signature("matmul", (1, heads, m, k), (1, heads, k, n), (1, heads, m, n))
    return Layer(name, "matmul", None, (Place(name, signature, heads * m * k * n),))


def place(signature: Signature, macs: int = 0) -> Place:
    return Place("place", signature, macs)


def resnet50() -> tuple[Layer, ...]:
    layers, channels, size = [convolution("stem", 3, 64, 224, 7, 2)], 64, 56
    for stage, (width, blocks) in enumerate(((64, 3), (128, 4), (256, 6), (512, 3))):
        for block in range(blocks):
            name, stride = f"{stage}.{block}", 2 if stage and not block else 1
            if not block:
                layers.append(convolution(f"{name}.shortcut", channels, 4 * width, size, 1, stride))
            layers.append(convolution(f"{name}.0", channels, width, size, 1))
            layers.append(convolution(f"{name}.1", width, width, size, 3, stride))
            channels, size = 4 * width, size // stride
            layers.append(convolution(f"{name}.2", width, channels, size, 1))
    return (*layers, linear("classifier", (), 2048, 1000))


def mobilenetv2() -> tuple[Layer, ...]:
    layers, channels, size = [convolution("stem", 3, 32, 224, 3, 2)], 32, 112
    stages = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2))
    for stage, (factor, width, blocks, first) in enumerate((*stages, (6, 320, 1, 1))):
        for block in range(blocks):
            name, stride, hidden = f"{stage}.{block}", 1 if block else first, channels * factor
            if factor > 1:
                layers.append(convolution(f"{name}.expand", channels, hidden, size, 1))
            layers.append(convolution(f"{name}.depthwise", hidden, hidden, size, 3, stride, groups=hidden))
            channels, size = width, size // stride
            layers.append(convolution(f"{name}.reduce", hidden, width, size, 1))
    return (*layers, convolution("head", 320, 1280, 7, 1), linear("classifier", (), 1280, 1000))


def bert_large(tokens: int = 384) -> tuple[Layer, ...]:
    layers: list[Layer] = []
    for block in range(24):
        layers += [linear(f"{block}.{name}", (tokens,), 1024, 1024) for name in ("query", "key", "value")]
        layers += [
            matmul(f"{block}.scores", 16, tokens, 64, tokens),
            matmul(f"{block}.context", 16, tokens, tokens, 64),
            linear(f"{block}.output", (tokens,), 1024, 1024),
            linear(f"{block}.up", (tokens,), 1024, 4096),
            linear(f"{block}.down", (tokens,), 4096, 1024),
        ]
    return (*layers, linear("answer", (tokens,), 1024, 2))


@cache
def network(name: str) -> tuple[Layer, ...]:
    return {"ResNet50": resnet50, "MobileNetV2": mobilenetv2, "BERT": bert_large}[name]()


@pytest.mark.parametrize(
    ("name", "count", "weights"),
    [("ResNet50", 54, 25_502_912), ("MobileNetV2", 53, 3_469_760), ("BERT", 193, 301_991_936)],
)
def test_the_networks_are_the_papers(name: str, count: int, weights: int) -> None:
    assert (len(network(name)), sum(layer.weights for layer in network(name))) == (count, weights)


# The paper's figures.

WITHIN = 0.025


@pytest.mark.parametrize(
    ("name", "baseline_ms", "ratio"),
    [
        ("ResNet50", 5.20, {"int8": 0.7346, "int4": 0.5154, "int4_first_last_int8": 0.5187}),
        ("MobileNetV2", 3.97, {"int8": 0.7605, "int4_first_last_int8": 0.6418}),
        ("BERT", 4.28, {"int8": 0.6519, "int4": 0.5393}),
    ],
)
def test_the_formula_meets_the_papers_totals(name: str, baseline_ms: float, ratio: dict[str, float]) -> None:
    found = describe(network(name), latency_table("a100", network(name)))
    assert found["baseline_ms"] == pytest.approx(baseline_ms, rel=WITHIN)
    assert set(found["ratio"]) == {"int8", "int4", "int4_first_last_int8"}
    for plan, expected in ratio.items():
        assert found["ratio"][plan] == pytest.approx(expected, rel=WITHIN), plan
    assert "fitted to the paper's totals" in found["source"]
    assert [layer["name"] for layer in found["layers"]] == [layer.name for layer in network(name)]
    for format in ("float", "int8", "int4"):
        total = math.fsum(layer["ms"][format] for layer in found["layers"])
        assert found["total_ms"][format] == pytest.approx(total)


class Printed(NamedTuple):
    """A row of the paper's tables in which all layers, but perhaps first and last, have one format."""

    network: str
    method: str
    bits: str  # weights/activations as printed, † for first and last layer at 8 bits
    size_mb: float | None
    size_percent: float | None
    latency_ms: float
    latency_percent: float
    means: str = ""  # the format that the row's figures mean where its bits say something else


PRINTED = [
    # Table 1
    Printed("ResNet50", "Baseline", "16/16", 51.00, 100, 5.20, 100),
    Printed("ResNet50", "MrBiQ", "4/4†", 13.78, 27.02, 2.70, 51.87),
    Printed(
        "ResNet50", "ZeroQ", "MP/8", None, None, 3.82, 73.46, means="int8"
    ),  # the class of 8-bit activations
    Printed("ResNet50", "QDrop", "4/4†", 13.78, 27.02, 2.70, 51.87),
    Printed("ResNet50", "LAPQ", "8/4", 25.50, 50, 3.82, 73.46),
    Printed("ResNet50", "AdaRound", "4/8", 25.50, 50, 3.82, 73.46, means="int8"),  # size of 8-bit weights
    Printed("ResNet50", "BSQ", "MP/4†", None, None, 2.70, 51.87, means="int4"),
    Printed("ResNet50", "OBQ", "4/4", 12.75, 25, 2.68, 51.54),
    Printed("ResNet50", "PTQMP", "MP/MP", 25.50, 50, 3.82, 73.46, means="int8"),
    Printed("ResNet50", "SQuant", "8/8", 25.50, 50, 3.82, 73.46),
    # Table 2
    Printed("MobileNetV2", "Baseline", "16/16", 6.94, 100, 3.97, 100),
    Printed("MobileNetV2", "LAPQ", "4/32", 1.73, 25, 3.97, 100, means="w4a16"),
    Printed("MobileNetV2", "BRECQ", "4/4†", 2.38, 34.23, 2.55, 64.18),  # printed with ‡
    Printed("MobileNetV2", "QDrop", "4/4†", 2.38, 34.23, 2.55, 64.18),
    Printed("MobileNetV2", "ZeroQ", "MP/8", 0.87, 12.49, 3.02, 76.05, means="w2a8"),
    Printed("MobileNetV2", "MrBiQ", "4/4†", 2.38, 34.23, 2.55, 64.18),
    Printed("MobileNetV2", "NWQ", "4/4†", 2.38, 34.23, 2.55, 64.18),
    Printed("MobileNetV2", "AdaRound", "4/8", 1.73, 25, 3.02, 76.05),
    Printed("MobileNetV2", "DFQ", "8/8", 3.47, 50, 3.02, 76.05),
    Printed("MobileNetV2", "PTQMP", "MP/MP", 3.47, 50, 3.02, 76.05, means="int8"),
    Printed("MobileNetV2", "PTQ-MP", "8/8", 3.47, 50, 3.02, 76.05),
    # Table 3
    Printed("BERT", "Baseline", "8/8", 603.98, 100, 4.28, 100, means="float"),
    Printed("BERT", "QDrop", "4/8", 151.00, 25, 2.31, 53.93, means="int4"),  # latency of all 4 bit
    Printed("BERT", "QBert", "8/8", 151.00, 25, 2.79, 65.19, means="w4a8"),  # size of 4-bit weights
    Printed("BERT", "MREM-P", "8/8", 151.00, 25, 2.79, 65.19, means="w4a8"),
    Printed("BERT", "BRECQ", "8/8", 301.99, 50, 2.79, 65.19),
    Printed("BERT", "Q8Bert", "8/8", 301.99, 50, 2.79, 65.19),
    Printed("BERT", "MrBiQ", "8/8", 113.25, 18.75, 2.79, 65.19, means="w3a8"),  # size of 3-bit weights
    Printed("BERT", "AdaQuant", "4/8", 301.99, 50, 2.79, 65.19, means="int8"),  # size of 8-bit weights
    # Supplement
    Printed("ResNet50", "DFQ", "4/4†", 13.78, 27.02, 2.70, 51.87),
    Printed("ResNet50", "ACIQ", "4/4†", 13.78, 27.02, 2.70, 51.87),
    Printed("ResNet50", "PTQ-MP", "4/4†", 13.78, 27.02, 2.70, 51.87),
    Printed("ResNet50", "BRECQ", "4/4†", 13.78, 27.02, 2.70, 51.87),
]


@pytest.mark.parametrize("row", PRINTED, ids=lambda row: f"{row.network}-{row.method}")
def test_uniform_rows_of_the_papers_tables(row: Printed) -> None:
    layers = network(row.network)
    weight, activation = row.bits.rstrip("†").split("/")
    plan = Plan.uniform(layers, Format.parse(row.means or f"w{weight}a{activation}"))
    if row.bits.endswith("†"):
        plan = plan.replace((layers[0].name, layers[-1].name), INT8)
    found = cost(plan, layers, latency_table("a100", layers))
    assert found.latency_ms == pytest.approx(row.latency_ms, rel=WITHIN)
    assert found.latency_ratio == pytest.approx(row.latency_percent / 100, rel=WITHIN)
    if row.size_mb is not None and row.size_percent is not None:
        # Exact up to the paper's last digit: it prints 51.00 for 51.006 MB, 12.49 for 12.5 %.
        assert found.size_bytes / 1e6 == pytest.approx(row.size_mb, abs=0.01)
        assert found.size_ratio * 100 == pytest.approx(row.size_percent, abs=0.011)


# The formula, case by case.


def test_steps_by_hand() -> None:
    # 384 × 1024 by 128 × 64 tiles is 48 blocks in one wave; 1024 deep at 8 bits is 16 steps.
    assert steps(linear("x", (384,), 1024, 1024).places[0], 8) == 16
    # 16 heads × 3 × 3 tiles of 128 × 128 take two waves, 256 × 128 one.
    assert steps(matmul("x", 16, 384, 64, 384).places[0], 16) == 2
    # 112² positions × 32 channels: 196 blocks are two waves; nine taps of one aligned load are 3 steps.
    assert steps(convolution("x", 32, 32, 112, 3, groups=32).places[0], 16) == 6
    # Three input channels are padded to eight at 16 bits.
    assert steps(convolution("x", 3, 64, 224, 7, 2).places[0], 16) == 13


def test_one_two_and_three_dimensions_take_the_same_time() -> None:
    flat = Signature("conv1d", (1, 8, 64), (16, 8, 27), (1, 16, 64), (1,), (13,), (1,))
    cube = Signature("conv3d", (1, 8, 4, 4, 4), (16, 8, 3, 3, 3), (1, 16, 4, 4, 4), (1,) * 3, (1,) * 3)
    assert microseconds(place(flat), 8) == microseconds(place(cube), 8)


def test_grouped_convolutions_are_a_batch_of_small_ones() -> None:
    grouped = convolution("x", 64, 64, 14, 3, groups=4).places[0]
    assert steps(grouped, 16) == 1 * math.ceil(16 * 9 * 16 / 512)


def test_a_transposed_convolution_costs_its_multiplies() -> None:
    up = Signature("conv_transpose", (1, 64, 16, 16), (64, 32, 4, 4), (1, 32, 32, 32), (2, 2), (1, 1), (1, 1))
    assert steps(place(up), 16) == math.ceil(64 * 4 * 16 / 512)  # 4 of 16 taps meet each output at stride 2


def test_an_embedding_costs_the_bytes_it_fetches() -> None:
    words = Signature("embedding", (1, 384), (30522, 1024), (1, 384, 1024))
    assert microseconds(place(words), 8) == pytest.approx(384 * 1024 * (1 + 2) / 1.5e6)


@pytest.mark.parametrize("name", TABLES)
def test_every_computed_table_covers_its_layers(name: str) -> None:
    for model in ("ResNet50", "MobileNetV2", "BERT"):
        table = latency_table(name, network(model))
        assert all(table.ms(layer, format) > 0 for layer in network(model) for format in table.formats)
        assert LatencyTable.from_json(json.loads(json.dumps(table.to_json()))) == table


# Keys and rows.


@pytest.mark.parametrize(
    ("signature", "key"),
    [
        (
            Signature("conv2d", (1, 64, 56, 56), (64, 64, 3, 3), (1, 64, 56, 56), (1, 1), (1, 1), (1, 1)),
            "conv2d 1x56x56x64 k64 3x3 s1 p1 d1 g1",
        ),
        (
            Signature("conv2d", (1, 3, 9, 7), (8, 3, 3, 5), (1, 8, 5, 7), (2, 1), (1, 2)),
            "conv2d 1x9x7x3 k8 3x5 s2x1 p1x2 d1 g1",
        ),
        (
            Signature("depthwise", (1, 32, 9, 9), (32, 1, 3, 3), (1, 32, 9, 9), (1, 1), (1, 1), (1, 1), 32),
            "conv2d 1x9x9x32 k32 3x3 s1 p1 d1 g32",
        ),
        (Signature("conv1d", (1, 8, 50), (16, 8, 3), (1, 16, 48)), "conv1d 1x50x8 k16 3 s1 p0 d1 g1"),
        (
            Signature("conv_transpose", (1, 64, 16, 16), (64, 32, 4, 4), (1, 32, 32, 32), (2, 2), (1, 1)),
            "dgrad2d 1x32x32x32 k64 4x4 s2 p1 d1 g1",
        ),
        (
            # padding="same" is captured without numbers: not the row of the one without padding.
            Signature("conv2d", (1, 8, 9, 9), (8, 8, 3, 4), (1, 8, 9, 9), (1, 1), (), (1, 1)),
            "conv2d 1x9x9x8 k8 3x4 s1 p1x1+2 d1 g1",
        ),
        (Signature("conv2d", (8, 9, 9), (4, 8, 3, 3), (4, 7, 7)), "conv2d 1x9x9x8 k4 3x3 s1 p0 d1 g1"),
        (Signature("embedding", (1, 384), (30522, 1024), (1, 384, 1024)), "embedding n384 v30522 d1024"),
    ],
)
def test_keys(signature: Signature, key: str) -> None:
    assert place_key(place(signature)) == key


@pytest.mark.parametrize(
    ("kind", "input", "operand", "output", "depth", "key"),
    [
        ("linear", (1, 2048), (1000, 2048), (1, 1000), 2048, "gemm m1 n1000 k2048 b1"),
        ("linear", (1, 7, 7, 64), (32, 64), (1, 7, 7, 32), 64, "gemm m49 n32 k64 b1"),
        ("linear", (1, 5, 768), (768, 2304), (1, 5, 2304), 768, "gemm m5 n2304 k768 b1"),  # as GPT-2's
        ("linear", (1, 64, 10), (32, 64), (1, 32, 10), 64, "gemm m10 n32 k64 b1"),  # weight · activation
        ("linear", (1, 4, 5, 6), (4, 6, 7), (1, 4, 5, 7), 6, "gemm m5 n7 k6 b4"),  # a weight per head
        ("linear", (1, 5, 4, 6), (4, 6, 7), (1, 5, 7), 24, "gemm m5 n7 k24 b1"),  # einsum bshe,hed->bsd
        ("matmul", (1, 16, 384, 64), (1, 16, 64, 384), (1, 16, 384, 384), 64, "gemm m384 n384 k64 b16"),
        ("matmul", (1, 9, 4, 6), (1, 8, 4, 6), (1, 4, 9, 8), 6, "gemm m9 n8 k6 b4"),  # bqhd,bkhd->bhqk
        ("matmul", (1, 8, 5, 6), (1, 2, 6, 7), (1, 8, 5, 7), 6, "gemm m20 n7 k6 b2"),  # shared keys
        ("matmul", (1, 5, 8), (8,), (1, 5), 8, "gemm m5 n1 k8 b1"),
    ],
)
def test_gemm_keys(
    kind: str,
    input: tuple[int, ...],
    operand: tuple[int, ...],
    output: tuple[int, ...],
    depth: int,
    key: str,
) -> None:
    assert place_key(place(Signature(kind, input, operand, output), math.prod(output) * depth)) == key


@pytest.mark.parametrize("macs", [0, 25, 1000])
def test_what_is_no_matrix_product_is_named(macs: int) -> None:
    signature = Signature("linear", (1, 2, 4), (3, 4), (1, 2, 3))
    with pytest.raises(BitsectError, match=f"'place': {macs} multiply-adds of .* are no matrix product"):
        place_key(place(signature, macs))


KEY = "gemm m2 n3 k4 b1"
SMALL = linear("small", (2,), 4, 3)


def small_table(**times: float | None) -> LatencyTable:
    row = {Format.parse(name): ms for name, ms in times.items()}
    return LatencyTable("toy", "a test", tuple(row), {KEY: row})


def test_equal_signatures_share_a_row_and_places_add_up() -> None:
    twice = Layer("twice", "linear", (3, 4), SMALL.places * 2)
    table = small_table(float=1.5, int8=0.5)
    assert table.ms(SMALL, INT8) == 0.5
    assert table.ms(twice, FLOAT) == 3.0
    assert len(latency_table("a100", (SMALL, twice)).rows) == 1
    assert len(latency_table("a100", network("BERT")).rows) == 6  # of 193 layers


def test_a_missing_row_is_named() -> None:
    other = linear("other", (2,), 4, 5)
    with pytest.raises(
        BitsectError, match=r"toy \(a test\): no row 'gemm m2 n5 k4 b1' in int8.*layer 'other'"
    ):
        small_table(float=1.0, int8=0.5).ms(other, INT8)
    with pytest.raises(BitsectError, match="no row 'gemm m2 n3 k4 b1' in w4a8"):
        small_table(float=1.0, int8=0.5).ms(SMALL, W4A8)


def test_what_a_device_cannot_run() -> None:
    table = small_table(float=1.0, int8=None)
    assert table.supports(INT8)
    assert not table.supports(INT8, SMALL)
    assert not table.supports(INT4)
    with pytest.raises(BitsectError, match="layer 'small' does not run in int8 on toy"):
        table.ms(SMALL, INT8)


def test_classes_only_where_the_table_says_so() -> None:
    table = latency_table("a100", (SMALL,))
    assert table.ms(SMALL, W4A8) == table.ms(SMALL, INT8)
    assert table.ms(SMALL, W4A16) == table.ms(SMALL, FLOAT)
    assert table.ms(SMALL, Format(2, 2)) == table.ms(SMALL, INT4)
    assert table.supports(Format.parse("w4a16g128"))
    assert not small_table(float=1.0, int8=0.5).supports(W4A8)


def test_changes_of_format_cost_at_each_boundary() -> None:
    row = {FLOAT: 1.0, INT8: 0.5}
    changes = {FLOAT: {INT8: 0.125}, INT8: {FLOAT: 0.25}}
    table = LatencyTable("toy", "a test", (FLOAT, INT8), {KEY: row}, changes=changes, by_class=True)
    layers = tuple(Layer(name, "linear", (3, 4), SMALL.places) for name in "abc")
    plan = Plan({"a": FLOAT, "b": INT8, "c": FLOAT})
    assert latency_ms(plan, layers, table) == 1.0 + 0.125 + 0.5 + 0.25 + 1.0
    assert latency_ms(Plan.uniform(layers, INT8), layers, table) == 1.5
    assert latency_ms(Plan({"a": FLOAT, "b": W4A8, "c": INT8}), layers, table) == 1.0 + 0.125 + 0.5 + 0.5
    with pytest.raises(BitsectError, match="no cost for the change from float to int4"):
        table.change_ms(FLOAT, INT4)


def test_a_table_of_costs_adds_up_to_the_costs_of_plans() -> None:
    row = {FLOAT: 1.0, INT8: 0.5, INT4: 0.25}
    changes = {a: dict.fromkeys(row, 0.125) for a in row}
    table = LatencyTable("toy", "a test", tuple(row), {KEY: row}, changes=changes)
    layers = tuple(Layer(name, "linear", (3, 4), SMALL.places * n) for n, name in enumerate("abc", 1))
    allowed = {layer.name: tuple(row) for layer in layers}
    for formats in product(row, repeat=3):
        plan = Plan(dict(zip("abc", formats, strict=True)))
        whole = cost(plan, layers, table)
        assert cost_table(layers, allowed, table, "latency")(plan) == whole.latency_ms
        assert cost_table(layers, allowed, None, "latency")(plan) == whole.bit_operations
        assert cost_table(layers, allowed, table, "size")(plan) == whole.size_bytes


# Files.

FULL = LatencyTable(
    device="toy",
    source="a test",
    formats=(FLOAT, INT8, W4A16),
    rows={KEY: {FLOAT: 1.5, INT8: 0.5, W4A16: None}, "gemm m1 n1 k1 b1": {FLOAT: 0.125}},
    batch=2,
    threads=4,
    spread={KEY: {INT8: 0.01}},
    changes={FLOAT: {INT8: 0.25}},
    by_class=True,
)


def test_a_table_survives_its_file(tmp_path: Path) -> None:
    path = tmp_path / "table.json"
    FULL.write(path)
    assert LatencyTable.read(path) == FULL == latency_table(str(path), (SMALL,))
    data = json.loads(path.read_text())
    assert (data["bitsect"], data["version"]) == ("latency-table", 1)
    assert data["rows"][KEY] == {"float": 1.5, "int8": 0.5, "w4a16": None}
    assert [entry.name for entry in tmp_path.iterdir()] == ["table.json"]


def test_least_file(tmp_path: Path) -> None:
    path = tmp_path / "table.json"
    path.write_text(
        '{"bitsect": "latency-table", "version": 1, "device": "mine", "source": "by hand",'
        f' "formats": ["float"], "rows": {{"{KEY}": {{"float": 1}}}}}}'
    )
    assert latency_table(str(path), (SMALL,)).ms(SMALL, FLOAT) == 1


def edited(change: Callable[[dict[str, Any]], object]) -> str:
    data = FULL.to_json()
    change(data)
    return json.dumps(data)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "line 1: not JSON"),
        ('{\n"bitsect": "latency-table",\n', "line 3: not JSON"),
        ("Problem,Provider,OperationKind\n1,CUTLASS,gemm\n", "line 1: not JSON"),
        ("[]", "not a latency table"),
        ('{"bitsect": "plan", "version": 1, "layers": {}}', "not a latency table"),
        (edited(lambda d: d.update(version=2)), "version 2 is not 1"),
        (edited(lambda d: d.pop("rows")), "field 'rows' is missing"),
        (edited(lambda d: d.update(rows={})), "at least one row"),
        (edited(lambda d: d.update(rows=[])), "field 'rows' must be an object"),
        (edited(lambda d: d.update(change={})), "unknown field 'change'"),
        (edited(lambda d: d.update(batch=True)), "field 'batch' must be a whole number"),
        (edited(lambda d: d.update(batch=0)), "batch must be at least 1"),
        (edited(lambda d: d.update(formats=["float", "int99"])), "formats: format bits must be 2 to 8"),
        (edited(lambda d: d.update(formats=[8])), "formats: 8 is no format name"),
        (
            edited(lambda d: d["rows"][KEY].update(int8="fast")),
            f"row '{KEY}', format int8: 'fast' is no time",
        ),
        (edited(lambda d: d["rows"][KEY].update(int8=True)), f"row '{KEY}', format int8: True is no time"),
        (edited(lambda d: d["rows"][KEY].update(int8=-1)), f"row '{KEY}', format int8: -1 is no time"),
        (edited(lambda d: d["rows"][KEY].update(int8=0)), f"row '{KEY}', format int8: 0 is no time"),
        (edited(lambda d: d["rows"][KEY].update(int8=math.nan)), "NaN is no number in JSON"),
        (edited(lambda d: d["rows"][KEY].update(fast=1)), f"row '{KEY}': unknown format 'fast'"),
        (edited(lambda d: d["rows"][KEY].update(w8a8=1)), f"row '{KEY}': format int8 stands there twice"),
        (edited(lambda d: d["rows"][KEY].update(int4=1)), f"row '{KEY}': format int4 is not among"),
        (edited(lambda d: d["rows"].update({KEY: 3})), f"row '{KEY}': must be an object"),
        (edited(lambda d: d["spread"][KEY].update(int8=-1)), f"spread '{KEY}', format int8: -1 is no spread"),
        (edited(lambda d: d["spread"][KEY].update(int8=None)), f"spread '{KEY}', format int8: None is no"),
        (
            edited(lambda d: d["spread"][KEY].update(w4a16=1)),
            f"spread '{KEY}', format w4a16: there is no such",
        ),
        (edited(lambda d: d["changes"]["float"].update(int8=-1)), "change float to int8: -1 is no time"),
        (edited(len).replace('"gemm m1 n1 k1 b1"', f'"{KEY}"'), f"'{KEY}' stands there twice"),
    ],
)
def test_a_bad_file_is_named_with_the_place(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "bad.json"
    path.write_text(text)
    with pytest.raises(BitsectError) as caught:
        latency_table(str(path), (SMALL,))
    assert str(caught.value).startswith(f"{path}: ")
    assert message in str(caught.value)


def test_a_file_cut_anywhere_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "cut.json"
    text = json.dumps(FULL.to_json(), indent=1)
    for end in range(len(text)):
        path.write_text(text[:end])
        with pytest.raises(BitsectError, match=r"cut\.json: line \d+"):
            LatencyTable.read(path)


def test_files_that_are_not_there_or_not_text(tmp_path: Path) -> None:
    with pytest.raises(
        BitsectError, match="b200: no such latency table: use a100, onnxruntime, openvino, or a file"
    ):
        latency_table("b200", ())
    with pytest.raises(BitsectError, match=r"gone\.json: no such latency table"):
        LatencyTable.read(tmp_path / "gone.json")
    with pytest.raises(BitsectError, match="cannot be read"):
        latency_table(str(tmp_path), ())
    (tmp_path / "binary.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(BitsectError, match=r"binary\.json: cannot be read"):
        latency_table(str(tmp_path / "binary.json"), ())


@pytest.mark.parametrize("failure", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_nothing_is_half_written(
    failure: BaseException, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "table.json"
    FULL.write(path)
    before = path.read_bytes()

    def write_half(part: Path, text: str, encoding: str) -> None:
        part.write_bytes(text.encode(encoding)[: len(text) // 2])
        raise failure

    monkeypatch.setattr(Path, "write_text", write_half)
    with pytest.raises((BitsectError, KeyboardInterrupt)) as caught:
        small_table(float=1.0).write(path)
    assert isinstance(failure, KeyboardInterrupt) or "table.json: cannot be written: No space" in str(
        caught.value
    )
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_writing_into_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(BitsectError, match=r"table\.json: cannot be written"):
        FULL.write(tmp_path / "missing" / "table.json")


# CUTLASS profiler files.


def test_import_takes_the_least_time_per_shape_and_format() -> None:
    table = import_cutlass([GEMM, str(CONV2D)], device="A100")
    assert table.device == "A100"
    assert table.source == "CUTLASS profiler: sample.gemm.csv, sample.conv2d.csv"
    assert table.formats == (FLOAT, W4A16, INT8, INT4)
    assert table.rows == {
        "gemm m384 n1024 k1024 b1": {FLOAT: 0.0181, INT8: 0.0124, INT4: 0.0117, W4A16: 0.0169},
        "gemm m384 n384 k64 b16": {FLOAT: 0.0109},
        "conv2d 1x56x56x64 k64 3x3 s1 p1 d1 g1": {FLOAT: 0.0367, INT8: 0.0259, INT4: 0.0201},
        "conv2d 1x112x112x32 k32 3x3 s1 p1 d1 g32": {FLOAT: 0.0442},
        "dgrad2d 1x32x32x32 k64 4x4 s2 p1 d1 g1": {FLOAT: 0.0305},
    }


def test_layers_find_their_rows_in_an_imported_table() -> None:
    table = import_cutlass([GEMM, CONV2D])
    query, scores = bert_large()[0], bert_large()[3]
    assert table.ms(query, INT8) == table.ms(query, W4A8) == 0.0124
    assert table.ms(query, W4A16) == 0.0169
    assert table.ms(scores, FLOAT) == 0.0109
    assert table.ms(convolution("x", 64, 64, 56, 3), INT4) == 0.0201
    assert table.ms(convolution("x", 64, 64, 56, 3), W4A16) == 0.0367
    assert table.ms(convolution("x", 32, 32, 112, 3, groups=32), FLOAT) == 0.0442
    with pytest.raises(
        BitsectError, match=r"no row 'gemm m384 n384 k64 b16' in int8, needed by layer '0\.scores'"
    ):
        table.ms(scores, INT8)


def test_columns_are_found_by_name(tmp_path: Path) -> None:
    path = tmp_path / "old.gemm.csv"
    path.write_text(
        "\ufeffdate,Runtime,A,k,n,m,Status,Disposition,OperationKind\r\n"
        "today,0.5,s8:row,4,3,2,success,passed,gemm\r\n"
        "\r\n"
        # A second file behind the first, of another version.
        "OperationKind,Disposition,Status,m,n,k,A,B,batch_count,Runtime\r\n"
        "gemm,passed,success,2,3,4,s8:row,s8:column,1,0.25",
        encoding="utf-8",
    )
    assert import_cutlass([path]).rows == {KEY: {INT8: 0.25}}


def cell(column: str, value: str, line: int = 2, sample: Path = GEMM) -> str:
    """The sample with one cell changed."""
    lines = sample.read_text().splitlines()
    cells = lines[line - 1].split(",")
    cells[lines[0].split(",").index(column)] = value
    return "\n".join([*lines[: line - 1], ",".join(cells), *lines[line:]])


HEADER = GEMM.read_text().splitlines()[0]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "line 1: empty"),
        ("\n\n", "line 1: empty"),
        (HEADER, "no usable row"),
        ("name,size\nx,1\n", "line 1: not a header of the CUTLASS profiler: no column OperationKind"),
        ('{"bitsect": "latency-table"}', "line 1: not a header"),
        (
            HEADER.replace("Runtime", "Time"),
            "line 1: not a header of the CUTLASS profiler: no column Runtime",
        ),
        (GEMM.read_text()[:900], "line 4: 30 fields where the header has 32"),
        (cell("m", "many"), "line 2: column m: 'many' is not a whole number"),
        (cell("n", "0"), "line 2: column n: '0' is not a whole number of at least 1"),
        (cell("k", "-4"), "line 2: column k: '-4'"),
        (cell("batch_count", "x"), "line 2: column batch_count: 'x'"),
        (cell("A", "f16"), "line 2: column A: 'f16' is not type:layout"),
        (cell("Runtime", "fast"), "line 2: column Runtime: 'fast' is no time"),
        (cell("Runtime", "0"), "line 2: column Runtime: '0' is no time"),
        (cell("Runtime", "nan"), "line 2: column Runtime: 'nan' is no time"),
        (cell("Runtime", "", line=6), "line 6: column Runtime: '' is no time"),
        (cell("OperationKind", "spgemm"), "line 2: operation 'spgemm' is neither gemm nor conv2d"),
        (cell("OperationKind", "conv2d"), "line 2: a conv2d row without column conv_kind, h, w"),
        (cell("conv_kind", "fwd", sample=CONV2D), "line 2: conv_kind 'fwd'"),
        (cell("pad_h", "", sample=CONV2D), "line 2: column pad_h: ''"),
        ("\n".join([HEADER, GEMM.read_text().splitlines()[-1]]), "no usable row"),  # f32 only
    ],
)
def test_a_bad_profiler_file_is_named_with_the_line(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "bad.csv"
    path.write_text(text)
    with pytest.raises(BitsectError) as caught:
        import_cutlass([GEMM, path])
    assert str(caught.value).startswith(f"{path}: ")
    assert message in str(caught.value)


def test_files_that_the_profiler_did_not_write(tmp_path: Path) -> None:
    with pytest.raises(BitsectError, match="no profiler files given"):
        import_cutlass([])
    with pytest.raises(BitsectError, match=r"gone\.csv: no such file"):
        import_cutlass([tmp_path / "gone.csv"])
    (tmp_path / "binary.csv").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(BitsectError, match=r"binary\.csv: cannot be read as CSV"):
        import_cutlass([tmp_path / "binary.csv"])


@pytest.mark.parametrize("sample", [GEMM, CONV2D], ids=lambda path: path.name)
def test_a_profiler_file_cut_anywhere_gives_no_wrong_time(sample: Path, tmp_path: Path) -> None:
    whole = import_cutlass([sample]).rows
    runtime = HEADER.split(",").index("Runtime") if sample == GEMM else -3
    times = {line.split(",")[runtime] for line in sample.read_text().splitlines()[1:]}
    path = tmp_path / "cut.csv"
    for end in range(0, len(sample.read_text()), 3):
        path.write_text(sample.read_text()[:end])
        try:
            rows = import_cutlass([path]).rows
        except BitsectError as error:
            assert str(error).startswith(f"{path}: ")  # noqa: PT017 (cuts between lines are whole files)
        else:
            assert rows.keys() <= whole.keys()
            assert {f"{ms:.4f}" for row in rows.values() for ms in row.values()} <= times


def test_a_convolution_of_unusual_output_size_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "odd.conv2d.csv"
    path.write_text(cell("p", "57", line=4, sample=CONV2D))
    assert INT8 not in import_cutlass([path]).rows["conv2d 1x56x56x64 k64 3x3 s1 p1 d1 g1"]


# Costs, filters, budgets.


@given(st.lists(st.sampled_from([FLOAT, INT8, INT4, W4A8, W4A16]), min_size=54, max_size=54))
def test_cost_against_a_slow_sum(formats: list[Format]) -> None:
    layers = network("ResNet50")
    table = latency_table("a100", layers)
    found = cost(Plan(dict(zip((layer.name for layer in layers), formats, strict=True))), layers, table)
    bits = {FLOAT: (16, 16, 16), INT8: (8, 8, 8), INT4: (4, 4, 4), W4A8: (4, 8, 8), W4A16: (4, 16, 16)}
    size = work = microsecs = full_microsecs = 0.0
    for layer, format in zip(layers, formats, strict=True):
        weight_bits, activation_bits, class_bits = bits[format]
        size += layer.weights * weight_bits / 8
        work += layer.macs * weight_bits * activation_bits
        microsecs += microseconds(layer.places[0], class_bits)
        full_microsecs += microseconds(layer.places[0], 16)
    assert found.size_bytes == size
    assert found.size_ratio == pytest.approx(size / (25_502_912 * 2))
    assert found.bit_operations == work
    assert found.bit_operations_ratio == pytest.approx(work / (256 * sum(layer.macs for layer in layers)))
    assert found.latency_ms == pytest.approx(microsecs / 1000)
    assert found.latency_ratio == pytest.approx(microsecs / full_microsecs)


def test_float_costs_one() -> None:
    layers = network("MobileNetV2")
    found = cost(Plan.uniform(layers), layers, latency_table("a100", layers))
    assert (found.latency_ratio, found.size_ratio, found.bit_operations_ratio) == (1, 1, 1)


def test_without_a_table_there_is_no_latency() -> None:
    found = cost(Plan({"small": INT8}), (SMALL,))
    assert found == Cost(12, 0.5, 24 * 64, 0.25)
    assert found.to_json()["latency_ms"] is None
    scores = matmul("scores", 1, 2, 3, 4)
    assert cost(Plan({"scores": INT8}), (scores,)).size_ratio == 1  # no weights, nothing to save


@pytest.mark.parametrize(
    ("times", "ladder", "kept"),
    [
        ({"float": 3.0, "int8": 2.0, "int4": 1.0}, "float int8 int4", "float int8 int4"),
        ({"float": 3.0, "int8": 2.0, "int4": 2.0}, "float int8 int4", "float int8"),  # not strictly
        ({"float": 1.0, "int8": 2.0, "int4": 1.5}, "float int8 int4", "float"),
        ({"float": 2.0, "int8": 3.0, "int4": 1.0}, "float int8 int4", "float int4"),
        ({"float": 2.0, "int8": 1.0}, "float int8 int4", "float int8"),  # int4 does not run
        ({"float": 2.0, "int8": None, "int4": 1.0}, "float int8 int4", "float int4"),
        ({"float": 1.0, "int8": 2.0, "int4": 1.5}, "int8 int4", "int8 int4"),  # may not be float
        ({"float": 2.0, "int4": 1.0}, "int8 int4", "int4"),
        ({"float": 2.0, "w4a16": 1.0}, "float w4a16", "float w4a16"),
    ],
)
def test_faster_formats(times: dict[str, float | None], ladder: str, kept: str) -> None:
    allowed = {"small": tuple(map(Format.parse, ladder.split()))}
    found = faster_formats((SMALL,), small_table(**times), allowed)
    assert found == {"small": tuple(map(Format.parse, kept.split()))}


def test_a_layer_that_may_take_nothing_is_named() -> None:
    with pytest.raises(BitsectError, match="layer 'small' may only be int4, and toy runs float, int8"):
        faster_formats((SMALL,), small_table(float=1.0, int8=0.5), {"small": (INT4,)})


def test_the_a100_formula_drops_what_is_slower_there() -> None:
    layers = network("BERT")
    allowed = {layer.name: (FLOAT, INT8, INT4) for layer in layers}
    table = latency_table("a100", layers)
    kept = faster_formats(layers, table, allowed)
    assert kept["0.up"] == (FLOAT, INT8, INT4)
    assert kept["0.scores"] == (FLOAT, INT8)  # 4-bit gemm kernels start slowly: too small a multiply
    for layer in layers:
        times = [table.ms(layer, format) for format in kept[layer.name]]
        assert times == sorted(set(times), reverse=True)


def test_formats_that_a_device_lacks_are_listed() -> None:
    found = describe((SMALL,), small_table(float=2.0, int8=None))
    assert found["unsupported"] == ["int4"]
    assert found["layers"] == [{"name": "small", "kind": "linear", "ms": {"float": 2.0, "int8": None}}]
    assert found["baseline_ms"] == 2.0
    assert found["ratio"] == {"int8": None}
    json.dumps(found)


COST = Cost(
    size_bytes=12_000_000,
    size_ratio=0.5,
    bit_operations=1,
    bit_operations_ratio=0.25,
    latency_ms=3.0,
    latency_ratio=0.75,
)


@pytest.mark.parametrize(
    ("latency", "size", "budget", "excess"),
    [
        ("0.8x", None, Budget(latency_ratio=0.8), 0.75 / 0.8 - 1),
        ("3ms", None, Budget(latency_ms=3.0), 0),
        ("2.4 ms", None, Budget(latency_ms=2.4), 0.25),
        ("1500us", None, Budget(latency_ms=1.5), 1),
        (None, "12MB", Budget(size_bytes=12e6), 0),
        (None, "12.5MB", Budget(size_bytes=12.5e6), 12 / 12.5 - 1),
        (None, "900kB", Budget(size_bytes=9e5), 12e6 / 9e5 - 1),
        (None, "0.012gb", Budget(size_bytes=12e6), 0),
        (None, "0.5x", Budget(size_ratio=0.5), 0),
        (None, ".4X", Budget(size_ratio=0.4), 0.25),
        ("2ms", "0.5x", Budget(latency_ms=2.0, size_ratio=0.5), 0.5),
        (None, None, Budget(), -1),
    ],
)
def test_budgets(latency: str | None, size: str | None, budget: Budget, excess: float) -> None:
    found = Budget.parse(latency=latency, size=size)
    assert found == budget
    assert found.excess(COST) == pytest.approx(excess)
    assert found.fits(COST) == (excess <= 0)


@pytest.mark.parametrize(
    "text", ["", "0.8", "x", "-1x", "0x", "0ms", "nanx", "infms", "1e3ms", "3 MB", "3mss", "٣ms"]
)
def test_bad_latency_budgets(text: str) -> None:
    with pytest.raises(BitsectError, match=f"latency budget '{text}'"):
        Budget.parse(latency=text)


@pytest.mark.parametrize("text", ["12", "12MiB", "3ms", "0MB", "0.0x"])
def test_bad_size_budgets(text: str) -> None:
    with pytest.raises(BitsectError, match=f"size budget '{text}'"):
        Budget.parse(size=text)


def test_a_latency_budget_needs_a_table() -> None:
    with pytest.raises(BitsectError, match=r"latency budget of 0\.8x latency needs a latency table"):
        Budget.parse(latency="0.8x").fits(cost(Plan({"small": INT8}), (SMALL,)))


def test_no_torch() -> None:
    code = "import sys, bitsect.latency; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
