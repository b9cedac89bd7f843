"""Which task fits what a network gives and the labels there are, where nobody names one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from ...errors import DataError
from .classification import are_one_hot
from .outputs import Axis, logits_name, pick

CLASSES, OUTPUTS = "classification", "outputs"


def fitting_task(example: Any, axes: Mapping[str, Axis], labels: Tensor | None) -> tuple[str, str]:
    """The name of the task, and why it is not classification.

    `example` is what the network gives, as tensors without values, and `axes` say where its samples lie.
    """
    try:
        name = logits_name(example)
    except DataError as error:
        several = error.message.partition(": ")[0]
        unclear = f"{several}, of which [output=NAME] takes one"
        return OUTPUTS, unclear if several.startswith("several") else "the outputs are no logits of classes"
    found = pick(example, name)
    if axes.get(name) != (0, 1) or (found.ndim == 2 and not isinstance(found.shape[1], int)):
        return OUTPUTS, "the outputs are not the logits of classes of single samples"
    columns = found.shape[1] if found.ndim == 2 else 1
    if labels is None:
        one_number = "one number for each sample, without labels, may be a logit or a quantity"
        return (OUTPUTS, one_number) if columns == 1 else (CLASSES, "")
    flags = bool(((labels == 0) | (labels == 1)).all())
    if columns > 1 and labels.shape == (len(labels), columns) and flags:
        if are_one_hot(labels):
            return CLASSES, ""
        return "multi-label", f"labels are 0 or 1 for each of {columns} classes"
    is_one_each = labels.numel() == len(labels)
    if is_one_each and (flags or (columns > 1 and bool((labels == labels.round()).all()))):
        return CLASSES, ""
    shape = "a number" if is_one_each else f"{tuple(labels.shape[1:])} numbers"
    return OUTPUTS, f"labels, {shape} for each sample, are no classes"
