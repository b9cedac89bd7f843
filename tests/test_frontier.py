"""The search along predicted damage: its arithmetic against recomputation, its plans against brute force."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import replace
from fractions import Fraction
from functools import cache
from itertools import pairwise, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bitsect.errors import BitsectError, TargetError
from bitsect.solve.search import SEARCHES
from bitsect.solve.search.frontier import EVALUATIONS, Frontier, frontier
from bitsect.solve.search.limit import Limit
from bitsect.solve.search.pins import pinned
from bitsect.solve.search.problem import Found, Problem
from bitsect.solve.search.trail import SAFER, Trails, safer, trail
from bitsect.solve.search.within_budget import within_budget
from bitsect.values import FLOAT, INT4, INT8, Costs, Damage, Evaluation, Format, Layer, Plan

TOTAL = 2000
INT6 = Format(6, 6)
TIMES = {FLOAT: 1.0, INT8: 0.55, INT6: 0.5, INT4: 0.35}


def layers_of(count: int) -> tuple[Layer, ...]:
    return tuple(Layer(f"layer{i}", "conv2d", (4, 4, 3, 3), ()) for i in range(count))


class Network:
    """Layers whose moves of 24 outputs are known, and what a measurement with noise makes of them."""

    def __init__(
        self, count: int, seed: int, *, noise: float = 0.0, formats: tuple[Format, ...] = (INT8, INT4)
    ) -> None:
        rng = np.random.default_rng(seed)
        self.layers, self.formats = layers_of(count), formats
        changes = tuple((layer.name, format) for layer in self.layers for format in formats)
        scale = np.repeat(np.exp(rng.normal(0, 1.2, count)), len(formats))
        scale *= np.tile([2.0 ** (4 - (f.weight_bits or 16)) for f in formats], count)
        moves = rng.normal(size=(len(changes), 24)) * scale[:, None]
        seen = moves * np.exp(rng.normal(0, noise, len(changes)))[:, None]
        seen += rng.normal(size=moves.shape) * noise * scale[:, None]
        self.truth, self.predicted = Damage(changes, moves @ moves.T), Damage(changes, seen @ seen.T)
        times = np.exp(rng.normal(0, 0.8, count))
        self.costs = Costs(
            {f"layer{i}": {f: times[i] * TIMES[f] for f in (FLOAT, *formats)} for i in range(count)}
        )
        self.worst = self.truth(Plan.uniform(self.layers, formats[-1])) or 1.0
        self.jitter = noise / 3

    def correct(self, plan: Plan) -> int:
        """Samples that a plan gets right: fewer with its true damage, and as chance will have it."""
        damage = math.sqrt(self.truth(plan) / self.worst)
        chance = np.random.default_rng(int(plan.key, 16)).normal(0, self.jitter)
        return round(0.9 * TOTAL * (1 - 0.15 * damage**1.3 * math.exp(chance)))

    def problem(self, kept: str = "0.99", keep: tuple[str, ...] = ()) -> Problem:
        return Problem(
            self.layers,
            pinned(self.layers, self.formats, keep),
            self.predicted.order,
            Fraction(kept) * Fraction(9, 10),
            lambda plan, threshold: Evaluation(self.correct(plan), TOTAL, TOTAL),
            self.predicted,
            self.costs,
        )


def counted(problem: Problem, plans: Iterable[Plan]) -> int:
    """How many of the plans count as evaluations: all but the start, which is known from before."""
    return len({*plans} - {problem.start})


def all_plans(problem: Problem) -> list[Plan]:
    names = list(problem.ladders)
    return [Plan(dict(zip(names, formats, strict=True))) for formats in product(*problem.ladders.values())]


# ---- the arithmetic ------------------------------------------------------------------------------


def with_borders(network: Network) -> Costs:
    between = {(a, b): 0.1 for a, b in product((FLOAT, *network.formats), repeat=2) if a != b}
    names = [layer.name for layer in network.layers]
    return Costs(network.costs.each, between, (*pairwise(names), (names[0], names[-1])))


@pytest.mark.parametrize("borders", [False, True])
@settings(max_examples=20)
@given(seed=st.integers(0, 10**6))
def test_moves_are_weighed_as_if_each_plan_were_computed_anew(borders: bool, seed: int) -> None:
    network = Network(5, seed, formats=(INT8, INT6, INT4))
    costs = with_borders(network) if borders else network.costs
    problem = Problem(**{**vars_of(network.problem()), "costs": costs})
    trails = Trails(problem)
    at = np.random.default_rng(seed).integers(0, 4, 5)
    plan, moves = trails.plan(at), trails.moves(at)
    assert (trails.rungs(plan) == at).all()
    for layer, rung, damage, price in zip(moves.layer, moves.rung, moves.damage, moves.cost, strict=True):
        other = plan.replace([f"layer{layer}"], problem.ladders[f"layer{layer}"][rung])
        assert damage == pytest.approx(network.predicted(other) - network.predicted(plan), abs=1e-9)
        assert price == pytest.approx(costs(other) - costs(plan), abs=1e-9)
    together = trails.together(at, moves, np.arange(len(moves.layer)))
    for i, j in ((0, 5), (2, 14), (7, 9)):
        if moves.layer[i] != moves.layer[j]:
            both = at.copy()
            both[moves.layer[[i, j]]] = moves.rung[[i, j]]
            damage = trails.predicted(both) - trails.predicted(at)
            assert together[i, j] == pytest.approx(damage - moves.damage[i] - moves.damage[j], abs=1e-9)


def vars_of(problem: Problem) -> dict[str, object]:
    return {name: getattr(problem, name) for name in problem.__dataclass_fields__}


@settings(max_examples=20)
@given(seed=st.integers(0, 10**6), borders=st.booleans())
def test_along_the_trail_cost_falls_and_damage_rises(seed: int, borders: bool) -> None:
    network = Network(8, seed)
    costs = with_borders(network) if borders else network.costs
    problem = Problem(**{**vars_of(network.problem()), "costs": costs})
    points = trail(problem)
    assert points[0].plan == problem.start
    for point in points:
        assert point.cost == pytest.approx(costs(point.plan))
        assert point.damage == pytest.approx(network.predicted(point.plan), abs=1e-9)
    assert all(a.cost > b.cost for a, b in pairwise(points))
    assert all(a.damage < b.damage for a, b in pairwise(points[1:]))
    assert points[-1].cost == pytest.approx(min(map(costs, all_plans_of_one_format(problem))))


def all_plans_of_one_format(problem: Problem) -> list[Plan]:
    return [Plan.uniform(problem.layers, format) for format in (FLOAT, INT8, INT4)]


@settings(max_examples=20)
@given(seed=st.integers(0, 10**6))
def test_exchanges_lower_the_damage_at_no_more_cost(seed: int) -> None:
    network = Network(9, seed)
    trails = Trails(network.problem())
    at = np.random.default_rng(seed).integers(0, 3, 9)
    better = trails.polished(at)
    assert trails.price(better) <= trails.price(at) + 1e-9
    assert trails.predicted(better) <= trails.predicted(at)
    assert (trails.polished(better) == better).all()


def test_layers_whose_borders_cost_more_than_one_saves_go_down_together() -> None:
    layers = layers_of(4)
    each = {layer.name: {FLOAT: 1.0, INT8: 0.6} for layer in layers}
    costs = Costs(each, {(FLOAT, INT8): 0.5, (INT8, FLOAT): 0.5}, tuple(pairwise(each)))
    damage = Damage.separable({(name, INT8): 1.0 for name in each})
    problem = Problem(layers, pinned(layers, [INT8]), damage.order, Fraction(1, 2), accept, damage, costs)
    assert trail(problem)[-1].plan == Plan.uniform(layers, INT8)
    assert SEARCHES["frontier"](problem).plan == Plan.uniform(layers, INT8)


def accept(plan: Plan, threshold: Fraction | None) -> Evaluation:
    return Evaluation(TOTAL, TOTAL, TOTAL)


def test_two_hundred_layers_with_three_formats_have_a_trail() -> None:
    network = Network(200, 0, formats=(INT8, INT6, INT4))
    points = trail(network.problem())
    assert points[-1].plan == Plan.uniform(network.layers, INT4)


# ---- what it finds -------------------------------------------------------------------------------


@settings(max_examples=20)
@given(seed=st.integers(0, 10**6), noise=st.sampled_from([0.0, 0.3]), kept=st.sampled_from(["0.95", "0.99"]))
def test_every_plan_it_returns_has_passed_and_few_were_asked_about(
    seed: int, noise: float, kept: str
) -> None:
    network = Network(12, seed, noise=noise)
    problem = network.problem(kept)
    found = SEARCHES["frontier"](problem)
    assert found.met
    assert Fraction(network.correct(found.plan), TOTAL) >= problem.threshold
    assert counted(problem, dict(found.evaluated)) <= EVALUATIONS
    assert SEARCHES["frontier"](network.problem(kept)).evaluated == found.evaluated


def test_with_a_right_prediction_it_is_as_good_as_brute_force() -> None:
    excess = []
    for seed in range(12):
        network = Network(6, seed)
        problem = network.problem()
        passing = [p for p in all_plans(problem) if Fraction(network.correct(p), TOTAL) >= problem.threshold]
        least = min(map(network.costs, passing))
        found = SEARCHES["frontier"](problem).plan
        excess.append(network.costs(found) / least - 1)
    assert np.mean(excess) < 0.01
    assert np.median(excess) == pytest.approx(0)


@cache
def compared() -> dict[str, list[tuple[float, int]]]:
    """Cost and evaluations of each search on networks whose damage was measured with an error of 30 %."""
    rows: dict[str, list[tuple[float, int]]] = {}
    for seed in range(9):
        for name in ("bisection", "progressive", "frontier"):
            network = Network(40, seed, noise=0.3)
            problem = network.problem(["0.98", "0.99", "0.995"][seed % 3])
            found = SEARCHES[name](problem)
            share = network.costs(found.plan) / network.costs(Plan.uniform(network.layers))
            rows.setdefault(name, []).append((share, counted(problem, dict(found.evaluated))))
    return rows


def test_it_costs_less_than_bisection() -> None:
    ours, theirs = (np.array(compared()[name])[:, 0] for name in ("frontier", "bisection"))
    assert (ours / theirs).mean() < 0.97
    assert (ours <= theirs * 1.005).all()


def test_sixteen_evaluations_reach_what_progressive_does_in_forty() -> None:
    ours, theirs = (np.array(compared()[name]) for name in ("frontier", "progressive"))
    assert (ours[:, 1] <= EVALUATIONS).all()
    assert (theirs[:, 1] >= 40).all()
    assert (ours[:, 0] / theirs[:, 0]).mean() < 1.0
    assert (ours[:, 0] / theirs[:, 0]).max() < 1.05


def test_more_evaluations_find_cheaper_plans() -> None:
    shares: dict[int, list[float]] = {}
    for evaluations, seed in product((4, 16, 32), range(6)):
        network = Network(20, seed, noise=0.3)
        found = frontier(network.problem(), evaluations)
        shares.setdefault(evaluations, []).append(network.costs(found.plan))
        assert counted(network.problem(), dict(found.evaluated)) <= evaluations
    assert np.mean(shares[4]) > np.mean(shares[16]) >= np.mean(shares[32])


def test_a_plan_with_more_damage_than_plans_that_fail_passed_by_luck() -> None:
    put_back = 0
    for seed in range(8):
        network = Network(30, seed, noise=0.2)

        def judge(plan: Plan, threshold: Fraction | None, network: Network = network) -> Evaluation:
            # Of 500 samples, 2 % is nine: about twice the standard error of what a plan loses.
            lost = 450 * 0.15 * math.sqrt(network.truth(plan) / network.worst) ** 1.3
            chance = np.random.default_rng(int(plan.key, 16)).normal()
            return Evaluation(round(450 - lost + chance * math.sqrt(3 * lost)), 500, 500)

        problem = Problem(**{**vars_of(network.problem("0.98")), "judge": judge})
        found = SEARCHES["frontier"](problem)
        asked = [(network.predicted(p), e.reaches(problem.threshold), p) for p, e in found.evaluated]
        asked.append((0.0, True, problem.start))
        most = max(sum(1 if ok else -1 for d, ok, _ in asked if d <= limit) for limit, _, _ in asked)
        limit = max(d for d, _, _ in asked if sum(1 if ok else -1 for e, ok, _ in asked if e <= d) == most)
        assert found.plan == min((p for d, ok, p in asked if ok and d <= limit), key=network.costs)
        put_back += found.plan != min((p for _, ok, p in asked if ok), key=network.costs)
    assert put_back


@pytest.mark.parametrize("after", [0, 1, 5, 12])
def test_interrupted_it_holds_the_best_plan_that_passed(after: int) -> None:
    network = Network(30, 3, noise=0.3)
    asked: list[Plan] = []

    def judge(plan: Plan, threshold: Fraction | None) -> Evaluation:
        asked.append(plan)
        if counted(problem, asked) > after:
            raise KeyboardInterrupt
        return Evaluation(network.correct(plan), TOTAL, TOTAL)

    problem = Problem(**{**vars_of(network.problem()), "judge": judge})
    search = Frontier(problem)
    with pytest.raises(KeyboardInterrupt):
        search.run()
    best = search.best
    assert best == problem.start or Fraction(network.correct(best), TOTAL) >= problem.threshold
    if after:  # what a search with only so many evaluations would have returned
        assert best == Frontier(network.problem(), after).run().plan


def test_safer_plans_have_less_and_less_damage() -> None:
    network = Network(20, 4, noise=0.3)
    plan = SEARCHES["frontier"](network.problem()).plan
    ladder = safer(network.problem(), plan)
    assert 3 <= len(ladder) <= len(SAFER) == 12
    for before, after in pairwise([plan, *ladder]):
        assert network.predicted(after) < network.predicted(before)
        assert network.costs(after) > network.costs(before)
    assert network.predicted(ladder[0]) <= network.predicted(plan) / 2**0.25
    assert network.predicted(ladder[-1]) <= network.predicted(plan) / 64
    assert safer(network.problem(), Plan.uniform(network.layers)) == []


# ---- ladders, costs, order -----------------------------------------------------------------------


def test_a_format_that_is_slower_in_a_layer_is_not_taken_there() -> None:
    layers = layers_of(3)
    each = {layer.name: {FLOAT: 1.0, INT8: 0.5, INT4: 0.4} for layer in layers}
    each["layer1"] = {FLOAT: 1.0, INT8: 0.5, INT4: 0.6}
    each["layer2"] = {FLOAT: 1.0, INT8: 1.2, INT4: 0.4}
    damage = Damage.separable({(name, f): 1.0 for name in each for f in (INT8, INT4)})
    allowed = pinned(layers, [INT8, INT4])
    found = SEARCHES["frontier"](
        Problem(layers, allowed, damage.order, Fraction(1, 2), accept, damage, Costs(each))
    )
    assert list(found.plan.values()) == [INT4, INT8, INT4]


def test_pins_are_kept_and_their_damage_counts() -> None:
    network = Network(8, 1)
    problem = network.problem("0.95", keep=("first=int4", "last=float", "layer3=float,int4"))
    found = SEARCHES["frontier"](problem)
    assert found.met
    assert found.plan["layer0"] == INT4
    assert found.plan["layer7"] == FLOAT
    assert found.plan["layer3"] != INT8
    with pytest.raises(TargetError, match="'layer0' \\(int4\\)"):
        SEARCHES["frontier"](network.problem("1", keep=("*=int4",)))


def test_without_a_predicted_damage_it_follows_the_order() -> None:
    network = Network(10, 2)
    problem = Problem(**{**vars_of(network.problem()), "damage": None})
    found = SEARCHES["frontier"](problem)
    assert found.met
    assert counted(problem, dict(found.evaluated)) <= EVALUATIONS
    assert network.costs(found.plan) < 0.65 * network.costs(problem.start)


def test_a_damage_or_cost_that_was_not_measured_is_an_error() -> None:
    network = Network(3, 0)
    problem = network.problem()
    few = Damage.separable({("layer0", INT8): 1.0})
    with pytest.raises(BitsectError, match="layer 'layer0' at int4 was not measured"):
        SEARCHES["frontier"](Problem(**{**vars_of(problem), "damage": few}))
    with pytest.raises(BitsectError, match="cost of layer 'layer0' at float is not known"):
        SEARCHES["frontier"](Problem(**{**vars_of(problem), "costs": Costs({})}))


def test_equal_layers_go_in_graph_order() -> None:
    layers = layers_of(6)
    damage = Damage.separable({(layer.name, INT8): 1.0 for layer in layers})
    right: Callable[[Plan], int] = lambda plan: TOTAL - 10 * plan.counts.get("int8", 0)  # noqa: E731
    problem = Problem(
        layers,
        pinned(layers, [INT8]),
        damage.order,
        Fraction(TOTAL - 30, TOTAL),
        lambda plan, threshold: Evaluation(right(plan), TOTAL, TOTAL),
        damage,
    )
    found: Found = SEARCHES["frontier"](problem)
    assert [layer for layer, format in found.plan.items() if format == INT8] == ["layer0", "layer1", "layer2"]
    assert found.reason == "int8: 3 of 6 layers"


# ---- budgets --------------------------------------------------------------------------


@pytest.mark.parametrize("share", [0.45, 0.6, 0.75])
def test_a_budget_is_spent_where_it_spares_the_most_damage(share: float) -> None:
    ratios = []
    for seed in range(12):
        network = Network(6, seed)
        problem = network.problem()
        budget = share * network.costs(problem.start)
        found = within_budget(problem, lambda plan, costs=network.costs, most=budget: costs(plan) / most - 1)
        assert network.costs(found.plan) <= budget
        damage = problem.damage
        assert damage is not None
        fitting = [plan for plan in all_plans(problem) if network.costs(plan) <= budget]
        ratios.append(damage(found.plan) / min(map(damage, fitting)))
    assert sum(ratio < 1 + 1e-9 for ratio in ratios) >= 11
    assert max(ratios) < 1.5


def test_of_plans_that_samples_cannot_tell_apart_the_least_damage_wins() -> None:
    network = Network(6, 5)
    problem = network.problem()
    budget = 0.6 * network.costs(problem.start)

    def excess(plan: Plan) -> float:
        return network.costs(plan) / budget - 1

    best = within_budget(problem, excess).plan
    cheaper = problem.uniform(INT4)
    for ahead, chosen in ((5, best), (100, cheaper)):

        def judge(plan: Plan, threshold: Fraction | None, ahead: int = ahead) -> Evaluation:
            return Evaluation(1700 + ahead * (plan == cheaper), TOTAL, TOTAL)

        assert within_budget(replace(problem, judge=judge), excess, [cheaper]).plan == chosen


def test_the_target_comes_before_the_damage() -> None:
    """A plan that keeps the target is taken before one of less damage that misses it."""
    network = Network(6, 5)
    problem = network.problem()
    budget = 0.6 * network.costs(problem.start)
    keeps = problem.uniform(INT4)
    problem = replace(
        problem,
        threshold=Fraction(9, 10),
        judge=lambda plan, threshold: Evaluation(1800 if plan == keeps else 1799, TOTAL, TOTAL),
    )
    found = within_budget(problem, lambda plan: network.costs(plan) / budget - 1, [keeps])
    assert found.plan == keeps
    assert found.met


# ---- the limit -----------------------------------------------------------------------------------


def test_what_a_failure_lost_says_where_the_limit_is() -> None:
    """One plan that loses a hundred times what is allowed: the limit is near a hundredth of its damage."""
    limit = Limit.learnt([100.0], [False], [100.0])
    near, far = limit.chance(np.array([0.05, 20.0]))
    assert near > 0.85
    assert far < 0.15
    assert 0.3 < limit.chance(np.array([1.0]))[0] < 0.7


def test_chances_fall_with_the_damage_and_follow_what_was_seen() -> None:
    damage = np.geomspace(1e-3, 1e3, 200)
    limit = Limit.learnt([0.1, 1.0, 2.0, 10.0], [True, True, False, False], [0.0, 0.8, 1.4, 9.0])
    chances = limit.chance(damage)
    assert (np.diff(chances) <= 0).all()
    assert limit.chance(np.array([0.5]))[0] > 0.7
    assert limit.chance(np.array([4.0]))[0] < 0.3
    assert abs(limit.weights.sum() - 1) < 1e-12


def test_plans_that_pass_and_fail_in_turn_make_a_wide_limit() -> None:
    """Labels of a few samples decide by luck, and then the next plan may pass as well."""
    damage, nothing = [1.0, 1.2, 1.5, 1.8], [0.0] * 4
    sure = Limit.learnt(damage, [True, True, False, False], nothing)
    unsure = Limit.learnt(damage, [False, True, False, True], nothing)
    beyond = np.array([4.0])
    assert unsure.chance(beyond)[0] > 2 * sure.chance(beyond)[0]


@pytest.mark.parametrize("damage", [[0.0], [0.0, 0.0], [1e-300, 1e300]])
def test_a_limit_of_odd_damages_is_a_number(damage: list[float]) -> None:
    limit = Limit.learnt(damage, [True] * len(damage), [0.0] * len(damage))
    assert np.isfinite(limit.chance(np.array([0.0, 1.0, 1e300]))).all()


def test_plans_that_do_no_damage_say_nothing_of_the_limit() -> None:
    alone = Limit.learnt([1.0], [False], [0.0])
    beside = Limit.learnt([1.0, 0.0, -0.2], [False, True, True], [0.0, 0.0, 0.0])
    damage = np.array([0.0, 0.01, 1.0])
    assert (alone.chance(damage) == beside.chance(damage)).all()


@pytest.mark.parametrize("seed", range(4))
def test_of_targets_that_the_same_plans_keep_none_is_dearer(seed: int) -> None:
    """99.999 % of 1,800 right samples lets as few be lost as 100 %: none."""
    network = Network(20, seed, noise=0.3)
    costs = [network.costs(frontier(network.problem(kept)).plan) for kept in ("1", "0.99999", "0.9999")]
    assert max(costs) == min(costs)


def test_no_plan_is_asked_about_that_a_better_one_failed_before() -> None:
    """Harmless layers that go up again make a failure dearer, and nothing else."""
    network = Network(16, 5)
    harmless = [f"layer{i}" for i in range(8)]
    silent = [i for i, (name, _) in enumerate(network.predicted.changes) if name in harmless]
    for damage in (network.predicted, network.truth):
        damage.gram[silent] = damage.gram[:, silent] = 0.0
    failed: list[Plan] = []
    problem = network.problem("0.995")
    for plan, evaluation in frontier(problem).evaluated:
        for other in failed:
            assert network.costs(plan) < network.costs(other) or (
                network.predicted(plan) < 0.999 * network.predicted(other)
            )
        if evaluation.exact < problem.threshold:
            failed.append(plan)
    assert failed
