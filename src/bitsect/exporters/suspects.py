"""Which layer of a quantised file did the damage: where values or weights leave those of the float file.

Values: every tensor x' of the quantised file is compared with x of the float file, by its name. With the
relative error e = ‖x' − x‖ / ‖x‖, a layer adds what the error behind it exceeds the largest one before it by.
Weights: those of integer kernels are multiplied by their scales, paired with float weights of the same
shape, by name or by the largest cosine, and held against them.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from ..errors import BitsectError
from .runtimes.foreign import ForeignModel
from .runtimes.onnxruntime import Array

LAYERS = ("Conv", "ConvTranspose", "MatMul", "Gemm")
CLEAR_ERROR = 0.1  # of a layer's values or weights: 8 bits leave about a hundredth, 4 bits a tenth
CLEAR_FACTOR = 3.0  # above what the layers of the same file have in the middle
MOST_NAMED = 3
MOST_TENSORS = 2_000
LARGEST_BYTES = 2**30  # of a file that is compared
# Where codes, scale and zero point stand among the inputs of operators that hold weights as codes.
CODES = {
    "QLinearConv": (3, 4, 5),
    "QLinearMatMul": (3, 4, 5),
    "QGemm": (3, 4, 5),
    "MatMulIntegerToFloat": (1, 3, 5),
    "DynamicQuantizeMatMul": (1, 2, 3),
    "DequantizeLinear": (0, 1, 2),
}


Feeds = tuple[Path, Path]  # the same sample as the float file takes it, and as the other does


@dataclass(frozen=True)
class Suspect:
    """A layer that is far from the float file's, and how."""

    layer: str
    error: float  # relative, of its own
    why: str

    def to_json(self) -> dict[str, Any]:
        return {"layer": self.layer, "error": self.error, "why": self.why}


@dataclass(frozen=True)
class Step:
    """A node of the float graph; a layer where it multiplies by a weight or by values."""

    name: str
    operator: str
    inputs: tuple[str, ...]
    output: str
    weight: Array | None = None
    weight_name: str = ""

    @property
    def is_layer(self) -> bool:
        return self.operator in LAYERS


def suspects(reference: ForeignModel, model: ForeignModel, feeds: Sequence[Feeds]) -> tuple[Suspect, ...]:
    """The layers to look at, the worst first; none where nothing stands out or nothing can be compared."""
    if reference.path.suffix != ".onnx" or reference.path.stat().st_size > LARGEST_BYTES:
        return ()
    steps = _steps(reference.path)
    by_weight = _by_weights(steps, model.path) if model.path.suffix == ".onnx" else {}
    try:
        by_value = _by_values(steps, _errors(steps, reference, model, feeds))
    except BitsectError:  # the graph of another maker may not run with more outputs
        by_value = {}
    found = []
    for name in by_weight.keys() | by_value.keys():
        error, words = by_value.get(name, (0.0, ""))
        weight_error, weight_words = by_weight.get(name, (0.0, ""))
        words = weight_words if weight_error >= error / 2 else words
        found.append(Suspect(name, max(error, weight_error), words))
    return tuple(sorted(found, key=lambda each: (-each.error, each.layer))[:MOST_NAMED])


def _standing_out(errors: Mapping[str, float]) -> list[str]:
    """The names whose error is large, and far above that of the others."""
    if not errors:
        return []
    least = max(CLEAR_ERROR, CLEAR_FACTOR * median(errors.values()))
    return [name for name, error in errors.items() if error > least]


def _by_values(steps: Sequence[Step], error: Mapping[str, float]) -> dict[str, tuple[float, str]]:
    """What layers add to the relative error of the values, by layer, where that stands out.

    Where no tensor between two layers is known in both files, what they add is told of both.
    """
    before: dict[str, float] = {}  # the error of the nearest tensors that are known, up to a tensor
    since: dict[str, tuple[str, ...]] = {}  # the layers between these and the tensor
    own: dict[str, float] = {}
    for step in steps:
        least = max((before.get(name, 0.0) for name in step.inputs), default=0.0)
        passed = tuple(dict.fromkeys(each for name in step.inputs for each in since.get(name, ())))
        passed += (step.name,) if step.is_layer else ()
        if step.output in error:
            for name in passed or (step.name,):
                own[name] = max(own.get(name, 0.0), error[step.output] - least)
            least, passed = error[step.output], ()
        before[step.output], since[step.output] = least, passed
    return {
        name: (own[name], f"values behind it are off by {own[name]:.0%} more than before it")
        for name in _standing_out(own)
    }


def _errors(
    steps: Sequence[Step], reference: ForeignModel, model: ForeignModel, feeds: Sequence[Feeds]
) -> dict[str, float]:
    """The relative error of every tensor that both files have under one name, or as its codes."""
    (known,) = model.apart.ask({"do": "values", "path": str(model.path)})
    names, codes = set(known["names"]), _codes_of_values(model.path)
    held = {step.output: step.output for step in steps if step.output in names}
    held |= {name: own for name, (own, *_) in codes.items() if name not in held and own in names}
    shared = [step.output for step in steps if step.output in held][:MOST_TENSORS]
    cut = {step.output: step.operator for step in steps if step.operator in ("Relu", "Clip")}
    moved, size = dict.fromkeys(shared, 0.0), dict.fromkeys(shared, 0.0)
    with tempfile.TemporaryDirectory() as folder:
        for feed in feeds if shared else ():
            place = Path(folder) / "values.npz"
            before = _values(reference, shared, feed[0], place)
            after = _values(model, [held[name] for name in shared], feed[1], place)
            for name, x, y in zip(shared, before, after, strict=True):
                if held[name] != name:
                    _, scale, zero = codes[name]
                    x = np.maximum(x, 0) if zero == np.iinfo(y.dtype).min else x
                    y = (y.astype(np.float64) - zero) * scale
                elif name in cut and x.size:  # where rounding cuts values off, the rectifier is gone
                    y = np.clip(y, x.min(), None if cut[name] == "Relu" else x.max())
                if x.shape == y.shape and np.issubdtype(x.dtype, np.floating):
                    moved[name] += float(((y - x).astype(np.float64) ** 2).sum())
                    size[name] += float((x.astype(np.float64) ** 2).sum())
    return {name: (moved[name] / size[name]) ** 0.5 for name in shared if size[name] > 0}


def _codes_of_values(path: Path) -> dict[str, tuple[str, float, float]]:
    """Under the name of a float tensor: the one that holds its codes, with scale and zero point.

    So ONNX Runtime's own tool names them in the form without QuantizeLinear.
    """
    if path.suffix != ".onnx":
        return {}
    import onnx
    from onnx import numpy_helper

    graph = onnx.load(path).graph
    single = {each.name: numpy_helper.to_array(each) for each in graph.initializer if not each.dims}
    made = {name.removesuffix("_quantized"): name for node in graph.node for name in node.output}
    return {
        name: (own, float(single[f"{name}_scale"]), float(single[f"{name}_zero_point"]))
        for name, own in made.items()
        if own != name and f"{name}_scale" in single and f"{name}_zero_point" in single
    }


def _values(model: ForeignModel, names: Sequence[str], feed: Path, out: Path) -> list[Array]:
    request = {"do": "values", "path": str(model.path), "feed": str(feed), "out": str(out)}
    list(model.apart.ask({**request, "names": list(names)}))
    with np.load(out, allow_pickle=False) as file:
        return [file[name] for name in file.files]


def _by_weights(steps: Sequence[Step], path: Path) -> dict[str, tuple[float, str]]:
    """How far weights are from the float ones, by layer, where that stands out."""
    if path.stat().st_size > LARGEST_BYTES:
        return {}
    held = list(_written_weights(path))
    errors, gains = {}, {}
    for layer in steps:
        if layer.weight is None or layer.weight.size < 2 or not np.any(layer.weight):
            continue
        other = _match(layer, held)
        if other is not None:
            w, q = layer.weight.astype(np.float64).ravel(), other.astype(np.float64).ravel()
            errors[layer.name] = float(np.linalg.norm(q - w) / np.linalg.norm(w))
            gains[layer.name] = float(q @ w / (w @ w))
    return {
        name: (errors[name], f"its weights are {gains[name]:.2f} × the float ones, off by {errors[name]:.0%}")
        for name in _standing_out(errors)
    }


def _match(layer: Step, held: Iterable[tuple[str, Array]]) -> Any:
    """The weight that stands for this layer's: of the same shape, by name, else the one most like it."""
    assert layer.weight is not None
    best: tuple[float, Array | None] = (0.5, None)  # of a cosine that is no accident
    for name, each in held:
        turned = each.T if each.ndim == 2 and each.shape != layer.weight.shape else each
        if turned.shape != layer.weight.shape:
            continue
        a, b = layer.weight.astype(np.float64).ravel(), turned.astype(np.float64).ravel()
        norms = float(np.linalg.norm(a)) * float(np.linalg.norm(b))
        cosine = float(a @ b) / max(norms, 1e-300)
        cosine += 1.0 if name and layer.weight_name.startswith(name) else 0.0
        if cosine > best[0]:
            best = cosine, turned
    return best[1]


def _steps(path: Path) -> list[Step]:
    import onnx
    from onnx import numpy_helper

    graph = onnx.load(path).graph
    weights, found = {each.name: each for each in graph.initializer}, []
    for node in graph.node:
        name = node.name or (node.output[0] if node.output else "")
        held = next((each for each in node.input[1:2] if node.op_type in LAYERS and each in weights), "")
        weight = numpy_helper.to_array(weights[held]) if held else None
        name = held.removesuffix(".weight") if held.endswith(".weight") else name
        for output in node.output:
            found.append(Step(name, node.op_type, tuple(node.input), output, weight, held))
    return found


def _written_weights(path: Path) -> Iterator[tuple[str, Array]]:
    """The weights of a quantised graph as the numbers that they stand for, each with the stem of its name."""
    import onnx
    from onnx import numpy_helper

    graph = onnx.load(path).graph
    held = {each.name: each for each in graph.initializer}

    def array(name: str) -> Array | None:
        return numpy_helper.to_array(held[name]) if name in held else None

    for node in graph.node:
        codes: tuple[str, str, str] | None = None
        if node.op_type in CODES:
            places = CODES[node.op_type]
            names = [node.input[place] if place < len(node.input) else "" for place in places]
            codes = names[0], names[1], names[2]
        elif node.op_type in ("MatMulInteger", "ConvInteger"):
            stem = node.input[1].removesuffix("_quantized")
            codes = node.input[1], f"{stem}_scale", node.input[3] if len(node.input) > 3 else ""
        elif node.op_type in LAYERS and node.input[1] in held:
            yield node.input[1], numpy_helper.to_array(held[node.input[1]])
        if codes is None or (values := array(codes[0])) is None or (scale := array(codes[1])) is None:
            continue
        axis = next((each.i for each in node.attribute if each.name == "axis"), 1)
        if node.op_type in ("QLinearConv", "ConvInteger"):
            axis = 0
        elif node.op_type != "DequantizeLinear":
            axis = values.ndim - 1
        if scale.ndim in (0, 1) and axis < values.ndim and scale.size in (1, values.shape[axis]):
            shape = [1] * values.ndim
            shape[axis] = scale.size
            zero = array(codes[2])
            zero = np.zeros(1) if zero is None else zero.astype(np.float64)
            real = (
                values.astype(np.float64) - zero.reshape(shape if zero.size > 1 else [1] * values.ndim)
            ) * (scale.astype(np.float64).reshape(shape))
            yield codes[0].removesuffix("_quantized"), real
