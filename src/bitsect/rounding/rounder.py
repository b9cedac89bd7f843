"""A plan under a placement, made concrete for a program: which weights are replaced, which values rounded."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor
from torch.fx import Node

from ..errors import PlanError
from ..names import check_name, choose
from ..network.layout import Layout
from ..network.parts import Multiply, Operand, Rounding
from ..network.program import Program
from ..values import PAPER, Format, Placement, Plan, Range, Ranges
from ..values.grid import Grid
from . import ROUNDINGS
from .columns import channel_axis
from .folding import Folded
from .placements import RULES
from .placements.integers import KERNEL_BITS
from .weights import Codes, quantize_weight

GPTQ = "gptq"
FITTED_BITS = 4  # weights of more bits lose too little for GPTQ to win it back: they round by SQuant


@dataclass
class Fitted:
    """What GPTQ made of the weights of a program, by format."""

    # By the value and its layout; None for a weight that cannot be fitted, which rounds by SQuant.
    codes: dict[tuple[Node, Layout, Format], Codes | None] = field(default_factory=dict)
    biases: dict[tuple[Node, Format], Tensor] = field(default_factory=dict)  # by multiply, per channel


class Rounder:
    """Turns plans into roundings of one program; every weight is rounded once per format.

    Where weights are rounded by GPTQ, `fitted` holds what was made of them in formats of few bits.
    """

    def __init__(
        self,
        program: Program,
        ranges: Ranges | None = None,
        placement: Placement = PAPER,
        rounding: str = "squant",
        fitted: Fitted | None = None,
    ) -> None:
        check_name("rounding", rounding, ROUNDINGS)
        self.program, self.ranges, self.placement, self.rounding = program, ranges, placement, rounding
        self.fitted = Fitted() if fitted is None else fitted
        self._layers = {layer.name for layer in program.layers}
        self._weights: dict[tuple[Node, Layout, Format], Tensor] = {}
        self._folded: dict[Node, Folded] = {}
        self._rules = choose("placement", placement.name, RULES)(self)

    def __call__(self, plan: Plan) -> Rounding:
        for name in sorted(plan.formats.keys() ^ self._layers):
            where = (
                "in the network but not in the plan" if name in self._layers else "in the plan but not in it"
            )
            raise PlanError(f"the plan does not fit this network: layer '{name}' is {where}")
        chosen = [
            (multiply, format)
            for multiply in self.program.multiplies
            if not (format := plan[multiply.layer]).is_float
            # A matmul of two activations has no weight that a weight-only format could round.
            and (multiply.weight is not None or format.has_ranges)
        ]
        results = self._rules.results(chosen)
        weights: dict[tuple[str, int], Tensor] = {}
        inputs: dict[tuple[str, int], Grid] = {}
        biases: dict[str, Tensor] = {}
        for multiply, format in chosen:
            if (multiply.node, format) in self.fitted.biases:
                biases[multiply.node.name] = self.fitted_bias(multiply, format)
            for position, operand in enumerate(multiply.operands):
                key = (multiply.node.name, position)
                if operand.layout is not None:
                    weights[key] = self.weight(multiply.layer, operand, format)
                elif format.has_ranges:
                    assert format.activation_bits is not None
                    inputs[key] = self._rules.input(operand, format.activation_bits, results)
        return Rounding(weights, inputs, biases, results, *self._rules.kernels(chosen, inputs, results))

    def codes(self, layer: str, operand: Operand, format: Format) -> Codes:
        """The integer codes and scales of a weight."""
        assert operand.layout is not None
        if is_fitted(self.rounding, format):
            key = (operand.node, operand.layout, format)
            if key not in self.fitted.codes:
                raise PlanError(f"layer '{layer}' was not fitted in {format}: fit it to samples first")
            made = self.fitted.codes[key]
            if made is not None:
                return made
        try:
            weight = self.program.constant(operand.node)
            return quantize_weight(weight, operand.layout, format, self.rounding)
        except PlanError as error:
            raise PlanError(f"layer '{layer}': {error}") from None

    def weight(self, layer: str, operand: Operand, format: Format) -> Tensor:
        assert operand.layout is not None
        by_bits = Format(format.weight_bits, None, format.group_size)
        key = (operand.node, operand.layout, format if is_fitted(self.rounding, format) else by_bits)
        if key not in self._weights:
            self._weights[key] = self.codes(layer, operand, format).weight
        return self._weights[key]

    def has_fitted_bias(self, multiply: Multiply, format: Format) -> bool:
        return (multiply.node, format) in self.fitted.biases

    def fitted_bias(self, multiply: Multiply, format: Format) -> Tensor:
        """The bias that belongs to a fitted weight, as it is added to the product."""
        made, axis = multiply.node.meta["val"], channel_axis(multiply)
        shape = () if axis is None else (-1, *[1] * (-axis - 1))
        return self.fitted.biases[multiply.node, format].to(self.program.device, made.dtype).reshape(shape)

    def folded(self, multiply: Multiply, format: Format | None = None) -> Folded:
        """The layer's batch norm and bias in one; with the bias of its fitted weight in `format`."""
        if multiply.node not in self._folded:
            self._folded[multiply.node] = Folded.of(self.program, multiply)
        folded = self._folded[multiply.node]
        if format is None or (multiply.node, format) not in self.fitted.biases:
            return folded
        return folded.with_bias(self.fitted.biases[multiply.node, format].to(self.program.device))

    def grid(self, tensor: str, bits: int) -> Grid:
        """The grid that the values of `tensor` are rounded to."""
        # A runtime's 8-bit tensors saturate at −128: to stop at −127 would cost it a pass of its own.
        full = self.placement.outputs and bits == KERNEL_BITS
        return Grid.of(self._range(tensor, bits), bits, full=full)

    def _range(self, tensor: str, bits: int) -> Range:
        if self.ranges is None:
            raise PlanError("rounding activations needs calibrated ranges")
        try:
            return self.ranges[tensor, bits]
        except KeyError:
            raise PlanError(
                f"no {bits}-bit range of '{tensor}' was calibrated: calibrate for this format"
            ) from None


def is_fitted(rounding: str, format: Format) -> bool:
    """Whether weights in `format` are fitted to the inputs of their layer."""
    return rounding == GPTQ and format.weight_bits is not None and format.weight_bits <= FITTED_BITS
