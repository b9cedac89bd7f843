"""Fusions of ONNX Runtime: those that make a network slower are kept away, one that it leaves out is made.

Its SkipLayerNormalization and BiasGelu take longer than the two operators that they replace, and a bias
after an integer matrix product stays an operator of its own unless the kernel is written with it.
"""

from __future__ import annotations

from .nodes import Node, Nodes, Value, attribute, replace
from .sites import Site
from .weights import Array

MICROSOFT = "com.microsoft"  # the domain of operators that only ONNX Runtime has
SLOWER_WITH_A_SUM = ("LayerNormalization", "Gelu")


def keep_sums_apart(nodes: Nodes) -> None:
    """Write the addition in front of an operator that is slower with it as Sum, which is not fused."""
    for node in nodes:
        readers = [use.node.op_type for value in node.outputs for use in value.uses()]
        if node.op_type == "Add" and not set(readers).isdisjoint(SLOWER_WITH_A_SUM):
            node.op_type = "Sum"


def take_bias(nodes: Nodes, site: Site) -> None:
    """Let the kernel of an integer matrix product add the constant that follows it: the same bits, sooner."""
    values, weight = (value.producer() for value in site.kernel.inputs)
    found = bias_after(nodes, site.kernel.outputs[0])
    if found is None or values is None or values.op_type != "DequantizeLinear":
        return
    total, bias = found
    shape = tuple(weight.inputs[0].shape)
    if len(shape) != 2 or bias.shape != shape[1:] or attribute(weight, "axis", 1) != 1:
        return
    (x, x_scale, x_zero), (w, w_scale) = values.inputs, weight.inputs[:2]
    constant = nodes.add_constant(f"{site.name}.bias", bias)
    result = nodes.add(
        "MatMulIntegerToFloat",
        [x, w, x_scale, w_scale, x_zero, None, constant],  # zero points of 0 cost time
        site.name,
        domain=MICROSOFT,
    )
    site.kernel = result.producer()
    replace(total, result)


def bias_after(nodes: Nodes, product: Value) -> tuple[Value, Array] | None:
    """The sum of a product and a constant, and that constant; None if anything else reads the product."""
    readers: list[Node] = [use.node for use in product.uses()]
    if len(readers) != 1 or product.is_graph_output() or readers[0].op_type not in ("Add", "Sub"):
        return None
    (reader,) = readers
    index = list(reader.inputs).index(product)
    constant = nodes.constant(reader.inputs[1 - index])
    if constant is None or (reader.op_type == "Sub" and index == 1):
        return None
    return reader.outputs[0], -constant if reader.op_type == "Sub" else constant
