"""Making and reading nodes of an onnx-ir graph."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np

from .weights import Array

Value = Any  # onnx-ir's Value and Node; the package is optional
Node = Any

LARGE_BYTES = 256  # of a constant that is held once


class Nodes:
    """A graph to which nodes and constants are added; it is sorted when all are made."""

    def __init__(self, graph: Any) -> None:
        import onnx_ir

        self.ir, self.graph = onnx_ir, graph
        self._large: dict[Any, Value] = {}  # constants by what they hold

    def __iter__(self) -> Any:
        return iter(list(self.graph))

    def add(
        self,
        op_type: str,
        inputs: list[Value],
        name: str,
        *,
        domain: str = "",
        outputs: int = 1,
        **attributes: Any,
    ) -> Value:
        """The first output of a new node."""
        node = self.ir.node(op_type, inputs, attributes, domain=domain, name=name, num_outputs=outputs)
        self.graph.append(node)
        for number, output in enumerate(node.outputs):
            output.name = f"{name}.out{number or ''}"
        return node.outputs[0]

    def add_constant(self, name: str, array: Array) -> Value:
        """A constant; what is large is held once, for a weight may be used in many places."""
        if array.nbytes < LARGE_BYTES:
            return self._new_constant(name, array)
        key = _content(array)
        if key not in self._large:
            self._large[key] = self._new_constant(name, array)
        return self._large[key]

    def add_weight(self, name: str, array: Array) -> Value:
        """A constant; a matrix that is there the other way round, as of a tied embedding, is held once.

        Runtimes turn it once, as they load the file.
        """
        turned = self._large.get(_content(array.T)) if array.ndim == 2 else None
        if turned is None or array.nbytes < LARGE_BYTES:
            return self.add_constant(name, array)
        value = self.add("Transpose", [turned], f"{name}.turned", perm=[1, 0])
        value.type, value.shape = turned.type, self.ir.Shape(array.shape)
        return value

    def _new_constant(self, name: str, array: Array) -> Value:
        wanted, count = name, 1
        while name in self.graph.initializers:
            count += 1
            name = f"{wanted}_{count}"
        tensor = self.ir.tensor(np.ascontiguousarray(array).reshape(np.shape(array)), name=name)
        kind = self.ir.TensorType(tensor.dtype)
        value = self.ir.Value(name=name, const_value=tensor, shape=tensor.shape, type=kind)
        self.graph.register_initializer(value)
        return value

    def constant(self, value: Value | None) -> Array | None:
        """What a constant value holds; None for one that is computed, or for none."""
        tensor = None if value is None else self.ir.convenience.get_const_tensor(value)
        return None if tensor is None else np.asarray(tensor.numpy())


def _content(array: Array) -> Any:
    return array.dtype, array.shape, hashlib.sha256(array.tobytes()).digest()


def replace(value: Value, by: Value) -> None:
    """Let everyone read `by` instead of `value`."""
    if by.type is None:
        by.type, by.shape = value.type, value.shape
    value.replace_all_uses_with(by, replace_graph_outputs=True)


def input_of(node: Node, index: int) -> Value | None:
    return node.inputs[index] if index < len(node.inputs) else None


def set_input(node: Node, index: int, value: Value | None) -> None:
    """Replace an input that may be missing, the last one if `value` is None."""
    if value is None and index >= len(node.inputs):
        return
    if index >= len(node.inputs):
        node.resize_inputs(index + 1)
    node.replace_input_with(index, value)
    if value is None:
        node.resize_inputs(index)


def attribute(node: Node, name: str, default: Any) -> Any:
    return node.attributes[name].value if name in node.attributes else default
