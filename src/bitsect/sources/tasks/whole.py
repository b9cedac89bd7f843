"""All outputs of a network, compared with what the float network gives: for networks of any kind.

    score = 1 − mean over the outputs of ‖output − float output‖² / ‖float output‖²      of each sample

A target of 99 % allows a squared difference of 1 % of the squared output, a signal-to-noise ratio of 20 dB.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from .outputs import as_numbers
from .task import Outcome, Task

LEAST_SIZE = 0.1  # of the mean square of a batch, that an error is divided by

Rows = Mapping[str, Tensor]  # every output that is judged as [batch, values]


def keep_outputs(outputs: Rows, labels: Tensor) -> Outcome:
    """The mean relative error of the outputs of each sample, and what it leaves of 1.

    The error of an output of whole numbers (classes, indices) is the share of them that changed, which
    has no gradient. Outputs near zero are measured by a tenth of the mean square in their batch; where all of
    these are zero, by whether they stay so.
    """
    parts = [as_numbers(part) for part in outputs.values()]
    widths = [part.shape[1] for part in parts]
    errors, smooth = [], []
    for found, wanted in zip(parts, torch.split(labels, widths, dim=1), strict=True):
        if found.is_floating_point():
            errors.append(_relative_error(found, wanted))
            smooth.append(errors[-1])
        else:
            errors.append((found.to(labels.dtype) != wanted).double().mean(1))
    score = 1 - torch.stack([error.detach().clamp(max=1) for error in errors]).mean(0)
    return Outcome(torch.stack(smooth).mean(0) if smooth else None, score)


def own_outputs(outputs: Rows) -> Tensor:
    """The outputs beside each other, [batch, values]."""
    parts = [as_numbers(part) for part in outputs.values()]
    return torch.cat([part if part.is_floating_point() else part.float() for part in parts], 1)


def output_distance(reference: Rows, outputs: Rows) -> Tensor:
    """The mean relative error of the outputs of each sample."""
    return 1 - keep_outputs(outputs, own_outputs(reference)).score


def _relative_error(found: Tensor, wanted: Tensor) -> Tensor:
    size = wanted.double().square().sum(1)
    size = torch.maximum(size, LEAST_SIZE * size.mean())
    error = (found - wanted).double().square().sum(1)
    return torch.where(size > 0, error / size.clamp(min=torch.finfo(size.dtype).tiny), (error > 0).double())


KEEP_OUTPUTS = Task(
    "outputs",
    keep_outputs,
    answer=own_outputs,
    diverge=output_distance,
    tolerance=0.005,
    reference=True,
    needs_axes=True,
)
