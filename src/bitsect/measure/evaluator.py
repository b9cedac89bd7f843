"""How accurate a plan is: the one question that a search asks of the program."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from fractions import Fraction
from functools import cached_property
from typing import Any

import numpy as np
import torch
import torch.utils._pytree as pytree
from torch import Tensor

from ..errors import BitsectError, DataError
from ..network.binding import Inputs
from ..network.parts import FLOAT_ROUNDING, Rounding
from ..network.program import Program
from ..rounding.rounder import Rounder
from ..sources.data import Samples
from ..sources.tasks.task import SampleError, Task
from ..values import FLOAT, Evaluation, Plan
from ..values.pieces import Done, Piece


class Evaluator:
    """Judges plans on the samples, batch by batch; a batch of a plan is judged once.

    Without a rounder it judges the float network alone, for which nothing needs to be calibrated.
    """

    def __init__(
        self,
        program: Program,
        rounder: Rounder | None,
        samples: Samples,
        task: Task,
        *,
        batch_size: int = 64,
        done: Done | None = None,
        progress: Callable[[int], None] = lambda rows: None,
    ) -> None:
        self.program, self._rounder, self.samples, self.task = program, rounder, samples, task
        self.batch_size = min(batch_size, program.fixed_batch or batch_size)
        self.done: Done = {} if done is None else done
        self.progress = progress
        self.judged_batches = 0  # by this evaluator, not remembered from before

    @property
    def rounder(self) -> Rounder:
        if self._rounder is None:
            raise BitsectError("only the float network can be judged before ranges are calibrated")
        return self._rounder

    def rounding(self, plan: Plan) -> Rounding:
        """What `plan` rounds: nothing, if every layer is in float."""
        return FLOAT_ROUNDING if set(plan.values()) == {FLOAT} else self.rounder(plan)

    def __call__(self, plan: Plan, threshold: Fraction | None = None) -> Evaluation:
        """The evaluation of `plan`: to the end, or until `threshold` is decided."""
        rounding: Rounding | None = None
        so_far = Evaluation(0.0, 0, len(self.samples))
        pieces: list[Piece] = []
        for start in range(0, len(self.samples), self.batch_size):
            if threshold is not None and self.task.mean and so_far.reaches(threshold) is not None:
                return so_far
            key = f"{plan.key}/{start}"
            if key not in self.done:
                rounding = rounding or self.rounding(plan)
                self.done[key] = self._judge(start, rounding)
                self.judged_batches += 1
            pieces.append(self.done[key])
            self.progress(len(pieces[-1]["score"]))
            so_far = self._total(pieces)
        return so_far

    def scores(self, plan: Plan) -> np.ndarray[Any, Any]:
        """The score of every sample."""
        self(plan)
        starts = range(0, len(self.samples), self.batch_size)
        return np.concatenate([self.done[f"{plan.key}/{start}"]["score"] for start in starts])

    @cached_property
    def labels(self) -> Tensor:
        """The label of every sample; without labels, the float network's own answers."""
        if self.samples.labels is not None:
            return self.samples.labels.to(self.program.device)
        for start in range(0, len(self.samples), self.batch_size):
            key = f"own/{start}"
            if key not in self.done:
                inputs = self.samples.inputs(slice(start, start + self.batch_size))
                outputs = self.program.run(inputs)
                check_finite(self.program, inputs, outputs, FLOAT_ROUNDING)
                self.done[key] = {"answer": self.task.answers(outputs).cpu().numpy()}
        starts = range(0, len(self.samples), self.batch_size)
        answers = np.concatenate([self.done[f"own/{start}"]["answer"] for start in starts])
        return torch.from_numpy(answers).to(self.program.device)

    def part(self, start: int, stop: int) -> tuple[Inputs, Tensor]:
        """The inputs and labels of some samples."""
        return self.samples.inputs(slice(start, stop)), self.labels[start:stop]

    def batch(self, start: int) -> tuple[Inputs, Tensor]:
        """The inputs and labels of the batch that begins at `start`."""
        return self.part(start, min(start + self.batch_size, len(self.samples)))

    def _judge(self, start: int, rounding: Rounding) -> Piece:
        inputs, labels = self.batch(start)
        outputs = self.program.run(inputs, rounding)
        check_finite(self.program, inputs, outputs, rounding)
        with naming(self.samples, start):
            outcome = self.task.outcome(outputs, labels)
        arrays = {"score": outcome.score.double().cpu().numpy()}
        if outcome.loss is not None:
            arrays["loss"] = outcome.loss.double().cpu().numpy()
        return arrays

    def _total(self, pieces: list[Piece]) -> Evaluation:
        scores = np.concatenate([piece["score"] for piece in pieces])
        losses = [piece["loss"] for piece in pieces if "loss" in piece]
        loss = float(np.concatenate(losses).mean()) if losses else None
        if self.task.mean:
            return Evaluation(float(scores.sum()), len(scores), len(self.samples), loss)
        if len(scores) < len(self.samples):
            return Evaluation(0.0, 0, 1, loss)
        return Evaluation(self.task.score_all(torch.from_numpy(scores)), 1, 1, loss)


@contextmanager
def naming(samples: Samples, start: int) -> Iterator[None]:
    """Name the sample that a task cannot judge as the user knows it; the batch begins at `start`."""
    try:
        yield
    except SampleError as error:
        raise DataError(f"{samples.name(start + error.row)} {error.why}") from None


def check_finite(program: Program, inputs: Inputs, outputs: Any, rounding: Rounding) -> None:
    """Refuse outputs that are not finite, naming the first tensor that was not."""
    leaves = [
        leaf for leaf in pytree.tree_leaves(outputs) if isinstance(leaf, Tensor) and leaf.is_floating_point()
    ]
    if all(bool(torch.isfinite(leaf).all()) for leaf in leaves):
        return
    broken: list[str] = []

    def look(name: str) -> Callable[[Tensor], None]:
        def see(value: Tensor) -> None:
            if not broken and not bool(torch.isfinite(value).all()):
                broken.append(name)

        return see

    program.observe(inputs, {name: look(name) for name in program.layer_tensors}, rounding)
    where = (
        f"'{broken[0]}' is the first tensor that holds them" if broken else "they arise after the last layer"
    )
    raise BitsectError(
        f"the network's outputs hold NaN or infinity: {where}; check the samples and the layer before it"
    )
