"""Numbers rather than classes: similarities that are ranked, features, several answers at once."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from ...errors import DataError
from ...values import ranks
from .outputs import OWN_TASK, logits, named_tensors, pick
from .task import Outcome, SampleError, Task

SMALLEST_UNIT = 1e-9  # of predictions, below which float64 does not tell their ranks apart

# Outputs that stand for a sample as a whole, the first that a network has; else the mean over its tokens.
FEATURES = ("image_embeds", "text_embeds", "sentence_embedding", "pooler_output", "last_hidden_state")


def regress(outputs: Any, labels: Tensor) -> Outcome:
    """Squared error, and the prediction squeezed into [0, 1], which leaves its rank as it is.

    Below 1 it is squeezed evenly, above by its order of magnitude, so that large ones are told apart too.
    """
    found = logits(outputs)
    if found.shape[1] != 1 or labels.numel() != len(found):
        raise DataError(
            f"regression takes one number for each sample, the network gives {found.shape[1]} and labels are "
            f"{tuple(labels.shape)}: {OWN_TASK}"
        )
    wanted = labels.reshape(-1).to(found.dtype)
    if not bool(wanted.isfinite().all()):
        raise SampleError(int((~wanted.isfinite()).nonzero()[0]), "has NaN or infinity for a label: mend it")
    predicted = found[:, 0].detach().double()
    largest = float(predicted.abs().max()) if len(predicted) > 1 else 1.0
    if 0 < largest < SMALLEST_UNIT:
        raise DataError(
            f"the network's predictions are {largest:.0e} at most, too small to be ranked: scale its last "
            "layer and the labels to a unit in which they are about 1"
        )
    squeezed = (predicted.asinh() / math.asinh(torch.finfo(torch.float32).max)).clamp(-1, 1)
    return Outcome((found[:, 0] - wanted).square(), (1 + squeezed) / 2)


def spearman(scores: Tensor, labels: Tensor) -> float:
    """The rank correlation of scores and labels, ties sharing their mean rank; 0 where it is negative."""
    return max(0.0, ranks.spearman(*(each.cpu().double().flatten().numpy() for each in (scores, labels))))


def features_name(outputs: Any) -> str:
    """The name of the output with the features: one that is called so, else the first that may be them."""
    tensors = named_tensors(outputs)
    floats = [name for name, value in tensors.items() if value.is_floating_point() and value.ndim > 1]
    name = next((name for name in (*FEATURES, *floats) if name in floats), None)
    if name is None:
        raise DataError(f"the network gives no features [batch, …]: {OWN_TASK}")
    return name


def features(outputs: Any) -> Tensor:
    """What an encoder makes of a sample as a whole, [batch, features]."""
    found = pick(outputs, features_name(outputs))
    if found.ndim == 3:  # tokens: none of them is padding
        return found.mean(1)
    return found.flatten(1)


def keep_features(outputs: Any, labels: Tensor) -> Outcome:
    """Squared distance to the float network's features over their square, and the cosine between both."""
    found, wanted = features(outputs), labels.flatten(1)
    if found.shape != wanted.shape or not wanted.is_floating_point():
        raise DataError("features are compared with the float network's own: leave labels out")
    wanted = wanted.to(found.dtype)
    size = wanted.square().sum(1).clamp(min=torch.finfo(found.dtype).tiny)
    cosine = F.cosine_similarity(found.detach().double(), wanted.double(), dim=1)
    return Outcome((found - wanted).square().sum(1) / size, cosine.clamp(0, 1))


def feature_distance(reference: Any, outputs: Any) -> Tensor:
    """1 − cosine between the features, for each sample."""
    one, other = features(reference).double(), features(outputs).double()
    return (1 - F.cosine_similarity(one, other, dim=1)).clamp(min=0)


def several(outputs: Any, labels: Tensor) -> Outcome:
    """Mean binary cross-entropy over the classes, and F1 between the classes given and wanted."""
    found = logits(outputs)
    if labels.shape != found.shape or bool(((labels != 0) & (labels != 1)).any()):
        raise DataError(
            f"labels {tuple(labels.shape)} for {found.shape[1]} classes: multi-label takes 0 or 1 for each"
        )
    wanted = labels.to(found.dtype)
    loss = F.binary_cross_entropy_with_logits(found, wanted, reduction="none").mean(1)
    given, needed = found > 0, labels > 0
    both, all_of = (given & needed).sum(1).double(), (given.sum(1) + needed.sum(1)).double()
    return Outcome(loss, torch.where(all_of > 0, 2 * both / all_of.clamp(min=1), 1.0))


def several_answers(outputs: Any) -> Tensor:
    return (logits(outputs) > 0).long()


def several_divergence(reference: Any, outputs: Any) -> Tensor:
    """The sum over classes of KL between two coins, for each sample."""
    p, q = logits(reference).double(), logits(outputs).double()
    chance = p.sigmoid()
    yes = chance * (F.logsigmoid(p) - F.logsigmoid(q))
    no = (1 - chance) * (F.logsigmoid(-p) - F.logsigmoid(-q))
    return (yes + no).sum(1).clamp(min=0)


REGRESSION = Task(
    "regression",
    regress,
    combine=spearman,
    ranks=True,
    diverge=lambda one, other: (logits(one)[:, 0] - logits(other)[:, 0]).double().square(),
    needs_logits=True,
    tolerance=5e-4,  # a tenth of a prediction, or 0.1 where it is below 1
)
KEEP_FEATURES = Task(
    "features", keep_features, answer=features, diverge=feature_distance, tolerance=0.005, reference=True
)
MULTI_LABEL = Task(
    "multi-label",
    several,
    answer=several_answers,
    diverge=several_divergence,
    needs_logits=True,
)
