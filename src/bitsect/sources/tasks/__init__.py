"""TASKS: what a network is judged by, with loss and score of every sample."""

from __future__ import annotations

from collections.abc import Callable
from difflib import get_close_matches
from typing import Any

from torch import Tensor

from ...errors import BitsectError
from ...names import resolve
from .classification import BINARY, CLASSIFICATION, TOP5
from .outputs import named_tensors
from .task import Outcome, SampleError, Task

__all__ = ["TASKS", "Outcome", "SampleError", "Task", "named_tensors", "task_named"]

TASKS: dict[str, Task] = {task.name: task for task in (CLASSIFICATION, TOP5, BINARY)}


def task_named(task: str | Task | Callable[[Any, Tensor], Any]) -> Task:
    """The task of this name; or one's own, as `package.module:attribute` or as the object itself.

    One's own is a `Task`, or a function (outputs, labels) → (loss, score), or → score.

    >>> task_named("classification").mean
    True
    """
    if isinstance(task, Task):
        return task
    if callable(task):
        return Task(getattr(task, "__qualname__", type(task).__name__), task)
    if task in TASKS:
        return TASKS[task]
    if ":" not in task:
        close = get_close_matches(task, TASKS, n=1)
        hint = (
            f"did you mean '{close[0]}'?" if close else f"give {', '.join(TASKS)} or package.module:function"
        )
        raise BitsectError(f"unknown task '{task}': {hint}")
    found = resolve(task, "task")
    if isinstance(found, Task):
        return found
    if not callable(found):
        raise BitsectError(f"task '{task}' is a {type(found).__name__}: name a function or a Task")
    return Task(task, found)
