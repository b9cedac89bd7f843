"""layers: what a network is made of."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.export import ExportedProgram

from ..errors import CaptureError
from ..network.naming import is_recurrent
from ..network.precision import capture_in_float32
from ..network.program import Program
from ..network.remarks import remarks
from ..runs.opening import is_folder, open_run
from ..sources.models import load_model, parse_example


def layers(
    model: Any,
    *,
    example: Any = None,
    input_shape: str | None = None,
    embeddings: bool = False,
    device: str | torch.device | None = None,
    trust: bool = False,
) -> Program:
    """The program of a network: `.layers` are its multiplies, `.skipped` says what stays in float and why.

    >>> len(layers("zoo:fashion-resnet").layers)
    22

    Arguments:
        model: zoo:NAME, hf:FOLDER, paper:NAME, FILE.pt2, package.module:function, or the folder of a run.
            In Python also an nn.Module.
        example: one batch of inputs, where neither the spec nor `input_shape` gives one.
        input_shape: the shape of one sample, as 3x224x224, where the model gives no example.
        embeddings: count embeddings as layers too.
        device: cpu, cuda or mps; default: where the network is.
        trust: as for `quantize`.
    """
    if is_folder(model):
        with open_run(model, trust=trust) as run:
            return run.program
    if input_shape is not None:
        example = parse_example(input_shape)
    if not isinstance(model, nn.Module | ExportedProgram):
        network = load_model(model, trust=trust)
        example = network.example if example is None else example
        if example is None and isinstance(network.model, nn.Module):
            raise CaptureError(
                f"model '{model}' gives no example input: pass [input_shape=3x224x224], or return a pair"
            )
        model = network.model
    return capture_in_float32(model, example, embeddings=embeddings, device=device)


def described(model: str, program: Program) -> dict[str, Any]:
    """What there is to say of a network called `model`, as JSON has it."""
    weights = sum(layer.weights for layer in program.layers)
    names = ("name", "kind", "weight_shape", "weights", "macs")
    return {
        "model": model,
        "layers": [
            {name: getattr(layer, name) for name in names}
            | {"places": [place.name for place in layer.places]}
            for layer in program.layers
        ],
        "totals": {
            "layers": len(program.layers),
            "weights": weights,
            "macs": sum(layer.macs for layer in program.layers),
            "size_mb": {str(bits): weights * bits / 8 / 1e6 for bits in (16, 8, 4)},
        },
        "batch": program.fixed_batch or "any",
        "unrolled": any(is_recurrent(multiply.node) for multiply in program.multiplies),
        "skipped": [vars(item) for item in program.skipped],
        "difference": None if program.comparison is None else program.comparison.to_json(),
        "notes": list(remarks(program)),
    }
