"""ONNX Runtime's placement: what its integer kernels need rounded is, and they are computed with.

Convolution outputs and residual sums are rounded to 8 bits too, whatever the formats of the layers, for
that is what the kernels hand on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.fx import Node

from ...errors import PlanError
from ...network.layout import Layout
from ...network.operators import through_pooling
from ...network.parts import Multiply, Operand
from ...values import Format
from ...values.grid import Grid
from .dynamic import DynamicProduct, is_dynamic_product
from .integers import (
    INTEGER_CONVOLUTIONS,
    KERNEL_BITS,
    IntegerLayer,
    IntegerProduct,
    IntegerSum,
    absorbed,
    has_integer_kernel,
    is_integer_product,
)

if TYPE_CHECKING:
    from ..rounder import Rounder


class OnnxRuntime:
    """Roundings that ONNX Runtime's integer kernels compute to the last bit."""

    def __init__(self, rounder: Rounder) -> None:
        self.rounder = rounder
        self._layers: dict[tuple[Any, ...], IntegerLayer] = {}
        self._products: dict[tuple[Node, Format, Grid], IntegerProduct] = {}
        self._dynamic: dict[tuple[Node, Layout | None], DynamicProduct] = {}

    def input(self, operand: Operand, bits: int, results: Mapping[str, Grid]) -> Grid:
        """The grid of an operand; pooling and padding hand on the grid its values are rounded to already."""
        assert operand.tensor is not None
        if bits == KERNEL_BITS:
            source = through_pooling(operand.node)
            if source.name in results:
                return results[source.name]
        return self.rounder.grid(operand.tensor, bits)

    def results(self, chosen: Sequence[tuple[Multiply, Format]]) -> dict[str, Grid]:
        """The grids of convolution outputs, and of sums of which an addend has one.

        Were a sum with a float addend left in float, so would be all that follow it along the shortcuts.
        """
        program, results = self.rounder.program, dict[str, Grid]()

        def round_to_kernels(tensor: str) -> None:
            results[program.tensors[tensor].name] = self.rounder.grid(tensor, KERNEL_BITS)

        for multiply, format in chosen:
            if format.has_ranges and multiply.place.signature.kind in INTEGER_CONVOLUTIONS:
                round_to_kernels(multiply.output)
        for total in program.sums:
            if any(through_pooling(addend).name in results for addend in total.addends):
                round_to_kernels(total.tensor)
        return results

    def kernels(
        self,
        chosen: Sequence[tuple[Multiply, Format]],
        inputs: Mapping[tuple[str, int], Grid],
        results: Mapping[str, Grid],
    ) -> tuple[dict[str, Callable[..., Tensor]], set[str]]:
        """What ONNX Runtime computes in integers, and the steps that its kernels include."""
        kernels: dict[str, Callable[..., Tensor]] = {}
        done: set[str] = set()
        for multiply, format in chosen:
            if format.dynamic:
                if multiply.activations:  # not so a look-up
                    kernels[multiply.node.name] = self._dynamic_product(multiply, format)
                    done |= {step.name for step in self.rounder.folded(multiply).steps}
                continue
            if not has_integer_kernel(multiply, format):
                if is_integer_product(multiply, format):
                    taken = inputs[multiply.node.name, 0]
                    kernels[multiply.node.name] = self._integer_product(multiply, format, taken)
                continue
            folded, end = self.rounder.folded(multiply), self.rounder.program.tensors[multiply.output]
            grid = results.get(end.name)  # None after a linear layer, which leaves its output in float
            rest = set() if grid is None else absorbed(folded.node, end, grid)
            if rest is not None:
                taken = inputs[multiply.node.name, 0]
                kernels[multiply.node.name] = self._integer_layer(multiply, format, taken, grid)
                done |= rest | {step.name for step in folded.steps}
        for total in self.rounder.program.sums:
            end = self.rounder.program.tensors[total.tensor]
            grid = results.get(end.name)
            rest = None if grid is None else absorbed(total.node, end, grid)
            exact = total.node.meta["val"].dtype == torch.float32 and not total.node.kwargs
            addends = [results.get(through_pooling(addend).name) for addend in total.addends]
            match addends:
                case [Grid() as first, Grid() as second] if grid is not None and rest is not None and exact:
                    kernels[total.node.name] = IntegerSum(first, second, grid)
                    done |= rest
        return kernels, done

    def _dynamic_product(self, multiply: Multiply, format: Format) -> DynamicProduct:
        weight, folded = multiply.weight, self.rounder.folded(multiply)
        if not is_dynamic_product(self.rounder.program, multiply):
            raise PlanError(
                f"layer '{multiply.layer}': no kernel finds the range of its input at run time: "
                f"leave it out of {format}, with [keep={multiply.layer}=float,int8]"
            )
        assert weight is not None
        assert weight.layout is not None
        key = (weight.node, weight.layout) if folded.factor is None else (multiply.node, None)
        if key not in self._dynamic:
            made = self.rounder.codes(multiply.layer, weight, format)
            self._dynamic[key] = DynamicProduct.of(made, weight.layout, folded)
        return self._dynamic[key]

    def _integer_product(self, multiply: Multiply, format: Format, input: Grid) -> IntegerProduct:
        weight = multiply.weight
        assert weight is not None
        assert weight.layout is not None
        fitted = self.rounder.has_fitted_bias(multiply, format)
        # Places of one weight compute alike, but a fitted bias belongs to its place.
        key = (multiply.node if fitted else weight.node, format, input)
        if key not in self._products:
            made = self.rounder.codes(multiply.layer, weight, format)
            bias = self.rounder.fitted_bias(multiply, format) if fitted else None
            self._products[key] = IntegerProduct.of(made, weight.layout, input, bias)
        return self._products[key]

    def _integer_layer(
        self, multiply: Multiply, format: Format, input: Grid, output: Grid | None
    ) -> IntegerLayer:
        weight, folded = multiply.weight, self.rounder.folded(multiply, format)
        assert weight is not None
        # Places of one weight and bias compute alike; batch norm and a fitted bias belong to their place.
        alike = folded.factor is None and not self.rounder.has_fitted_bias(multiply, format)
        place = (weight.node, folded.bias_node) if alike else multiply.node
        key = (place, format, input, output)
        if key not in self._layers:
            assert weight.layout is not None
            made = self.rounder.codes(multiply.layer, weight, format)
            self._layers[key] = IntegerLayer.of(made, weight.layout, folded, input, output)
        return self._layers[key]
