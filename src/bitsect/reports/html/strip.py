"""The strip: the format of every layer along the network, as a drawing that needs no script."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ...values.format import FLOAT_BITS, Format
from ..story import Story

WIDTH = 1000.0  # of the drawing, in its own units
LEAST = 1.0  # width that a layer keeps, so that it can be seen and touched
MEASURES = {
    "layer": "every layer alike",
    "weights": "by weights",
    "macs": "by multiply-adds",
    "time": "by time in float",
}


@dataclass(frozen=True)
class Segment:
    """One layer of the strip; the height says its bits, the widths how much of the network it is."""

    name: str
    title: str
    format: str
    height: float  # 0 to 1
    spans: dict[str, tuple[float, float]]  # measure → left end and width


@dataclass(frozen=True)
class Strip:
    """The whole strip."""

    pieces: tuple[Segment, ...]
    measures: dict[str, str]
    default: str
    summary: str  # in words, for those who do not see it


def strip_of(story: Story) -> Strip | None:
    """The strip of a story; None while no plan is found."""
    layers = [layer for layer in story.layers if layer.format is not None]
    if not layers:
        return None
    sizes: dict[str, list[float]] = {
        "layer": [1.0] * len(layers),
        "weights": [float(layer.weights) for layer in layers],
        "macs": [float(layer.macs) for layer in layers],
        "time": [layer.float_ms or 0.0 for layer in layers],
    }
    spans = {name: _spans(values) for name, values in sizes.items() if any(values)}
    default = "time" if "time" in spans else "layer"
    pieces = tuple(
        Segment(
            layer.name,
            _title(layer),
            str(layer.format),
            _bits(str(layer.format)) / FLOAT_BITS,
            {name: places[index] for name, places in spans.items()},
        )
        for index, layer in enumerate(layers)
    )
    counted = ", ".join(f"{count} {name}" for name, count in story.counts.items())
    summary = f"Formats of {len(layers)} layers along the network: {counted}"
    return Strip(pieces, {name: MEASURES[name] for name in spans}, default, summary)


def _spans(values: list[float]) -> list[tuple[float, float]]:
    """Left ends and widths in proportion to `values`; none is too narrow to be seen.

    >>> _spans([1.0, 3.0])
    [(0.0, 250.5), (250.5, 749.5)]
    """
    least = min(LEAST, WIDTH / (2 * len(values)))
    spare, total = WIDTH - least * len(values), sum(values)
    found, left = [], 0.0
    for value in values:
        width = least + spare * value / total
        found.append((round(left, 3), round(width, 3)))
        left += width
    return found


def _bits(name: str) -> float:
    """The mean of weight and activation bits."""
    format = Format.parse(name)
    return ((format.weight_bits or FLOAT_BITS) + (format.activation_bits or FLOAT_BITS)) / 2


def _title(layer: Any) -> str:
    said = f"{layer.name}: {layer.format}, {layer.kind}, {layer.weights:,} weights"
    if layer.float_ms is not None and layer.ms is not None:
        said += f", {layer.float_ms:.3g} ms in float, {layer.ms:.3g} ms now"
    return said
