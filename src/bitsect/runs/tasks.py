"""What a run is judged by: the task that is named, that the run was made with, or that fits its outputs."""

from __future__ import annotations

from dataclasses import replace

from ..errors import BitsectError, RunError
from ..network.exported_program import example_outputs
from ..network.outputs import input_type, output_axes
from ..network.program import Program
from ..sources.data import Samples
from ..sources.preparation import Preparation
from ..sources.tasks import TASKS
from ..sources.tasks.fitting import fitting_task
from ..sources.tasks.outputs import pick
from ..sources.tasks.task import Task, task_named
from ..values import Settings
from ..values.options import given
from .folder import RunFolder
from .progress import Progress
from .recorded import Recorded


def task_for(
    settings: Settings, preparation: Preparation, program: Program, samples: Samples, progress: Progress
) -> tuple[Task, Samples]:
    """The task, the one that fits where nobody names one; and the samples as it takes them."""
    example, axes, output = example_outputs(program.exported), output_axes(program), settings.output
    name = settings.task
    if preparation.task is None and "task" not in given(settings):
        judged = example if output is None else {output: pick(example, output)}
        name, why = fitting_task(judged, axes, samples.labels)
        if why:
            progress.say(f"task {name}: {why}; [task=NAME] takes another")
    task = task_named(name).on(output, example, axes)
    source = samples.source.without_labels() if task.reference else samples.source
    return task, replace(samples, source=source, floats=input_type(program))


def task_of(known: Recorded, folder: RunFolder, trust: bool) -> Task:
    """The task that a run was made with; one's own is code, and imported for those who trust it."""
    if known.task not in TASKS and ":" in known.task and not trust:
        raise RunError(
            f"{folder.path} is judged by {known.task}, which is code to import: pass [task={known.task}] "
            "if it is yours, or [trust=True]"
        )
    try:
        return task_named(known.task)
    except BitsectError as error:
        raise RunError(
            f"{folder.path} was made with a task that is not found: {error}; pass it again"
        ) from None
