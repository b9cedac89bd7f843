"""Linear layers whose inputs take their range from each sample as it runs, in ONNX Runtime's arithmetic.

    low = min(x, 0),  high = max(x, 0),  s = (high − low) / 255,  z = round(−low / s)
    c = clip(round(x / s), −z, 255 − z),  y = (s × weight scale)·Σ q·c + bias

The runtime takes the range over all that is in a batch; here every sample has its own, so that whole batches
are judged as batches of one run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node
from torch.nn.functional import linear

from ...network.layout import Layout
from ...network.operators import LINEAR, aten, operator_name
from ...network.parts import Multiply
from ...network.program import Program
from ..folding import Folded
from ..weights import Codes
from .integers import EXACT, PRODUCTS

LEVELS = 255
SAME_ORDER = {
    "view",
    "reshape",
    "_unsafe_view",
    "flatten",
    "unflatten",
    "clone",
    "contiguous",
    "alias",
    "detach",
}


def is_dynamic_product(program: Program, multiply: Multiply) -> bool:
    """Whether ONNX Runtime has a kernel that finds the range of this multiply's input at run time.

    Also, the samples of its input must lie one after the other, each whole.
    """
    node, weight = multiply.node, multiply.weight
    if weight is None or node.meta["val"].dtype != torch.float32 or multiply.operands[0].layout is not None:
        return False
    is_matrix = len(weight.node.meta["val"].shape) == 2
    is_product = node.target in LINEAR or (node.target in PRODUCTS and not node.kwargs)
    return is_matrix and is_product and _samples_lead(program, multiply.operands[0].node)


def _samples_lead(program: Program, node: Node) -> bool:
    if program.fixed_batch is not None:
        return program.fixed_batch == 1
    batches = {
        str(value.shape[0])
        for given in program.contents.inputs
        if isinstance(value := given.meta.get("val"), Tensor)
        and value.ndim
        and type(value.shape[0]) is not int
    }
    while str(node.meta["val"].shape[0]) not in batches and operator_name(node.target) in SAME_ORDER:
        source = node.args[0]
        if not isinstance(source, Node):
            break
        node = source
    leading = node.meta["val"].shape[0]
    return len(batches) == 1 and str(leading) in batches


@dataclass(frozen=True)
class OwnRange:
    """Rounds every sample within its own range, as DynamicQuantizeLinear does with all that it is given."""

    def codes(self, samples: Tensor) -> tuple[Tensor, Tensor]:
        """Of (samples, values) the codes, zero being 0, and the scale of each sample."""
        low, high = samples.aminmax(dim=1, keepdim=True)
        low, high = low.clamp(max=0), high.clamp(min=0)
        scale = (high - low) / LEVELS
        scale = torch.where(high == low, torch.ones_like(scale), scale)
        zero = (-low / scale).round().clamp(0, LEVELS)
        codes = samples.div(scale).round_()
        return torch.minimum(torch.maximum(codes, -zero), LEVELS - zero), scale


@dataclass(frozen=True)
class DynamicProduct:
    """A product of weight codes with input codes whose scale each sample has for itself."""

    input: OwnRange
    codes: Tensor  # of the weight, with the sign of what is folded into it
    scales: Tensor  # of the weight, per channel, in float32
    bias: Tensor | None = None  # of a batch norm, in place of the layer's own

    @classmethod
    def of(cls, made: Codes, layout: Layout, folded: Folded) -> DynamicProduct:
        kernels, scales = layout.to_kernels(made.codes), layout.to_kernels(made.scales)[:, 0, 0]
        if folded.factor is None:
            return cls(OwnRange(), made.codes, scales)
        assert folded.bias is not None
        kernels = kernels * folded.factor.sign().float()[:, None, None]
        scales = (scales * folded.factor.abs()).float()
        dead = scales == 0  # a factor of zero, or one too small for float32
        kernels = torch.where(dead[:, None, None], 0, kernels)
        codes = layout.from_kernels(kernels, made.codes.shape)
        return cls(OwnRange(), codes, torch.where(dead, 1, scales), folded.bias.float())

    def __call__(
        self, step: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any], rows: int
    ) -> Tensor:
        given, bias = args[0], (*args, None, None)[2]
        if step == aten.addmm.default:
            bias, given = args[:2]
        bias = kwargs.get("bias", bias) if self.bias is None else self.bias
        flat, steps = self.input.codes(given.reshape(rows, -1))
        codes, is_linear = flat.reshape(given.shape), step in LINEAR
        # No sum on the way is larger than the norms allow: float32 adds integers exactly up to there.
        largest = codes.square().sum(-1).max().sqrt() * self._norms[is_linear]
        left, right = (codes, self.codes) if largest < EXACT else (codes.double(), self.codes.double())
        total = (linear(left, right) if is_linear else torch.matmul(left, right)).float()
        spread = total.reshape(rows, -1, total.shape[-1]).mul_(steps[:, :, None] * self.scales)
        total = spread.reshape(total.shape)
        return total if bias is None else total.add_(bias)

    @cached_property
    def _norms(self) -> tuple[Tensor, Tensor]:
        """The largest norm of a column, and of a row."""
        squares = self.codes.double().square()
        return squares.sum(0).max().sqrt(), squares.sum(1).max().sqrt()
