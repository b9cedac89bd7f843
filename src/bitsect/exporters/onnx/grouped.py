"""A product of rows with the weights of their groups, in ONNX: a matrix product for each group."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .nodes import Node, Nodes, Value, input_of, replace

GROUPED = "GroupedMatMul"  # rows, weights, ends; it stands in a marked model and in no written one
EIGHT_BIT = (np.int8, np.uint8)  # Slice takes no smaller ones


def write_groups(nodes: Nodes, product: Node, weights: Sequence[Value], name: str) -> None:
    """Put a MatMul for each of the `weights` in place of `product`, over the rows of its group."""
    rows, _, ends = product.inputs
    ends = nodes.add("Cast", [ends], f"{name}.ends", to=int(nodes.ir.DataType.INT64))
    axis = nodes.add_constant(f"{name}.axis", np.array([0]))
    start = nodes.add_constant(f"{name}.start", np.array([0]))
    width = int(product.outputs[0].shape[1])
    parts = []
    for group, weight in enumerate(weights):
        place = nodes.add_constant(f"{name}/{group}.index", np.array([group]))
        end = nodes.add("Gather", [ends, place], f"{name}/{group}.end", axis=0)
        taken = _taken(nodes, rows, [start, end, axis], f"{name}/{group}.rows")
        parts.append(nodes.add("MatMul", [taken, weight], f"{name}/{group}"))
        start = end
    parts.append(_zeros(nodes, rows, start, width, f"{name}.rest"))
    replace(product.outputs[0], nodes.add("Concat", parts, f"{name}.all", axis=0))


def _taken(nodes: Nodes, rows: Value, ends: list[Value], name: str) -> Value:
    """Some of the rows; of 8-bit ones the codes, so that a product finds their rounding right before it."""
    rounding = rows.producer()
    zero = nodes.constant(input_of(rounding, 2)) if rounding is not None else None
    is_rounded = rounding is not None and rounding.op_type == "DequantizeLinear"
    if not is_rounded or zero is None or zero.dtype not in EIGHT_BIT:
        return nodes.add("Slice", [rows, *ends], name)
    codes, *parameters = rounding.inputs
    taken = nodes.add("Slice", [codes, *ends], f"{name}.codes")
    return nodes.add("DequantizeLinear", [taken, *parameters], name)


def _zeros(nodes: Nodes, rows: Value, start: Value, width: int, name: str) -> Value:
    """Zeros for the rows that belong to no group."""
    size = nodes.add("Shape", [rows], f"{name}.size", start=0, end=1)
    count = nodes.add("Sub", [size, start], f"{name}.count")
    columns = nodes.add_constant(f"{name}.columns", np.array([width]))
    shape = nodes.add("Concat", [count, columns], f"{name}.shape", axis=0)
    return nodes.add("Expand", [nodes.add_constant(f"{name}.zero", np.zeros((), np.float32)), shape], name)
