"""Tiny networks whose forward is also written by hand, and what judges and measures them."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bitsect.measure.context import Context
from bitsect.measure.evaluator import Evaluator
from bitsect.network.capture import capture
from bitsect.network.program import Program
from bitsect.rounding.rounder import Rounder
from bitsect.sources.data import Samples, load_samples
from bitsect.sources.tasks.task import Task, task_named
from bitsect.values import ONNXRUNTIME, PAPER, Placement
from bitsect.values.pieces import Done
from short import calibrate

CLASSES = 5


def seeded(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def refill(model: nn.Module, seed: int = 0) -> nn.Module:
    """`model` with seeded weights and batch norms that are not the identity, in evaluation mode."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            size = parameter[0].numel() if parameter.ndim > 1 else 4
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * size**-0.5)
        for module in model.modules():
            if isinstance(module, nn.BatchNorm2d):
                shape = module.running_var.shape
                module.running_mean.copy_(torch.randn(shape, generator=generator) * 0.2)
                module.running_var.copy_(torch.rand(shape, generator=generator) + 0.5)
                module.weight.copy_(torch.rand(shape, generator=generator) + 0.5)
    return model.eval()


class Residual(nn.Module):
    """Convolutions with batch norm, two kinds of shortcut, pooling before and after a sum, a linear head."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 4, 3, padding=1, bias=False)
        self.a, self.b = (nn.Conv2d(4, 4, 3, padding=1, bias=False) for _ in range(2))
        self.c = nn.Conv2d(4, 6, 3, stride=2, padding=1, bias=False)
        self.d = nn.Conv2d(6, 6, 3, padding=1, groups=2, bias=False)
        self.e = nn.Conv2d(4, 6, 1, stride=2, bias=False)
        self.f = nn.Conv2d(6, 6, 1)
        self.head = nn.Linear(6, CLASSES)
        self.norms = nn.ModuleDict(
            {
                name: nn.BatchNorm2d(width)
                for name, width in {"stem": 4, "a": 4, "b": 4, "c": 6, "d": 6, "e": 6}.items()
            }
        )

    def forward(self, x: Tensor) -> Tensor:
        def unit(name: str, x: Tensor) -> Tensor:
            return self.norms[name](getattr(self, name)(x))

        x = F.max_pool2d(F.relu(unit("stem", x)), 2)
        x = F.relu(unit("b", F.relu(unit("a", x))) + x)
        x = F.relu(unit("d", F.relu6(unit("c", x))) + unit("e", x))
        x = F.max_pool2d(x, 2)
        return self.head((F.relu(self.f(x)) + x * 0.5).flatten(1))


@cache
def residual() -> tuple[nn.Module, Program]:
    model = refill(Residual())
    return model, capture(model, seeded(2, 3, 8, 8))


def images(count: int, seed: int = 1) -> tuple[Tensor, Tensor]:
    labels = torch.randint(CLASSES, (count,), generator=torch.Generator().manual_seed(seed))
    return seeded(count, 3, 8, 8, seed=seed), labels


def judge(
    program: Program,
    data: Any,
    *,
    placement: Placement = PAPER,
    task: str | Task = "classification",
    batch_size: int = 4,
    rounding: str = "squant",
    done: Done | None = None,
    **calibration: Any,
) -> Evaluator:
    """An evaluator of `data`, with ranges from the same samples."""
    samples = data if isinstance(data, Samples) else load_samples(data)
    calibration = {"sign": placement.sign, "method": "max", "rounding": rounding} | calibration
    ranges = calibrate(program, samples, batch_size=batch_size, bits=(8, 4), **calibration)
    rounder = Rounder(program, ranges, placement, rounding)
    return Evaluator(program, rounder, samples, task_named(task), batch_size=batch_size, done=done)


def residual_context(count: int = 6, placement: Placement = ONNXRUNTIME, **options: Any) -> Context:
    return Context(judge(residual()[1], images(count), placement=placement, **options))
