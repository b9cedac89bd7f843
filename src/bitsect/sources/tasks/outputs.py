"""What a network gives, by name; and the one output among it that holds the logits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import is_dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from ...errors import DataError

IGNORED = -100  # the label of a position that is not judged, as everywhere in PyTorch
OWN_TASK = (
    "judge all outputs against the float network's by [task=outputs], or give a task of your own, "
    "task=f with f(outputs, labels) → (loss, score) of every sample"
)

# Where the samples of an output lie: along which axis, and how many entries there each of them has.
Axis = tuple[int, int]


def named_tensors(outputs: Any) -> dict[str, Tensor]:
    """Every tensor among the outputs by its name: `logits`, `parts.0`; a bare tensor has the empty name.

    >>> list(named_tensors({"logits": torch.zeros(1), "parts": (torch.zeros(1), None)}))
    ['logits', 'parts.0']
    """
    return dict(_walk(outputs, ""))


def pick(outputs: Any, name: str) -> Tensor:
    """The output called `name`."""
    tensors = named_tensors(outputs)
    if name not in tensors:
        given = f"it gives {', '.join(tensors)}" if any(tensors) else "its one output has no name"
        raise DataError(f"the network has no output '{name}': {given}")
    return tensors[name]


def rows_of(output: Tensor, axis: Axis) -> Tensor:
    """An output as [batch, values]."""
    along, entries = axis
    moved = output.movedim(along, 0)
    return moved.reshape(len(moved) // entries, -1)


def as_numbers(rows: Tensor) -> Tensor:
    """[batch, values] with complex numbers as pairs, and floats of at least float32."""
    if rows.is_complex():
        return torch.view_as_real(rows).flatten(1)
    return rows.to(torch.promote_types(rows.dtype, torch.float32)) if rows.is_floating_point() else rows


def logits_name(outputs: Any) -> str:
    """The name of the output with the logits: the one called `logits`, else the only float [batch, classes].

    Where no output is [batch, classes], the only float [batch] is taken for one logit.
    """
    tensors = named_tensors(outputs)
    among = {"logits": tensors["logits"]} if "logits" in tensors else tensors
    for axes in (2, 1):
        fitting = [n for n, tensor in among.items() if tensor.is_floating_point() and tensor.ndim == axes]
        if len(fitting) > 1:
            raise DataError(
                f"several outputs could be the logits ({', '.join(fitting)}): "
                f"name one with [output=NAME], or {OWN_TASK}"
            )
        if fitting:
            return fitting[0]
    shapes = ", ".join(f"{tensor.dtype} {tuple(tensor.shape)}" for tensor in among.values()) or "no tensor"
    raise DataError(f"the network gives {shapes}, not float [batch, classes]: {OWN_TASK}")


def logits(outputs: Any) -> Tensor:
    """The logits among the outputs as [batch, columns]; `choose` says which output holds them."""
    found = pick(outputs, logits_name(outputs))
    return found if found.ndim == 2 else found[:, None]


def classes(outputs: Any) -> Tensor:
    """The logits of two classes or more: a single logit z stands for the two classes [0, z].

    So its class is its sign, its cross-entropy the binary one, and its divergence that of two coins.
    """
    found = logits(outputs)
    return torch.cat([torch.zeros_like(found), found], 1) if found.shape[1] == 1 else as_logits(found)


def as_logits(found: Tensor) -> Tensor:
    """Logits as they are; of probabilities, as a network that ends in a softmax gives them, the logarithms.

    These are its logits but for a constant in each row, so that all that is made of logits is the same. In
    float64, where no two classes become equally likely by it.

    >>> as_logits(torch.tensor([[0.25, 0.75]])).exp()
    tensor([[0.2500, 0.7500]], dtype=torch.float64)
    """
    wide = found.double()
    off = (wide.sum(1) - 1).abs() > torch.finfo(found.dtype).eps ** 0.5 / 3  # 1e-4 in float32
    if found.shape[1] < 2 or bool((wide < 0).any() | off.any()):
        return found
    return wide.clamp(min=torch.finfo(torch.float32).tiny).log()


def divergence(reference: Tensor, logits: Tensor) -> Tensor:
    """KL(reference ‖ logits) = Σ p·(log p − log q) of each sample, in float64: small ones count."""
    log_p = reference.double().log_softmax(1)
    log_q = logits.double().log_softmax(1)
    return F.kl_div(log_q, log_p, reduction="none", log_target=True).sum(1).clamp(min=0)


def _walk(outputs: Any, name: str) -> Iterator[tuple[str, Tensor]]:
    if isinstance(outputs, Tensor):
        yield name, outputs
        return
    if isinstance(outputs, Mapping):
        parts = dict(outputs)
    elif is_dataclass(outputs):
        parts = dict(vars(outputs))
    elif isinstance(outputs, tuple | list):
        parts = dict(zip(getattr(outputs, "_fields", range(len(outputs))), outputs, strict=True))
    else:
        return
    for key, part in parts.items():
        yield from _walk(part, f"{name}.{key}" if name else str(key))
