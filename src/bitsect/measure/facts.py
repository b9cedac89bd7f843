"""Facts about a layer's own values: how far they reach, channel by channel."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..network.parts import Multiply
from ..values import Plan, Ranges
from ..values.blame import Facts
from ..values.pieces import Done
from .context import Context
from .work import Progress, Work, fill, shared, silent

NEARLY_ALL = 0.999
Array = np.ndarray[Any, Any]


@shared
def value_facts(context: Context, layers: Sequence[str]) -> Work:
    """The largest magnitudes of inputs and outputs, by channel: a piece for each batch."""
    return Work(
        tuple(f"facts-{len(layers)}/{start}" for start in context.starts()),
        lambda key: _seen(context, int(key.rpartition("/")[2])),
    )


def layer_facts(
    context: Context, plan: Plan, layers: Sequence[str], done: Done, progress: Progress = silent
) -> dict[str, Facts]:
    """What was measured of each of `layers`; values are those of the float network."""
    pieces = list(fill(done, value_facts(context, context.layers), progress))
    ranges, program = context.evaluator.rounder.ranges, context.program
    index = {name: i for i, name in enumerate(context.layers)}
    total = sum(layer.weights for layer in program.layers)
    found: dict[str, Facts] = {}
    for layer in (each for each in program.layers if each.name in layers):
        row, bits = index[layer.name], plan[layer.name].activation_bits
        places = [multiply for multiply in program.multiplies if multiply.layer == layer.name]
        found[layer.name] = Facts(
            layer.name,
            layer.weights,
            total,
            max(float(piece[f"largest_{row}"]) for piece in pieces),
            float(np.mean([piece[f"nearly_{row}"] for piece in pieces])),
            _range(places, ranges, bits),
            np.max([piece[f"in_{row}"] for piece in pieces], axis=0),
            np.max([piece[f"out_{row}"] for piece in pieces], axis=0),
            _weight_channels(context, places),
            _addends(context, places, ranges),
        )
    return found


def _seen(context: Context, start: int) -> dict[str, Array]:
    inputs, _ = context.evaluator.batch(start)
    program = context.program
    rows = {name: row for row, name in enumerate(context.layers)}
    kept: dict[str, Array] = {}

    def see_input(multiply: Multiply) -> Callable[[Tensor], None]:
        def see(value: Tensor) -> None:
            row, sizes = rows[multiply.layer], value.detach().float().abs()
            if not sizes.numel():
                return
            _widen(kept, f"in_{row}", _by_channel(sizes, multiply.place.signature.is_convolution))
            _widen(kept, f"largest_{row}", np.array(float(sizes.max())))
            _widen(kept, f"nearly_{row}", np.array(_quantile(sizes)))

        return see

    def see_output(multiply: Multiply) -> Callable[[Tensor], None]:
        def see(value: Tensor) -> None:
            sizes = value.detach().float().abs()
            if sizes.numel():
                convolution = multiply.place.signature.is_convolution
                _widen(kept, f"out_{rows[multiply.layer]}", _by_channel(sizes, convolution))

        return see

    firsts = {
        (multiply.node.name, multiply.operands.index(operand)): see_input(multiply)
        for multiply in program.multiplies
        for operand in multiply.activations[:1]
    }
    program.observe_operands(inputs, firsts)
    program.observe(inputs, {multiply.output: see_output(multiply) for multiply in program.multiplies})
    for row in rows.values():  # an expert may see nothing at all
        for name in ("in", "out", "largest", "nearly"):
            kept.setdefault(f"{name}_{row}", np.zeros(1 if name in ("in", "out") else ()))
    return kept


def _by_channel(sizes: Tensor, convolution: bool) -> Array:
    """The largest of each channel: the second axis of images, the last of anything else."""
    axis = 1 if convolution and sizes.ndim > 2 else sizes.ndim - 1
    largest: Array = sizes.movedim(axis, 0).flatten(1).amax(1).double().cpu().numpy()
    return largest


def _quantile(sizes: Tensor) -> float:
    beyond = max(1, int((1 - NEARLY_ALL) * sizes.numel()))
    return float(sizes.flatten().topk(beyond).values[-1])


def _widen(kept: dict[str, Array], name: str, values: Array) -> None:
    """Several places of a layer count together."""
    known = kept.get(name)
    kept[name] = values if known is None or known.shape != values.shape else np.maximum(known, values)


def _range(places: Sequence[Multiply], ranges: Ranges | None, bits: int | None) -> float | None:
    if ranges is None or bits is None:
        return None
    known = [operand.tensor for place in places for operand in place.activations[:1] if operand.tensor]
    return max((ranges[tensor, bits].amax for tensor in known if tensor in ranges.table), default=None)


def _weight_channels(context: Context, places: Sequence[Multiply]) -> Array | None:
    weight = next((place.weight for place in places if place.weight is not None), None)
    if weight is None or weight.layout is None:
        return None
    kernels = weight.layout.to_kernels(context.program.constant(weight.node)).abs()
    largest: Array = kernels.to(torch.float64).flatten(1).amax(1).cpu().numpy()
    return largest


def _addends(context: Context, places: Sequence[Multiply], ranges: Ranges | None) -> tuple[float, ...]:
    """The ranges of the values whose sum a layer reads, where that is what it reads."""
    program = context.program
    names = {node.name: tensor for tensor, node in program.tensors.items()}
    read = {operand.tensor for place in places for operand in place.activations}
    for total in program.sums:
        if total.tensor in read and ranges is not None:
            known = [names.get(node.name, "") for node in total.addends]
            amax = [
                max(r.amax for r in ranges.table[name].values()) for name in known if name in ranges.table
            ]
            if len(amax) == 2:
                return tuple(amax)
    return ()
