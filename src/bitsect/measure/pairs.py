"""Losses with one layer or two in a format, on every sample.

Exact, with the prefix used again: the float states of a batch are kept once; W^i starts from the
float state before layer i and keeps the state before every later layer; W^{i,j} starts from that
state before j. The same losses bit for bit as whole passes, for about a third of their cost.

Linear: with d_i = outputs(W^i) − outputs(W), the outputs of W^{i,j} are taken for
outputs(W) + d_i + d_j: one part-pass per layer.

Task loss and divergence come from the same outputs, so both are kept.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..errors import BitsectError
from ..network.binding import Inputs
from ..network.program import State
from ..values import Format
from .context import Context, Progress, float_leaves, power, silent, with_leaves
from .evaluator import Arrays, Done


def exact_pairs(context: Context, format: Format, done: Done, progress: Progress = silent) -> None:
    """Fill `done` with every single and pair loss, a piece for each batch and first layer."""
    for batch in _batches(context, done, progress):
        for i in batch.rows:
            layer, later = context.layers[i], context.layers[i + 1 :]
            rounding = context.rounding(format, layer)
            alone, after = context.program.run_from(layer, batch.states.pop(layer), rounding, later)
            context.check(batch.inputs, alone, rounding)
            pairs = []
            for other in later:
                together = context.rounding(format, layer, other)
                both, _ = context.program.run_from(other, after.pop(other), together)
                context.check(batch.inputs, both, together)
                pairs.append(_losses(context, batch.outputs, both, batch.labels))
            done[f"{batch.start}/{i}"] = _single(context, batch, alone) | _stacked(pairs)
            progress(1)


def single_losses(context: Context, format: Format, done: Done, progress: Progress = silent) -> None:
    """Fill `done` with the losses of one layer in `format` each, and with the outputs behind them."""
    for batch in _batches(context, done, progress):
        for i in batch.rows:
            layer = context.layers[i]
            rounding = context.rounding(format, layer)
            alone, _ = context.program.run_from(layer, batch.states.pop(layer), rounding)
            context.check(batch.inputs, alone, rounding)
            leaves = {f"output_{k}": leaf.cpu().numpy() for k, leaf in enumerate(float_leaves(alone))}
            done[f"{batch.start}/{i}"] = _single(context, batch, alone) | leaves
            progress(1)


def linear_pairs(
    context: Context, format: Format, singles: Done, done: Done, progress: Progress = silent
) -> None:
    """Fill `done` with pair losses estimated from the outputs in `singles`, a piece for each batch."""
    for start in context.starts():
        if str(start) not in done:
            done[str(start)] = _additive(context, start, singles)
        progress(1)


def _additive(context: Context, start: int, singles: Done) -> Arrays:
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


@dataclass(frozen=True)
class _Batch:
    """A batch in float, and the layers whose pieces are missing."""

    start: int
    inputs: Inputs
    labels: Tensor
    outputs: Any
    rows: list[int]
    states: dict[str, State]  # before each layer of `rows`: to be let go with its row


def _batches(context: Context, done: Done, progress: Progress) -> Iterator[_Batch]:
    """The batches with pieces still to do, the losses of the float network kept."""
    for start in context.starts():
        rows = [i for i in range(len(context.layers)) if f"{start}/{i}" not in done]
        progress(len(context.layers) - len(rows))
        if not rows and f"{start}/float" in done:
            continue
        inputs, labels = context.evaluator.batch(start)
        outputs, states = context.program.run_keeping(inputs, [context.layers[i] for i in rows])
        if f"{start}/float" not in done:
            context.check(inputs, outputs)
            losses = _losses(context, outputs, outputs, labels)
            signal = power(float_leaves(outputs), len(labels)).numpy()
            done[f"{start}/float"] = {**losses, "signal": signal}
        yield _Batch(start, inputs, labels, outputs, rows, states)


def _losses(context: Context, float_outputs: Any, outputs: Any, labels: Tensor) -> Arrays:
    """`task` where the task has a loss, `kl` where it can say how far outputs moved."""
    losses = {"task": context.task_loss(outputs, labels), "kl": context.kl(float_outputs, outputs)}
    found = {name: loss.double().cpu().numpy() for name, loss in losses.items() if loss is not None}
    if not found:
        raise BitsectError(
            f"task '{context.evaluator.task.name}' gives no loss, and the outputs are no logits of classes "
            "that could be compared: return (loss, score)"
        )
    return found


def _single(context: Context, batch: _Batch, alone: Any) -> Arrays:
    pairs = zip(float_leaves(alone), float_leaves(batch.outputs), strict=True)
    noise = power((after - before for after, before in pairs), len(batch.labels)).numpy()
    return {**_losses(context, batch.outputs, alone, batch.labels), "noise": noise}


def _stacked(pairs: list[Arrays]) -> Arrays:
    names = pairs[0] if pairs else ()
    return {f"pair_{name}": np.stack([pair[name] for pair in pairs]) for name in names}
