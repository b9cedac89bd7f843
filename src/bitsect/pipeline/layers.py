"""layers: what a network is made of."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.export import ExportedProgram

from ..errors import CaptureError
from ..network.precision import capture_in_float32
from ..network.program import Program
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
        model: a network, a spec such as `FILE.pt2`, or the folder of a run.
        example: one batch of inputs, where neither the spec nor `input_shape` gives one.
        input_shape: the shape of one sample, as `3x224x224`.
        embeddings: whether embeddings count as layers too.
        device: where the network is to be; default: where it is.
        trust: load a .pt2 file even if that runs code of its author.
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
