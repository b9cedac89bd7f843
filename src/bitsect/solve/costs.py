"""What plans cost under a latency table, and which formats are worth having."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from ..errors import BitsectError
from ..values import FLOAT, INT4, INT8, Cost, Costs, Format, LatencyTable, Layer, Plan
from ..values.format import FLOAT_BITS, rank

LEAST_GAIN = 0.01  # of the time of a network: what a format must gain to be tried


def cost(plan: Plan, layers: Sequence[Layer], table: LatencyTable | None = None) -> Cost:
    """Size and bit operations of `plan`, its latency where there is a table, each also against float."""
    baseline = Plan.uniform(layers, FLOAT)
    size, full_size = plan.size_bytes(layers), baseline.size_bytes(layers)
    work, full_work = bit_operations(plan, layers), bit_operations(baseline, layers)
    if table is None:
        ms = ms_ratio = None
    else:
        ms = latency_ms(plan, layers, table)
        ms_ratio = _ratio(ms, latency_ms(baseline, layers, table))
    return Cost(size, _ratio(size, full_size), work, _ratio(work, full_work), ms, ms_ratio)


def cost_where_run(plan: Plan, layers: Sequence[Layer], table: LatencyTable | None) -> Cost:
    """What `plan` costs; without latency where the device does not run it."""
    runs = table is not None and all(table.supports(plan[layer.name], layer) for layer in layers)
    return cost(plan, layers, table if runs else None)


def latency_ms(plan: Mapping[str, Format], layers: Sequence[Layer], table: LatencyTable) -> float:
    """rest + Σ layers t(layer, format) + Σ boundaries, or Σ neighbours change(format, next format).

    Where a table does not know the boundaries of the network, neighbours are layers that follow each other
    in graph order: where branches meet, an approximation.
    """
    formats = [plan[layer.name] for layer in layers]
    multiplies = sum(table.ms(layer, format) for layer, format in zip(layers, formats, strict=True))
    if table.boundaries:
        by_name: dict[str | None, Format] = {None: FLOAT}
        by_name.update(plan.items())
        between = (table.boundary_ms(b, by_name[b.before], by_name[b.after]) for b in table.boundaries)
        return table.rest_ms + multiplies + sum(between)
    return table.rest_ms + multiplies + sum(table.change_ms(a, b) for a, b in pairwise(formats))


def cost_table(
    layers: Sequence[Layer],
    allowed: Mapping[str, Sequence[Format]],
    table: LatencyTable | None,
    objective: str,
) -> Costs:
    """What a search adds up: milliseconds, bytes, or bit operations where latency has no table."""
    if objective == "size":
        return Costs({layer.name: {f: f.size_bytes(layer) for f in allowed[layer.name]} for layer in layers})
    if table is None:
        return Costs(
            {layer.name: {f: float(_operations(layer, f)) for f in allowed[layer.name]} for layer in layers}
        )
    if table.boundaries:
        return _with_boundaries(layers, allowed, table)
    formats = dict.fromkeys(format for layer in layers for format in allowed[layer.name])
    return Costs(
        {layer.name: {f: table.ms(layer, f) for f in allowed[layer.name]} for layer in layers},
        {(a, b): ms for a in formats for b in formats if (ms := table.change_ms(a, b))},
        tuple((before.name, after.name) for before, after in pairwise(layers)),
        rest=table.rest_ms,
    )


def _with_boundaries(
    layers: Sequence[Layer], allowed: Mapping[str, Sequence[Format]], table: LatencyTable
) -> Costs:
    """Milliseconds of layers and of what lies between them; one side of a boundary may be no layer."""
    each = {layer.name: {f: _counted_ms(layer, f, table) for f in allowed[layer.name]} for layer in layers}
    neighbours, changes = list[tuple[str, str]](), list[dict[tuple[Format, Format], float]]()
    for boundary in table.boundaries:
        before, after = boundary.before, boundary.after
        if before is not None and after is not None:
            neighbours.append((before, after))
            pairs = ((a, b) for a in allowed[before] for b in allowed[after])
            changes.append({pair: ms for pair in pairs if (ms := table.boundary_ms(boundary, *pair))})
        elif before is not None:
            for format in each[before]:
                each[before][format] += table.boundary_ms(boundary, format, FLOAT)
        elif after is not None:
            for format in each[after]:
                each[after][format] += table.boundary_ms(boundary, FLOAT, format)
    return Costs(each, {}, tuple(neighbours), tuple(changes), table.rest_ms)


def _counted_ms(layer: Layer, format: Format, table: LatencyTable) -> float:
    """What a layer counts for where a whole network was timed.

    A look-up takes next to no time in any format. It saves size, and so it counts by its bits: of two plans
    that take as long the smaller one is found.
    """
    if layer.is_look_up and table.boundaries:
        return table.ms(layer, FLOAT) * format.stored_bits / FLOAT_BITS
    return table.ms(layer, format)


def bit_operations(plan: Mapping[str, Format], layers: Iterable[Layer]) -> int:
    """Σ multiply-adds · weight bits · activation bits, where float counts 16."""
    return sum(_operations(layer, plan[layer.name]) for layer in layers)


def _operations(layer: Layer, format: Format) -> int:
    return layer.macs * (format.weight_bits or FLOAT_BITS) * (format.activation_bits or FLOAT_BITS)


def faster_formats(
    layers: Iterable[Layer], table: LatencyTable, allowed: Mapping[str, tuple[Format, ...]]
) -> dict[str, tuple[Format, ...]]:
    """`allowed` without the formats that buy a layer no time.

    A ladder runs from high to low; a rung stays if the device runs it and it is strictly faster than
    every rung above, or may be once its neighbours are in codes too and nothing has to be rounded between
    them. The highest that runs always stays: it is the layer's way to keep accuracy.
    """
    saved: dict[str | None, float] = {}
    for boundary in table.boundaries:
        between = max(table.boundary_ms(boundary, *pair) for pair in ((FLOAT, INT8), (INT8, FLOAT)))
        if boundary.before is not None and boundary.after is not None:
            for name in (boundary.before, boundary.after):
                saved[name] = saved.get(name, 0.0) + between
    return {
        layer.name: _faster(layer, table, allowed[layer.name], saved.get(layer.name, 0.0)) for layer in layers
    }


@dataclass(frozen=True)
class Worth:
    """Formats that a network gains by, and those that are spared: they would gain next to nothing."""

    formats: tuple[Format, ...]
    spared: frozenset[Format]


def worthwhile(
    layers: Sequence[Layer],
    table: LatencyTable,
    allowed: Mapping[str, tuple[Format, ...]],
    formats: tuple[Format, ...],
) -> Worth:
    """Which of `formats` gain a network at least LEAST_GAIN of its time; the one that gains most always does.

    Every format is measured, fitted and judged, which a last layer that is a little faster is not worth.
    Asked only where a whole network was timed, so that its time is known.
    """
    if not table.boundaries:
        return Worth(formats, frozenset())
    gains = dict.fromkeys(formats, 0.0)
    for layer in layers:
        if layer.is_look_up:
            continue
        ms = {f: table.ms(layer, f) for f in allowed[layer.name] if table.supports(f, layer)}
        for format in gains.keys() & ms.keys():
            better = format.dynamic  # than formats of as many bits: held against those above it alone
            others = [
                other for f, other in ms.items() if f != format and not (better and rank(f) > rank(format))
            ]
            gains[format] += max(0.0, min(others) - ms[format]) if others else table.ms(layer, format)
    whole = latency_ms(Plan.uniform(layers), layers, table)
    most = max(gains, key=lambda format: gains[format])
    kept = tuple(f for f in formats if f == most or gains[f] >= LEAST_GAIN * whole)
    return Worth(kept, frozenset(formats) - frozenset(kept))


def _faster(
    layer: Layer, table: LatencyTable, ladder: Sequence[Format], saved_ms: float
) -> tuple[Format, ...]:
    kept: dict[Format, float] = {}
    for format in ladder:
        if table.supports(format, layer):
            ms = _counted_ms(layer, format, table)
            least = ms - saved_ms if format.has_ranges else ms
            if all(least < higher for higher in kept.values()):
                kept[format] = ms
    if not kept:
        raise BitsectError(
            f"layer '{layer.name}' may only be {', '.join(map(str, ladder)) or 'nothing'}, "
            f"and {table.device} runs {', '.join(map(str, table.formats))}: allow it one of these"
        )
    return tuple(kept)


def describe(
    layers: Sequence[Layer], table: LatencyTable, formats: Sequence[Format] = (FLOAT, INT8, INT4)
) -> dict[str, Any]:
    """What `bitsect latency` prints: milliseconds per layer and format, and totals of uniform plans.

    Formats that the device does not run are listed as such; a total is None where one layer does not
    run in that format. `ratio` is against float, and has the paper's 4-bit plan with first and last
    layer at 8 bits beside the uniform ones.
    """
    shown = [format for format in dict.fromkeys((FLOAT, *formats)) if table.supports(format)]
    plans = {format.name: Plan.uniform(layers, format) for format in shown}
    if layers and INT8 in shown and INT4 in shown:
        ends = (layers[0].name, layers[-1].name)
        plans["int4_first_last_int8"] = Plan.uniform(layers, INT4).replace(ends, INT8)
    totals = {
        name: latency_ms(plan, layers, table)
        if all(table.supports(plan[layer.name], layer) for layer in layers)
        else None
        for name, plan in plans.items()
    }
    baseline = totals.get(FLOAT.name)
    return {
        "device": table.device,
        "source": table.source,
        "batch": table.batch,
        "threads": table.threads,
        "unsupported": [format.name for format in formats if format not in shown],
        "layers": [
            {
                "name": layer.name,
                "kind": layer.kind,
                "ms": {f.name: table.ms(layer, f) if table.supports(f, layer) else None for f in shown},
            }
            for layer in layers
        ],
        "baseline_ms": baseline,
        "total_ms": totals,
        "ratio": {
            name: None if total is None or baseline is None else _ratio(total, baseline)
            for name, total in totals.items()
            if name != FLOAT.name
        },
    }


def _ratio(value: float, baseline: float) -> float:
    """1 where there is nothing to save: a network of matmuls has no weights."""
    return value / baseline if baseline else 1.0
