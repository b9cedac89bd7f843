"""GPTQ: the codes of a weight for which the outputs of its layer change least, in closed form.

A layer multiplies its weight W by columns: x in float, z once they are rounded too. Wanted are codes c and
scales s per channel, and a bias b per channel, for which s·c·z + b is near W·x:

    E‖(s·c·z + b) − W·x‖²  =  tr (s·c − T) C (s·c − T)ᵀ + what no code can change
    C = E[(z − z̄)(z − z̄)ᵀ],   b = W·x̄ − s·c·z̄,   T = W + W·E[(x − z)(z − z̄)ᵀ] C⁻¹

T is the least-squares fit of W·x on z: it takes back what rounding the inputs did, as far as a linear layer
can. Without the bias the same holds with the means left in; without the re-fit T is W. With H = C + λI:

1. s = r · max|T| / qmax, with the r in 1, 0.96, …, 0.40 for which Σ_j C_jj (T_j − Q(T_j))² is least.
2. The columns go by falling H_jj. Each is rounded to the nearest code, and those still to come make up for
   its error as well as they can: with U upper triangular and H⁻¹ = UᵀU,

       c_j = clip(round(t_j / s)),   e = (t_j − s·c_j) / U_jj,   t_k ← t_k − e·U_jk  for k > j

3. Twice more through the columns: each takes the codes of least error beside all others as they are.

The groups of a grouped convolution are layers of their own, done at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

DAMPING = 0.01  # λ, as a share of the mean variance
CLIPS = tuple(1 - 0.04 * step for step in range(16))
SWEEPS = 2  # through the columns, once all are rounded
BLOCK = 128  # columns that are rounded before the rest is told
_PART = 1 << 22  # weights that are rounded at once


@dataclass(frozen=True)
class InputMeans:
    """The mean columns of one place where a layer multiplies, (groups, columns) in float64."""

    x: Tensor
    z: Tensor
    share: float = 1.0  # of all the columns that the layer reads


@dataclass(frozen=True)
class Moments:
    """First and second moments of the columns that a layer reads, in float64.

    The means are those of each place; the second moments are about them, over all places.
    """

    covariance: Tensor  # of z: (groups, columns, columns)
    drift: Tensor | None  # of W·(x − z) with z: (groups, channels, columns); None if it is not wanted
    places: Sequence[InputMeans]


@dataclass(frozen=True)
class Fit:
    """A rounded weight, (groups, channels, columns), and the bias that belongs to it in every place."""

    codes: Tensor  # whole numbers in float64
    scales: Tensor  # in float32: (groups, channels, runs), one or more runs of columns for each channel
    biases: tuple[Tensor, ...] | None  # (groups, channels) in float64, for each place


def fit(
    weight: Tensor, moments: Moments, qmax: int, *, run: int | None = None, correct_bias: bool = True
) -> Fit:
    """The codes, scales and biases for which the layer of `weight` (groups, channels, columns) changes least.

    Codes are in [−qmax, qmax]. Scales are for runs of so many columns, by default for whole channels.
    The weight is fitted to the rounded inputs where the moments hold the drift.
    """
    weight = weight.double()
    gram, drift = moments.covariance, moments.drift
    if not correct_bias:
        gram, drift = _with_means(weight, moments)
    importance = gram.diagonal(dim1=1, dim2=2)
    order = importance.argsort(dim=1, descending=True, stable=True)
    H = _damped(gram, order)
    U = _inverse_factor(H)
    back = order.argsort(dim=1)
    groups, channels, columns = weight.shape
    codes = torch.empty_like(weight)
    scales = torch.empty(groups, channels, columns // (run or columns), dtype=torch.float32)
    part = max(1, _PART // (groups * columns))
    for start in range(0, channels, part):
        some = slice(start, start + part)
        target = _by_columns(weight[:, some], order)
        if drift is not None:
            target = target + (_by_columns(drift[:, some], order) @ U.mT) @ U
        scales[:, some] = _scales(_by_columns(target, back), importance, qmax, run or columns)
        spread = _by_columns(_spread(scales[:, some], columns), order)
        rounded = _round_columns(target, spread, U, qmax)
        codes[:, some] = _by_columns(_improved(rounded, target, spread, H, qmax), back)
    biases = None
    if correct_bias:
        rounded = codes * _spread(scales, columns)
        biases = tuple(
            (weight @ place.x[..., None] - rounded @ place.z[..., None])[..., 0] for place in moments.places
        )
    return Fit(codes, scales, biases)


def _with_means(weight: Tensor, moments: Moments) -> tuple[Tensor, Tensor | None]:
    """The second moments about zero."""
    gram, drift = moments.covariance.clone(), moments.drift
    drift = None if drift is None else drift.clone()
    for place in moments.places:
        gram += place.share * place.z[:, :, None] * place.z[:, None, :]
        if drift is not None:
            moved = weight @ (place.x - place.z)[..., None]
            drift += place.share * moved * place.z[:, None, :]
    return gram, drift


def _damped(gram: Tensor, order: Tensor) -> Tensor:
    """H = gram + λI, its columns in `order`."""
    H = gram.gather(1, order[..., None].expand_as(gram)).gather(2, order[:, None].expand_as(gram))
    diagonal = H.diagonal(dim1=1, dim2=2)
    damping = DAMPING * diagonal.mean(1, keepdim=True)
    # Inputs that never change tell nothing: all columns count alike.
    diagonal += torch.where(damping > 0, damping, 1.0)
    return H


def _inverse_factor(H: Tensor) -> Tensor:
    """U, upper triangular, with UᵀU = H⁻¹.

    Backwards, H = LLᵀ gives it at once: forwards L is upper triangular, and U its inverse.
    """
    L = torch.linalg.cholesky(H.flip(1, 2))
    identity = torch.eye(L.shape[1], dtype=L.dtype).expand_as(L)
    inverse: Tensor = torch.linalg.solve_triangular(L, identity, upper=False)
    return inverse.flip(1, 2)


def _scales(target: Tensor, importance: Tensor, qmax: int, run: int) -> Tensor:
    """For every run of columns the scale of least error, weighed by the importance of each column."""
    runs = target.reshape(*target.shape[:2], -1, run)
    weights = importance.reshape(len(importance), 1, -1, run)
    largest = runs.abs().amax(-1)
    best = torch.zeros_like(largest, dtype=torch.float32)
    least = torch.full_like(largest, torch.inf)
    for clip in CLIPS:
        scales = (largest * (clip / qmax)).float()
        # A channel of zeros divides by one; so does one whose scale is too small for float32.
        scales = torch.where(scales > 0, scales, 1.0)
        wide = scales.double()[..., None]
        rounded = (runs / wide).round_().clamp_(-qmax, qmax).mul_(wide)
        error = rounded.sub_(runs).square_().mul_(weights).sum(-1)
        best = torch.where(error < least, scales, best)
        least = torch.minimum(error, least)
    return best


def _round_columns(target: Tensor, scales: Tensor, U: Tensor, qmax: int) -> Tensor:
    """Codes of `target`, column by column; its columns and those of `scales` are in the order of U."""
    # A column is read at once; the rows of one channel are contiguous already, and the target must stay.
    rows, steps = target.mT.clone(memory_format=torch.contiguous_format), scales.mT.contiguous()
    codes = torch.empty_like(rows)
    columns = rows.shape[1]
    for start in range(0, columns, BLOCK):
        stop = min(start + BLOCK, columns)
        errors = torch.empty_like(rows[:, start:stop])
        for j in range(start, stop):
            codes[:, j] = (rows[:, j] / steps[:, j]).round_().clamp_(-qmax, qmax)
            error = (rows[:, j] - steps[:, j] * codes[:, j]) / U[:, j, j, None]
            rows[:, j + 1 : stop] -= U[:, j, j + 1 : stop, None] * error[:, None]
            errors[:, j - start] = error
        rows[:, stop:] -= U[:, start:stop, stop:].mT @ errors
    return codes.mT


def _improved(codes: Tensor, target: Tensor, scales: Tensor, H: Tensor, qmax: int) -> Tensor:
    """`codes` after a few rounds in which each column takes the best codes beside all others.

    With r = t − s·c the error is r H rᵀ: of column j it is least at c_j + (r H)_j / (s H_jj).
    """
    rows, steps = codes.mT.clone(memory_format=torch.contiguous_format), scales.mT.contiguous()
    missing = target.mT - steps * rows
    for _ in range(SWEEPS):
        for j in range(rows.shape[1]):
            pull = (H[:, j, None, :] @ missing)[:, 0] / H[:, j, j, None]
            better = (rows[:, j] + pull / steps[:, j]).round_().clamp_(-qmax, qmax)
            missing[:, j] -= steps[:, j] * (better - rows[:, j])
            rows[:, j] = better
    return rows.mT


def _by_columns(matrix: Tensor, order: Tensor) -> Tensor:
    return matrix.gather(2, order[:, None].expand(matrix.shape))


def _spread(scales: Tensor, columns: int) -> Tensor:
    """A scale for every column, in float64."""
    return scales.double().repeat_interleave(columns // scales.shape[2], dim=2)
