"""Products of rows with the weights of their groups: the experts of a mixture, stacked in one tensor.

    y[r] = x[r]·w[g]   for the rows r that belong to group g: ends[g − 1] ≤ r < ends[g]

Rows beyond the last end are zeros. Torch has an operator for this that wants sizes in multiples of 16
bytes, transformers one that is differentiated once only; this one takes any and is as smooth as a matmul.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor


@torch.library.custom_op("bitsect::grouped_mm", mutates_args=())
def grouped_mm(x: Tensor, weight: Tensor, ends: Tensor) -> Tensor:
    """Rows (n, k) by weights (groups, k, m): (n, m)."""
    y = x.new_zeros(len(x), weight.shape[2])
    for group, rows in _groups(ends):
        y[rows] = x[rows] @ weight[group]
    return y


@torch.library.custom_op("bitsect::grouped_outer", mutates_args=())
def grouped_outer(x: Tensor, y: Tensor, ends: Tensor) -> Tensor:
    """Rows (n, k) and (n, m), summed over each group: (groups, k, m)."""
    sums = x.new_zeros(len(ends), x.shape[1], y.shape[1])
    for group, rows in _groups(ends):
        sums[group] = x[rows].T @ y[rows]
    return sums


def _groups(ends: Tensor) -> Iterator[tuple[int, slice]]:
    start = 0
    for group, end in enumerate(ends.tolist()):
        if end > start:
            yield group, slice(start, end)
            start = end


def group_of_rows(rows: int, ends: Tensor) -> Tensor:
    """The group of each row; the last one for rows that belong to none."""
    group = torch.searchsorted(ends, torch.arange(rows, device=ends.device, dtype=ends.dtype), right=True)
    return group.clamp_(max=len(ends) - 1)


@grouped_mm.register_fake
def _(x: Tensor, weight: Tensor, ends: Tensor) -> Tensor:
    return x.new_empty(x.shape[0], weight.shape[2])


@grouped_outer.register_fake
def _(x: Tensor, y: Tensor, ends: Tensor) -> Tensor:
    return x.new_empty(ends.shape[0], x.shape[1], y.shape[1])


# Each is the derivative of the other, so both can be differentiated as often as wanted.


def _keep(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _product_gradients(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None]:
    x, weight, ends = ctx.saved_tensors
    return grouped_mm(gradient, weight.mT, ends), grouped_outer(x, gradient, ends), None


def _outer_gradients(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None]:
    x, y, ends = ctx.saved_tensors
    return grouped_mm(y, gradient.mT, ends), grouped_mm(x, gradient, ends), None


grouped_mm.register_autograd(_product_gradients, setup_context=_keep)
grouped_outer.register_autograd(_outer_gradients, setup_context=_keep)

GROUPED = torch.ops.bitsect.grouped_mm.default


def _of_torch(
    x: Tensor,
    weight: Tensor,
    offs: Tensor | None = None,
    bias: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> Any:
    """Torch's operator, where it multiplies rows by the weights of their groups."""
    if x.ndim != 2 or weight.ndim != 3 or offs is None or bias is not None:
        return NotImplemented
    if out_dtype not in (None, x.dtype):
        return NotImplemented
    return GROUPED(x, weight, offs)


def grouped_products() -> dict[Any, Callable[..., Any]]:
    """The decompositions of the operators that do this; transformers has one once it is imported."""
    found: dict[Any, Callable[..., Any]] = {}
    if hasattr(torch.ops.aten, "_grouped_mm"):
        found[torch.ops.aten._grouped_mm.default] = _of_torch
    if hasattr(torch.ops.transformers, "grouped_mm_fallback"):
        found[torch.ops.transformers.grouped_mm_fallback.default] = GROUPED
    return found
