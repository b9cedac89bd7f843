"""Losses with one layer or two in a format, on every sample.

Exact, with the prefix used again: the float states of a batch are kept once; W^i starts from the
float state before layer i and keeps the state before every later layer; W^{i,j} starts from that
state before j. The same losses bit for bit as whole passes, for about a third of their cost.

Linear: with d_i = outputs(W^i) − outputs(W), the outputs of W^{i,j} are taken for
outputs(W) + d_i + d_j: one part-pass per layer. Where outputs are too wide to be kept for every layer,
as those of language models are, the loss of these outputs is expanded around those of W:

    L(d_i + d_j) = L(d_i) + L(d_j) − L(0) + ½ (g_i·d_j + g_j·d_i),   g_i = ∇L(d_i) − ∇L(0)

which is exact for a quadratic loss; d_i and g_i are kept as sketches, and no pair asks for a loss of its own.

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
from .sketch import Sketch
from .work import Work

Array = np.ndarray[Any, Any]
OUTPUT_BYTES = 1e9  # what the outputs of all layers on one batch may take


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
        kept: Piece = {}
        if outputs and _are_wide(context, alone):
            kept = _expansion(context, batch, alone)
        elif outputs:
            kept = {f"output_{k}": leaf.cpu().numpy() for k, leaf in enumerate(float_leaves(alone))}
        return _single(context, batch, alone) | kept

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


def _are_wide(context: Context, outputs: Any) -> bool:
    """Whether the outputs of all layers on one batch do not fit into memory."""
    width = sum(leaf.numel() for leaf in float_leaves(outputs))
    return 4 * width * len(context.layers) > OUTPUT_BYTES


def _expansion(context: Context, batch: FloatBatch, alone: Any) -> Piece:
    """Sketches of how far the outputs moved, and of how the gradients of the losses did."""
    samples = len(batch.labels)
    before, after = float_leaves(batch.outputs), float_leaves(alone)
    width = sum(leaf[0].numel() for leaf in before if leaf.shape[:1] == (samples,))
    sketch = Sketch(width, 3 * len(context.layers) * samples, batch.start)

    def moved(first: list[Tensor], second: list[Tensor]) -> Array:
        pairs = [pair for pair in zip(first, second, strict=True) if pair[0].shape[:1] == (samples,)]
        rows = torch.cat([(b - a).reshape(samples, -1).float().cpu() for a, b in pairs], 1)
        found: Array = sketch(rows).numpy()
        return found

    piece = {"move": moved(before, after)}
    for name, loss in _loss_functions(context, batch.outputs, batch.labels).items():
        if name not in batch.gradients:
            batch.gradients[name] = _gradient(loss, batch.outputs)
        here, there = batch.gradients[name], _gradient(loss, alone)
        if here is not None and there is not None:
            piece[f"bent_{name}"] = moved(here, there)
    return piece


def _gradient(loss: Callable[[Any], Tensor | None], outputs: Any) -> list[Tensor] | None:
    """∂ loss / ∂ outputs of every sample, if there is a loss."""
    leaves = [leaf.detach().requires_grad_() for leaf in float_leaves(outputs)]
    with torch.enable_grad():
        found = loss(with_leaves(outputs, leaves))
        if found is None or not found.requires_grad:
            return None
        gradients = torch.autograd.grad(found.sum(), leaves, allow_unused=True)
    return [
        torch.zeros_like(leaf) if gradient is None else gradient
        for leaf, gradient in zip(leaves, gradients, strict=True)
    ]


def _expanded(context: Context, start: int, singles: Done) -> Piece:
    """Pair losses by the expansion: one product of matrices for each sample."""
    rows = [singles[f"{start}/{i}"] for i in range(len(context.layers))]
    first, second = np.triu_indices(len(rows), 1)
    moves = np.stack([row["move"] for row in rows], axis=1)  # [samples, layers, kept]
    piece: Piece = {}
    for name in (key.removeprefix("bent_") for key in rows[0] if key.startswith("bent_")):
        bent = np.stack([row[f"bent_{name}"] for row in rows], axis=1)
        cross = np.stack([move @ bend.T for move, bend in zip(moves, bent, strict=True)]).astype(np.float64)
        both = (cross + cross.transpose(0, 2, 1)) / 2
        alone, base = np.stack([row[name] for row in rows]), singles[f"{start}/float"][name]
        pairs = alone[first] + alone[second] - base + both[:, first, second].T
        piece[f"pair_{name}"] = np.maximum(pairs, 0.0) if name == "kl" else pairs
    return piece


def _additive(context: Context, start: int, singles: Done) -> Piece:
    if "move" in singles[f"{start}/0"]:
        return _expanded(context, start, singles)
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
    functions = _loss_functions(context, float_outputs, labels)
    losses = {name: function(outputs) for name, function in functions.items()}
    found = {name: loss.double().cpu().numpy() for name, loss in losses.items() if loss is not None}
    if not found:
        raise BitsectError(
            f"task '{context.evaluator.task.name}' gives no loss, and the outputs are no logits of classes "
            "that could be compared: return (loss, score)"
        )
    return found


def _loss_functions(
    context: Context, float_outputs: Any, labels: Tensor
) -> dict[str, Callable[[Any], Tensor | None]]:
    return {
        "task": lambda outputs: context.task_loss(outputs, labels),
        "kl": lambda outputs: context.kl(float_outputs, outputs),
    }


def _single(context: Context, batch: FloatBatch, alone: Any) -> Piece:
    pairs = zip(float_leaves(alone), float_leaves(batch.outputs), strict=True)
    noise = power((after - before for after, before in pairs), len(batch.labels)).numpy()
    return {**_losses(context, batch.outputs, alone, batch.labels), "noise": noise}


def _stacked(pairs: list[Piece]) -> Piece:
    names = pairs[0] if pairs else ()
    return {f"pair_{name}": np.stack([pair[name] for pair in pairs]) for name in names}
