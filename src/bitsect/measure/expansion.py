"""Pair losses of outputs that are too wide to be held for every layer.

With d_i = outputs(W^i) − outputs(W), the loss of outputs(W) + d_i + d_j is expanded around those of W:

    L(d_i + d_j) = L(d_i) + L(d_j) − L(0) + ½ (g_i·d_j + g_j·d_i),   g_i = ∇L(d_i) − ∇L(0)

which is exact for a quadratic loss. d_i and g_i are kept as sketches, and no pair asks for a loss of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..values.pieces import Piece
from .context import Context, FloatBatch, float_leaves, with_leaves
from .sketch import Sketch

Array = np.ndarray[Any, Any]
OUTPUT_BYTES = 1e9  # what the outputs of all layers on one batch may take


def are_wide(context: Context, outputs: Any) -> bool:
    """Whether the outputs of all layers on one batch do not fit into memory."""
    width = sum(leaf.numel() for leaf in float_leaves(outputs))
    return 4 * width * len(context.layers) > OUTPUT_BYTES


def expansion(context: Context, batch: FloatBatch, alone: Any) -> Piece:
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
    for name, loss in loss_functions(context, batch.outputs, batch.labels).items():
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


def expanded(sketches: Sequence[Piece], singles: Sequence[Piece], whole: Piece) -> Piece:
    """Pair losses by the expansion: one product of matrices for each sample."""
    first, second = np.triu_indices(len(sketches), 1)
    moves = np.stack([row["move"] for row in sketches], axis=1)  # [samples, layers, kept]
    piece: Piece = {}
    for name in (key.removeprefix("bent_") for key in sketches[0] if key.startswith("bent_")):
        bent = np.stack([row[f"bent_{name}"] for row in sketches], axis=1)
        cross = np.stack([move @ bend.T for move, bend in zip(moves, bent, strict=True)]).astype(np.float64)
        both = (cross + cross.transpose(0, 2, 1)) / 2
        alone, base = np.stack([single[name] for single in singles]), whole[name]
        pairs = alone[first] + alone[second] - base + both[:, first, second].T
        piece[f"pair_{name}"] = np.maximum(pairs, 0.0) if name == "kl" else pairs
    return piece


def loss_functions(
    context: Context, float_outputs: Any, labels: Tensor
) -> dict[str, Callable[[Any], Tensor | None]]:
    """The losses of outputs, by name; each may be None."""
    return {
        "task": lambda outputs: context.task_loss(outputs, labels),
        "kl": lambda outputs: context.kl(float_outputs, outputs),
    }
