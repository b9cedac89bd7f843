"""The most accurate plan within a budget, against brute force on small random problems."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Mapping
from fractions import Fraction
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bitsect.errors import TargetError
from bitsect.solve.search import bisection
from bitsect.solve.search.pins import pinned
from bitsect.solve.search.problem import Problem
from bitsect.solve.search.within_budget import CANDIDATES, within_budget
from bitsect.values import FLOAT, INT4, INT8, Evaluation, Format, Layer, Plan

TOTAL = 1000
LADDER = (FLOAT, INT8, INT4)

Costs = Mapping[str, Mapping[Format, float]]
quick = settings(max_examples=120)


def layers_of(count: int) -> tuple[Layer, ...]:
    return tuple(Layer(f"layer{i}", "conv2d", (4, 4, 3, 3), ()) for i in range(count))


def problem(
    layers: tuple[Layer, ...],
    correct: Callable[[Plan], int],
    allowed: Mapping[str, tuple[Format, ...]] | None = None,
    threshold: Fraction = Fraction(0),
) -> Problem:
    """Layers in rising order of sensitivity, judged by `correct(plan)` of TOTAL samples."""
    names = [layer.name for layer in layers]
    judge = lambda plan, threshold=None: Evaluation(correct(plan), TOTAL, TOTAL)  # noqa: E731
    return Problem(layers, allowed or pinned(layers, (INT8, INT4)), lambda format: names, threshold, judge)


def scattered(seed: int) -> Callable[[Plan], int]:
    return lambda plan: random.Random(f"{seed} {plan.key}").randint(0, TOTAL)


def costs_of(layers: tuple[Layer, ...], seed: int, *, falling: bool) -> Costs:
    """Random costs of each layer and format; `falling`: lower formats never cost more."""
    chance = random.Random(seed)
    rows = {layer.name: [chance.uniform(0.1, 1) for _ in LADDER] for layer in layers}
    return {
        name: dict(zip(LADDER, sorted(row, reverse=True) if falling else row, strict=True))
        for name, row in rows.items()
    }


def excess_of(costs: Costs, limit: float) -> Callable[[Plan], float]:
    return lambda plan: sum(costs[name][format] for name, format in plan.items()) / limit - 1


def every_plan(task: Problem) -> Iterator[Plan]:
    for formats in product(*task.ladders.values()):
        yield Plan(dict(zip(task.ladders, formats, strict=True)))


@quick
@given(count=st.integers(1, 5), seed=st.integers(0, 10**6), share=st.floats(0.1, 1.2), falling=st.booleans())
def test_a_plan_is_found_wherever_one_fits_and_it_fits(
    count: int, seed: int, share: float, falling: bool
) -> None:
    layers = layers_of(count)
    costs = costs_of(layers, seed, falling=falling)
    task = problem(layers, scattered(seed))
    excess = excess_of(costs, share * sum(row[FLOAT] for row in costs.values()))
    nearest = min(every_plan(task), key=excess)
    if excess(nearest) > 0:
        with pytest.raises(TargetError, match=f"is {excess(nearest):.1%} over"):
            within_budget(task, excess)
        return
    found = within_budget(task, excess)
    assert excess(found.plan) <= 0
    assert found.evaluation.complete
    fitting = [evaluation.exact for plan, evaluation in found.evaluated if excess(plan) <= 0]
    assert found.evaluation.exact == max(fitting)
    assert len(found.evaluated) <= CANDIDATES


@quick
@given(losses=st.lists(st.integers(0, 100), min_size=1, max_size=8), affordable=st.integers(0, 8))
def test_the_optimum_where_layers_cost_alike_and_their_order_is_right(
    losses: list[int], affordable: int
) -> None:
    layers = layers_of(len(losses))
    lost = dict(zip((layer.name for layer in layers), sorted(losses), strict=True))

    def correct(plan: Plan) -> int:
        return TOTAL - sum(lost[name] for name, format in plan.items() if format != FLOAT)

    def excess(plan: Plan) -> float:
        return sum(format == FLOAT for format in plan.values()) - affordable

    task = problem(layers, correct, pinned(layers, (INT8,)))
    best = max(correct(plan) for plan in every_plan(task) if excess(plan) <= 0)
    assert within_budget(task, excess).evaluation.correct == best


def test_what_fits_as_it_is_stays_as_it_is() -> None:
    task = problem(layers_of(3), scattered(0))
    found = within_budget(task, lambda plan: 0.0)
    assert found.plan == task.start
    assert found.reason == "every layer at its highest is within the budget"


def test_sensitive_layers_are_spared_where_that_is_better() -> None:
    """Half the size: all at int8 loses much in the last layer, which others make room for at int4."""
    layers = layers_of(4)

    def correct(plan: Plan) -> int:
        return TOTAL - 300 * (plan["layer3"] != FLOAT) - sum(format == INT4 for format in plan.values())

    def excess(plan: Plan) -> float:
        return plan.size_bytes(layers) / (0.5 * Plan.uniform(layers).size_bytes(layers)) - 1

    found = within_budget(problem(layers, correct), excess)
    assert found.plan["layer3"] == FLOAT
    assert excess(found.plan) <= 0


def test_plans_asked_about_before_count_too() -> None:
    layers = layers_of(4)
    lucky = Plan.uniform(layers, INT8).replace(["layer0", "layer3"], INT4)
    task = problem(layers, lambda plan: TOTAL if plan == lucky else 500)

    def excess(plan: Plan) -> float:
        return plan.size_bytes(layers) / lucky.size_bytes(layers) - 1

    assert within_budget(task, excess).plan != lucky
    assert within_budget(task, excess, [Plan.uniform(layers), lucky]).plan == lucky


@quick
@given(seed=st.integers(0, 10**6), share=st.floats(0.3, 1.1), data=st.data())
def test_layers_stay_on_their_ladders(seed: int, share: float, data: st.DataObject) -> None:
    layers = layers_of(4)
    ladders = st.sets(st.sampled_from(LADDER), min_size=1).map(
        lambda some: tuple(f for f in LADDER if f in some)
    )
    allowed = {layer.name: data.draw(ladders) for layer in layers}
    task = problem(layers, scattered(seed), allowed)
    excess = excess_of(costs_of(layers, seed, falling=True), share * 2.5)
    try:
        found = within_budget(task, excess)
    except TargetError:
        assert all(excess(plan) > 0 for plan in every_plan(task))
        return
    assert all(plan[name] in allowed[name] for plan, _ in found.evaluated for name in plan)


def test_whether_the_target_is_kept_is_said() -> None:
    layers = layers_of(3)
    half = lambda plan: plan.size_bytes(layers) / (0.5 * Plan.uniform(layers).size_bytes(layers)) - 1  # noqa: E731
    for correct, met in ((lambda plan: 950, True), (lambda plan: 800, False)):
        found = within_budget(problem(layers, correct, threshold=Fraction(9, 10)), half)
        assert found.met is met
        assert ("misses the target" in found.reason) is not met
    found = bisection(problem(layers, lambda plan: 950, threshold=Fraction(9, 10)))
    assert found.met


def test_a_large_network_takes_no_time() -> None:
    layers = layers_of(193)
    task = problem(layers, scattered(0))
    excess = excess_of(costs_of(layers, 0, falling=True), 90)
    begin = time.process_time()  # another process may have the processor for as long as it likes
    found = within_budget(task, excess)
    assert time.process_time() - begin < 20
    assert excess(found.plan) <= 0
    assert len(found.evaluated) <= CANDIDATES
