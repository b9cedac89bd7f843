"""What is written and proven: a program under a plan, as it was judged."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ..network.program import Program
from ..rounding.rounder import Rounder
from ..sources.tasks.task import Task
from ..values import Plan


@dataclass(frozen=True)
class Subject:
    """A program under a plan, the rounder that makes it concrete, and the task that judges it."""

    program: Program
    rounder: Rounder
    plan: Plan
    task: Task
    source: str = ""  # what a run knows its network by: hf:FOLDER, FILE.pt2 …

    @property
    def in_float(self) -> Subject:
        """The same program with every layer left in float."""
        return replace(self, plan=Plan.uniform(self.program.layers))
