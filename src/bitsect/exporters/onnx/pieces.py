"""Pieces of a written model: one layer each, cut out of the file in exactly the form that it has there.

So the same fusions happen in a piece as in the whole: a layer in integers goes from codes to codes with its
bias, its rectifier and its rounding, a float one from values to values.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
ROUNDED = ("DequantizeLinear", "DynamicQuantizeLinear")  # codes come from before, ranges are found here
ALONG = ("Relu", "Clip", "Max", "Min", "Add", "Sub", "BatchNormalization")  # what kernels take over


@dataclass(frozen=True)
class Piece:
    """The nodes of one place, with the names of what goes in and what comes out."""

    place: str
    nodes: tuple[int, ...]  # their numbers in the graph
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


class WrittenGraph:
    """An ONNX file that is asked for the pieces of its layers."""

    def __init__(self, path: Path) -> None:
        import onnx

        self.path, self.model = path, onnx.load(path)
        graph = self.model.graph
        self.constants = {each.name: each for each in graph.initializer}
        self.maker = {name: number for number, node in enumerate(graph.node) for name in node.output}
        self.readers: dict[str, list[int]] = {}
        for number, node in enumerate(graph.node):
            for name in node.input:
                self.readers.setdefault(name, []).append(number)
        self.given = {each.name for each in graph.output}

    def piece(self, place: str) -> Piece | None:
        """The piece of a place; None where no kernel of the file has its name."""
        nodes = self.model.graph.node
        kernels = [
            n for n, node in enumerate(nodes) if node.name == place or node.name.startswith(f"{place}/")
        ]
        kernels = [n for n in kernels if nodes[n].op_type != "DequantizeLinear"]
        if not kernels:
            return None
        taken, inputs, outputs = set(kernels), list[str](), list[str]()
        for kernel in kernels:
            for name in nodes[kernel].input:
                self._take_input(name, taken, inputs)
            for name in nodes[kernel].output:
                outputs.append(self._follow(name, nodes[kernel].op_type, taken, inputs))
        made = {name for n in taken for name in nodes[n].output}
        return Piece(
            place,
            tuple(sorted(taken)),
            tuple(name for name in dict.fromkeys(inputs) if name not in made),
            tuple(name for name in dict.fromkeys(outputs) if name in made),
        )

    def _is_constant(self, name: str) -> bool:
        if name in self.constants or not name:
            return True
        return name in self.maker and all(
            map(self._is_constant, self.model.graph.node[self.maker[name]].input)
        )

    def _take_input(self, name: str, taken: set[int], inputs: list[str]) -> None:
        """Take along what makes a constant, and what belongs to the kernel alone; the rest is an input."""
        if name in self.constants or not name:
            return
        number = self.maker.get(name)
        node = None if number is None else self.model.graph.node[number]
        constant = self._is_constant(name)
        if node is None or number is None or not (constant or node.op_type in ROUNDED):
            inputs.append(name)
            return
        taken.add(number)
        for each in node.input:
            if constant:
                self._take_input(each, taken, inputs)
            elif each not in self.constants:
                inputs.append(each)

    def _follow(self, name: str, kernel: str, taken: set[int], inputs: list[str]) -> str:
        """The last value that the kernel itself makes, its rectifier and rounding included.

        A bias after a matrix product is left to the rest: where shapes are fixed, as in a piece, ONNX Runtime
        makes a float Gemm of the two, which it does not in a network with any batch.
        """
        if kernel == "MatMul":
            return name
        while name not in self.given and len(readers := self.readers.get(name, [])) == 1:
            node = self.model.graph.node[readers[0]]
            others = [each for each in node.input if each != name]
            rounds = node.op_type == "QuantizeLinear" and kernel == "Conv"
            if not rounds and (node.op_type not in ALONG or not all(map(self._is_constant, others))):
                break
            taken.add(readers[0])
            for each in others:
                self._take_input(each, taken, inputs)
            name = node.output[0]
            if rounds:
                break
        return name

    def values(self, names: Iterable[str], feed: Mapping[str, Array]) -> dict[str, Array]:
        """What the file computes for `names` on `feed`, node by node as written."""
        import onnx
        import onnxruntime

        wanted = [name for name in dict.fromkeys(names) if name not in feed]
        model = onnx.ModelProto()
        model.CopyFrom(self.model)
        known = {each.name for each in model.graph.output}
        model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in wanted if name not in known)
        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.log_severity_level, options.intra_op_num_threads = 4, 1
        session = onnxruntime.InferenceSession(model.SerializeToString(), options, ["CPUExecutionProvider"])
        found = session.run(wanted, dict(feed)) if wanted else []
        return {**feed, **dict(zip(wanted, found, strict=True))}

    def write(self, piece: Piece, values: Mapping[str, Array], path: Path) -> None:
        """Write a piece as a model of its own; `values` say the shapes of what goes in and out."""
        import onnx
        from onnx import helper

        graph = self.model.graph
        nodes = [graph.node[number] for number in piece.nodes]
        used = {name for node in nodes for name in node.input}
        made = helper.make_graph(
            nodes,
            piece.place,
            [_described(name, values[name]) for name in piece.inputs],
            [_described(name, values[name]) for name in piece.outputs],
            [each for name, each in self.constants.items() if name in used],
        )
        model = helper.make_model(
            made, opset_imports=self.model.opset_import, ir_version=self.model.ir_version
        )
        onnx.save(model, path)


def _described(name: str, value: Array) -> Any:
    from onnx import helper

    return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(value.dtype), value.shape)


def rounding_models(elements: int, folder: Path) -> Iterator[tuple[str, Path, dict[str, Array]]]:
    """The steps between values and codes alone, as they are written: (name, file, inputs) of each."""
    import onnx
    from onnx import TensorProto, helper

    generator = np.random.default_rng(0)
    values = generator.standard_normal(elements, dtype=np.float32)
    codes = generator.integers(0, 256, elements, dtype=np.uint8)
    scale = helper.make_tensor("scale", TensorProto.FLOAT, [], [0.02])
    zero = helper.make_tensor("zero", TensorProto.UINT8, [], [128])
    for name, kind, given in (
        ("quantize", TensorProto.FLOAT, values),
        ("dequantize", TensorProto.UINT8, codes),
    ):
        result = TensorProto.UINT8 if name == "quantize" else TensorProto.FLOAT
        node = helper.make_node(f"{name.capitalize()}Linear", ["x", "scale", "zero"], ["y"])
        graph = helper.make_graph(
            [node],
            name,
            [helper.make_tensor_value_info("x", kind, [elements])],
            [helper.make_tensor_value_info("y", result, [elements])],
            [scale, zero],
        )
        path = folder / f"{name}-{elements}.onnx"
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
        onnx.save(model, path)
        yield name, path, {"x": given}


def empty_model(path: Path) -> dict[str, Array]:
    """A model that does next to nothing, and its inputs: what every run costs whatever it computes."""
    import onnx
    from onnx import TensorProto, helper

    info = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1]) for name in ("x", "y")]
    graph = helper.make_graph([helper.make_node("Neg", ["x"], ["y"])], "empty", info[:1], info[1:])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10), path)
    return {"x": np.ones(1, np.float32)}


def reference_model(path: Path) -> dict[str, Array]:
    """The product of two small matrices, and its inputs: what other kernels are timed beside."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    generator = np.random.default_rng(0)
    left, right = (generator.standard_normal((96, 96), dtype=np.float32) for _ in range(2))
    info = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [96, 96]) for name in ("x", "y")]
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    graph = helper.make_graph([node], "reference", info[:1], info[1:], [numpy_helper.from_array(right, "w")])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10), path)
    return {"x": left}
