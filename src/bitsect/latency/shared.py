"""Layers by the kernels that they share: those left in float one at a time when a network is timed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ..values import Layer
from ..values.latency_table import place_key

MOST_KERNELS = 10  # that are left in float one at a time


def by_kernel(layers: Sequence[Layer]) -> Iterator[tuple[str, list[str]]]:
    """The layers of each distinct kernel; of very many, those that multiply most."""
    found: dict[str, list[Layer]] = {}
    for layer in layers:
        if not layer.is_look_up:
            found.setdefault(place_key(layer.places[0]), []).append(layer)
    heaviest = sorted(found, key=lambda key: -sum(layer.macs for layer in found[key]))[:MOST_KERNELS]
    for key in found:
        if key in heaviest:
            yield key, [layer.name for layer in found[key]]
    depthwise = [layer.name for layer in layers if layer.kind == "depthwise"]
    if depthwise:
        yield "depthwise", depthwise
