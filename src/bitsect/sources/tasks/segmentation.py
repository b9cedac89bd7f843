"""A class for every pixel."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from ...errors import DataError
from .outputs import OWN_TASK, named_tensors
from .task import Outcome, SampleError, Task

UNKNOWN = 255  # the label of a pixel that is not judged, as data sets have it


def pixel_logits(outputs: Any) -> Tensor:
    """The logits [batch, classes, height, width] among the outputs."""
    tensors = named_tensors(outputs)
    among = {"logits": tensors["logits"]} if "logits" in tensors else tensors
    fitting = [tensor for tensor in among.values() if tensor.ndim == 4 and tensor.is_floating_point()]
    if len(fitting) != 1:
        raise DataError(f"the network gives no single float [batch, classes, height, width]: {OWN_TASK}")
    return fitting[0]


def segment(outputs: Any, labels: Tensor) -> Outcome:
    """Mean cross-entropy of the pixels, and the mean over the classes of an image of intersection over union.

    Logits of another size than the labels are interpolated to them.
    """
    found = pixel_logits(outputs)
    if labels.ndim != 3 or labels.is_floating_point():
        raise DataError(f"labels {tuple(labels.shape)}: segmentation takes a class for each pixel, [N, H, W]")
    if found.shape[2:] != labels.shape[1:]:
        found = F.interpolate(found.float(), labels.shape[1:], mode="bilinear", align_corners=False)
    judged, classes = labels != UNKNOWN, found.shape[1]
    outside = (((labels < 0) | (labels >= classes)) & judged).flatten(1).any(1).nonzero().flatten()
    if len(outside):
        raise SampleError(int(outside[0]), f"has labels outside the network's {classes} classes")
    wanted = labels.long()
    each = F.cross_entropy(found, wanted.masked_fill(~judged, 0), reduction="none") * judged
    loss = each.flatten(1).sum(1) / judged.flatten(1).sum(1).clamp(min=1)
    scores = [_mean_iou(*pair) for pair in zip(found.argmax(1), wanted, judged, strict=True)]
    return Outcome(loss, torch.stack(scores))


def _mean_iou(found: Tensor, wanted: Tensor, judged: Tensor) -> Tensor:
    """The mean over the classes that are there or were found; 1 where nothing is judged."""
    found, wanted = found[judged], wanted[judged]
    shares = [
        ((found == each) & (wanted == each)).sum().double() / ((found == each) | (wanted == each)).sum()
        for each in torch.unique(torch.cat([found, wanted]))
    ]
    return torch.stack(shares).mean() if shares else torch.ones((), dtype=torch.float64, device=found.device)


def pixel_divergence(reference: Any, outputs: Any) -> Tensor:
    """KL(reference ‖ outputs) between the classes of each pixel, the mean over an image."""
    log_p, log_q = (pixel_logits(each).double().log_softmax(1) for each in (reference, outputs))
    whole = F.kl_div(log_q, log_p, reduction="none", log_target=True).sum(1)
    return whole.flatten(1).mean(1).clamp(min=0)


SEGMENTATION = Task(
    "segmentation",
    segment,
    answer=lambda outputs: pixel_logits(outputs).argmax(1),
    diverge=pixel_divergence,
    tolerance=0.005,
)
