"""What a network is given: checked against what it was captured with, and filled up to a fixed batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import Tensor
from torch.fx import Node

from ..errors import DataError

Inputs = Any  # a tensor, a tuple of positional or a dictionary of keyword arguments


@dataclass(frozen=True)
class Binding:
    """The inputs of a captured graph, how they are named, and their batch if it is fixed."""

    nodes: Sequence[Node]
    spec: pytree.TreeSpec
    batch: int | None

    def bind(self, inputs: Inputs, device: torch.device) -> tuple[dict[Node, Any], int]:
        """The values of the input placeholders, moved to `device` and padded if need be."""
        values = dict(zip(self.nodes, self._flatten(inputs), strict=True))
        open_sizes: dict[str, int] = {}
        for node, value in values.items():
            expected = node.meta.get("val")
            if isinstance(expected, Tensor):
                self._check(node, value, expected, open_sizes)
                values[node] = value.to(device)
            elif value != expected:
                raise DataError(
                    f"input '{node.name}' is {value!r}; the network was captured with {expected!r}"
                )
        batched = [node for node in self.nodes if self._is_batched(node)]
        rows = len(values[batched[0]]) if batched else -1
        if self.batch is not None and rows != self.batch:
            missing = self.batch - rows
            if missing < 0:
                raise DataError(
                    f"a batch of {rows} is more than the {self.batch} this network was captured with"
                )
            for node in batched:
                last = values[node][-1:]
                values[node] = torch.cat([values[node], last.expand(missing, *last.shape[1:])])
        return values, rows

    def _is_batched(self, node: Node) -> bool:
        expected = node.meta.get("val")
        if not isinstance(expected, Tensor) or not expected.ndim:
            return False
        size = expected.shape[0]
        return not isinstance(size, int) if self.batch is None else size == self.batch

    def _flatten(self, inputs: Inputs) -> list[Any]:
        from torch.export._tree_utils import reorder_kwargs

        args, kwargs = call_arguments(inputs)
        try:
            kwargs = reorder_kwargs(kwargs, self.spec)
        except (ValueError, AssertionError, KeyError):
            names = self.spec.children()[1].context
            raise DataError(f"the network takes the named inputs {names}, not {sorted(kwargs)}") from None
        flat = pytree.tree_leaves((args, kwargs))
        if len(flat) != len(self.nodes):
            raise DataError(f"the network takes {len(self.nodes)} inputs; these samples hold {len(flat)}")
        return flat

    def _check(self, node: Node, value: Any, expected: Tensor, open_sizes: dict[str, int]) -> None:
        """Refuse what the network does not take at `node`; sizes of one name must agree between inputs."""
        if not isinstance(value, Tensor):
            raise DataError(f"input '{node.name}' is {type(value).__name__}; the network takes a tensor")
        wanted = [str(size) for size in expected.shape]
        if self._is_batched(node):
            wanted[0] = "batch"
        pairs = list(zip(wanted, value.shape, strict=False))
        if value.ndim != expected.ndim or any(size.isdigit() and int(size) != got for size, got in pairs):
            shape = " × ".join(wanted) or "a single number"
            raise DataError(f"input '{node.name}' has shape {tuple(value.shape)}; the network takes {shape}")
        for size, got in zip(expected.shape, value.shape, strict=True):
            if isinstance(size, int):
                continue
            if open_sizes.setdefault(str(size), got) != got:
                others = open_sizes[str(size)]
                raise DataError(
                    f"input '{node.name}' holds {got} samples where those before it hold {others}"
                )
            most = size.node.shape_env.bound_sympy(size.node.expr).upper
            if got > most:
                raise DataError(
                    f"input '{node.name}' has a size of {got}; the network was exported for {most}"
                )
        if value.dtype != expected.dtype:
            raise DataError(f"input '{node.name}' is {value.dtype}; the network takes {expected.dtype}")

    def can_cut(self, value: Any, rows: int) -> bool:
        """True if padding rows can be cut from `value`: an axis is the batch, or the first a multiple."""
        return self.batch is None or rows == self.batch or self._axis(value) is not None

    def without_padding(self, value: Any, rows: int) -> Any:
        axis = self._axis(value)
        if self.batch is None or rows == self.batch or axis is None:
            return value
        return value.narrow(axis, 0, rows * (value.shape[axis] // self.batch))

    def _axis(self, value: Any) -> int | None:
        """The axis along which the samples of a fixed batch lie."""
        if not isinstance(value, Tensor) or not value.ndim or self.batch is None:
            return None
        return (
            0
            if value.shape[0] % self.batch == 0
            else next((axis for axis, size in enumerate(value.shape) if size == self.batch), None)
        )


def call_arguments(inputs: Inputs) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """How a network is called with `inputs`: a tensor, a tuple (positional) or a dictionary (keywords)."""
    if isinstance(inputs, Mapping):
        return (), dict(inputs)
    if isinstance(inputs, tuple | list):
        return tuple(inputs), {}
    return (inputs,), {}
