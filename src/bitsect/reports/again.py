"""The command that makes a run again."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..errors import SHORT
from ..values.destination import BITS, DESTINATIONS
from ..values.goal import Goal
from ..values.method import BITSECT, METHODS
from ..values.options import described, given, to_json
from ..values.scoring import Scoring
from ..values.settings import Settings

Json = dict[str, Any]
# What the machine decides where nobody does: said, for bits depend on it.
DECIDED = ("batch_size", "threads")
# What follows from the rest, or stands in front.
IMPLIED = ("destination", "target", "device", "output", "sign")


def command_of(folder: Path, run: Json, result: Json | None) -> str:
    """The command line that makes the run and its last answer again; empty where Python alone can.

    A run of Python objects keeps them, and is searched again where it is.
    """
    result = result or {}
    if result.get("judge"):
        return ""
    method = METHODS.get(str(run.get("method")), BITSECT)
    where = str(run.get("destination") or BITS)
    goal = result.get("goal") or {}
    scoring = list(_changed(Scoring, result.get("scoring") or {}, given(method.scoring)))
    usual = method.destination
    asked = [*_first(goal, where, usual), *_goal(goal, method.goal, where), *scoring]
    if run.get("files"):
        return _line("search", str(folder), asked)
    own = to_json(method.settings)
    own["placement"] = DESTINATIONS[where].placement.name if where in DESTINATIONS else own["placement"]
    own["hold_out"] = goal.get("confidence") is not None and goal.get("target") is not None
    settings = list(_changed(Settings, run, own))
    data = [] if str(run["model"]).startswith("zoo:") else [("data", run["data"])]
    named = [] if method is BITSECT else [("method", method.name)]
    last = [("out", str(folder))]
    return _line("quantize", str(run["model"]), [*data, *asked, *named, *settings, *last])


def _first(goal: Json, where: str, usual: str) -> Iterator[tuple[str, Any]]:
    if goal.get("target") is not None and goal.get("max_drop") is goal.get("max_perplexity") is None:
        yield "target", goal["target"]
    if where != usual:
        yield "for", where


def _goal(goal: Json, own: Goal, where: str) -> Iterator[tuple[str, Any]]:
    """What the goal asks for besides what its method and destination bring."""
    brought = to_json(own)
    if where in DESTINATIONS:
        brought |= to_json(DESTINATIONS[where].complete_goal(own))
    if str(goal.get("latency")).lower() == str(brought.get("latency")).lower() or goal.get("latency") is None:
        goal = {name: value for name, value in goal.items() if name != "latency"}
    elif str(goal["latency"]).lower() in DESTINATIONS:  # a table calls its device A100, an option a100
        goal = {**goal, "latency": str(goal["latency"]).lower()}
    yield from _changed(Goal, goal, brought)


def _changed(kind: type[Any], known: Json, own: Json) -> Iterator[tuple[str, Any]]:
    """The options that are not what they would be anyway."""
    for name, default, _ in described(kind):
        value, usual = known.get(name), own.get(name, default)
        if name in IMPLIED or name not in known:
            continue
        if name in DECIDED or (value is not None and value != _plain(usual)):
            yield SHORT.get(name, name), value
        elif name == "confidence" and value is None and usual is not None:
            yield name, "none"


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _line(command: str, first: str, options: list[tuple[str, Any]]) -> str:
    words = ["bitsect", command, first]
    for name, value in options:
        name = f"no_{name}" if value is False else name
        flag = f"--{name.replace('_', '-')}"
        if value is True or value is False:
            words.append(flag)
        elif isinstance(value, list) and name in ("formats",):
            words += [flag, ",".join(map(str, value))]
        else:
            for each in value if isinstance(value, list) else [value]:
                words += [flag, f"{each:g}" if isinstance(each, float) else str(each)]
    return shlex.join(words)
