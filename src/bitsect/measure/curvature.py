"""A random vector whose covariance is the Hessian of the loss with respect to the network's outputs.

    u = S ε,   S Sᵀ = ∂²(Σ_n ℓ_n)/∂f²,   ε with independent entries ±1

Three forms of the Hessian are known: diagonal (regression, several yes-or-no answers), softmax over an
axis (cross entropy, weighted or not), and dense but small for each sample. Whether one fits is not
assumed of a task but asked of its loss, by a product with a random vector.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from ..errors import BitsectError
from .context import own_leaves, with_leaves

SMALL = 1e-6
MOST_OUTPUTS = 512  # of one sample, that a dense Hessian is computed for
Loss = Callable[[Any], Tensor]
Product = Callable[[Sequence[Tensor]], list[Tensor]]


class NoRootError(BitsectError):
    """The Hessian of a loss with respect to the outputs has no known square root."""


class _Root:
    """S as a function of ε, and S Sᵀ as a function of any vector; each one tensor for each output."""

    def __init__(self, draw: Product, product: Product) -> None:
        self.draw, self.product = draw, product


def curvature_vectors(loss: Loss, outputs: Any, generator: torch.Generator) -> list[Tensor]:
    """u for each floating-point tensor of `outputs`: zeros where the loss is linear in them.

    `loss(outputs)` gives one loss for each sample.
    """
    leaves = [leaf.detach() for leaf in own_leaves(outputs)]
    used, product = _hessian(loss, outputs, leaves)
    if product is None:
        return [torch.zeros_like(leaf) for leaf in leaves]
    values = [leaves[i].double() for i in used]
    probe, signs = (_signs(values, generator) for _ in range(2))
    answer = product(probe)
    size = _norm(answer)
    if size < SMALL:  # of two classes with equal signs nothing is left but rounding noise, which fits no form
        turned = [_turned(each) for each in probe]
        other = product(turned)
        if _norm(other) > size / SMALL:
            probe, answer, size = turned, other, _norm(other)
    if size == 0:
        return [torch.zeros_like(leaf) for leaf in leaves]
    for root in _roots(product, values):
        difference = [a - b for a, b in zip(root.product(probe), answer, strict=True)]
        if _norm(difference) <= 1e-4 * size:  # a loss in single precision is known no better
            drawn = dict(zip(used, root.draw(signs), strict=True))
            return [drawn.get(i, torch.zeros_like(leaf)).to(leaf.dtype) for i, leaf in enumerate(leaves)]
    outputs_each = sum(value.numel() for value in values) // max(1, len(values[0]))
    raise NoRootError(
        f"the loss has {outputs_each} outputs for each sample, too many for a Hessian of no known form"
        if outputs_each > MOST_OUTPUTS
        else "the loss is not convex in the outputs, or that of one sample depends on another's outputs"
    )


def _hessian(loss: Loss, outputs: Any, leaves: list[Tensor]) -> tuple[list[int], Product | None]:
    """Which outputs the loss depends on, and its Hessian as a function of vectors; None if that is zero."""
    try:
        free = [leaf.double().requires_grad_() for leaf in leaves]
        total = loss(with_leaves(outputs, free)).sum()
    except RuntimeError:  # a loss may insist on the type of the outputs
        free = [leaf.clone().requires_grad_() for leaf in leaves]
        total = loss(with_leaves(outputs, free)).sum()
    if not total.requires_grad:
        return [], None
    gradients = torch.autograd.grad(total, free, create_graph=True, allow_unused=True)
    used = [i for i, gradient in enumerate(gradients) if gradient is not None and gradient.requires_grad]
    if not used:
        return [], None
    variables = [free[i] for i in used]

    def product(vectors: Sequence[Tensor]) -> list[Tensor]:
        typed = [vector.to(variable.dtype) for vector, variable in zip(vectors, variables, strict=True)]
        found = torch.autograd.grad(
            [gradients[i] for i in used],
            variables,
            typed,
            retain_graph=True,
            allow_unused=True,
            materialize_grads=True,
        )
        return [each.double() for each in found]

    return used, product


def _roots(product: Product, values: list[Tensor]) -> Iterator[_Root]:
    """The square roots that the Hessian may have, the cheapest first."""
    yield from _diagonal(product, values)
    for axis in (-1, 1):
        if all(value.ndim > 1 and (axis == -1 or value.ndim > 2) for value in values):
            yield from _softmax(product, values, axis)
    rows = {value.shape[:1] for value in values}
    if len(rows) == 1 and sum(value[:1].numel() for value in values) <= MOST_OUTPUTS:
        yield _dense(product, values)


def _diagonal(product: Product, values: list[Tensor]) -> Iterator[_Root]:
    """S = √d, where the product with ones is the diagonal d."""
    diagonal = product([torch.ones_like(value) for value in values])
    if all(bool((each >= 0).all()) for each in diagonal):
        yield _Root(
            lambda signs: [each.sqrt() * sign for each, sign in zip(diagonal, signs, strict=True)],
            lambda vectors: [each * vector for each, vector in zip(diagonal, vectors, strict=True)],
        )


def _softmax(product: Product, values: list[Tensor], axis: int) -> Iterator[_Root]:
    """c · (diag(p) − p pᵀ) along an axis, p the softmax and c a weight for each row.

    Its Cholesky factor has a closed form. With the classes in falling order, q_k what is left of p
    after class k: L_kk = √(p_k q_k / q_{k−1}), and below it L_jk = −p_j √(p_k / (q_{k−1} q_k)). Most of
    the variance is then in the first sign, which a square does not feel: far less noise than √p gives.
    """
    rows = [value.movedim(axis, -1) for value in values]
    if any(row.shape[-1] < 2 for row in rows):
        return
    sorted_rows = [row.softmax(-1).sort(dim=-1, descending=True, stable=True) for row in rows]
    weights = _row_weights(product, values, sorted_rows, axis)
    if any(not bool(((weight >= 0) & weight.isfinite()).all()) for weight in weights):
        return

    def draw(signs: Sequence[Tensor]) -> list[Tensor]:
        drawn = []
        for (p, order), weight, sign in zip(sorted_rows, weights, signs, strict=True):
            vector = weight.sqrt() * _cholesky(p, sign.movedim(axis, -1))
            drawn.append(torch.zeros_like(p).scatter(-1, order, vector).movedim(-1, axis))
        return drawn

    def weighted(vectors: Sequence[Tensor]) -> list[Tensor]:
        found = []
        for row, weight, vector in zip(rows, weights, vectors, strict=True):
            p, v = row.softmax(-1), vector.movedim(axis, -1)
            found.append((weight * p * (v - (p * v).sum(-1, keepdim=True))).movedim(-1, axis))
        return found

    yield _Root(draw, weighted)


def _row_weights(
    product: Product, values: list[Tensor], sorted_rows: Sequence[Any], axis: int
) -> list[Tensor]:
    """c of each row, from the entry −c p₁ p₂ between its two likeliest classes."""
    firsts = [
        torch.zeros_like(p).scatter(-1, order[..., :1], 1.0).movedim(-1, axis) for p, order in sorted_rows
    ]
    weights = []
    for (p, order), column in zip(sorted_rows, product(firsts), strict=True):
        entry = column.movedim(axis, -1).gather(-1, order[..., 1:2])
        weights.append(torch.where(p[..., 1:2] > 0, -entry / (p[..., :1] * p[..., 1:2]), 0.0))
    return weights


def _cholesky(p: Tensor, signs: Tensor) -> Tensor:
    """L · signs for sorted probabilities `p`; sums from the end, so that small tails keep their digits."""
    tiny = torch.finfo(p.dtype).tiny
    before = p.flip(-1).cumsum(-1).flip(-1)
    after = torch.cat([before[..., 1:], torch.zeros_like(before[..., :1])], -1)
    share = p / before.clamp_min(tiny)
    steps = torch.where(after > tiny, (share / after.clamp_min(tiny)).sqrt(), 0.0) * signs
    return (share * after).sqrt() * signs - p * (steps.cumsum(-1) - steps)


def _dense(product: Product, values: list[Tensor]) -> _Root:
    """Eigenvectors of each sample's Hessian times the roots of its eigenvalues, negative ones left out."""
    samples, shapes = len(values[0]), [value.shape for value in values]
    sizes = [math.prod(shape[1:]) for shape in shapes]

    def joined(parts: Sequence[Tensor]) -> Tensor:
        return torch.cat([part.reshape(samples, -1) for part in parts], 1)

    def parted(whole: Tensor) -> list[Tensor]:
        parts = torch.split(whole, sizes, dim=1)
        return [part.reshape(shape) for part, shape in zip(parts, shapes, strict=True)]

    unit = torch.eye(sum(sizes), dtype=torch.float64, device=values[0].device)
    columns = [joined(product(parted(row.expand(samples, -1)))) for row in unit]
    hessian = torch.nan_to_num(torch.stack(columns, 2))
    eigenvalues, vectors = torch.linalg.eigh((hessian + hessian.mT) / 2)
    root = vectors * eigenvalues.clamp_min(0).sqrt()[:, None]

    def times(matrix: Tensor, vector: Tensor) -> Tensor:
        return (matrix @ vector[..., None])[..., 0]

    return _Root(
        lambda signs: parted(times(root, joined(signs))),
        lambda vectors: parted(times(root, times(root.mT, joined(vectors)))),
    )


def _signs(like: Sequence[Tensor], generator: torch.Generator) -> list[Tensor]:
    return [signs(each, generator) for each in like]


def signs(like: Tensor, generator: torch.Generator) -> Tensor:
    """Independent entries ±1, drawn on the CPU so that every device sees the same."""
    bits = torch.randint(0, 2, like.shape, generator=generator, dtype=torch.int8)
    return (2 * bits - 1).to(device=like.device, dtype=like.dtype)


def _turned(probe: Tensor) -> Tensor:
    """The probe with the sign of its first column turned."""
    turned = probe.clone()
    turned[..., 0] = -turned[..., 0]
    return turned


def _norm(parts: Sequence[Tensor]) -> float:
    return math.sqrt(sum(float(part.double().square().sum()) for part in parts))
