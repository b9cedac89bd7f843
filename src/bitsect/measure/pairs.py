"""Losses with one layer or two in a format, on every sample.

Exact, with the prefix used again: the float states of a batch are kept once; W^i starts from the
float state before layer i and keeps the state before every later layer; W^{i,j} starts from that
state before j. The same losses bit for bit as whole passes, for about a third of their cost.

Linear: with d_i = outputs(W^i) − outputs(W), the outputs of W^{i,j} are taken for
outputs(W) + d_i + d_j: one part-pass per layer.

Task loss and divergence come from the same outputs, so both are kept.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..evaluate import Arrays, Done
from ..values import Format
from .context import Context, Progress, float_leaves, power, silent


def exact_pairs(context: Context, format: Format, done: Done, progress: Progress = silent) -> None:
    """Fill `done` with every single and pair loss, a piece for each batch and first layer."""
    for start in context.starts():
        rows = [i for i in range(len(context.layers)) if f"{start}/{i}" not in done]
        progress(len(context.layers) - len(rows))
        if not rows and f"{start}/float" in done:
            continue
        inputs, labels = context.evaluator.batch(start)
        # Only the states that are still needed, each let go once its row is done.
        outputs, states = context.program.run_keeping(inputs, [context.layers[i] for i in rows])
        _keep_float(context, done, start, inputs, outputs, labels)
        for i in rows:
            layer, later = context.layers[i], context.layers[i + 1 :]
            rounding = context.rounding(format, layer)
            alone, after = context.program.run_from(layer, states.pop(layer), rounding, later)
            context.check(inputs, alone, rounding)
            piece = _single(context, outputs, alone, labels)
            pairs = []
            for other in later:
                together = context.rounding(format, layer, other)
                both, _ = context.program.run_from(other, after.pop(other), together)
                pairs.append(_losses(context, outputs, both, labels))
            if pairs:
                piece |= {f"pair_{name}": np.stack([pair[name] for pair in pairs]) for name in pairs[0]}
            done[f"{start}/{i}"] = piece
            progress(1)


def single_losses(context: Context, format: Format, done: Done, progress: Progress = silent) -> None:
    """Fill `done` with the losses of one layer in `format` each, and with the outputs behind them."""
    for start in context.starts():
        rows = [i for i in range(len(context.layers)) if f"{start}/{i}" not in done]
        progress(len(context.layers) - len(rows))
        if not rows and f"{start}/float" in done:
            continue
        inputs, labels = context.evaluator.batch(start)
        outputs, states = context.program.run_keeping(inputs, [context.layers[i] for i in rows])
        _keep_float(context, done, start, inputs, outputs, labels)
        for i in rows:
            layer = context.layers[i]
            rounding = context.rounding(format, layer)
            alone, _ = context.program.run_from(layer, states.pop(layer), rounding)
            context.check(inputs, alone, rounding)
            done[f"{start}/{i}"] = _single(context, outputs, alone, labels) | _leaves("output", alone)
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
    _, labels = context.evaluator.batch(start)
    base = _stored(singles[f"{start}/float"])
    changes = [
        [alone - leaf for alone, leaf in zip(_stored(singles[f"{start}/{i}"]), base, strict=True)]
        for i in range(len(context.layers))
    ]
    rows: list[Arrays] = []
    for i, first in enumerate(changes):
        for second in changes[i + 1 :]:
            outputs = [leaf + a + b for leaf, a, b in zip(base, first, second, strict=True)]
            rows.append(_losses(context, _shaped(base), _shaped(outputs), labels.cpu()))
    names = rows[0] if rows else ()
    return {f"pair_{name}": np.stack([row[name] for row in rows]) for name in names}


def _shaped(leaves: list[Tensor]) -> Any:
    """Float outputs as a task takes them: alone, or as a tuple."""
    return leaves[0] if len(leaves) == 1 else tuple(leaves)


def _keep_float(context: Context, done: Done, start: int, inputs: Any, outputs: Any, labels: Tensor) -> None:
    key = f"{start}/float"
    if key in done:
        return
    context.check(inputs, outputs)
    loss = context.task_loss(outputs, labels).double().cpu().numpy()
    signal = power(float_leaves(outputs)).cpu().numpy()
    done[key] = {"task": loss, "signal": signal} | _leaves("output", outputs)


def _losses(context: Context, float_outputs: Any, outputs: Any, labels: Tensor) -> Arrays:
    return {
        "task": context.task_loss(outputs, labels).double().cpu().numpy(),
        "kl": context.kl(float_outputs, outputs).double().cpu().numpy(),
    }


def _single(context: Context, float_outputs: Any, outputs: Any, labels: Tensor) -> Arrays:
    pairs = zip(float_leaves(outputs), float_leaves(float_outputs), strict=True)
    noise = power([alone - leaf for alone, leaf in pairs]).cpu().numpy()
    return {**_losses(context, float_outputs, outputs, labels), "noise": noise}


def _leaves(name: str, outputs: Any) -> Arrays:
    return {f"{name}_{i}": leaf.cpu().numpy() for i, leaf in enumerate(float_leaves(outputs))}


def _stored(piece: Arrays) -> list[Tensor]:
    count = sum(name.startswith("output_") for name in piece)
    return [torch.from_numpy(piece[f"output_{i}"]) for i in range(count)]
