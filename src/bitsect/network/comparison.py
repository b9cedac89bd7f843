"""Whether a captured program answers as its network does, seen on the example."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import Tensor, nn

from ..errors import CaptureError
from ..files import first_line
from ..values import Comparison
from .binding import Inputs, call_arguments
from .operators import is_random
from .program import Program
from .quiet import quiet

FAST_PATH = (
    "in evaluation mode nn.TransformerEncoder takes a fast path that training does not; bitsect quantises "
    "the path of training, and torch.backends.mha.set_fastpath_enabled(False) makes the network take it too"
)
UNSTEADY = "the network itself answers differently from call to call"


def compare(program: Program, model: nn.Module, inputs: Inputs) -> Comparison | None:
    """The comparison of `program` with the `model` it was captured from; None where there is none to make.

    Refused is a program that predicts something else for a reason that is not known. Networks without
    weights and networks that draw random numbers are not compared.
    """
    tensors = values_of(program)
    if any(tensor.device.type == "meta" for tensor in tensors) or draws_numbers(program):
        return None
    noise = noise_of(tensors)
    try:
        captured = program.run(inputs)
    except (RuntimeError, IndexError) as error:
        way_out = "check that model(example) runs, for the longest sample too"
        if "dtype" in str(error):
            way_out = "give samples of the type that its weights have, such as float32"
        raise CaptureError(
            f"{type(model).__name__} cannot run on its example: {first_line(error)}; {way_out}"
        ) from error

    def against(outputs: Any) -> Comparison:
        return compared(_tensors(outputs), _tensors(captured), noise)

    try:
        expected = answer_of(model, inputs)
    except Exception as error:  # a network whose forward keeps what it computed may not run after tracing
        return Comparison(error=f"{type(error).__name__}: {first_line(error)}")
    found = against(expected)
    if found.is_noise:
        return found
    if not compared(_tensors(expected), _tensors(answer_of(model, inputs)), noise).is_noise:
        return replace(found, why=UNSTEADY)
    with _without_fast_path():
        if against(answer_of(model, inputs)).is_noise:
            return replace(found, why=FAST_PATH)
    if found.changed:
        raise CaptureError(
            f"{found}: look for code of {type(model).__name__} that runs only outside torch.export; "
            "to go on all the same, pass torch.export.export(model, args), which is taken as it is"
        )
    return found


def draws_numbers(program: Program) -> bool:
    """Whether the network draws random numbers, in evaluation mode too."""
    return any(node.op == "call_function" and is_random(node) for node in program.exported.graph.nodes)


def values_of(program: Program) -> list[Tensor]:
    values = [node.meta.get("val") for node in program.exported.graph.nodes]
    return [value for value in values if isinstance(value, Tensor)]


def answer_of(model: nn.Module, inputs: Inputs) -> Any:
    """What `model` makes of a copy of `inputs`; its buffers and the random state stay as they were."""
    args, kwargs = call_arguments(pytree.tree_map_only(Tensor, torch.clone, inputs))
    before = [(module, dict(module._buffers)) for module in model.modules()]
    copies = [(buffer, buffer.clone()) for buffer in model.buffers()]
    try:
        with quiet(), torch.no_grad(), torch.random.fork_rng(devices=[]):
            return model(*args, **kwargs)
    finally:
        for module, buffers in before:
            module._buffers.update(buffers)
        with torch.no_grad():
            for buffer, copy in copies:
                if not torch.equal(buffer, copy):
                    buffer.copy_(copy)


def _tensors(outputs: Any) -> list[Tensor]:
    return [leaf for leaf in pytree.tree_leaves(outputs) if isinstance(leaf, Tensor)]


def compared(expected: list[Tensor], captured: list[Tensor], noise: float) -> Comparison:
    # The fast path leaves out positions that are padding in all rows.
    if [one.shape for one in expected] != [other.shape for other in captured]:
        return Comparison(math.inf, math.inf, noise, 1, 1)
    difference = relative = 0.0
    changed = predictions = 0
    for one, other in zip(expected, captured, strict=True):
        one, other = one.detach().cpu(), other.detach().cpu()
        apart, largest = _apart(one, other)
        difference = max(difference, apart)
        relative = max(relative, apart / largest if apart else 0.0)
        ours, theirs = _predicted(other), _predicted(one)
        changed += int((ours != theirs).sum())
        predictions += ours.numel()
    return Comparison(difference, relative, noise, changed, predictions)


def _apart(one: Tensor, other: Tensor) -> tuple[float, float]:
    """The largest difference, and the largest magnitude; what is NaN or infinite in both is the same."""
    if not one.numel():
        return 0.0, 1.0
    wide = torch.complex128 if one.is_complex() else torch.float64
    one, other = one.to(wide), other.to(wide)
    same = (one == other) | (one.isnan() & other.isnan())
    apart = (one - other).abs().masked_fill(same, 0).nan_to_num(math.inf, math.inf)
    finite = one.abs().masked_fill(~one.isfinite(), 0)
    return float(apart.max()), float(finite.max()) or 1.0


def _predicted(outputs: Tensor) -> Tensor:
    """What outputs say before a task is known: their largest column, the sign of one, or whole numbers."""
    if not outputs.is_floating_point() or not outputs.numel():
        return outputs
    return outputs.argmax(-1) if outputs.ndim > 1 and outputs.shape[-1] > 1 else outputs > 0


def noise_of(tensors: list[Tensor]) -> float:
    """Half of the digits of the coarsest numbers in the network: √ε, 3·10⁻⁴ for float32."""
    coarsest = max((torch.finfo(t.dtype).eps for t in tensors if t.is_floating_point()), default=0.0)
    on_gpu = any(tensor.is_cuda for tensor in tensors)  # where products may be made in TF32
    return math.sqrt(max(coarsest, 2.0**-10 if on_gpu else 0.0))


@contextmanager
def _without_fast_path() -> Iterator[None]:
    enabled = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(enabled)
