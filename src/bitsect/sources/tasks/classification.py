"""One class of several for every sample, or one of two by the sign of a single logit."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from ...errors import DataError
from .outputs import OWN_TASK, classes, divergence, logits
from .task import Outcome, SampleError, Task


def classify(outputs: Any, labels: Tensor) -> Outcome:
    """Cross-entropy, and whether the largest logit is the label's; of a single logit, whether its sign is."""
    found = classes(outputs)
    labels = _class_labels(outputs, labels)
    return Outcome(_cross_entropy(found, labels), (found.argmax(1) == labels).float())


def classify_top5(outputs: Any, labels: Tensor) -> Outcome:
    """Cross-entropy, and whether the label's logit is among the five largest."""
    _refuse_one_logit(outputs, "is among the five largest whatever it is: judge by classification")
    found = classes(outputs)
    if found.shape[1] <= 5:
        raise DataError(
            f"each of {found.shape[1]} classes is among the five largest: judge by classification"
        )
    labels = _class_labels(outputs, labels)
    best = found.topk(min(5, found.shape[1]), dim=1).indices
    return Outcome(_cross_entropy(found, labels), (best == labels[:, None]).any(1).float())


def classify_binary(outputs: Any, labels: Tensor) -> Outcome:
    """Binary cross-entropy of a single logit, and whether its sign is the label's: 0 below, 1 above zero."""
    _need_one_logit(outputs)
    return classify(outputs, labels)


def class_answers(outputs: Any) -> Tensor:
    """The class with the largest logit; a single column is refused, as it may be no class at all."""
    _refuse_one_logit(
        outputs,
        "without labels may be a logit or a quantity: for a logit judge by task binary "
        f"(its sign is kept), else {OWN_TASK}",
    )
    return classes(outputs).argmax(1)


def binary_answers(outputs: Any) -> Tensor:
    """1 where the logit is above zero, else 0."""
    _need_one_logit(outputs)
    return classes(outputs).argmax(1)


def class_divergence(reference: Any, outputs: Any) -> Tensor:
    """KL(reference ‖ outputs) between the classes of each sample."""
    return divergence(classes(reference), classes(outputs))


def expected_class(reference: Any, outputs: Any) -> Tensor:
    """How likely the class with the largest logit is, as the reference has it."""
    return _chances(reference).gather(1, classes(outputs).argmax(1, keepdim=True))[:, 0]


def expected_top5(reference: Any, outputs: Any) -> Tensor:
    """How likely one of the five classes with the largest logits is, as the reference has it."""
    found = classes(outputs)
    best = found.topk(min(5, found.shape[1]), dim=1).indices
    return _chances(reference).gather(1, best).sum(1).clamp(max=1.0)


def _chances(reference: Any) -> Tensor:
    found = classes(reference)
    return found.to(torch.promote_types(found.dtype, torch.float32)).softmax(1)


def are_one_hot(labels: Tensor) -> bool:
    """Whether each row of labels is 1 for one class, and 0 for all others."""
    is_table = labels.ndim == 2 and labels.shape[1] > 1
    return is_table and bool((((labels == 0) | (labels == 1)).all(1) & (labels.sum(1) == 1)).all())


def as_classes(labels: Tensor) -> Tensor:
    """Labels as one whole number for each sample, where they are so in a column, as floats or one-hot."""
    if are_one_hot(labels):
        return labels.int().argmax(1)
    flat = labels.flatten() if labels.numel() == len(labels) else labels
    is_whole = not flat.is_floating_point() or bool((flat == flat.round()).all())
    return flat.to(torch.int64) if is_whole else flat


def most_common(labels: Tensor, answers: int = 1) -> float:
    """The share of the labels that is one of the `answers` most common classes."""
    labels = as_classes(labels)
    counts = np.unique(labels.cpu().numpy(), return_counts=True)[1]
    return float(np.sort(counts)[-answers:].sum()) / labels.numel()


def check_labels(labels: Tensor, classes: int) -> None:
    """Refuse labels that are not one class per sample."""
    if labels.ndim != 1 or labels.is_floating_point():
        raise DataError(
            f"labels {labels.dtype} {tuple(labels.shape)}: classification takes one integer for each "
            f"sample, or a row that is 1 for its class; for anything else {OWN_TASK}"
        )
    outside = ((labels < 0) | (labels >= classes)).nonzero().flatten()
    if len(outside):
        row = int(outside[0])
        raise SampleError(
            row,
            f"has label {int(labels[row])}, but the network has {classes} classes "
            f"(0 to {classes - 1}): give the labels it was trained with",
        )


def _class_labels(outputs: Any, labels: Tensor) -> Tensor:
    """The labels as classes of these outputs; those of a single logit may be floats, and in a column."""
    columns = logits(outputs).shape[1]
    if columns > 1:
        if are_one_hot(labels) and labels.shape[1] != columns:
            raise DataError(f"one-hot labels of {labels.shape[1]} classes: the network has {columns}")
        labels = as_classes(labels)
        check_labels(labels, columns)
        return labels
    flat = labels.flatten()
    other = ((flat != 0) & (flat != 1)).nonzero().flatten()
    if len(flat) != len(labels) or len(other):
        shown = f"label {flat[other[0]].item():g}" if len(other) else f"labels {tuple(labels.shape)}"
        raise DataError(
            f"the network gives one number for each sample, a logit if labels are 0 or 1, not {shown}: "
            f"judge a quantity by [task=regression] (its ranks are kept), or {OWN_TASK}"
        )
    return flat.to(torch.int64)


def _need_one_logit(outputs: Any) -> None:
    columns = logits(outputs).shape[1]
    if columns > 1:
        raise DataError(f"task binary takes a single logit, the network gives {columns}: use classification")


def _refuse_one_logit(outputs: Any, why: str) -> None:
    if logits(outputs).shape[1] == 1:
        raise DataError(f"one number for each sample {why}")


def _cross_entropy(found: Tensor, labels: Tensor) -> Tensor:
    # At least float32, whatever a network in half precision gives.
    wide = found.to(torch.promote_types(found.dtype, torch.float32))
    return F.cross_entropy(wide, labels, reduction="none")


CLASSIFICATION = Task(
    "classification",
    classify,
    answer=class_answers,
    diverge=class_divergence,
    expect=expected_class,
    chance=most_common,
    needs_logits=True,
)
TOP5 = Task(
    "classification-top5",
    classify_top5,
    answer=class_answers,
    diverge=class_divergence,
    expect=expected_top5,
    chance=lambda labels: most_common(labels, 5),
    needs_logits=True,
)
BINARY = Task(
    "binary",
    classify_binary,
    answer=binary_answers,
    diverge=class_divergence,
    expect=expected_class,
    chance=most_common,
    needs_logits=True,
)
