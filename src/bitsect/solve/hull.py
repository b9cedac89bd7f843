"""The edge of a cloud of plans: which of them no mixture of others beats."""

from __future__ import annotations

from collections.abc import Sequence


def hull(costs: Sequence[float], values: Sequence[float]) -> tuple[int, ...]:
    """The points on the upper hull, by rising cost: value rises with it, by less and less per cost.

    It begins at the cheapest point and ends at the most valuable one. Of points at one place the first
    counts.

    >>> hull([1.0, 2.0, 3.0, 2.5], [0.0, 2.0, 3.0, 2.0])
    (0, 1, 2)
    """
    kept: list[int] = []
    for point in staircase(costs, values):
        while len(kept) >= 2 and _is_below(kept[-2], kept[-1], point, costs, values):
            kept.pop()
        kept.append(point)
    return tuple(kept)


def staircase(costs: Sequence[float], values: Sequence[float]) -> tuple[int, ...]:
    """The points for which no other costs as little and is worth as much, by rising cost.

    >>> staircase([1.0, 2.0, 3.0, 2.5], [0.0, 2.0, 3.0, 2.0])
    (0, 1, 2)
    """
    kept: list[int] = []
    for point in sorted(range(len(costs)), key=lambda i: (costs[i], -values[i], i)):
        if not kept or values[point] > values[kept[-1]]:
            kept.append(point)
    return tuple(kept)


def _is_below(first: int, middle: int, last: int, costs: Sequence[float], values: Sequence[float]) -> bool:
    """Whether the middle point lies on or below the line between the others."""
    across, along = costs[last] - costs[first], costs[middle] - costs[first]
    return (values[middle] - values[first]) * across <= (values[last] - values[first]) * along
