"""Writing packed files.

Tensors of the network keep their names, and are held in 16 bits where that loses nothing. Of a weight NAME
in codes the file holds NAME.codes, a row of bytes, channel by channel (two codes to a byte where they have 3
or 4 bits, the first in the lower half, each with 8 added), and NAME.scales; of a fitted bias
PLACE.fitted_bias. All else stands in the metadata, as JSON.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from ... import __version__
from ...errors import ExportError
from ...network.exported_program import constants_of
from ...network.program import Program
from ..constants import needed_constants, rounded_weights
from ..exporter import Written
from ..subject import Subject
from .codes import HeldCodes, narrowest
from .graph import architecture

KEY, VERSION = "bitsect", 1


def write_packed(
    subject: Subject, path: Path, destination: str | None = None, metadata: Mapping[str, str] | None = None
) -> Written:
    """The program under its plan, packed into `path`."""
    tensors, weights = packed_tensors(subject)
    program, rounder = subject.program, subject.rounder
    about = {
        "bitsect": "packed model",
        "version": VERSION,
        "written_by": f"bitsect {__version__}",
        "torch": torch.__version__,
        "architecture": architecture(program),
        "plan": subject.plan.to_json(),
        "placement": rounder.placement.name,
        "rounding": rounder.rounding,
        "ranges": None if rounder.ranges is None else rounder.ranges.to_json(),
        "tensors": list(program.tensors),
        "weights": weights,
        "example": described(program.example),
        "sequences": program.any_length,
        "embeddings": any(layer.kind == "embedding" for layer in program.layers),
        "device": program.device.type,
        "run": dict(metadata or {}),
        "digest": digest(tensors),
    }
    try:
        path.touch()  # with the rights of other files, where the library's are for its writer alone
        rights = path.stat().st_mode
        # One entry alone: the library writes several in an order that changes from run to run.
        save_file(tensors, path, {KEY: json.dumps(about, sort_keys=True, ensure_ascii=False)})
        path.chmod(rights)
    except OSError as error:
        raise ExportError(f"{path} cannot be written: {error.strerror or error}") from error
    return Written(path, None, path.stat().st_size)


def packed_tensors(subject: Subject) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Everything that the file holds by name, and the name of the weight in codes at each place."""
    program, rounder, plan = subject.program, subject.rounder, subject.plan
    needed = needed_constants(program, plan)
    tensors = {name: narrowest(value.cpu()).contiguous().clone() for name, (_, value) in needed.items()}
    _, targets = constants_of(program.exported)
    named: dict[Any, str] = {}
    weights: dict[str, str] = {}
    for multiply, operand in rounded_weights(program, plan):
        format = plan[multiply.layer]
        assert operand.layout is not None
        key = (operand.node, operand.layout)
        if key not in named:
            name = targets.get(operand.node, operand.node.name)
            name = name if f"{name}.codes" not in tensors else f"{name}.{multiply.place.name}"
            value = program.constant(operand.node)
            held = HeldCodes(value.shape, value.dtype, operand.layout, format)
            codes, scales = held.pack(rounder.codes(multiply.layer, operand, format))
            tensors[f"{name}.codes"], tensors[f"{name}.scales"] = codes.cpu(), scales.cpu()
            named[key] = name
        weights[multiply.place.name] = named[key]
        if rounder.has_fitted_bias(multiply, format):
            bias = rounder.fitted.biases[multiply.node, format]
            tensors[f"{multiply.place.name}.fitted_bias"] = bias.cpu().contiguous()
    return tensors, weights


def digest(tensors: Mapping[str, Tensor]) -> str:
    """A hash of all tensors: safetensors itself has none, and a changed byte would be another model."""
    found = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        found.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        found.update(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return found.hexdigest()


def described(example: Any) -> Any:
    """The shapes and types of an example, without its values.

    >>> described({"x": torch.zeros(2, 3)})
    {'by_name': [['x', {'shape': [2, 3], 'dtype': 'float32'}]]}
    """
    if isinstance(example, Tensor):
        return {"shape": list(example.shape), "dtype": str(example.dtype).removeprefix("torch.")}
    if isinstance(example, Mapping):
        return {"by_name": [[name, described(value)] for name, value in example.items()]}
    if isinstance(example, list | tuple):
        return {"in_order": [described(value) for value in example]}
    return {"value": example}


def float_bytes(program: Program) -> int:
    """What the parameters, buffers and constants of the float network take."""
    tensors = [value for value in program.contents.constants.values() if isinstance(value, Tensor)]
    return sum(value.numel() * value.element_size() for value in tensors)
