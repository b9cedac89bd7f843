"""What every measurement works with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch.utils._pytree as pytree
from torch import Tensor

from ..evaluate import Evaluator, check_finite
from ..program import FLOAT_ROUNDING, Inputs, Program, Rounding
from ..tasks import divergence, logits
from ..values import Format, Plan

Progress = Callable[[int], None]


def silent(count: int) -> None:
    """Progress that nobody watches."""


@dataclass(frozen=True)
class Context:
    """A program with its samples, task and rounder: those of its evaluator."""

    evaluator: Evaluator

    @property
    def program(self) -> Program:
        return self.evaluator.program

    @property
    def layers(self) -> tuple[str, ...]:
        return tuple(layer.name for layer in self.program.layers)

    def starts(self) -> range:
        """Where the batches begin."""
        return range(0, len(self.evaluator.samples), self.evaluator.batch_size)

    def rounding(self, format: Format, *layers: str) -> Rounding:
        """Only `layers` in `format`."""
        plan = Plan.uniform(self.program.layers).replace(layers, format)
        return self.evaluator.rounder(plan)

    def task_loss(self, outputs: Any, labels: Tensor) -> Tensor:
        return self.evaluator.task.loss(outputs, labels)

    def kl(self, float_outputs: Any, outputs: Any) -> Tensor:
        return divergence(logits(float_outputs), logits(outputs))

    def check(self, inputs: Inputs, outputs: Any, rounding: Rounding = FLOAT_ROUNDING) -> None:
        check_finite(self.program, inputs, outputs, rounding)


def float_leaves(outputs: Any) -> list[Tensor]:
    """The floating-point tensors among the outputs."""
    return [
        leaf for leaf in pytree.tree_leaves(outputs) if isinstance(leaf, Tensor) and leaf.is_floating_point()
    ]


def power(leaves: list[Tensor]) -> Tensor:
    """The squared norm of each sample's outputs."""
    return sum(
        (leaf.double().flatten(1).square().sum(1) for leaf in leaves[1:]),
        leaves[0].double().flatten(1).square().sum(1),
    )
