"""Which formats a plan may be made of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ..errors import BitsectError
from ..values import FLOAT, Format, Goal, LatencyTable, Layer, Plan, high_to_low
from .costs import LEAST_GAIN, faster_formats, latency_ms, worthwhile
from .search.pins import pinned
from .search.problem import uniform_plan


@dataclass(frozen=True)
class Allowed:
    """The formats that each layer may take, from high to low."""

    wanted: tuple[Format, ...]  # as asked for, besides float
    possible: Mapping[str, tuple[Format, ...]]  # as pins have it
    formats: Mapping[str, tuple[Format, ...]]  # of these, what the device runs, and runs faster
    running: Mapping[str, tuple[Format, ...]] | None = None  # of the possible, what the device runs

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
        """By its name, the plan with every layer in each of the formats, as far as layers and pins let it."""
        wanted = {FLOAT, *self.wanted}  # a layer without a format takes none that gains nothing in its place
        ladders = {
            name: tuple(f for f in ladder if f in wanted) or ladder
            for name, ladder in (self.running or self.possible).items()
        }
        plans = {format: uniform_plan(ladders, format) for format in self.wanted}
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
        first = _ranges_found_first(layers, table, possible, goal.formats)
        worth = worthwhile(layers, table, first, goal.formats)
        kept = {name: tuple(f for f in ladder if f not in worth.spared) for name, ladder in first.items()}
        runs = {
            layer.name: tuple(f for f in possible[layer.name] if table.supports(f, layer))
            or possible[layer.name]
            for layer in layers
        }
        return Allowed(worth.formats, possible, faster_formats(layers, table, kept), runs)
    running = {}
    for layer in layers:
        running[layer.name] = tuple(f for f in possible[layer.name] if table.supports(f, layer))
        if not running[layer.name]:
            names = ", ".join(map(str, possible[layer.name]))
            raise BitsectError(
                f"layer '{layer.name}' does not run in {names} on {table.device}: allow others"
            )
    return Allowed(goal.formats, possible, running)


def _ranges_found_first(
    layers: tuple[Layer, ...],
    table: LatencyTable,
    possible: Mapping[str, tuple[Format, ...]],
    formats: tuple[Format, ...],
) -> Mapping[str, tuple[Format, ...]]:
    """`possible` without calibrated ranges where those found at run time lose less and take as long.

    Whether they take as long is asked of whole networks, for roundings between layers are to be paid for too.
    """
    running = {
        layer.name: tuple(f for f in possible[layer.name] if table.supports(f, layer)) for layer in layers
    }
    if not table.boundaries or not all(running.values()):
        return possible
    ms = {format: latency_ms(uniform_plan(running, format), layers, table) for format in formats}
    found = [ms[format] for format in formats if format.dynamic]
    calibrated = [ms[format] for format in formats if format.has_ranges]
    if not found or not calibrated or min(found) > (1 + LEAST_GAIN) * min(calibrated):
        return possible
    return {
        name: tuple(f for f in ladder if not f.has_ranges) if any(f.dynamic for f in ladder) else ladder
        for name, ladder in possible.items()
    }
