"""The question that a search asks: how accurate is this plan?"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from fractions import Fraction

import numpy as np
from torch import Tensor, nn

from ..errors import BitsectError
from ..names import calling
from ..rounding.model import QuantizedModel
from ..runs.run import Run
from ..solve.search.problem import Ask
from ..sources.data import Samples
from ..sources.fingerprint import fingerprint
from ..sources.tasks.task import Task
from ..values import FLOAT, Evaluation, Format, Plan
from ..values.goal import EXPECTED

Evaluate = Callable[[nn.Module], float]  # a user's own judge


def expects(task: Task, samples: Samples) -> bool:
    """Whether a score can be expected of single samples: by the task, and they have labels to be right by."""
    return task.expect is not None and samples.labels is not None and samples.groups is None


class Judge:
    """The question that a search asks; plans known from before cost nothing.

    Until formats are allowed, it judges the float network alone.
    """

    def __init__(self, run: Run, function: Evaluate | None) -> None:
        self.run, self.function = run, function
        self.evaluator = run.evaluator(None)
        self.judged: set[Plan] = set()  # besides the float network
        self.progress: Callable[[int], None] = lambda count: None

    @property
    def name(self) -> str | None:
        """What the user's own function is called."""
        return (
            None
            if self.function is None
            else str(getattr(self.function, "__qualname__", type(self.function).__name__))
        )

    @property
    def labels(self) -> Tensor | None:
        """The labels that samples are judged by; None where a user's function or float outputs judge."""
        return None if self.function or self.run.task.reference else self.evaluator.labels

    def allow(self, formats: Iterable[Format]) -> None:
        """Judge plans of these formats from now on: the run was calibrated for them."""
        self.evaluator = self.run.evaluator(formats)

    def __call__(self, plan: Plan, threshold: Fraction | None = None) -> Evaluation:
        with self._counting(plan):
            return self._by_function(plan) if self.function else self.evaluator(plan, threshold)

    def expected(self, plan: Plan, threshold: Fraction | None = None) -> Evaluation:
        """The accuracy that the float network's own probabilities expect of a plan."""
        with self._counting(plan):
            return self.evaluator.expected(plan, threshold)

    @contextmanager
    def _counting(self, plan: Plan) -> Iterator[None]:
        """Remember `plan`, and that it was judged, unless all of it was known from before."""
        before = self.evaluator.judged_batches
        yield
        if self.evaluator.judged_batches > before and set(plan.values()) != {FLOAT}:
            self.judged.add(plan)
        self.run.folder.note_plan(plan)
        self.progress(1)

    def guide(self, wanted: str) -> Ask:
        """What a search asks about plans: their expected accuracy if that is wanted and there is one.

        Without labels accuracy is agreement, which counts every answer that changes.
        """
        can = self.function is None and expects(self.run.task, self.run.samples)
        return self.expected if wanted == EXPECTED and can else self

    def float_network(self) -> Evaluation:
        """How accurate the float network is: asked first, and said at once."""
        with self.run.progress.stage("float", len(self.run.samples)) as advance:
            self.evaluator.progress = advance
            evaluation = self(Plan.uniform(self.run.layers))
        if self.function or not self.run.task.mean:
            self.run.progress.say(f"float network: {evaluation.accuracy:g}")
        elif self.run.samples.labels is not None:
            counts = f"{evaluation.correct:g} of {evaluation.total}"
            self.run.progress.say(f"float network: {evaluation.accuracy:.2%} ({counts} samples)")
        return evaluation

    def _by_function(self, plan: Plan) -> Evaluation:
        """The user's own figure, remembered like a sample of its own."""
        assert self.function is not None
        # Remembered by what the function does, not by its name alone: another body gives other figures.
        done, key = self.evaluator.done, f"{plan.key}/own/{self.name}/{fingerprint(self.function)}"
        if key not in done:
            with calling("evaluate", str(self.name)):
                figure = self.function(QuantizedModel(self.run.program, self.evaluator.rounding(plan)))
            value = _number(figure)
            done[key] = {"value": np.array([value])}
            self.evaluator.judged_batches += 1
        return Evaluation(float(done[key]["value"][0]), 1, 1)


def _number(figure: object) -> float:
    """What a user's own judge returned, as a number that can be compared."""
    try:
        value = float(figure)  # type: ignore[arg-type]  # one element of a tensor is a number too
    except (TypeError, ValueError, RuntimeError):
        raise BitsectError(f"[evaluate=] returned a {type(figure).__name__}: expected a number") from None
    if not 0 <= value < float("inf"):
        raise BitsectError(f"[evaluate=] returned {value}: expected a finite number, at least 0")
    return value
