"""Losses with one layer or two in a format, on every sample.

Exact, with the prefix used again: the float states of a batch are kept once; W^i starts from the
float state before layer i and keeps the state before every later layer; W^{i,j} starts from that
state before j. The same losses bit for bit as whole passes, for about a third of their cost.

Linear: with d_i = outputs(W^i) − outputs(W), the outputs of W^{i,j} are taken for
outputs(W) + d_i + d_j: one part-pass per layer. The outputs of a batch are held while its pairs are made of
them, and not kept: they take hundreds of times the room of the losses. Where they are too wide to be held for
every layer, as those of language models are, the loss is expanded around those of W: see `expansion`.

Task loss and divergence come from the same outputs, so both are kept.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from ..errors import BitsectError
from ..values import Format
from ..values.pieces import Done, Piece
from .context import Context, FloatBatch, float_leaves, power, with_leaves
from .expansion import are_wide, expanded, expansion, loss_functions
from .work import Work, shared

Array = np.ndarray[Any, Any]


@shared
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
        return _single(context, batch, alone) | _stacked("pair", pairs)

    return _by_rows(context, pairs_of)


@shared
def single_losses(context: Context, format: Format) -> Work:
    """The losses of one layer in `format` each."""
    return _by_rows(context, lambda batch, row: _single(context, batch, _alone(context, batch, row, format)))


@shared
def linear_pairs(context: Context, format: Format) -> Work:
    """Single losses, and pair losses estimated from the outputs behind them: a piece for each batch."""
    return Work(tuple(map(str, context.starts())), lambda start: _additive(context, int(start), format))


def _by_rows(context: Context, of_row: Callable[[FloatBatch, int], Piece]) -> Work:
    """A piece for every batch and layer, named `start/row`, and `start/float` for the float network."""
    rows = ("float", *map(str, range(len(context.layers))))

    def do(name: str) -> Piece:
        start, _, row = name.partition("/")
        batch = context.float_batch(int(start))
        return _float(context, batch) if row == "float" else of_row(batch, int(row))

    names = tuple(f"{start}/{row}" for start in context.starts() for row in rows)
    return Work(names, do, group=lambda name: name.partition("/")[0])


# What was kept, read back as tables.


@dataclass(frozen=True)
class ByRows:
    """Pieces for every batch and layer: of exact pairs, or of single losses."""

    context: Context
    done: Done

    def float(self, name: str) -> Array:
        """What is known of the float network: [samples]."""
        return self._joined("float", name)

    def rows(self, name: str) -> Array:
        """What is known of every layer: [layers, samples]."""
        return np.stack([self._joined(str(row), name) for row in range(len(self.context.layers))])

    def pairs(self, loss: str) -> Array:
        """Pair losses [pairs, samples], the pairs of the first layer first."""
        rows = [self._joined(str(i), f"pair_{loss}") for i in range(len(self.context.layers) - 1)]
        return np.concatenate(rows or [np.zeros((0, self.context.count))])

    def _joined(self, row: str, name: str) -> Array:
        return np.concatenate([self.done[f"{start}/{row}"][name] for start in self.context.starts()], axis=-1)


@dataclass(frozen=True)
class ByBatches:
    """Pieces for every batch: of linear pairs."""

    context: Context
    done: Done

    def float(self, name: str) -> Array:
        return self._joined(f"float_{name}")

    def rows(self, name: str) -> Array:
        return self._joined(f"single_{name}")

    def pairs(self, loss: str) -> Array:
        if len(self.context.layers) < 2:
            return np.zeros((0, self.context.count))
        return self._joined(f"pair_{loss}")

    def _joined(self, name: str) -> Array:
        return np.concatenate([self.done[str(start)][name] for start in self.context.starts()], axis=-1)


def _additive(context: Context, start: int, format: Format) -> Piece:
    batch = context.float_batch(start)
    wide = are_wide(context, batch.outputs)
    base = float_leaves(batch.outputs)
    singles, changes, sketches = [], [], []
    for row in range(len(context.layers)):
        alone = _alone(context, batch, row, format)
        singles.append(_single(context, batch, alone))
        if wide:
            sketches.append(expansion(context, batch, alone))
        else:
            changes.append([after - before for after, before in zip(float_leaves(alone), base, strict=True)])
    whole = _float(context, batch)
    pairs = expanded(sketches, singles, whole) if wide else _sums(context, batch, changes)
    return {f"float_{name}": array for name, array in whole.items()} | _stacked("single", singles) | pairs


def _sums(context: Context, batch: FloatBatch, changes: list[list[Tensor]]) -> Piece:
    """The losses of the outputs with the changes of two layers added, for every pair."""
    base, pairs = float_leaves(batch.outputs), []
    for i, first in enumerate(changes):
        for second in changes[i + 1 :]:
            both = with_leaves(
                batch.outputs, (leaf + a + b for leaf, a, b in zip(base, first, second, strict=True))
            )
            pairs.append(_losses(context, batch.outputs, both, batch.labels))
    return _stacked("pair", pairs)


def _alone(context: Context, batch: FloatBatch, row: int, format: Format) -> Any:
    """The outputs with only the layer `row` in `format`."""
    layer = context.layers[row]
    rounding = context.rounding(format, layer)
    alone, _ = context.program.run_from(layer, batch.states[layer], rounding)
    context.check(batch.inputs, alone, rounding)
    return alone


def _float(context: Context, batch: FloatBatch) -> Piece:
    signal = power(float_leaves(batch.outputs), len(batch.labels)).numpy()
    return {**_losses(context, batch.outputs, batch.outputs, batch.labels), "signal": signal}


def _losses(context: Context, float_outputs: Any, outputs: Any, labels: Tensor) -> Piece:
    """`task` where the task has a loss, `kl` where it can say how far outputs moved."""
    functions = loss_functions(context, float_outputs, labels)
    losses = {name: function(outputs) for name, function in functions.items()}
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


def _stacked(what: str, pieces: list[Piece]) -> Piece:
    names = pieces[0] if pieces else ()
    return {f"{what}_{name}": np.stack([piece[name] for piece in pieces]) for name in names}
