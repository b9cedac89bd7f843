"""The plan that a call means: given, a run's own, or one format for all layers."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path
from typing import Any

from ..errors import OptionError, PlanError
from ..runs.run import Run
from ..values import INT8, Format, Plan, Settings
from ..values.plan import VERSION


def same_task(task: Any) -> Settings:
    """What a run that is continued is given: its own task again, where that is a user's function."""
    return Settings() if task is None else Settings(task=task)


def parse_format(plan: object, format: str | Format | None) -> Format | None:
    """The one format of a uniform plan, where that is asked for instead of a plan."""
    if plan is not None and format is not None:
        raise OptionError("pass either [plan=FILE] or [format=int8], not both")
    return Format.parse(format) if isinstance(format, str) else format


def plan_for(run: Run, plan: Any, format: Format | None) -> Plan:
    """The plan that is asked for; the run's own where none is, else int8 in every layer."""
    layers = run.layers
    if isinstance(plan, Plan):
        return Plan.from_json(plan.to_json(), layers)
    if plan is None:
        own = own_plan(run) if format is None else None
        return own or Plan.uniform(layers, format or INT8)
    found = _named(run, str(plan))
    if found is None and not Path(plan).exists():
        names = ", ".join(sorted(path.stem for path in (run.folder.path / "plans").glob("*.json"))) or "none"
        raise PlanError(
            f"{plan}: no such plan, neither a file, nor one that {run.folder.path} names ({names}), nor the "
            "first six or more characters of the key of one that it evaluated"
        )
    return found or Plan.read(Path(plan), layers)


def own_plan(run: Run, name: str = "plan.json") -> Plan | None:
    """The plan in a file of the run; None where there is no such file."""
    data = run.folder.read_plan(name)
    return None if data is None else Plan.from_json(data, run.layers, str(run.folder.path / name))


def evaluated_plans(run: Run) -> dict[str, Plan]:
    """Every plan that was ever evaluated in the run, by its key; what does not fit the network is no plan."""
    found: dict[str, Plan] = {}
    for layers in run.folder.noted_plans():
        with suppress(PlanError):
            plan = Plan.from_json({"bitsect": "plan", "version": VERSION, "layers": layers}, run.layers)
            found[plan.key] = plan
    return found


def is_name(plan: object) -> bool:
    """Whether a run may know the plan by this; a file of that name comes first."""
    return isinstance(plan, str) and not Path(plan).exists() and bool(re.fullmatch(r"[\w.-]+", plan))


def _named(run: Run, name: str) -> Plan | None:
    """The plan that the run calls `name`: one of its answers, or the beginning of an evaluated plan's key."""
    if not is_name(name):
        return None
    answer = own_plan(run, f"plans/{name}.json")
    if answer is not None or not re.fullmatch(r"[0-9a-f]{6,16}", name):
        return answer
    (*plans,) = (plan for key, plan in evaluated_plans(run).items() if key.startswith(name))
    return plans[0] if len(plans) == 1 else None
