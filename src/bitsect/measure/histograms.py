"""Histograms of what a plan rounds: the weights and inputs of every layer, with their clips and steps."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ..network.parts import Multiply, Operand
from ..rounding.rounder import Rounder, is_fitted
from ..rounding.weights import quantize_weight
from ..values import Format, Plan
from ..values.shown import Histogram, LayerValues
from .context import Context

BINS = 80
MOST_VALUES = 200_000  # of one tensor that are counted: evenly spaced ones stand for all


def value_histograms(context: Context, plan: Plan) -> dict[str, LayerValues]:
    """The weights and float inputs of every layer on the first batch, as `plan` rounds them.

    The inputs of a layer in several places are counted together. Of large tensors some values stand for all.
    """
    program, rounder = context.program, context.evaluator.rounder
    inputs: dict[str, list[Tensor]] = {}

    def seeing(multiply: Multiply) -> Callable[[Tensor], None]:
        return lambda value: inputs.setdefault(multiply.layer, []).append(_some(value))

    first = {
        (multiply.node.name, multiply.operands.index(operand)): seeing(multiply)
        for multiply in program.multiplies
        for operand in multiply.activations[:1]
    }
    batch, _ = context.evaluator.batch(context.starts()[0])
    program.observe_operands(batch, first)
    return {
        name: LayerValues(
            plan[name].name,
            _weights(rounder, name, plan[name], _places(context, name)),
            _inputs(rounder, plan[name], _places(context, name), inputs.get(name, [])),
        )
        for name in context.layers
    }


def _places(context: Context, layer: str) -> list[Multiply]:
    return [multiply for multiply in context.program.multiplies if multiply.layer == layer]


def _weights(rounder: Rounder, layer: str, format: Format, places: list[Multiply]) -> Histogram | None:
    weight = next((place.weight for place in places if place.weight is not None), None)
    if weight is None:
        return None
    values = rounder.program.constant(weight.node).detach()
    if format.weight_bits is None:
        return _histogram(_some(values))
    step = float(_scales(rounder, layer, weight, format).max())
    reach = step * (2 ** (format.weight_bits - 1) - 1)
    return _histogram(_some(values), format.weight_bits, (-reach, reach), step)


def _scales(rounder: Rounder, layer: str, weight: Operand, format: Format) -> Tensor:
    """The scales of a weight's codes: as fitted, else they come from its largest magnitudes."""
    if is_fitted(rounder.rounding, format):
        return rounder.codes(layer, weight, format).scales.float().flatten()
    assert weight.layout is not None
    values = rounder.program.constant(weight.node)
    return quantize_weight(values, weight.layout, format, "nearest").scales.float().flatten()


def _inputs(rounder: Rounder, format: Format, places: list[Multiply], seen: list[Tensor]) -> Histogram | None:
    if not seen:
        return None
    values, bits = torch.cat(seen), format.activation_bits
    tensor = next((operand.tensor for place in places for operand in place.activations[:1]), None)
    known = rounder.ranges is not None and tensor in rounder.ranges.table
    if bits is None or tensor is None or not known:
        return _histogram(values)
    grid = rounder.grid(tensor, bits)
    return _histogram(values, bits, (grid.low * grid.scale, grid.high * grid.scale), grid.scale)


def _some(values: Tensor) -> Tensor:
    """At most MOST_VALUES of the values, evenly spaced."""
    flat = values.detach().reshape(-1)
    return flat[:: -(-len(flat) // MOST_VALUES)].float().cpu() if len(flat) else flat.float().cpu()


def _histogram(
    values: Tensor,
    bits: int | None = None,
    clip: tuple[float, float] | None = None,
    step: float | None = None,
) -> Histogram | None:
    values = values[values.isfinite()]
    if not len(values):
        return None
    low, high = (float(end) for end in values.aminmax())
    if clip is not None:  # so that the clip is in the picture
        low, high = min(low, clip[0]), max(high, clip[1])
    if low == high:
        low, high = low - 0.5, high + 0.5
    counts = torch.histc(values, BINS, low, high).long().tolist()
    beyond = 0.0
    if clip is not None and step is not None:  # half a step further still rounds to the last code
        outside = (values < clip[0] - step / 2) | (values > clip[1] + step / 2)
        beyond = float(outside.double().mean())
    return Histogram(low, high, tuple(counts), bits, clip, step, beyond)
