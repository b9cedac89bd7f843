"""Any PyTorch network as a program whose layers are its multiplies."""

from __future__ import annotations

import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from .errors import CaptureError
from .graph import describe
from .operators import DECOMPOSITIONS
from .program import Inputs, Program, call_arguments


def capture(
    model: nn.Module | ExportedProgram,
    example: Inputs = None,
    *,
    embeddings: bool = False,
    device: str | torch.device | None = None,
) -> Program:
    """The program of `model`, with a batch of any size where the network allows it.

    `example` is one batch of inputs: a tensor, a tuple of positional arguments or a dictionary of
    keyword arguments. The model is captured in evaluation mode and left as it was.

    >>> program = capture(nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU()), torch.zeros(2, 1, 8, 8))
    >>> [(layer.name, layer.kind, layer.macs) for layer in program.layers]
    [('0', 'conv2d', 1296)]
    """
    if isinstance(model, ExportedProgram):
        exported, example = model, example if example is not None else _stored_example(model)
    else:
        if example is None:
            raise CaptureError("a network needs an example input to be captured: capture(model, example)")
        exported = _export(model, _at_least_two(example))
    if device is not None:
        exported = _on_device(exported, torch.device(device))
    with _quiet():
        functional = exported.run_decompositions(DECOMPOSITIONS)
    return describe(functional, example, embeddings=embeddings)


def _export(model: nn.Module, example: Inputs) -> ExportedProgram:
    args, kwargs = call_arguments(example)
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        with _quiet(), torch.no_grad():
            try:
                return torch.export.export(model, args, kwargs, dynamic_shapes=_dynamic(args, kwargs))
            except Exception:  # some networks hold their batch fixed; the error below speaks of the rest
                return torch.export.export(model, args, kwargs)
    except Exception as error:
        raise CaptureError(_explain(error, model)) from error
    finally:
        for module in training:
            module.training = True


def _dynamic(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    batch = Dim("batch", min=1)

    def shape(leaf: Any) -> Any:
        return {0: batch} if isinstance(leaf, Tensor) and leaf.ndim else None

    if kwargs:
        return pytree.tree_map(shape, kwargs)
    return pytree.tree_map(shape, args)


def _at_least_two(example: Inputs) -> Inputs:
    """The example with its single sample doubled: torch.export takes a batch of one for a constant."""

    def double(leaf: Any) -> Any:
        return (
            torch.cat([leaf, leaf]) if isinstance(leaf, Tensor) and leaf.ndim and leaf.shape[0] == 1 else leaf
        )

    return pytree.tree_map(double, example)


def _stored_example(exported: ExportedProgram) -> Inputs:
    if exported.example_inputs is None:
        raise CaptureError(
            "the exported program holds no example input: pass one, or export it again with one"
        )
    args, kwargs = exported.example_inputs
    return kwargs if kwargs else args


def _on_device(exported: ExportedProgram, device: torch.device) -> ExportedProgram:
    from torch.export.passes import move_to_device_pass

    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise CaptureError(f"device '{device}' cannot be used here: {str(error).splitlines()[0]}") from None
    return move_to_device_pass(exported, device)


@contextmanager
def _quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _explain(error: BaseException, model: nn.Module) -> str:
    """One line: which line of the user's code, why, what to change."""
    torch_home = str(Path(torch.__file__).parent)
    own_home = str(Path(__file__).parent)
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith((torch_home, own_home, "<")) and "contextlib" not in frame.filename
    ]
    where = f" at {frames[-1].filename}:{frames[-1].lineno} `{frames[-1].line}`" if frames else ""
    text = str(error).strip()
    why = text.splitlines()[0] if text else type(error).__name__
    kind = type(error).__name__
    if "DataDependent" in kind or "data-dependent" in text:
        way_out = "replace the Python branch on tensor values by torch.where or torch.cond"
    elif "unsupported" in text.lower() or "Unsupported" in kind:
        way_out = "move this call out of forward, or replace it by a tensor operation"
    else:
        way_out = "check that model(example) runs, then mend this line"
    return f"{type(model).__name__} cannot be captured{where}: {why} ({kind}); {way_out}"
