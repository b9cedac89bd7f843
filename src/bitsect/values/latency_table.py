"""How long each multiply takes in each format on one device."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

from ..errors import BitsectError, PlanError
from ..files import read_json
from .boundary import Boundary, step_key
from .format import FLOAT, INT4, INT8, Format
from .layer import Layer, Place, Signature

VERSION = 1
LONGEST_MS = 1e15


@dataclass(frozen=True)
class LatencyTable:
    """Milliseconds per (key, format); None where the device cannot run that kernel.

    Places that multiply alike have one key (see `place_key`) and share a row. Nothing is interpolated:
    a row that is missing is an error that names it. Only with `by_class`, a format without a row of
    its own takes that of its latency class, as in the paper: w4a8 runs as int8, w4a16 as float.
    """

    device: str
    source: str  # where the numbers come from: shown wherever they are
    formats: tuple[Format, ...]  # what the device can run at all
    rows: Mapping[str, Mapping[Format, float | None]]
    batch: int = 1
    threads: int | None = None
    spread: Mapping[str, Mapping[Format, float]] = field(default_factory=dict)  # ±ms around a row
    changes: Mapping[Format, Mapping[Format, float]] = field(default_factory=dict)  # from → to → ms
    by_class: bool = False
    # Known of one network where it was timed as a whole; a file holds the kernels alone.
    rest_ms: float = 0.0  # what a run takes besides the multiplies, whatever the plan
    boundaries: tuple[Boundary, ...] = ()

    def __repr__(self) -> str:
        formats = ", ".join(format.name for format in self.formats)
        return f"LatencyTable: {len(self.rows)} kernels in {formats} on {self.device}"

    def __post_init__(self) -> None:
        if not self.rows:
            raise BitsectError("a latency table needs at least one row")
        for count, name in ((self.batch, "batch"), (self.threads, "threads")):
            if count is not None and count < 1:
                raise BitsectError(f"{name} must be at least 1: got {count}")
        for key, row in self.rows.items():
            for format, ms in row.items():
                if format not in self.formats:
                    raise BitsectError(f"row '{key}': format {format} is not among the table's formats")
                if ms is not None and not 0 < ms < math.inf:
                    raise BitsectError(f"row '{key}', format {format}: {ms} is no time in milliseconds")
        for key, row in self.spread.items():
            for format, ms in row.items():
                if self.rows.get(key, {}).get(format) is None:
                    raise BitsectError(f"spread '{key}', format {format}: there is no such time")
                if not 0 <= ms < math.inf:
                    raise BitsectError(f"spread '{key}', format {format}: {ms} is no spread in milliseconds")
        for before, costs in self.changes.items():
            for after, ms in costs.items():
                if not 0 <= ms < math.inf:
                    raise BitsectError(f"change {before} to {after}: {ms} is no time in milliseconds")

    def supports(self, format: Format, layer: Layer | None = None) -> bool:
        """Whether the device can run `format` at all, or at every place of `layer`.

        A layer without a row is an error here too: not knowing is not the same as not running.
        """
        if layer is None:
            return any(candidate in self.formats for candidate in self._candidates(format))
        return self.supports(format) and all(
            self._entry(place, format, layer.name) is not None for place in layer.places
        )

    def ms(self, layer: Layer, format: Format) -> float:
        """Milliseconds of `layer` in `format`: the sum over its places."""
        total = 0.0
        for place in layer.places:
            ms = self._entry(place, format, layer.name)
            if ms is None:
                raise BitsectError(f"layer '{layer.name}' does not run in {format} on {self.device}")
            total += ms
        return total

    def change_ms(self, before: Format, after: Format) -> float:
        """Milliseconds to go from a layer in `before` to the next in `after`; 0 if none are known."""
        if before == after or not self.changes:
            return 0.0
        for one, other in product(self._candidates(before), self._candidates(after)):
            if one == other:
                return 0.0
            if other in self.changes.get(one, {}):
                return self.changes[one][other]
        raise BitsectError(f"{self._label}: no cost for the change from {before} to {after}")

    def boundary_ms(self, boundary: Boundary, before: Format, after: Format) -> float:
        """Milliseconds between two layers in these formats: to round values, or to un-round codes."""
        step = boundary.step(before, after)
        if step is None:
            return 0.0
        (ms,) = self.rows[step_key(step, boundary.elements)].values()
        assert ms is not None
        return ms

    def _entry(self, place: Place, format: Format, layer: str) -> float | None:
        key = place_key(place)
        row = self.rows.get(key, {})
        for candidate in self._candidates(format):
            if candidate in row:
                return row[candidate]
        raise BitsectError(
            f"{self._label}: no row '{key}' in {format}, needed by layer '{layer}': "
            "add it to the table, or leave the format out"
        )

    def _candidates(self, format: Format) -> tuple[Format, ...]:
        """The formats whose row serves `format`, first choice first."""
        return (format, latency_class(format)) if self.by_class else (format,)

    @property
    def _label(self) -> str:
        return f"latency table of {self.device} ({self.source})"

    def to_json(self) -> dict[str, Any]:
        def named(rows: Mapping[Any, Mapping[Format, float | None]]) -> dict[str, dict[str, float | None]]:
            return {str(key): {f.name: ms for f, ms in row.items()} for key, row in rows.items()}

        return {
            "bitsect": "latency-table",
            "version": VERSION,
            "device": self.device,
            "source": self.source,
            "batch": self.batch,
            "threads": self.threads,
            "formats": [format.name for format in self.formats],
            "by_class": self.by_class,
            "changes": named(self.changes),
            "rows": named(self.rows),
            "spread": named(self.spread),
        }

    @classmethod
    def from_json(cls, data: Any, source: str = "latency table") -> LatencyTable:
        """The table in `data`; an error names `source` and the row."""
        if not isinstance(data, dict) or data.get("bitsect") != "latency-table":
            raise BitsectError(
                f"{source}: not a latency table; expected "
                '{"bitsect": "latency-table", "version": 1, "device": …, "formats": […], "rows": {…}}; '
                "`bitsect import-latency` makes one from profiler files"
            )
        if data.get("version") != VERSION:
            raise BitsectError(
                f"{source}: latency table version {data.get('version')} is not {VERSION}: "
                "write it with this bitsect"
            )
        try:
            return cls(**_fields(data))
        except BitsectError as error:
            raise BitsectError(f"{source}: {error}") from None

    @classmethod
    def read(cls, path: Path) -> LatencyTable:
        return cls.from_json(read_json(path, what="latency table"), str(path))

    def write(self, path: Path) -> None:
        """Write the whole table to `path`, or leave what was there."""
        part = path.with_name(f".{path.name}.{os.getpid()}.part")
        try:
            part.write_text(json.dumps(self.to_json(), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
            part.replace(path)
        except OSError as error:
            raise BitsectError(f"{path}: cannot be written: {error.strerror or error}") from None
        finally:
            # After an interruption too; `replace` has already taken it away where all went well.
            with suppress(OSError):
                part.unlink(missing_ok=True)


def latency_class(format: Format) -> Format:
    """The format of 16, 8 or 4 bits in both operands that holds the larger operand of `format`.

    >>> [latency_class(Format.parse(name)).name for name in ("w4a16", "w4a8", "int6", "int2")]
    ['float', 'int8', 'int8', 'int4']
    """
    return next(wide for wide in (INT4, INT8, FLOAT) if format.compute_bits <= wide.compute_bits)


def place_key(place: Place) -> str:
    """What all multiplies like this one are called, in every table.

    A depthwise layer is a convolution with groups; a transposed convolution is named by the
    convolution whose data gradient it computes (its image is this one's output).

    >>> image, weight = (1, 64, 56, 56), (64, 64, 3, 3)
    >>> conv = Signature("conv2d", image, weight, image, stride=(1, 1), padding=(1, 1), dilation=(1, 1))
    >>> place_key(Place("conv", conv, macs=115605504))
    'conv2d 1x56x56x64 k64 3x3 s1 p1 d1 g1'
    >>> linear = Signature("linear", (1, 384, 1024), (4096, 1024), (1, 384, 4096))
    >>> place_key(Place("linear", linear, macs=384 * 1024 * 4096))
    'gemm m384 n4096 k1024 b1'
    """
    signature = place.signature
    if signature.kind == "embedding":
        rows, width = signature.operand
        return f"embedding n{math.prod(signature.input)} v{rows} d{width}"
    if not signature.is_convolution:
        return gemm_key(*gemm_shape(place))
    taps = signature.operand[2:]
    image, result, kind = signature.input, signature.output, "conv"
    if signature.kind == "conv_transpose":
        image, result, kind = result, image, "dgrad"
    channels = -len(taps) - 1  # counted from the end, where a batch may be missing
    return convolution_key(
        image=(math.prod(image[:channels]), *image[channels + 1 :], image[channels]),
        filters=result[channels],
        taps=taps,
        stride=signature.stride,
        padding=signature.padding or _implied_padding(signature),
        dilation=signature.dilation,
        groups=signature.groups,
        kind=kind,
    )


def gemm_shape(place: Place) -> tuple[int, int, int, int]:
    """(m, n, k, batch) of a linear layer or a matmul, however its operands are stored.

    With X = batch·m·k and W = batch·k·n elements in, Y = batch·m·n out, and P = batch·m·n·k
    multiply-adds: m = P/W, n = P/X, k = P/Y, batch = X·W·Y/P². So a weight may stand either way
    round (GPT-2's is transposed), on either side, or come by einsum; a shared operand is no batch.
    Rows of a grouped product are counted as spread evenly over the groups.
    """
    if place.signature.kind == "grouped":
        (rows, depth), (groups, _, width) = place.signature.input, place.signature.operand
        busy = min(rows, groups)
        return math.ceil(rows / busy), width, depth, busy
    shapes = place.signature.input, place.signature.operand, place.signature.output
    x, w, y = map(math.prod, shapes)
    if place.macs > 0:
        m, n, k, batch = place.macs // w, place.macs // x, place.macs // y, x * w * y // place.macs**2
        if (x, w, y) == (batch * m * k, batch * k * n, batch * m * n):
            return m, n, k, batch
    raise BitsectError(
        f"'{place.name}': {place.macs} multiply-adds of {shapes[0]} by {shapes[1]} into {shapes[2]} "
        "are no matrix product: no latency is known for it"
    )


def gemm_key(m: int, n: int, k: int, batch: int = 1) -> str:
    return f"gemm m{m} n{n} k{k} b{batch}"


def convolution_key(
    image: tuple[int, ...],
    filters: int,
    taps: tuple[int, ...],
    stride: tuple[int, ...],
    padding: tuple[int | str, ...],
    dilation: tuple[int, ...],
    groups: int = 1,
    kind: str = "conv",
) -> str:
    """The key of a convolution over `image`, given channels last: (batch, *sizes, channels)."""
    sizes = "x".join(map(str, image))
    kernel = "x".join(map(str, taps))
    steps = f"s{_short(stride, 1)} p{_short(padding, 0)} d{_short(dilation, 1)}"
    return f"{kind}{len(taps)}d {sizes} k{filters} {kernel} {steps} g{groups}"


def _short(values: tuple[int | str, ...], default: int) -> str:
    """One number where all are equal, so that (1,) and (1, 1) are the same row."""
    distinct = set(values or (default,))
    return str(*distinct) if len(distinct) == 1 else "x".join(map(str, values))


def _implied_padding(signature: Signature) -> tuple[int | str, ...]:
    """The padding that makes the output as large as it is, where it was asked for as "same"."""
    taps = signature.operand[2:]
    padding: list[int | str] = []
    for axis, tap in enumerate(taps, start=-len(taps)):
        stride = signature.stride[axis] if signature.stride else 1
        dilation = signature.dilation[axis] if signature.dilation else 1
        used = (signature.output[axis] - 1) * stride + (tap - 1) * dilation + 1
        before, odd = divmod(max(0, used - signature.input[axis]), 2)
        padding.append(f"{before}+{before + 1}" if odd else before)
    return tuple(padding)


# Every field of the file: its type, in Python and in words.
FIELDS: dict[str, tuple[type | tuple[type, ...], str]] = {
    "device": (str, "text"),
    "source": (str, "text"),
    "formats": (list, "a list of names"),
    "rows": (dict, "an object"),
    "batch": (int, "a whole number"),
    "threads": ((int, type(None)), "a whole number or null"),
    "spread": (dict, "an object"),
    "changes": (dict, "an object"),
    "by_class": (bool, "true or false"),
}
REQUIRED = ("device", "source", "formats", "rows")


def _fields(data: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of LatencyTable in `data`, each of its type."""
    fields = {name: value for name, value in data.items() if name not in ("bitsect", "version")}
    for name in REQUIRED:
        if name not in fields:
            raise BitsectError(f"field '{name}' is missing: a table needs {', '.join(REQUIRED)}")
    for name, value in fields.items():
        if name not in FIELDS:
            raise BitsectError(f"unknown field '{name}': a table has {', '.join(FIELDS)}")
        kind, words = FIELDS[name]
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise BitsectError(f"field '{name}' must be {words}")
    fields["formats"] = tuple(_format(name, "formats") for name in fields["formats"])
    fields["rows"] = {key: _times(row, f"row '{key}'", None) for key, row in fields["rows"].items()}
    fields["spread"] = {key: _times(row, f"spread '{key}'") for key, row in fields.get("spread", {}).items()}
    fields["changes"] = {
        _format(name, "changes"): _times(row, f"changes '{name}'")
        for name, row in fields.get("changes", {}).items()
    }
    return fields


def _times(row: Any, where: str, *others: None) -> dict[Format, Any]:
    """Format → milliseconds, or one of `others`."""
    if not isinstance(row, dict):
        raise BitsectError(f"{where}: must be an object of format names and milliseconds")
    times: dict[Format, Any] = {}
    for name, ms in row.items():
        format = _format(name, where)
        if format in times:
            raise BitsectError(f"{where}: format {format} stands there twice")
        # A whole number that no float can hold would be an error only where it is added up.
        number = isinstance(ms, int | float) and not isinstance(ms, bool) and abs(ms) < LONGEST_MS
        if ms not in others and not number:
            raise BitsectError(f"{where}, format {format}: {repr(ms)[:40]} is no time in milliseconds")
        times[format] = ms
    return times


def _format(name: Any, where: str) -> Format:
    if not isinstance(name, str):
        raise BitsectError(f"{where}: {name!r} is no format name such as int8")
    try:
        return Format.parse(name)
    except PlanError as error:
        raise BitsectError(f"{where}: {error}") from None
