"""search: a run solved again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..runs.progress import Progress
from ..values import Goal, Resources, Scoring
from .keywords import with_options
from .plans import same_task
from .quantize import quantize
from .result import Result


@with_options(scoring=Scoring, goal=Goal, resources=Resources)
def search(
    run: str | Path,
    data: Any = None,
    *,
    method: str | None = None,
    scoring: Scoring,
    goal: Goal,
    resources: Resources,
    test_data: Any = None,
    validation_data: Any = None,
    task: Any = None,
    export: str | Path | None = None,
    trust: bool = False,
    progress: Progress | None = None,
) -> Result:
    """The plan of a run for another target, metric or budget; nothing is measured twice.

    Arguments:
        run: the folder of a run.
        data: where the run's samples lie, if they have moved.
        task: the run's own task again, if that is a function of yours.
        method, test_data, validation_data, export, trust, progress: as for `quantize`.
    """
    return quantize(
        run,
        data,
        method=method,
        settings=same_task(task),
        scoring=scoring,
        goal=goal,
        resources=resources,
        test_data=test_data,
        validation_data=validation_data,
        export=export,
        trust=trust,
        progress=progress,
    )
