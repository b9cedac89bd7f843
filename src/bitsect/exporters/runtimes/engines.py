"""Runtimes of files that bitsect does not write for ONNX Runtime or OpenVINO: as `child.Engine` has them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
Run = Callable[[Mapping[str, Array]], list[Array]]


class TorchEngine:
    """Saved torch.export programs; a file that could run its author's code is refused."""

    def __init__(self) -> None:
        import torch

        self.module, self.version = torch, str(torch.__version__)

    def load(self, path: str, threads: int) -> Run:
        self.module.set_num_threads(threads)
        program = self._program(path)
        network, names = program.module(), [each[0] for each in self.about(path)["inputs"]]

        def run(feed: Mapping[str, Array]) -> list[Array]:
            with self.module.no_grad():
                given = [self.module.from_numpy(feed[name]) for name in names]
                spec = program.call_spec.in_spec
                arguments, keywords = self.module.utils._pytree.tree_unflatten(given, spec)
                leaves = self.module.utils._pytree.tree_leaves(network(*arguments, **keywords))
                return [leaf.numpy() for leaf in leaves if isinstance(leaf, self.module.Tensor)]

        return run

    def about(self, path: str) -> dict[str, Any]:
        program = self._program(path)
        inputs = []
        for name in program.graph_signature.user_inputs:
            value = next(node for node in program.graph.nodes if node.name == name).meta["val"]
            sizes = [size if isinstance(size, int) else None for size in value.shape]
            inputs.append([name, str(value.dtype).removeprefix("torch."), sizes])
        outputs = [str(name) for name in program.graph_signature.user_outputs]
        return {"inputs": inputs, "outputs": outputs, "metadata": {}}

    def _program(self, path: str) -> Any:
        from ...sources.models.pt2 import load_pt2

        return load_pt2(Path(path))


class LiteRtEngine:
    """Files of LiteRT (.tflite); integer inputs and outputs are passed as the floats that they stand for."""

    def __init__(self) -> None:
        from ai_edge_litert import interpreter

        self.module = interpreter
        self.version = _version("ai-edge-litert")

    def _interpreter(self, path: str, threads: int) -> Any:
        return self.module.Interpreter(model_path=path, num_threads=threads)

    def load(self, path: str, threads: int) -> Run:
        interpreter = self._interpreter(path, threads)
        given, taken = interpreter.get_input_details(), interpreter.get_output_details()
        shapes: dict[str, tuple[int, ...]] = {}

        def run(feed: Mapping[str, Array]) -> list[Array]:
            if shapes != {name: value.shape for name, value in feed.items()}:
                for each in given:
                    interpreter.resize_tensor_input(each["index"], feed[each["name"]].shape)
                interpreter.allocate_tensors()
                shapes.update({name: value.shape for name, value in feed.items()})
            for each in given:
                interpreter.set_tensor(each["index"], _codes(feed[each["name"]], each))
            interpreter.invoke()
            return [_values(interpreter.get_tensor(each["index"]), each) for each in taken]

        return run

    def about(self, path: str) -> dict[str, Any]:
        interpreter = self._interpreter(path, 1)
        inputs = []
        for each in interpreter.get_input_details():
            sizes = [None if size < 0 else int(size) for size in each["shape_signature"]]
            kind = "float32" if each["quantization"][0] else np.dtype(each["dtype"]).name
            inputs.append([each["name"], kind, sizes])
        outputs = [each["name"] for each in interpreter.get_output_details()]
        return {"inputs": inputs, "outputs": outputs, "metadata": {}}


class ExecuTorchEngine:
    """Programs of ExecuTorch (.pte), in the threads that it takes for itself."""

    def __init__(self) -> None:
        from executorch import runtime

        self.module, self.version = runtime.Runtime.get(), _version("executorch")

    def load(self, path: str, threads: int) -> Run:
        import torch

        method = self.module.load_program(path).load_method("forward")

        def run(feed: Mapping[str, Array]) -> list[Array]:
            return [each.numpy() for each in method.execute([torch.from_numpy(v) for v in feed.values()])]

        return run

    def about(self, path: str) -> dict[str, Any]:
        described = self.module.load_program(path).metadata("forward")
        tensors = [described.input_tensor_meta(index) for index in range(described.num_inputs())]
        kinds = {6: "float32", 4: "int64", 3: "int32", 11: "bool"}  # torch's own numbers of types
        inputs = [
            [f"input {i}", kinds.get(int(each.dtype()), "float32"), list(each.sizes())]
            for i, each in enumerate(tensors)
        ]
        outputs = [f"output {index}" for index in range(described.num_outputs())]
        return {"inputs": inputs, "outputs": outputs, "metadata": {}}


def _codes(value: Array, about: Mapping[str, Any]) -> Array:
    scale, zero = about["quantization"]
    if not scale:
        return value
    limits = np.iinfo(about["dtype"])
    codes: Array = np.clip(np.rint(value / scale) + zero, limits.min, limits.max).astype(about["dtype"])
    return codes


def _values(codes: Array, about: Mapping[str, Any]) -> Array:
    scale, zero = about["quantization"]
    return (codes.astype(np.float32) - zero) * np.float32(scale) if scale else codes


def _version(package: str) -> str:
    from importlib.metadata import version

    return version(package)
