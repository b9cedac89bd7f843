"""Networks in another precision, captured as if their weights were in float32."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import Tensor, nn
from torch.export import ExportedProgram

from ..errors import CaptureError
from .binding import Inputs
from .capture import capture
from .program import Program

OTHERS = (torch.float16, torch.bfloat16, torch.float64)


def capture_in_float32(model: nn.Module | ExportedProgram, example: Inputs = None, **options: Any) -> Program:
    """`capture` of the network with weights and inputs in float32; as it is where it cannot be taken so."""
    if not isinstance(model, nn.Module):
        return capture(model, example, **options)
    tensors = [leaf for leaf in pytree.tree_leaves(example) if isinstance(leaf, Tensor)]
    given = {parameter.dtype for parameter in model.parameters() if parameter.dtype in OTHERS}
    if not given and not any(leaf.dtype in OTHERS for leaf in tensors):
        return capture(model, example, **options)
    as_float32 = pytree.tree_map_only(Tensor, _wide, example)
    try:
        if given and options.get("shared"):  # nobody else holds it
            program = capture(model.float(), as_float32, **options)
        else:
            with _in_float32(model):
                program = capture(model, as_float32, **options)
    except CaptureError as error:
        try:
            return capture(model, example, **options)
        except CaptureError:
            raise error from None
    program.given_in = ", ".join(sorted(str(dtype).removeprefix("torch.") for dtype in given))
    return program


@contextmanager
def _in_float32(model: nn.Module) -> Iterator[None]:
    """`model` with parameters and buffers in float32, and as it was afterwards."""
    before = {tensor: tensor.data for tensor in chain(model.parameters(), model.buffers())}
    try:
        for tensor in before:
            tensor.data = _wide(tensor.data)
        yield
    finally:
        for tensor, data in before.items():
            tensor.data = data


def _wide(tensor: Tensor) -> Tensor:
    return tensor.float() if tensor.dtype in OTHERS else tensor
