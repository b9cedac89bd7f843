"""Which formats a plan may be made of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ..errors import BitsectError
from ..values import FLOAT, Format, Goal, LatencyTable, Layer, Plan, high_to_low
from .costs import faster_formats, worthwhile
from .search.pins import pinned
from .search.problem import uniform_plan


@dataclass(frozen=True)
class Allowed:
    """The formats that each layer may take, from high to low."""

    wanted: tuple[Format, ...]  # as asked for, besides float
    possible: Mapping[str, tuple[Format, ...]]  # as pins have it
    formats: Mapping[str, tuple[Format, ...]]  # of these, what the device runs, and runs faster

    @property
    def steps(self) -> tuple[Format, ...]:
        """The formats below float that any layer may take, from high to low."""
        return high_to_low(f for ladder in self.formats.values() for f in ladder if f != FLOAT)

    @property
    def all(self) -> frozenset[Format]:
        """Every format that is asked for or that some layer may take."""
        return frozenset({*self.steps, *self.wanted})

    @property
    def left_out(self) -> tuple[Format, ...]:
        """The formats that no layer takes on this device."""
        possible = high_to_low(f for ladder in self.possible.values() for f in ladder if f != FLOAT)
        return tuple(format for format in possible if format not in self.steps)

    def uniform(self) -> dict[str, Plan]:
        """By its name, the plan with every layer in each of the formats, as far as pins let them."""
        plans = {format: uniform_plan(self.possible, format) for format in self.wanted}
        return {
            f"all {format}" if set(plan.values()) == {format} else f"{format} where allowed": plan
            for format, plan in plans.items()
        }


def allowed_formats(layers: tuple[Layer, ...], goal: Goal, table: LatencyTable | None) -> Allowed:
    """What `goal` allows each layer: its pins, and of these what the device of `table` makes use of."""
    possible = pinned(layers, goal.formats, goal.keep)
    if table is None:
        return Allowed(goal.formats, possible, possible)
    if goal.objective == "latency":
        worth = worthwhile(layers, table, possible, goal.formats)
        kept = {name: tuple(f for f in ladder if f not in worth.spared) for name, ladder in possible.items()}
        return Allowed(worth.formats, possible, faster_formats(layers, table, kept))
    running = {}
    for layer in layers:
        running[layer.name] = tuple(f for f in possible[layer.name] if table.supports(f, layer))
        if not running[layer.name]:
            names = ", ".join(map(str, possible[layer.name]))
            raise BitsectError(
                f"layer '{layer.name}' does not run in {names} on {table.device}: allow others"
            )
    return Allowed(goal.formats, possible, running)
