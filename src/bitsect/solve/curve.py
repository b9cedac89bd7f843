"""From evaluated plans to a curve: costs, hulls, and the plan for any target."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction

from ..values import Damage, Evaluation, LatencyTable, Layer, Plan
from ..values.curve import CurvePoint
from .costs import cost_where_run
from .hull import hull


def curve_points(
    evaluated: Mapping[Plan, Evaluation],
    layers: Sequence[Layer],
    table: LatencyTable | None,
    names: Mapping[str, Sequence[str]],
    damage: Damage | None = None,
) -> tuple[CurvePoint, ...]:
    """The points by rising cost, with both hulls marked; `names` are known by the keys of plans.

    Only plans that were judged on all samples can lie on a hull.
    """
    points = [
        CurvePoint(
            plan,
            evaluation,
            cost_where_run(plan, layers, table),
            tuple(names.get(plan.key, ())),
            damage=_predicted(damage, plan),
        )
        for plan, evaluation in evaluated.items()
    ]
    points.sort(key=lambda point: (point.cost.latency_ms or 0.0, point.cost.size_bytes, point.key))
    by_size = _hull(points, [point.cost.size_bytes for point in points])
    by_latency = _hull(points, [point.cost.latency_ms for point in points])
    return tuple(
        replace(point, on_size_hull=i in by_size, on_latency_hull=i in by_latency)
        for i, point in enumerate(points)
    )


def read_off(points: Iterable[CurvePoint], threshold: Fraction, objective: str) -> CurvePoint | None:
    """The cheapest plan that reaches the threshold, but not by luck; None where none does.

    By luck passes a plan with more predicted damage than plans that fail: those that passed count up to
    the damage below which most passed and fewest failed. Without predictions all that passed count.
    """
    known = [point for point in points if point.evaluation.complete]
    if objective == "latency" and any(point.cost.latency_ms is not None for point in known):
        known = [point for point in known if point.cost.latency_ms is not None]  # what the device runs
    passed = [point for point in known if point.evaluation.exact >= threshold]
    predicted = [point for point in known if point.damage is not None]
    if any(point.damage for point in predicted):
        limits = [point.damage or 0.0 for point in predicted if point.evaluation.exact >= threshold]

        def parted(limit: float) -> int:
            below = [point for point in predicted if (point.damage or 0.0) <= limit]
            return sum(1 if point.evaluation.exact >= threshold else -1 for point in below)

        if limits:
            limit = max(limits, key=lambda damage: (parted(damage), damage))
            passed = [point for point in passed if point.damage is not None and point.damage <= limit]
    return min(passed, key=lambda point: point.cost.price(objective), default=None)


def _predicted(damage: Damage | None, plan: Plan) -> float | None:
    known = damage is not None and all(
        format.is_float or (name, format) in damage.index for name, format in plan.items()
    )
    return damage(plan) if damage is not None and known else None


def _hull(points: Sequence[CurvePoint], prices: Sequence[float | None]) -> set[int]:
    """Which of the points that were judged to the end, and have a price, lie on the hull."""
    able = [
        (i, price, points[i].evaluation.accuracy)
        for i, price in enumerate(prices)
        if price is not None and points[i].evaluation.complete
    ]
    return {able[k][0] for k in hull([price for _, price, _ in able], [value for *_, value in able])}
