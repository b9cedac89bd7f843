"""A latency table from the CSV files of NVIDIA's CUTLASS profiler (NAME.gemm.csv, NAME.conv2d.csv)."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from ..errors import BitsectError
from ..files import reading
from ..values import FLOAT, Format, LatencyTable
from ..values.latency_table import convolution_key, gemm_key

# Bits of the types that have a format. Float counts as 16 bits, so f32 and tf32 have none.
BITS = {"f16": None, "bf16": None, "s8": 8, "u8": 8, "s4": 4, "u4": 4}
RAN = ("passed", "not_verified", "not_run")  # dispositions: `not_run` speaks of the check, not the kernel

COMMON = ("OperationKind", "Disposition", "Status", "Runtime")
COLUMNS = {
    "gemm": ("m", "n", "k", "A"),
    "conv2d": (
        *("conv_kind", "n", "h", "w", "c", "k", "r", "s", "Activation"),
        *("pad_h", "pad_w", "stride_h", "stride_w", "dilation_h", "dilation_w"),
    ),
}

Row = Mapping[str, str]


def import_cutlass(paths: Iterable[Path | str], device: str = "NVIDIA GPU") -> LatencyTable:
    """The least Runtime per shape and format over all kernels in `paths`.

    Columns are found by name, for they vary by version. A row counts if its kernel ran and was not
    found wrong: Status `success`, Disposition `passed`, `not_verified` or `not_run`. The format is
    that of both operands: s8 by s8 is int8, f16 by s4 is w4a16; where only A is told, B is the same.
    Left out, because no layer could ask for them: other types, weight gradients, and convolutions
    whose output size is not the usual one.
    """
    files = [Path(path) for path in paths]
    if not files:
        raise BitsectError("no profiler files given: pass NAME.gemm.csv and NAME.conv2d.csv")
    rows: dict[str, dict[Format, float | None]] = {}
    for path in files:
        with reading(path, what="CSV", missing="no such file", way_out="write it again with the profiler"):
            found = list(_times(path))
        if not found:
            raise BitsectError(
                f"{path}: no usable row: a row needs Status success, Disposition {' or '.join(RAN)}, "
                f"and operands of type {', '.join(BITS)}"
            )
        for key, format, ms in found:
            row = rows.setdefault(key, {})
            row[format] = min(ms, row.get(format) or math.inf)
    formats = {format for row in rows.values() for format in row}
    return LatencyTable(
        device=device,
        source=f"CUTLASS profiler: {', '.join(path.name for path in files)}",
        formats=tuple(sorted(formats, key=lambda f: (-f.compute_bits, -f.stored_bits))),
        rows=rows,
        by_class=True,
    )


def _times(path: Path) -> Iterator[tuple[str, Format, float]]:
    """(key, format, milliseconds) of every usable row; errors name file and line."""
    for line, row in _rows(path):
        try:
            if row["Status"] != "success" or row["Disposition"] not in RAN:
                continue
            key, format = _key(row), _format(row)
            if key is not None and format is not None:
                yield key, format, _milliseconds(row)
        except BitsectError as error:
            raise BitsectError(f"{path}: line {line}: {error}") from None


def _rows(path: Path) -> Iterator[tuple[int, Row]]:
    """Every row with its line; a header further down starts over, as in files put one after another."""
    header: list[str] = []
    with path.open(newline="", encoding="utf-8-sig") as file:
        reader = csv.reader(file)
        for cells in reader:
            where = f"{path}: line {reader.line_num}"
            if not cells:
                continue
            if not header or "OperationKind" in cells:
                header = cells
                missing = [name for name in COMMON if name not in header]
                if missing:
                    raise BitsectError(
                        f"{where}: not a header of the CUTLASS profiler: no column {', '.join(missing)}"
                    )
            elif len(cells) != len(header):
                raise BitsectError(
                    f"{where}: {len(cells)} fields where the header has {len(header)}: cut short?"
                )
            else:
                yield reader.line_num, dict(zip(header, cells, strict=True))
    if not header:
        raise BitsectError(f"{path}: line 1: empty; expected the header of the CUTLASS profiler")


def _key(row: Row) -> str | None:
    """The key of a row (see `place_key`), None for a problem that no layer poses.

    In gemm rows n and k are columns and depth, in convolution rows batch and filters.
    """
    kind = row["OperationKind"]
    if kind not in COLUMNS:
        raise BitsectError(f"operation '{kind}' is neither gemm nor conv2d")
    missing = [name for name in COLUMNS[kind] if name not in row]
    if missing:
        raise BitsectError(f"a {kind} row without column {', '.join(missing)}")
    if kind == "gemm":
        m, n, k = (_size(row, name) for name in "mnk")
        return gemm_key(m, n, k, _size(row, "batch_count") if row.get("batch_count") else 1)
    if row["conv_kind"] not in ("fprop", "dgrad", "wgrad"):
        raise BitsectError(f"conv_kind '{row['conv_kind']}' is none of fprop, dgrad, wgrad")
    n, h, w, c, k, r, s = (_size(row, name) for name in "nhwckrs")
    stride = _size(row, "stride_h"), _size(row, "stride_w")
    padding = _size(row, "pad_h", 0), _size(row, "pad_w", 0)
    dilation = _size(row, "dilation_h"), _size(row, "dilation_w")
    groups = next((_size(row, name) for name in ("g", "groups") if row.get(name)), 1)
    usual = tuple(
        (size + 2 * pad - (taps - 1) * gap - 1) // step + 1
        for size, taps, step, pad, gap in zip((h, w), (r, s), stride, padding, dilation, strict=True)
    )
    told = tuple(_size(row, name) if row.get(name) else size for name, size in zip("pq", usual, strict=True))
    if row["conv_kind"] == "wgrad" or told != usual:
        return None
    operation = "dgrad" if row["conv_kind"] == "dgrad" else "conv"
    return convolution_key((n, h, w, c), k, (r, s), stride, padding, dilation, groups, operation)


def _format(row: Row) -> Format | None:
    """The format whose operands have the types of a row; None where no format has them."""
    activation, weight = ("A", "B") if row["OperationKind"] == "gemm" else ("Activation", "Filter")
    types = _type(row, activation), _type(row, weight if row.get(weight) else activation)
    if any(type not in BITS for type in types):
        return None
    activation_bits, weight_bits = (BITS[type] for type in types)
    if weight_bits is None:
        return FLOAT if activation_bits is None else None
    return Format(weight_bits, activation_bits)


def _type(row: Row, column: str) -> str:
    type, colon, layout = row[column].partition(":")
    if not (type and colon and layout):
        raise BitsectError(f"column {column}: '{row[column]}' is not type:layout such as f16:row")
    return type


def _size(row: Row, column: str, least: int = 1) -> int:
    text = row[column]
    if not (text.isascii() and text.isdigit() and int(text) >= least):
        raise BitsectError(f"column {column}: '{text}' is not a whole number of at least {least}")
    return int(text)


def _milliseconds(row: Row) -> float:
    try:
        ms = float(row["Runtime"])
    except ValueError:
        ms = math.nan
    if not 0 < ms < math.inf:
        raise BitsectError(f"column Runtime: '{row['Runtime']}' is no time: was profiling switched on?")
    return ms
