"""Which defaults hold, by method and destination, and what becomes of them beside what a user asks for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..errors import RunError
from ..latency.tables import TIMED
from ..names import choose
from ..runs.disk import read_json_object
from ..runs.opening import is_folder
from ..sources.tasks.task import task_named
from ..values import Goal, Scoring, Settings
from ..values.destination import BITS, Destination, destination_named
from ..values.goal import LABELS
from ..values.method import BITSECT, METHODS, Method
from ..values.options import changed, given
from ..values.placement import PAPER as PAPERS
from .asked import Asked

DEFAULT = BITSECT.name
FRONTIER, DAMAGE = "frontier", "damage"


def method_of(model: Any, out: str | Path | None, name: str | None) -> Method:
    """The method that was asked for; that with which the run was made; else the default."""
    if name is None:
        folder = model if is_folder(model) else out
        name = noted_in(folder, "method") if folder is not None else None
        name = name if name in METHODS else None
    found: Method = choose("method", name or DEFAULT, METHODS)
    return found


def completed(
    method: Method, settings: Settings, scoring: Scoring, goal: Goal, *, of_run: bool, judged_as_a_whole: bool
) -> tuple[Settings, Scoring, Goal]:
    """What was asked for, with the method's own options for the rest.

    What the method has by default gives way to what goes before it: another metric is searched by
    bisection, where single samples have no scores nothing is promised, and what is not promised is
    searched by labels. The settings of a run that is continued are its own.
    """
    asked = given(goal)
    scoring, goal = method.complete(scoring), method.complete(goal)
    settings = settings if of_run else method.complete(settings)
    if goal.search == FRONTIER and scoring.metric != DAMAGE and "search" not in asked:
        goal = changed(goal, search="bisection")
    whole = judged_as_a_whole or not (of_run or task_named(settings.task).mean)
    if whole and "confidence" not in asked:
        goal = changed(goal, confidence=None)
    if goal.confidence is None and "guide" not in asked:
        goal = changed(goal, guide=LABELS)  # which nothing else would hold the plan to
    return settings, scoring, goal


def destined(
    model: Any, out: str | Path | None, settings: Settings, goal: Goal, method: Method = BITSECT
) -> tuple[Destination, Settings, Goal]:
    """Where the model will run, with what follows from that for settings and goal.

    Of a run that is continued the placement is its own, unless it is asked for another destination.
    """
    name = goal.destination or _known_destination(model, out) or _usual_destination(settings, goal, method)
    destination = destination_named(name)
    if not is_folder(model) or goal.destination is not None:
        folder = model if is_folder(model) else out
        known = None if folder is None else _noted(folder).get("embeddings")
        if isinstance(known, bool) and "embeddings" not in given(settings):
            settings = changed(settings, embeddings=known)  # an older run goes on as it was made
        settings = destination.complete_settings(settings)
    return destination, settings, destination.complete_goal(goal)


def _known_destination(model: Any, out: str | Path | None) -> str | None:
    """The destination that a run was asked for last, or made for."""
    folder = model if is_folder(model) else out
    if folder is None:
        return None
    unsaid = BITS if noted_in(folder, "placement") == PAPERS.name else None
    return Asked.of(model).destination or noted_in(folder, "destination") or unsaid


def _usual_destination(settings: Settings, goal: Goal, method: Method) -> str:
    """Where nobody says: that of the method; a latency table, or the paper's rounding, is of no runtime."""
    if goal.latency is not None:
        return str(goal.latency) if goal.latency in TIMED else BITS
    return BITS if given(settings).get("placement") == PAPERS.name else method.destination


def noted_in(run: str | Path, what: str) -> str | None:
    """What run.json says of the run besides what it is of; None if nothing."""
    name = _noted(run).get(what)
    return name if isinstance(name, str) else None


def _noted(run: str | Path) -> dict[str, Any]:
    try:
        return read_json_object(Path(run) / "run.json", "") or {}
    except RunError:
        return {}  # what is wrong with the folder is said when it is opened
