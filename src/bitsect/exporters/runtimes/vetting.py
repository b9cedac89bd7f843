"""What a runtime is not given: an ONNX file that reads elsewhere, or whose weights are no numbers."""

from __future__ import annotations

import math
import re
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import ExportError, MissingExtraError
from ...files import reading

# Whose constants are weights and scales; others, such as masks, may be infinite.
MULTIPLIES = ("Conv", "MatMul", "Gemm", "QuantizeLinear", "Normalization")
MOST_OPERATORS = 1_000_000
IN_MEMORY = "_ORT_MEM_ADDR_"  # by which ONNX Runtime is told of an address in place of a file


def check_onnx(path: Path) -> None:
    """Refuse the ONNX file at `path` before any runtime loads it.

    Its tensors may lie in other files, wherever in the file they are: each of these must be a file of its
    own in the model's folder or below, reached through no link, and as long as the tensor says.
    """
    try:
        import onnx
    except ImportError:
        raise MissingExtraError("onnx", None, "running an ONNX model") from None
    with reading(path, ExportError, what="ONNX model", way_out="export it again"):
        model = onnx.load(path, load_external_data=False)
        messages = list(_messages(model))
        for each in messages:
            if isinstance(each, onnx.TensorProto):
                why = _why_not(path.parent, each, onnx.TensorProto.EXTERNAL)
                if why:
                    name = each.name or "of a constant"
                    raise ExportError(
                        f"{path}: the values of '{name[:80]}' {why[:200]}: save the model in one file, or "
                        "with its weights beside it"
                    )
        if model.functions and _operators(model) > MOST_OPERATORS:
            raise ExportError(
                f"{path}: its functions stand for more than {MOST_OPERATORS:,} operators: export without them"
            )
        _check_numbers(path, messages)


def _operators(model: Any) -> float:
    """How many operators `model` has with functions put where they are called; no end of them in a circle."""
    bodies = {(each.domain, each.name): each for each in model.functions}
    sizes: dict[tuple[str, str], float] = {}

    def size(message: Any) -> float:
        total = 0.0
        for node in _messages(message):
            if type(node).__name__ == "NodeProto":
                called = node.domain, node.op_type
                if called in bodies and called not in sizes:
                    sizes[called] = math.inf
                    sizes[called] = size(bodies[called])
                total += 1 + sizes.get(called, 0)
        return total

    return size(model.graph)


def _messages(message: Any) -> Iterator[Any]:
    """`message` of protobuf and all within, in graphs, functions and attributes of every kind."""
    yield message
    if type(message).__name__ == "TensorProto":
        return
    for field, value in message.ListFields():
        if field.message_type is not None:
            for each in [value] if hasattr(value, "ListFields") else value:
                yield from _messages(each)


def _why_not(folder: Path, tensor: Any, external: int) -> str | None:
    """Why the values of a tensor may not be read from where it says that they are."""
    if tensor.data_location != external and not tensor.external_data:
        return None
    told = {entry.key: entry.value for entry in tensor.external_data}
    location = told.get("location", "")
    parts = re.split(r"[/\\]", location)
    if IN_MEMORY in location:
        return "lie at an address in memory"
    if not location or "\0" in location or parts[0] == "" or ":" in location or ".." in parts:
        return f"lie outside of the model's folder ({location!r})"
    at = folder
    for part in parts:
        at /= part
        try:
            found = at.lstat()
        except OSError as error:
            return f"lie in {location!r}, which cannot be read ({error.strerror})"
        if stat.S_ISLNK(found.st_mode):
            return f"lie in {location!r}, which is a link"
    if not stat.S_ISREG(found.st_mode) or found.st_nlink > 1:
        return f"lie in {location!r}, which is no file of its own but a link, a pipe or a folder"
    sizes = told.get("offset", "0"), told.get("length", "0")
    if not all(re.fullmatch(r"\d{1,18}", size) for size in sizes) or sum(map(int, sizes)) > found.st_size:
        return f"lie beyond the end of {location!r}"
    return None


def _check_numbers(path: Path, messages: list[Any]) -> None:
    """Refuse constants that are NaN, and weights that are infinite: every answer would come from these."""
    from onnx import TensorProto, numpy_helper

    floats = (TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16, TensorProto.BFLOAT16)
    constants, weights = [], set()
    for each in messages:
        kind = type(each).__name__
        if kind == "GraphProto":
            constants += [(tensor.name, tensor) for tensor in each.initializer]
        elif kind == "NodeProto":
            constants += [(each.output[0], it.t) for it in each.attribute if it.HasField("t") and each.output]
            if any(name in each.op_type for name in MULTIPLIES):
                weights.update(each.input)
    for name, tensor in constants:
        if tensor.data_type in floats:
            values = numpy_helper.to_array(tensor, str(path.parent)).astype(np.float64, copy=False)
            if np.isnan(values).any() or (name in weights and not np.isfinite(values).all()):
                raise ExportError(f"{path}: its weights '{name[:80]}' hold NaN or infinity")
