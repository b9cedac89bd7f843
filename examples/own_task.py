"""A task of your own: a loss and a score for every sample, in a few lines.

python examples/own_task.py
"""

from typing import Any

import torch
from torch import Tensor, nn

import bitsect


def within_tolerance(outputs: Any, labels: Tensor) -> tuple[Tensor, Tensor]:
    """A regression counts as right where it is off by at most 0.1."""
    error = outputs.squeeze(1) - labels
    return error.square(), (error.abs() <= 0.1).float()


torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1))
inputs = torch.randn(512, 8)
labels = model(inputs).squeeze(1).detach()

result = bitsect.quantize(
    model, (inputs, labels), task=within_tolerance, target=0.95, metric="single", destination="bits"
)
print(result.plan.counts)
