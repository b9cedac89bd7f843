"""Biases that belong to fitted weights, added where the graph can take them."""

from __future__ import annotations

import numpy as np

from ...errors import ExportError
from .nodes import Nodes, Value, input_of, replace, set_input
from .sites import Site
from .weights import Array


def add_bias(nodes: Nodes, site: Site, bias: Array) -> None:
    """Add the bias that belongs to a fitted weight: to the kernel's own, or to its result."""
    if site.kernel is None:
        raise ExportError(f"layer '{site.multiply.layer}': its product is not found in the ONNX graph")
    own = input_of(site.kernel, 2)
    constant = np.float32(0) if own is None else nodes.constant(own)
    if site.op_type != "MatMul" and constant is not None:
        bias = bias if site.op_type == "Gemm" else bias.reshape(-1)
        set_input(site.kernel, 2, nodes.add_constant(f"{site.name}.bias.corrected", constant + bias))
        return
    product = site.kernel.outputs[0]
    (reader, *others) = [use.node for use in product.uses()] or [None]
    if reader is not None and reader.op_type == "Add" and not others:
        index = 1 - list(reader.inputs).index(product)
        constant = nodes.constant(reader.inputs[index])
        if constant is not None:
            total = nodes.add_constant(f"{site.name}.bias.corrected", constant + bias)
            reader.replace_input_with(index, total)
            return
    replace(product, corrected := plus(nodes, site, product, bias))
    corrected.producer().replace_input_with(0, product)


def plus(nodes: Nodes, site: Site, product: Value, bias: Array) -> Value:
    """A product plus a constant: ONNX Runtime would make a Gemm of an Add, on a float kernel."""
    negated = nodes.add_constant(f"{site.name}.bias.negated", -bias)
    return nodes.add("Sub", [product, negated], f"{site.name}.sub")
