"""The curve: hulls against brute force, one walk for many targets, points that are read from a run."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from fractions import Fraction
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import bitsect
from bitsect.errors import OptionError, PlanError, RunError
from bitsect.pipeline.plans import plan_for
from bitsect.pipeline.result import Result
from bitsect.runs.opening import open_run
from bitsect.solve.costs import cost
from bitsect.solve.curve import read_off
from bitsect.solve.hull import hull, staircase
from bitsect.solve.search.frontier import frontier
from bitsect.solve.search.problem import Problem
from bitsect.solve.search.walk import Walk
from bitsect.values import FLOAT, INT4, INT8, Costs, Damage, Evaluation, Layer, Plan
from bitsect.values.curve import CurvePoint

TARGETS = "80%,90%,95%,97%,98%,99%"
numbers = st.integers(0, 12)


@given(st.lists(st.tuples(numbers, numbers), min_size=1, max_size=7))
def test_the_hull_is_what_no_mixture_beats(points: list[tuple[int, int]]) -> None:
    costs, values = [float(c) for c, _ in points], [float(v) for _, v in points]
    chosen = hull(costs, values)
    assert sorted(chosen, key=lambda i: costs[i]) == list(chosen)
    places = {points[i] for i in chosen}
    for k, (c, v) in enumerate(points):
        beaten = any(
            _mixture_beats(points[i], points[j], share, (c, v))
            for i, j in product(range(len(points)), repeat=2)
            for share in (Fraction(n, 12) for n in range(13))
        )
        if beaten:
            assert points[k] not in places
    cheapest = min(points, key=lambda p: (p[0], -p[1]))
    dearest = max(points, key=lambda p: (p[1], -p[0]))
    assert {cheapest, dearest} <= places


def _mixture_beats(a: tuple[int, int], b: tuple[int, int], share: Fraction, point: tuple[int, int]) -> bool:
    c = share * a[0] + (1 - share) * b[0]
    v = share * a[1] + (1 - share) * b[1]
    return c <= point[0] and v > point[1]


@given(st.lists(st.tuples(numbers, numbers), min_size=1, max_size=12))
def test_the_staircase_is_what_nothing_dominates(points: list[tuple[int, int]]) -> None:
    chosen = {points[i] for i in staircase([float(c) for c, _ in points], [float(v) for _, v in points])}
    expected = {p for p in points if not any(q != p and q[0] <= p[0] and q[1] >= p[1] for q in points)}
    assert chosen == expected


# ---- the walk ------------------------------------------------------------------------------------


def layers_of(count: int) -> tuple[Layer, ...]:
    return tuple(Layer(f"layer{i}", "conv2d", (4, 4, 3, 3), ()) for i in range(count))


class Judge:
    """Accuracy falls steadily with the damage that was predicted."""

    def __init__(self, damage: Damage, total: int = 1000) -> None:
        self.damage, self.total, self.asked = damage, total, set[Plan]()

    def __call__(self, plan: Plan, threshold: Fraction | None) -> Evaluation:
        self.asked.add(plan)
        return Evaluation(max(0.0, self.total - round(self.damage(plan))), self.total, self.total)


def problem_of(count: int = 16, seed: int = 0) -> tuple[Problem, Judge]:
    rng, layers = np.random.default_rng(seed), layers_of(count)
    single = {
        (layer.name, format): float(value * factor)
        for layer, value in zip(layers, np.exp(rng.normal(1, 1.0, count)), strict=True)
        for format, factor in ((INT8, 0.1), (INT4, 1.0))
    }
    damage = Damage.separable(single)
    costs = Costs({layer.name: {FLOAT: 16.0, INT8: 8.0, INT4: 4.0} for layer in layers})
    judge = Judge(damage)
    allowed = {layer.name: (FLOAT, INT8, INT4) for layer in layers}
    problem = Problem(layers, allowed, damage.order, Fraction(9, 10), judge, damage, costs)
    return problem, judge


@pytest.mark.parametrize("seed", range(4))
def test_one_walk_finds_for_every_threshold_the_last_plan_of_the_trail_that_passes(seed: int) -> None:
    problem, judge = problem_of(seed=seed)
    thresholds = [Fraction(n, 1000) for n in range(900, 1000, 10)]
    walk = Walk(problem, thresholds)
    walk.run(evaluations=200)
    whole = walk.points[0].cost - walk.points[-1].cost
    for threshold in thresholds:
        passed, failed = walk.bracket(threshold)
        passing = [k for k, point in enumerate(walk.points) if 1000 - round(point.damage) >= threshold * 1000]
        assert passed <= max(passing) < failed or walk.points[max(passing)].cost > walk.points[failed].cost
        # What is left open is not worth an evaluation.
        assert (
            failed - passed == 1 or walk.points[passed].cost - walk.points[failed - 1].cost <= 0.005 * whole
        )
    assert len(judge.asked) <= len(walk.points)


def test_ten_thresholds_need_fewer_evaluations_than_three_searches() -> None:
    problem, judge = problem_of(24)
    Walk(problem, [Fraction(n, 1000) for n in range(900, 1000, 10)]).run()
    together = len(judge.asked)
    separate = 0
    for n in (900, 950, 990):
        problem, judge = problem_of(24)
        frontier(replace(problem, threshold=Fraction(n, 1000)))
        separate += len(judge.asked)
    assert together <= 16 < separate


def test_a_walk_stops_with_its_evaluations() -> None:
    problem, judge = problem_of(24)
    assert len(Walk(problem, [Fraction(95, 100)]).run(evaluations=2)) == 2
    assert len(judge.asked) == 2


def test_what_passes_by_luck_is_not_read_off() -> None:
    layers = layers_of(4)

    def point(count: int, correct: float, damage: float | None) -> CurvePoint:
        plan = Plan.uniform(layers).replace([layer.name for layer in layers[:count]], INT4)
        return CurvePoint(plan, Evaluation(correct, 100, 100), cost(plan, layers), damage=damage)

    points = [point(0, 100, 0.0), point(1, 99, 1.0), point(2, 90, 2.0), point(3, 91, 3.0), point(4, 99, 4.0)]
    chosen = read_off(points, Fraction(99, 100), "size")
    assert chosen is not None
    assert chosen.damage == 1.0
    blind = [point(k, each.evaluation.correct, None) for k, each in enumerate(points)]
    chosen = read_off(blind, Fraction(99, 100), "size")
    assert chosen is not None
    assert chosen.plan == points[4].plan
    assert read_off(points[2:4], Fraction(99, 100), "size") is None


# ---- of a run ------------------------------------------------------------------------------------


def network() -> nn.Module:
    torch.manual_seed(1)
    layers = nn.Conv2d(1, 6, 3), nn.ReLU(), nn.Conv2d(6, 6, 3), nn.ReLU(), nn.Flatten(), nn.Linear(96, 5)
    return nn.Sequential(*layers).eval()


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Result:
    images = torch.randn(64, 1, 8, 8, generator=torch.Generator().manual_seed(5))
    path = tmp_path_factory.mktemp("made") / "run"
    options: dict[str, Any] = {"method": "paper", "batch_size": 16, "threads": 1}
    return bitsect.quantize(network(), images, target=0.9, metric="sqnr", out=path, **options)


@pytest.fixture
def run(made: Result, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made.run.folder.path, tmp_path / "run"))


def test_every_plan_that_was_evaluated_is_a_point(made: Result, run: Path) -> None:
    curve = bitsect.frontier(run)
    noted = {json.loads(line)["key"] for line in (run / "plans.jsonl").read_text().splitlines()}
    assert {point.plan.key for point in curve} == noted
    assert curve.evaluations == 0
    assert curve.read_off == ()
    assert {name for point in curve for name in point.names} >= {"float", "all int8", "90-percent"}
    for point in curve.hull:
        assert point.evaluation.complete
    assert made.plan.key in noted
    assert json.dumps(curve.to_json(), allow_nan=False) == json.dumps(
        bitsect.frontier(run).to_json(), allow_nan=False
    )


def test_targets_are_read_off_and_plans_are_known_by_their_names(run: Path) -> None:
    curve = bitsect.frontier(run, targets=TARGETS)
    assert [str(each.target) for each in curve.read_off] == TARGETS.split(",")
    assert curve.evaluations > 0
    prices = [each.point.cost.size_bytes for each in curve.read_off]
    assert prices == sorted(prices)  # more to keep never costs less
    for each in curve.read_off:
        assert each.kept >= float(each.target.relative or 0)
    again = bitsect.frontier(run, targets=TARGETS)
    assert again.evaluations == 0
    assert [each.point.key for each in again.read_off] == [each.point.key for each in curve.read_off]
    with open_run(run) as opened:
        last = curve.read_off[-1]
        assert plan_for(opened, last.name, None) == last.point.plan
        assert plan_for(opened, last.point.key, None) == last.point.plan
        with pytest.raises(PlanError, match="no such plan"):
            plan_for(opened, "frontier-12-percent", None)


def test_a_result_has_its_curve(made: Result) -> None:
    curve = made.frontier()
    assert made.plan.key in {point.plan.key for point in curve}


def test_points_that_were_not_judged_to_the_end_lie_on_no_hull(run: Path) -> None:
    with open_run(run) as opened:
        plan = Plan.uniform(opened.layers, INT4)
        evaluator = opened.evaluator({INT4})
        other = plan.replace([opened.layers[0].name], INT8)
        evaluator(other, Fraction(99999, 100000))  # stops at the first batch that misses it
        opened.folder.note_plan(other)
    (found,) = (point for point in bitsect.frontier(run) if point.plan == other)
    assert found.evaluation.complete or not found.on_hull


def test_lines_that_are_damaged_are_no_points(run: Path) -> None:
    count = len(bitsect.frontier(run))
    with (run / "plans.jsonl").open("a") as file:
        file.write('{"key": "x", "layers": {"nobody": "int8"}}\n{"key": 3, "layers": 7}\nnonsense\n{"layers"')
    assert len(bitsect.frontier(run)) == count


@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        ({"target": 0.9}, OptionError, "targets='98%,99%'"),
        ({"targets": "nine"}, bitsect.BitsectError, "target 'nine'"),
        ({"budget": "0.5x", "latency": "a100"}, OptionError, "does not apply to a curve"),
    ],
)
def test_what_a_curve_does_not_take(run: Path, options: dict[str, Any], error: Any, said: str) -> None:
    with pytest.raises(error, match=said):
        bitsect.frontier(run, **options)


def test_a_run_judged_by_a_users_function_has_no_curve(tmp_path: Path) -> None:
    images = torch.randn(16, 1, 8, 8, generator=torch.Generator().manual_seed(5))
    path = tmp_path / "run"
    bitsect.quantize(
        network(),
        images,
        target=0.5,
        metric="random",
        out=path,
        evaluate=lambda model: 1.0,
        destination="bits",
    )
    with pytest.raises(RunError, match="make a run without evaluate"):
        bitsect.frontier(path)
