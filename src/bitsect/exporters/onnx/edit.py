"""The edit that makes a quantised model of a marked one: every mark gives way to what the plan does there."""

from __future__ import annotations

import numpy as np

from ...errors import ExportError
from ...network.parts import Multiply, Rounding
from ...network.program import Program
from ...rounding.folding import Folded
from ...rounding.placements.dynamic import DynamicProduct
from ...rounding.placements.integers import IntegerLayer, IntegerProduct
from ...rounding.rounder import Rounder
from ...values import Plan
from ...values.grid import Grid
from ..ties import CodesOf, Key
from .biases import add_bias, plus
from .dynamic import quantise_input
from .form import Form, Note, bits_of, deviations
from .fusions import keep_sums_apart, take_bias
from .grouped import GROUPED, write_groups
from .lookups import write_look_up
from .marks import Marked
from .neighbours import RECTIFIERS, absorb_padding, bounds, is_superfluous, passes_on
from .nodes import Node, Nodes, Value, attribute, input_of, replace, set_input
from .sites import Site
from .weights import CodedWeight, folded_weight, to_array


class Edit:
    """One pass over a marked model, in place."""

    def __init__(
        self,
        program: Program,
        rounder: Rounder,
        plan: Plan,
        rounding: Rounding,
        marked: Marked,
        form: Form,
    ) -> None:
        self.program, self.rounder, self.rounding, self.form = program, rounder, rounding, form
        self.nodes, self.results = Nodes(marked.model.graph), marked.results
        self.grids: dict[Value, Grid] = {}  # of values that are rounded already
        self.rounded: dict[tuple[Value, Grid], Value] = {}
        self.dynamic: dict[Value, Value] = {}  # the codes of values whose range is found at run time
        self.codes: dict[Key, CodesOf] = {}
        self.notes: dict[tuple[str, str], list[str]] = {}
        self.paddings = {
            node: absorb_padding(self.nodes, node) for node in self.nodes if node.op_type == "Conv"
        }
        self.sites = [Site.of(multiply, plan[multiply.layer], marked) for multiply in program.multiplies]

    def run(self) -> tuple[Note, ...]:
        for site in self.sites:
            self._drop_batch_norm(site)
        for name, mark in self.results.items():
            grid = self.rounding.results.get(name)
            if grid is None:
                replace(mark.outputs[0], mark.inputs[0])
            else:
                self._replace_rounded(mark, self._unrectified(mark.inputs[0], grid), grid, name)
        for site in self.sites:
            self._write_layer(site)
        for node in self.nodes:
            if node.op_type == "Add":
                self._round_addends(node)
        if not self.form.packs:
            for site in self.sites:
                if site.format.is_float:
                    self._keep_float(site)
                else:
                    self._part_from_rectifier(site)
                    if self.form.fuses and self._kernel(site) is None:  # its bias would be rounded
                        self._keep_float(site)
                    if isinstance(self._kernel(site), DynamicProduct):
                        made = quantise_input(self.nodes, site, self.dynamic)
                        self.codes[site.multiply.node.name, 0] = made
                    elif self.form.fuses and self._is_product(site):
                        take_bias(self.nodes, site)
            keep_sums_apart(self.nodes)
        return tuple(Note(tuple(layers), *why) for why, layers in self.notes.items())

    # What kernels take over

    def _drop_batch_norm(self, site: Site) -> None:
        """Remove the batch norm that is folded into a layer's weight and bias."""
        if self.rounder.folded(site.multiply).factor is None:
            return
        readers = [] if site.kernel is None else [use.node for use in site.kernel.outputs[0].uses()]
        if [reader.op_type for reader in readers] != ["BatchNormalization"]:
            raise ExportError(f"layer '{site.multiply.layer}': its batch norm is not found in the ONNX graph")
        replace(readers[0].outputs[0], site.kernel.outputs[0])

    def _unrectified(self, value: Value, grid: Grid) -> Value:
        """`value` before a rectifier that rounding to `grid` makes superfluous."""
        node = value.producer()
        if node is None or node.op_type not in RECTIFIERS or len(value.uses()) > 1:
            return value
        return node.inputs[0] if is_superfluous(self.nodes, node, grid) else value

    def _part_from_rectifier(self, site: Site) -> None:
        """Put a Max between a matrix product and a rectifier that is needed.

        ONNX Runtime takes the two for one, and finding no integer kernel for both it keeps to float.
        """
        if site.op_type not in ("MatMul", "Gemm"):
            return
        product = site.kernel.outputs[0]
        for rectifier in [use.node for use in product.uses() if use.node.op_type in RECTIFIERS]:
            ends = bounds(self.nodes, rectifier)
            if ends is None or self._is_left_to_rounding(rectifier):
                continue
            low = np.array(max(ends[0], np.finfo(np.float32).min), np.float32)
            name = f"{rectifier.name}.max"
            raised = self.nodes.add("Max", [product, self.nodes.add_constant(f"{name}.low", low)], name)
            raised.type, raised.shape = product.type, product.shape
            if rectifier.op_type == "Relu":
                replace(rectifier.outputs[0], raised)
            else:
                rectifier.replace_input_with(0, raised)

    def _is_left_to_rounding(self, rectifier: Node) -> bool:
        """Whether ONNX Runtime drops a rectifier for the rounding that follows it."""
        readers = [use.node for use in rectifier.outputs[0].uses()]
        if [reader.op_type for reader in readers] != ["QuantizeLinear"]:
            return False
        rounded = [use.node.outputs[0] for use in readers[0].outputs[0].uses()]
        grids = [self.form.held(self.grids[value]) for value in rounded if value in self.grids]
        return all(is_superfluous(self.nodes, rectifier, grid) for grid in grids)

    # Values

    def _replace_rounded(
        self, mark: Node, value: Value, grid: Grid, key: Key, padding: tuple[int, ...] = ()
    ) -> None:
        rounded = self._round(value, grid)
        self.codes[key] = CodesOf(rounded.producer().inputs[0].name, padding)
        replace(mark.outputs[0], rounded)

    def _round(self, value: Value, grid: Grid) -> Value:
        """`value` rounded to `grid`; nodes are shared, and what is rounded already is left alone."""
        if self.grids.get(value) == grid:
            return value
        if (value, grid) not in self.rounded:
            name = f"{value.name}.int{bits_of(grid)}"
            zero = self.form.zero_point(grid)
            parameters = [
                self.nodes.add_constant(f"{name}.scale", np.array(grid.scale, np.float32)),
                self.nodes.add_constant(f"{name}.zero_point", zero),
            ]
            clipped = self._clipped(value, grid, name)
            codes = self.nodes.add("QuantizeLinear", [clipped, *parameters], f"{name}.quantize")
            result = self.nodes.add("DequantizeLinear", [codes, *parameters], f"{name}.dequantize")
            result.type, result.shape = value.type, value.shape
            self.rounded[value, grid], self.grids[result] = result, grid
        return self.rounded[value, grid]

    def _clipped(self, value: Value, grid: Grid, name: str) -> Value:
        """`value`, clipped where its tensor could hold codes that the grid does not.

        ONNX Runtime drops a Relu in front of a 4-bit QuantizeLinear, and fails to load a Clip there:
        4-bit values are clipped by Max and Min, and always, so that neither comes to stand there.
        """
        packed = self.form.packs and bits_of(grid) <= 4
        held = self.form.held(grid)
        if grid.low <= held.low and grid.high >= held.high and not packed:
            return value
        ends = [
            self.nodes.add_constant(f"{name}.{end}", np.array(grid.scale, np.float32) * np.float32(code))
            for end, code in (("low", grid.low), ("high", grid.high))
        ]
        if packed:
            low, high = ends
            raised = self.nodes.add("Max", [value, low], f"{name}.max")
            return self.nodes.add("Min", [raised, high], f"{name}.min")
        return self.nodes.add("Clip", [value, *ends], f"{name}.clip")

    def _grid_of(self, value: Value) -> Grid | None:
        """The grid that all of `value` lies on, if it is known."""
        while value not in self.grids and (node := value.producer()) and passes_on(self.nodes, node):
            value = node.inputs[0]
        return self.grids.get(value)

    def _round_addends(self, add: Node) -> None:
        """Cut and pad codes instead of values on the way to a sum that stays an integer."""
        if all(use.node.op_type != "QuantizeLinear" for use in add.outputs[0].uses()):
            return
        for index, value in enumerate(add.inputs):
            grid = self._grid_of(value)
            if grid is not None:
                add.replace_input_with(index, self._round_steps(value, grid))

    def _round_steps(self, value: Value, grid: Grid) -> Value:
        """`value`, which lies on `grid`, with the steps since it was rounded done on codes."""
        if value in self.grids:
            return value
        step = value.producer()
        before = self._round_steps(step.inputs[0], grid)
        if step.op_type not in ("Slice", "Pad") or self.form.packs:
            step.replace_input_with(0, before)
            return self._round(value, grid)
        codes, *parameters = before.producer().inputs
        others = list(step.inputs[1:])
        if step.op_type == "Pad":
            others[1:2] = [parameters[1]]  # zero, in codes
        attributes = {name: each.value for name, each in step.attributes.items()}
        moved = self.nodes.add(step.op_type, [codes, *others], f"{step.name}.codes", **attributes)
        result = self.nodes.add("DequantizeLinear", [moved, *parameters], f"{step.name}.dequantize")
        result.type, result.shape = value.type, value.shape
        self.grids[result] = grid
        return result

    def _keep_float(self, site: Site) -> None:
        """Hide from ONNX Runtime that a float layer reads rounded values, without changing them.

        Between a DequantizeLinear and a QuantizeLinear it would quantise the weights of such a layer, with
        one scale for all of them, and its bias, and say nothing; not where the input has a scale per channel.
        """
        if site.kernel is None or site.op_type not in ("Conv", "ConvTranspose", "Gemm"):
            return
        value = site.kernel.inputs[0]
        grid = self._grid_of(value)
        if grid is None or value.shape is None or not isinstance(channels := value.shape[1], int):
            return
        inputs = [
            self._round(value, grid).producer().inputs[0],
            self.nodes.add_constant(f"{site.name}.input.scale", np.full(channels, grid.scale, np.float32)),
            self.nodes.add_constant(
                f"{site.name}.input.zero_point", np.full(channels, self.form.zero_point(grid))
            ),
        ]
        hidden = self.nodes.add("DequantizeLinear", inputs, f"{site.name}.input.dequantize", axis=1)
        site.kernel.replace_input_with(0, hidden)

    # Layers

    def _write_layer(self, site: Site) -> None:
        for index, (operand, mark) in enumerate(zip(site.multiply.operands, site.marks, strict=True)):
            if operand.layout is None:
                key = (site.multiply.node.name, index)
                grid = self.rounding.inputs.get(key)
                if grid is None:
                    replace(mark.outputs[0], mark.inputs[0])
                else:
                    self._replace_rounded(mark, mark.inputs[0], grid, key, self.paddings.get(site.kernel, ()))
        for index, operand in enumerate(site.multiply.operands):
            if site.op_type == GROUPED and operand.layout is not None:
                write_groups(self.nodes, site.kernel, self._group_weights(site, index), site.name)
            elif operand.layout is not None and site.format.is_float:
                self._write_float(site, index)
            elif operand.layout is not None:
                self._write_codes(site, index)
        if not site.format.is_float:
            has_weight = site.multiply.weight is not None
            kernel = "MatMul" if site.op_type == GROUPED else site.op_type
            for why in deviations(self.form, site.format, kernel, has_weight=has_weight):
                self._note(site, *why)

    def _write_float(self, site: Site, index: int) -> None:
        operand, mark = site.multiply.operands[index], site.marks[index]
        folded, value = self.rounder.folded(site.multiply), mark.inputs[0]
        if folded.factor is not None:
            assert operand.layout is not None
            array = folded_weight(self.program.constant(operand.node), operand.layout, folded)
            value = self.nodes.add_constant(f"{site.name}.weight.folded", array)
            set_input(site.kernel, 2, self._float_bias(site, folded))
        replace(mark.outputs[0], value)

    def _write_codes(self, site: Site, index: int) -> None:
        weight = self._coded_weight(site, index)
        turns = site.turns(index)
        if turns is None:  # something else than a transpose lies between: it stays there
            replace(site.marks[index].outputs[0], self._dequantized(site, weight))
            return
        if site.op_type == "Gather" and not self.form.packs:
            write_look_up(self.nodes, site, weight)
            return
        for turn in turns:
            weight = weight.turned(turn)
        if site.op_type == "MatMul" and _broadcasts(site.multiply, weight):
            weight = weight.squeezed()  # scales per channel are for two axes
        position = site.position(index)
        if self._is_better_as_matmul(site, position):
            self._write_matmul(site, weight)
        else:
            site.kernel.replace_input_with(position, self._dequantized(site, weight))

    def _group_weights(self, site: Site, index: int) -> list[Value]:
        """The weights of a grouped product, each by itself."""
        if not site.format.is_float:
            whole = self._coded_weight(site, index)
            weights = [CodedWeight(*each) for each in zip(whole.codes, whole.scales, strict=True)]
            return [self._dequantized(site, each, f"/{group}") for group, each in enumerate(weights)]
        arrays = to_array(self.program.constant(site.multiply.operands[index].node))
        return [
            self.nodes.add_constant(f"{site.name}/{group}.weight", each) for group, each in enumerate(arrays)
        ]

    def _coded_weight(self, site: Site, index: int) -> CodedWeight:
        """The codes of a weight; the bias that belongs to them is written."""
        operand = site.multiply.operands[index]
        assert operand.layout is not None
        integer = self._integer_layer(site)
        if integer is not None:
            self._write_integer_bias(site, integer)
            return CodedWeight.of_integer(integer, operand.layout)
        folded = self.rounder.folded(site.multiply, site.format)
        if folded.factor is not None:
            set_input(site.kernel, 2, self._float_bias(site, folded))
        elif site.multiply.node.name in self.rounding.biases:
            add_bias(self.nodes, site, to_array(self.rounding.biases[site.multiply.node.name]))
        made = self.rounder.codes(site.multiply.layer, operand, site.format)
        return CodedWeight.of(made, operand.layout, folded)

    def _integer_layer(self, site: Site) -> IntegerLayer | None:
        made = self._kernel(site)
        return made if isinstance(made, IntegerLayer) else None

    def _is_product(self, site: Site) -> bool:
        return site.op_type == "MatMul" and isinstance(self._kernel(site), IntegerProduct)

    def _kernel(self, site: Site) -> object:
        return self.rounding.kernels.get(site.multiply.node.name)

    def _is_better_as_matmul(self, site: Site, position: int) -> bool:
        """Whether a Gemm that reads its weight at `position` has a kernel for codes only as MatMul."""
        if site.op_type != "Gemm" or position != 1 or self._integer_layer(site) is not None:
            return False
        scaled = any(attribute(site.kernel, name, 1.0) != 1.0 for name in ("alpha", "beta"))
        return not scaled and not attribute(site.kernel, "transA", 0)

    def _dequantized(self, site: Site, weight: CodedWeight, part: str = "") -> Value:
        name = f"{site.name}{part}.weight"
        codes = weight.codes.astype(self.form.weight_type(site.format))
        scales, form = weight.scale_form()
        inputs = [
            self.nodes.add_weight(f"{name}.codes", codes),
            self.nodes.add_constant(f"{name}.scale", scales),
        ]
        if self.form.writes_zeros:
            inputs.append(self.nodes.add_constant(f"{name}.zero_point", np.zeros(scales.shape, codes.dtype)))
        return self.nodes.add("DequantizeLinear", inputs, f"{name}.dequantize", **form)

    def _write_matmul(self, site: Site, weight: CodedWeight) -> None:
        """Write Gemm as MatMul, and its bias as a sum."""
        gemm = site.kernel
        if attribute(gemm, "transB", 0):
            weight = weight.turned((1, 0))
        result = self.nodes.add("MatMul", [gemm.inputs[0], self._dequantized(site, weight)], site.name)
        site.kernel = result.producer()
        bias = input_of(gemm, 2)
        constant = self.nodes.constant(bias)
        if constant is not None:
            result = plus(self.nodes, site, result, constant)
        elif bias is not None:
            result = self.nodes.add("Add", [result, bias], f"{site.name}.add")
        replace(gemm.outputs[0], result)

    def _float_bias(self, site: Site, folded: Folded) -> Value:
        assert folded.bias is not None
        return self.nodes.add_constant(f"{site.name}.bias.folded", to_array(folded.bias.float()))

    def _write_integer_bias(self, site: Site, layer: IntegerLayer) -> None:
        if layer.bias is None:
            set_input(site.kernel, 2, None)
            return
        if (layer.bias.divisors > 1).any():
            self._note(
                site,
                "some channels have weights so small that their bias is beyond int32 at their scale: "
                "the codes of these channels are rounded to a coarser one",
                "judged with the same codes",
            )
        inputs = [
            self.nodes.add_constant(f"{site.name}.bias.codes", to_array(layer.bias.codes).astype(np.int32)),
            self.nodes.add_constant(f"{site.name}.bias.scale", to_array(layer.steps)),
        ]
        bias = self.nodes.add("DequantizeLinear", inputs, f"{site.name}.bias.dequantize", axis=0)
        set_input(site.kernel, 2, bias)

    def _note(self, site: Site, instead: str, change: str) -> None:
        layers = self.notes.setdefault((instead, change), [])
        if site.multiply.layer not in layers:
            layers.append(site.multiply.layer)


def _broadcasts(multiply: Multiply, weight: CodedWeight) -> bool:
    """Whether leading axes of length 1 make no difference to the product with `weight`."""
    (other,) = multiply.activations
    return bool(other.node.meta["val"].ndim >= weight.codes.ndim)
