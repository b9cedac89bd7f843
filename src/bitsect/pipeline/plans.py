"""The plan that a call means: given, a run's own, or one format for all layers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..errors import OptionError
from ..runs.run import Run
from ..values import INT8, Format, Plan


def parse_format(plan: object, format: str | Format | None) -> Format | None:
    """The one format of a uniform plan, where that is asked for instead of a plan."""
    if plan is not None and format is not None:
        raise OptionError("pass either [plan=FILE] or [format=int8], not both")
    return Format.parse(format) if isinstance(format, str) else format


def plan_for(run: Run, plan: Any, format: Format | None) -> Plan:
    """The plan that is asked for; the run's own where none is, else int8 in every layer."""
    layers, own = run.layers, run.folder.path / "plan.json"
    if isinstance(plan, Plan):
        return Plan.from_json(plan.to_json(), layers)
    if plan is None and format is None and own.exists():
        plan = own
    return Plan.uniform(layers, format or INT8) if plan is None else Plan.read(Path(plan), layers)
