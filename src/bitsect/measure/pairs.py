"""Losses with one layer or two in a format, on every sample.

Exact, with the prefix used again: the float states of a batch are kept once; W^i starts from the
float state before layer i and keeps the state before every later layer; W^{i,j} starts from that
state before j. The same losses bit for bit as whole passes, for about a third of their cost.

Linear: with d_i = outputs(W^i) − outputs(W), the outputs of W^{i,j} are taken for
outputs(W) + d_i + d_j: one part-pass per layer.

Task loss and divergence come from the same outputs, so both are kept.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..errors import BitsectError
from ..values import Format
from ..values.pieces import Done, Piece
from .context import Context, FloatBatch, float_leaves, power, with_leaves
from .work import Work

Array = np.ndarray[Any, Any]


def exact_pairs(context: Context, format: Format) -> Work:
    """Every single and pair loss: a piece for each batch and first layer, and one for the batch in float."""

    def pairs_of(batch: FloatBatch, row: int) -> Piece:
        layer, later = context.layers[row], context.layers[row + 1 :]
        rounding = context.rounding(format, layer)
        alone, after = context.program.run_from(layer, batch.states[layer], rounding, later)
        context.check(batch.inputs, alone, rounding)
        pairs = []
        for other in later:
            together = context.rounding(format, layer, other)
            both, _ = context.program.run_from(other, after.pop(other), together)
            context.check(batch.inputs, both, together)
            pairs.append(_losses(context, batch.outputs, both, batch.labels))
        return _single(context, batch, alone) | _stacked(pairs)

    return _by_rows(context, pairs_of)


def single_losses(context: Context, format: Format, *, outputs: bool = False) -> Work:
    """The losses of one layer in `format` each and, for linear pairs, the outputs behind them."""

    def loss_of(batch: FloatBatch, row: int) -> Piece:
        layer = context.layers[row]
        rounding = context.rounding(format, layer)
        alone, _ = context.program.run_from(layer, batch.states[layer], rounding)
        context.check(batch.inputs, alone, rounding)
        kept = enumerate(float_leaves(alone) if outputs else ())
        return _single(context, batch, alone) | {f"output_{k}": leaf.cpu().numpy() for k, leaf in kept}

    return _by_rows(context, loss_of)


def linear_pairs(context: Context, singles: Done) -> Work:
    """Pair losses estimated from the outputs in `singles`: a piece for each batch."""
    return Work(tuple(map(str, context.starts())), lambda start: _additive(context, int(start), singles))


def _by_rows(context: Context, of_row: Callable[[FloatBatch, int], Piece]) -> Work:
    """A piece for every batch and layer, named `start/row`, and `start/float` for the float network."""
    rows = ("float", *map(str, range(len(context.layers))))

    def do(name: str) -> Piece:
        start, _, row = name.partition("/")
        batch = context.float_batch(int(start))
        if row != "float":
            return of_row(batch, int(row))
        signal = power(float_leaves(batch.outputs), len(batch.labels)).numpy()
        return {**_losses(context, batch.outputs, batch.outputs, batch.labels), "signal": signal}

    return Work(tuple(f"{start}/{row}" for start in context.starts() for row in rows), do)


# What was kept, read back as tables.


def read_rows(context: Context, done: Done, name: str) -> Array:
    """What the pieces of every layer hold under `name`: [layers, samples]."""
    return np.stack([_joined(context, done, str(row), name) for row in range(len(context.layers))])


def read_float(context: Context, done: Done, name: str) -> Array:
    """What the pieces of the float network hold under `name`: [samples]."""
    return _joined(context, done, "float", name)


def read_exact_pairs(context: Context, done: Done, loss: str) -> Array:
    """Pair losses [pairs, samples], the pairs of the first layer first."""
    rows = [_joined(context, done, str(i), f"pair_{loss}") for i in range(len(context.layers) - 1)]
    return np.concatenate(rows or [np.zeros((0, context.count))])


def read_linear_pairs(context: Context, done: Done, loss: str) -> Array:
    """Estimated pair losses, in the same order."""
    if len(context.layers) < 2:
        return np.zeros((0, context.count))
    return np.concatenate([done[str(start)][f"pair_{loss}"] for start in context.starts()], axis=1)


def _joined(context: Context, done: Done, row: str, name: str) -> Array:
    return np.concatenate([done[f"{start}/{row}"][name] for start in context.starts()], axis=-1)


def _additive(context: Context, start: int, singles: Done) -> Piece:
    inputs, labels = context.evaluator.batch(start)
    outputs = context.program.run(inputs)
    base = float_leaves(outputs)
    changes = []
    for i in range(len(context.layers)):
        piece = singles[f"{start}/{i}"]
        alone = (torch.tensor(piece[f"output_{k}"], device=leaf.device) for k, leaf in enumerate(base))
        changes.append([after - before for after, before in zip(alone, base, strict=True)])
    pairs = []
    for i, first in enumerate(changes):
        for second in changes[i + 1 :]:
            both = with_leaves(
                outputs, (leaf + a + b for leaf, a, b in zip(base, first, second, strict=True))
            )
            pairs.append(_losses(context, outputs, both, labels))
    return _stacked(pairs)


def _losses(context: Context, float_outputs: Any, outputs: Any, labels: Tensor) -> Piece:
    """`task` where the task has a loss, `kl` where it can say how far outputs moved."""
    losses = {"task": context.task_loss(outputs, labels), "kl": context.kl(float_outputs, outputs)}
    found = {name: loss.double().cpu().numpy() for name, loss in losses.items() if loss is not None}
    if not found:
        raise BitsectError(
            f"task '{context.evaluator.task.name}' gives no loss, and the outputs are no logits of classes "
            "that could be compared: return (loss, score)"
        )
    return found


def _single(context: Context, batch: FloatBatch, alone: Any) -> Piece:
    pairs = zip(float_leaves(alone), float_leaves(batch.outputs), strict=True)
    noise = power((after - before for after, before in pairs), len(batch.labels)).numpy()
    return {**_losses(context, batch.outputs, alone, batch.labels), "noise": noise}


def _stacked(pairs: list[Piece]) -> Piece:
    names = pairs[0] if pairs else ()
    return {f"pair_{name}": np.stack([pair[name] for pair in pairs]) for name in names}
