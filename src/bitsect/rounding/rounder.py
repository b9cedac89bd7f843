"""A plan under a placement, made concrete for a program: which weights are replaced, which values rounded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node

from ..errors import PlanError
from ..names import check_name
from ..network.layout import Layout
from ..network.operators import operator_name, through_reshapes
from ..network.parts import Multiply, Operand, Rounding
from ..network.program import Program
from ..values import PAPER, Format, Placement, Plan, Range, Ranges
from ..values.grid import Grid
from . import ROUNDINGS
from .columns import channel_axis
from .folding import Folded
from .placements.onnxruntime import (
    INTEGER_CONVOLUTIONS,
    IntegerLayer,
    IntegerProduct,
    IntegerSum,
    absorbed,
    has_integer_kernel,
    is_integer_product,
)
from .weights import Codes, quantize_weight

GPTQ = "gptq"
Kernel = IntegerLayer | IntegerProduct | IntegerSum

KERNEL_BITS = 8  # what integer kernels hand on, whatever their operands are
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
        self._products_in_integers: dict[tuple[Node, Format, Grid], IntegerProduct] = {}
        self._layers_in_integers: dict[tuple[Any, ...], IntegerLayer] = {}

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
            and (multiply.weight is not None or format.activation_bits is not None)
        ]
        results = self._results(chosen) if self.placement.outputs else {}
        weights: dict[tuple[str, int], Tensor] = {}
        inputs: dict[tuple[str, int], Grid] = {}
        biases: dict[str, Tensor] = {}
        for multiply, format in chosen:
            if (multiply.node, format) in self.fitted.biases:
                biases[multiply.node.name] = self._bias(multiply, format)
            for position, operand in enumerate(multiply.operands):
                key = (multiply.node.name, position)
                if operand.layout is not None:
                    weights[key] = self.weight(multiply.layer, operand, format)
                elif format.activation_bits is not None:
                    inputs[key] = self._input_grid(operand, format.activation_bits, results)
        if not self.placement.outputs:
            return Rounding(weights, inputs, biases)
        return Rounding(weights, inputs, biases, results, *self._kernels(chosen, inputs, results))

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

    def _bias(self, multiply: Multiply, format: Format) -> Tensor:
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

    def _input_grid(self, operand: Operand, bits: int, results: dict[str, Grid]) -> Grid:
        """The grid of an operand; pooling and padding hand on the grid its values are rounded to already."""
        assert operand.tensor is not None
        if bits == KERNEL_BITS:
            source = through_pooling(operand.node)
            if source.name in results:
                return results[source.name]
        return self.grid(operand.tensor, bits)

    def _results(self, chosen: Sequence[tuple[Multiply, Format]]) -> dict[str, Grid]:
        """The grids of convolution outputs, and of sums of which an addend has one.

        Were a sum with a float addend left in float, so would be all that follow it along the shortcuts.
        """
        results: dict[str, Grid] = {}
        for multiply, format in chosen:
            if format.activation_bits is not None and multiply.place.signature.kind in INTEGER_CONVOLUTIONS:
                results[self.program.tensors[multiply.output].name] = self.grid(multiply.output, KERNEL_BITS)
        for total in self.program.sums:
            if any(through_pooling(addend).name in results for addend in total.addends):
                results[self.program.tensors[total.tensor].name] = self.grid(total.tensor, KERNEL_BITS)
        return results

    def _kernels(
        self,
        chosen: Sequence[tuple[Multiply, Format]],
        inputs: dict[tuple[str, int], Grid],
        results: dict[str, Grid],
    ) -> tuple[dict[str, Kernel], set[str]]:
        """What ONNX Runtime computes in integers, and the steps that its kernels include."""
        kernels: dict[str, Kernel] = {}
        done: set[str] = set()
        for multiply, format in chosen:
            if not has_integer_kernel(multiply, format):
                if is_integer_product(multiply, format):
                    taken = inputs[multiply.node.name, 0]
                    kernels[multiply.node.name] = self._integer_product(multiply, format, taken)
                continue
            folded, end = self.folded(multiply), self.program.tensors[multiply.output]
            grid = results.get(end.name)  # None after a linear layer, which leaves its output in float
            rest = set() if grid is None else absorbed(folded.node, end, grid)
            if rest is not None:
                taken = inputs[multiply.node.name, 0]
                kernels[multiply.node.name] = self._integer_layer(multiply, format, taken, grid)
                done |= rest | {step.name for step in folded.steps}
        for total in self.program.sums:
            end = self.program.tensors[total.tensor]
            grid = results.get(end.name)
            rest = None if grid is None else absorbed(total.node, end, grid)
            exact = total.node.meta["val"].dtype == torch.float32 and not total.node.kwargs
            addends = [results.get(through_pooling(addend).name) for addend in total.addends]
            match addends:
                case [Grid() as first, Grid() as second] if grid is not None and rest is not None and exact:
                    kernels[total.node.name] = IntegerSum(first, second, grid)
                    done |= rest
        return kernels, done

    def _integer_product(self, multiply: Multiply, format: Format, input: Grid) -> IntegerProduct:
        weight = multiply.weight
        assert weight is not None
        assert weight.layout is not None
        fitted = (multiply.node, format) in self.fitted.biases
        # Places of one weight compute alike, but a fitted bias belongs to its place.
        key = (multiply.node if fitted else weight.node, format, input)
        if key not in self._products_in_integers:
            made = self.codes(multiply.layer, weight, format)
            bias = self._bias(multiply, format) if fitted else None
            self._products_in_integers[key] = IntegerProduct.of(made, weight.layout, input, bias)
        return self._products_in_integers[key]

    def _integer_layer(
        self, multiply: Multiply, format: Format, input: Grid, output: Grid | None
    ) -> IntegerLayer:
        weight, folded = multiply.weight, self.folded(multiply, format)
        assert weight is not None
        # Places of one weight and bias compute alike; batch norm and a fitted bias belong to their place.
        alike = folded.factor is None and (multiply.node, format) not in self.fitted.biases
        place = (weight.node, folded.bias_node) if alike else multiply.node
        key = (place, format, input, output)
        if key not in self._layers_in_integers:
            assert weight.layout is not None
            made = self.codes(multiply.layer, weight, format)
            self._layers_in_integers[key] = IntegerLayer.of(made, weight.layout, folded, input, output)
        return self._layers_in_integers[key]


def is_fitted(rounding: str, format: Format) -> bool:
    """Whether weights in `format` are fitted to the inputs of their layer."""
    return rounding == GPTQ and format.weight_bits is not None and format.weight_bits <= FITTED_BITS


def through_pooling(node: Node) -> Node:
    """The node whose values `node` passes on: reshaped, some of them, the largest, or with zeros around."""
    node = through_reshapes(node)
    while _passes_on(node):
        source = node.args[0]
        assert isinstance(source, Node)
        node = through_reshapes(source)
    return node


def _passes_on(node: Node) -> bool:
    if node.op != "call_function":
        return False
    name = operator_name(node.target)
    if name == "pad":
        return node.args[2:3] in ((), ("constant",)) and not any(node.args[3:])
    if name == "constant_pad_nd":
        return not any(node.args[2:])
    return name == "slice" or name.startswith("max_pool")
