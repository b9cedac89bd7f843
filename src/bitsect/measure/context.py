"""What every measurement works with."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import Tensor

from ..network.binding import Inputs
from ..network.parts import FLOAT_ROUNDING, Rounding, State
from ..network.program import Program
from ..values import Format, Plan
from .evaluator import Evaluator, check_finite
from .work import Crew


@dataclass(frozen=True)
class FloatBatch:
    """A batch in float: its outputs, and the states from which every layer can run again."""

    start: int
    inputs: Inputs
    labels: Tensor
    outputs: Any
    states: Mapping[str, State]
    gradients: dict[str, list[Tensor] | None] = field(default_factory=dict)  # of losses, at its outputs


@dataclass
class Context:
    """A program with its samples, task and rounder: those of its evaluator."""

    evaluator: Evaluator
    samples: int | None = None  # only the first so many, to the end of their batch
    _last: FloatBatch | None = field(default=None, init=False, repr=False)

    @property
    def program(self) -> Program:
        return self.evaluator.program

    @property
    def crew(self) -> Crew | None:
        return self.evaluator.crew

    @property
    def again(self) -> Callable[[Evaluator], Context]:
        """Makes the same of a worker's own evaluator."""
        return partial(Context, samples=self.samples)

    @property
    def layers(self) -> tuple[str, ...]:
        return tuple(layer.name for layer in self.program.layers)

    def starts(self) -> list[int]:
        """The first sample of every batch, by which it is known."""
        found, seen = [], 0
        for start, part in self.evaluator.parts.items():
            if seen < self.count:
                found.append(start)
                seen += len(part)
        return found

    @property
    def count(self) -> int:
        return self.samples or len(self.evaluator.samples)

    def float_batch(self, start: int) -> FloatBatch:
        """The batch that begins at `start`, run in float; the last one is kept, for its pieces share it."""
        if self._last is None or self._last.start != start:
            self._last = None  # so that never two of them are held
            inputs, labels = self.evaluator.batch(start)
            outputs, states = self.program.run_keeping(inputs, self.layers)
            self.check(inputs, outputs)
            self._last = FloatBatch(start, inputs, labels, outputs, states)
        return self._last

    def rounding(self, format: Format, *layers: str) -> Rounding:
        """Only `layers` in `format`."""
        plan = Plan.uniform(self.program.layers).replace(layers, format)
        return self.evaluator.rounder(plan)

    def task_loss(self, outputs: Any, labels: Tensor) -> Tensor | None:
        """The loss of each sample, if the task has one."""
        return self.evaluator.task.loss_if_any(outputs, labels)

    def kl(self, float_outputs: Any, outputs: Any) -> Tensor | None:
        """How far each sample's outputs moved, if the task can say."""
        return self.evaluator.task.divergence(float_outputs, outputs)

    def check(self, inputs: Inputs, outputs: Any, rounding: Rounding = FLOAT_ROUNDING) -> None:
        check_finite(self.program, inputs, outputs, rounding)


def float_leaves(outputs: Any) -> list[Tensor]:
    """The floating-point tensors among the outputs, at least in float32."""
    return [wide(leaf) for leaf in own_leaves(outputs)]


def own_leaves(outputs: Any) -> list[Tensor]:
    """The floating-point tensors among the outputs, as they are."""
    return [leaf for leaf in pytree.tree_leaves(outputs) if _is_float(leaf)]


def with_leaves(outputs: Any, leaves: Iterable[Tensor]) -> Any:
    """`outputs` with other floating-point tensors."""
    remaining = iter(leaves)
    return pytree.tree_map(lambda leaf: next(remaining) if _is_float(leaf) else leaf, outputs)


def power(leaves: Iterable[Tensor], rows: int) -> Tensor:
    """The squared norm of each of `rows` samples, over the tensors that hold one entry for each."""
    total = torch.zeros(rows, dtype=torch.float64)
    for leaf in leaves:
        if leaf.shape[:1] == (rows,):
            total += leaf.double().reshape(rows, -1).square().sum(1).cpu()
    return total


def _is_float(leaf: Any) -> bool:
    return isinstance(leaf, Tensor) and leaf.is_floating_point()


def wide(leaf: Tensor) -> Tensor:
    """`leaf` at least in float32."""
    return leaf.to(torch.promote_types(leaf.dtype, torch.float32))
