"""A layer's batch norm and bias in one, as kernels take them.

γ/σ·(w∗x + b − mean) + β  =  (γ/σ·w)∗x + b′
"""

from __future__ import annotations

import operator
from dataclasses import dataclass, replace

from torch import Tensor
from torch.fx import Node

from ..network.operators import CONVOLUTIONS, LINEAR, TRANSPOSED_CONVOLUTIONS, operator_name
from ..network.parts import Multiply
from ..network.program import Program

WITH_BIAS = LINEAR | CONVOLUTIONS | TRANSPOSED_CONVOLUTIONS  # their third argument


@dataclass(frozen=True)
class Folded:
    """y = factor·(w∗x) + bias per channel, in float64; y is the value of `node`."""

    factor: Tensor | None  # γ/σ; None without batch norm
    bias: Tensor | None
    node: Node
    steps: tuple[Node, ...] = ()  # those of the batch norm
    bias_node: Node | None = None  # the layer's own bias

    @classmethod
    def of(cls, program: Program, multiply: Multiply) -> Folded:
        source = multiply.node
        if source.target not in WITH_BIAS or multiply.weight is None:
            return cls(None, None, source)
        given = (*source.args, None, None)[2] or source.kwargs.get("bias")
        given = given if isinstance(given, Node) else None
        bias = None if given is None else program.constant(given).double()
        norm = _batch_norm_after(multiply)
        if norm is None:
            return cls(None, bias, source, bias_node=given)
        _, gamma, beta, mean, variance, _, epsilon = norm.args
        factor = (_constant(program, variance) + float(epsilon)).rsqrt()  # type: ignore[arg-type]
        if gamma is not None:
            factor = factor * _constant(program, gamma)
        shift = -_constant(program, mean) * factor
        if beta is not None:
            shift = shift + _constant(program, beta)
        whole = next(iter(norm.users))
        return cls(factor, shift if bias is None else shift + bias * factor, whole, (norm, whole))

    def with_bias(self, bias: Tensor) -> Folded:
        """The same with `bias` added to w∗x per channel."""
        added = bias.double() if self.factor is None else bias.double() * self.factor
        return replace(self, bias=added if self.bias is None else self.bias + added)


def _batch_norm_after(multiply: Multiply) -> Node | None:
    """The batch norm that alone reads what `multiply` makes, over the channels of its weight."""
    source = multiply.node
    if len(source.users) != 1 or (source.target in LINEAR and source.meta["val"].ndim != 2):
        return None  # after a linear layer of more axes it norms another one than that of the outputs
    norm = next(iter(source.users))
    if norm.op != "call_function" or operator_name(norm.target) != "_native_batch_norm_legit_no_training":
        return None
    readers = list(norm.users)
    only_values = len(readers) == 1 and readers[0].target is operator.getitem and readers[0].args[1] == 0
    return norm if norm.args[0] is source and only_values else None


def _constant(program: Program, node: object) -> Tensor:
    assert isinstance(node, Node)
    return program.constant(node).double()
