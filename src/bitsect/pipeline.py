"""The whole story, one stage per line."""

from __future__ import annotations

import torch

from .capture import capture
from .errors import CaptureError
from .models import load_model, parse_example
from .program import Inputs, Program


def capture_model(
    spec: str,
    *,
    example: Inputs = None,
    input_shape: str | None = None,
    trust: bool = False,
    embeddings: bool = False,
    device: str | torch.device | None = None,
) -> Program:
    """The program of the network that `spec` names."""
    network = load_model(spec, trust=trust)
    if input_shape is not None:
        example = parse_example(input_shape)
    if example is None:
        example = network.example
    if example is None and isinstance(network.model, torch.nn.Module):
        raise CaptureError(
            f"model '{spec}' gives no example input: pass --input-shape 3x224x224, or return a pair"
        )
    return capture(network.model, example, embeddings=embeddings, device=device)
