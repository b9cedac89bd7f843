"""Tracing without values, within bounds: what a stranger's graph claims to make is never made."""

from __future__ import annotations

from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from .archive import SAVE, DamagedError

MOST_CALLS = 2_000_000  # of operators, those that others are decomposed into among them
MOST_PARTS = 65_536  # that a tensor may be split into
LARGEST_TENSOR = 2**36  # bytes, of the example's size

aten = torch.ops.aten
SPLITS = {aten.split.Tensor, aten.unbind.int, aten.chunk.default, aten.tensor_split.sections}


def bounded(sizes: ShapeEnv) -> FakeTensorMode:
    """Torch's tensors without values, which refuse to be many or huge."""
    mode = FakeTensorMode(allow_fallback_kernels=False, allow_non_fake_inputs=True, shape_env=sizes)
    dispatch, calls = mode.dispatch, 0

    def within(func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        nonlocal calls
        calls += 1
        if calls > MOST_CALLS:
            raise DamagedError(f"it has more than {MOST_CALLS:,} operators: {SAVE}")
        if func in SPLITS and any(_hint(size) > MOST_PARTS for size in args[0].shape):
            raise DamagedError(f"a tensor is split into more than {MOST_PARTS:,} parts")
        made = dispatch(func, types, args, kwargs)
        for value in pytree.tree_leaves(made):
            if isinstance(value, Tensor):
                _check(value)
        return made

    # Not a class of its own: torch finds what higher-order operators do by the very class of the mode.
    vars(mode)["dispatch"] = within
    return mode


def _check(value: Tensor) -> None:
    size = value.dtype.itemsize
    for length in value.shape:
        size *= _hint(length)
    if size > LARGEST_TENSOR:
        raise DamagedError(f"it makes a tensor of {size / 2**30:.3g} GB")


def _hint(size: Any) -> int:
    return size if isinstance(size, int) else size.node.hint or 1
