"""One class of several for every sample."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import is_dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from ..errors import DataError
from .task import Judged


def classify(outputs: Any, labels: Tensor) -> Judged:
    """Cross-entropy, and whether the largest logit is the label's."""
    return Judged(_cross_entropy(outputs, labels), (own_answers(outputs) == labels).float())


def classify_top5(outputs: Any, labels: Tensor) -> Judged:
    """Cross-entropy, and whether the label's logit is among the five largest."""
    loss, found = _cross_entropy(outputs, labels), logits(outputs)
    best = found.topk(min(5, found.shape[1]), dim=1).indices
    return Judged(loss, (best == labels[:, None]).any(1).float())


def logits(outputs: Any) -> Tensor:
    """What a network calls `logits`, else its first floating-point output [batch, classes]."""
    named = outputs.get("logits") if isinstance(outputs, Mapping) else getattr(outputs, "logits", None)
    found = list(_tensors(outputs if named is None else named))
    for tensor in found:
        if tensor.is_floating_point() and tensor.ndim == 2:
            return tensor
    shapes = ", ".join(f"{tensor.dtype} {tuple(tensor.shape)}" for tensor in found) or "no tensor"
    raise DataError(f"the network gives {shapes}, not float [batch, classes]: give a task of your own")


def own_answers(outputs: Any) -> Tensor:
    """The classes the network itself chooses: where there are no labels, the float network's are kept."""
    return logits(outputs).argmax(1)


def divergence(float_logits: Tensor, quantised_logits: Tensor) -> Tensor:
    """KL(float ‖ quantised) = Σ p·(log p − log q) of each sample, in float64: small ones count."""
    log_p = float_logits.double().log_softmax(1)
    log_q = quantised_logits.double().log_softmax(1)
    return F.kl_div(log_q, log_p, reduction="none", log_target=True).sum(1).clamp(min=0)


def check_labels(labels: Tensor, classes: int, what: str = "sample") -> None:
    """Refuse labels that are not one class per sample; index i of `labels` is called `what` i."""
    if labels.ndim != 1 or labels.is_floating_point():
        raise DataError(
            f"labels {labels.dtype} {tuple(labels.shape)}: classification takes one integer for each sample"
        )
    outside = ((labels < 0) | (labels >= classes)).nonzero().flatten()
    if len(outside):
        index = int(outside[0])
        raise DataError(
            f"{what} {index} has label {int(labels[index])}, but the network has {classes} classes "
            f"(0 to {classes - 1}): give the labels it was trained with"
        )


def _cross_entropy(outputs: Any, labels: Tensor) -> Tensor:
    found = logits(outputs)
    check_labels(labels, found.shape[1], "row")
    # At least float32, whatever a network in half precision gives.
    wide = found.to(torch.promote_types(found.dtype, torch.float32))
    return F.cross_entropy(wide, labels, reduction="none")


def _tensors(outputs: Any) -> Iterator[Tensor]:
    if isinstance(outputs, Tensor):
        yield outputs
        return
    if is_dataclass(outputs) and not isinstance(outputs, Mapping):
        outputs = vars(outputs)
    if isinstance(outputs, Mapping):
        outputs = list(outputs.values())
    if isinstance(outputs, (tuple, list)):
        for part in outputs:
            yield from _tensors(part)
