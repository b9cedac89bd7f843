"""Damage: how single layers move the outputs, and how their moves add up.

    d_c = outputs(only layer i in format f) − outputs(float),   c = (i, f)
    G[c, c'] = mean over samples of d_cᵀ M d_c'

For logits M = ½ (diag p − p pᵀ) with p = softmax(float logits / T): dᵀ M d is T² times the divergence
KL(float ‖ float + d) at temperature T, to second order. T = ∞ makes p uniform, and dᵀ M d the squared
length of the centred move over twice the number of classes: confident samples count as much as others.
For other outputs dᵀ M d is the squared error over the mean square of the output.

One part-pass per change, from the float state before its layer. Only the small matrix G is kept.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
import torch.utils._pytree as pytree
from torch import Tensor

from ..errors import BitsectError
from ..sources.tasks.outputs import as_logits, as_numbers, logits, pick
from ..sources.tasks.task import Task
from ..values import Damage, Format
from ..values.damage import Change
from ..values.pieces import Done, Piece
from .context import Context, wide
from .sketch import Sketch
from .work import Progress, Work, fill, shared, silent

TEMPERATURE = math.inf
CLASSIFICATION = ("classification", "classification-top5")  # tasks whose outputs are logits by definition


@shared
def damage_work(context: Context, changes: Sequence[Change], temperature: float = TEMPERATURE) -> Work:
    """How every change moves the outputs: a piece for each batch."""
    name = _fingerprint(changes, temperature)
    pieces = tuple(f"{name}/{start}" for start in context.starts())
    return Work(pieces, lambda key: _piece(context, changes, int(key.partition("/")[2]), temperature))


def output_damage(
    context: Context,
    changes: Sequence[Change],
    done: Done,
    *,
    temperature: float = TEMPERATURE,
    progress: Progress = silent,
) -> tuple[Damage, np.ndarray[Any, Any]]:
    """The damage of every plan that is made of `changes`; and that of each change on each sample."""
    changes = tuple(changes)
    pieces = list(fill(done, damage_work(context, changes, temperature), progress))
    single = np.concatenate([piece["single"] for piece in pieces], axis=1)
    gram = sum(piece["gram"] for piece in pieces) / single.shape[1]
    return Damage(changes, (gram + gram.T) / 2, _words(temperature), single.shape[1]), single


def damage_from(context: Context, outputs: Any, samples: int) -> Callable[[Any], np.ndarray[Any, Any]]:
    """A function that gives the damage of other outputs on each of the samples, against float `outputs`."""
    compare = _Comparison(context.evaluator.task, outputs, samples, TEMPERATURE, 1, 0)
    return lambda others: compare(others).double().square().sum(1).numpy()


def _fingerprint(changes: Sequence[Change], temperature: float) -> str:
    text = "\n".join(f"{layer}\t{format}" for layer, format in changes)
    return hashlib.sha256(f"{temperature}\n{text}".encode()).hexdigest()[:16]


def _words(temperature: float) -> str:
    return "squared output error" if math.isinf(temperature) else f"KL at temperature {temperature:g}"


def _piece(context: Context, changes: Sequence[Change], start: int, temperature: float) -> Piece:
    """G summed over the samples of a batch, and the damage of each change on each sample."""
    evaluator, program = context.evaluator, context.program
    indices = evaluator.parts[start]
    inputs = evaluator.samples.inputs(indices)
    rows_of: dict[str, list[tuple[int, Format]]] = {}
    for row, (layer, format) in enumerate(changes):
        rows_of.setdefault(layer, []).append((row, format))
    outputs, states = program.run_keeping(inputs, rows_of)
    context.check(inputs, outputs)
    samples = len(indices)
    compare = _Comparison(evaluator.task, outputs, samples, temperature, len(changes), start)
    moves = torch.empty(len(changes), samples, compare.sketched.kept)
    single = np.empty((len(changes), samples))
    for layer in [name for name in context.layers if name in rows_of]:
        state = states.pop(layer)
        for row, format in rows_of[layer]:
            rounding = context.rounding(format, layer)
            alone, _ = program.run_from(layer, state, rounding)
            context.check(inputs, alone, rounding)
            move = compare(alone)
            single[row] = move.double().square().sum(1).numpy()
            moves[row] = compare.sketched(move)
    return {"gram": _gram(moves), "single": single}


def _gram(moves: Tensor) -> np.ndarray[Any, Any]:
    """Σ over samples of the inner products of the moves [C, samples, width], in float64."""
    total = torch.zeros(len(moves), len(moves), dtype=torch.float64)
    for sample in moves.unbind(1):
        total += sample.double() @ sample.double().T
    return total.numpy()


class _Comparison:
    """Outputs as moves from the float outputs, scaled so that their squared length is the damage."""

    def __init__(
        self, task: Task, outputs: Any, samples: int, temperature: float, changes: int, seed: int
    ) -> None:
        self._task, self._samples = task, samples
        parts = self._parts(outputs)
        self._base = [(leaf, *_scale(leaf, soft, temperature)) for leaf, soft in parts]
        width = sum(leaf[0].numel() for leaf, _ in parts)
        if not width:
            raise BitsectError("the network has no floating-point output whose damage could be measured")
        self.sketched = Sketch(width, changes * samples, seed)

    def __call__(self, outputs: Any) -> Tensor:
        """The scaled move [samples, width] from float to `outputs`."""
        moved = []
        for (leaf, _), (base, p, root) in zip(self._parts(outputs), self._base, strict=True):
            # What whole numbers, such as classes, move by says nothing: which of them changed does.
            move = leaf - base if leaf.is_floating_point() else (leaf != base).float()
            centred = move if p is None else move - (p * move).sum(-1, keepdim=True)
            moved.append((root * centred).reshape(self._samples, -1).float())
        return torch.cat(moved, 1).cpu()

    def _parts(self, outputs: Any) -> list[tuple[Tensor, bool]]:
        """The tensors that are compared, and whether each holds logits along its last axis.

        Logits are what classification reads, or what a network calls so; without either, all outputs
        count and none is taken for logits. Where one output is judged, it alone counts.
        """
        if self._task.needs_axes:
            return [(as_numbers(part), False) for part in self._task.parts(outputs).values()]
        judged = self._task.output
        one = None if judged is None else pick(outputs, judged)
        if self._task.name in CLASSIFICATION:
            found = [("logits", as_logits(logits(outputs if one is None else one)))]
        elif judged is not None and one is not None and one.is_floating_point():
            found = [(judged, one)]
        else:
            paths, _ = pytree.tree_flatten_with_path(outputs)
            found = [
                (pytree.keystr(path), leaf)
                for path, leaf in paths
                if isinstance(leaf, Tensor)
                and leaf.is_floating_point()
                and leaf.shape[:1] == (self._samples,)
            ]
            found = [(name, leaf) for name, leaf in found if "logits" in name] or found
        return [
            (wide(leaf), "logits" in name and leaf.ndim > 1 and leaf.shape[-1] > 1) for name, leaf in found
        ]


def _scale(base: Tensor, soft: bool, temperature: float) -> tuple[Tensor | None, Tensor]:
    """What a move is centred by, if it is, and what it is multiplied by: then its square is the damage."""
    if not base.is_floating_point():
        return None, torch.tensor(base[0].numel() ** -0.5)
    if not soft:
        power = base.double().square().mean() * base[0].numel()
        return None, torch.where(power > 0, power, 1.0).rsqrt().to(base.dtype)
    p = (base / temperature).softmax(-1)
    positions = base[0].numel() // base.shape[-1]  # a sentence counts as much as its mean token
    return p, (p / 2 / positions).sqrt()
