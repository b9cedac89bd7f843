"""The method `paper-literal` against a second reading of the paper's Algorithms 1 and 2, on random tables."""

from __future__ import annotations

import random
from collections.abc import Callable
from fractions import Fraction

import pytest
import torch
from torch import nn

import bitsect
from bitsect import Goal
from bitsect.solve.answer import solve
from bitsect.solve.search.problem import Problem
from bitsect.values import FLOAT, INT4, INT8, Evaluation, Format, LatencyTable, Layer, Plan
from bitsect.values.latency_table import place_key
from bitsect.values.method import METHODS

TOTAL = 1000
LITERAL = METHODS["paper-literal"]
BITS = {FLOAT: 16, INT8: 8, INT4: 4}
Config = tuple[int, ...]  # the bits of every layer
Accuracy = Callable[[Config], int]

# ---- the paper's pseudo-code, line by line; nothing of the library is used here --------------------


def algorithm_1(s: list[float], t: Fraction, bs: list[int], f: Accuracy) -> tuple[Config, list[Config]]:
    """Bisection search for ideal quantization configuration. `bs` holds 16 first, which is where w begins."""
    asked = []
    w = [max(bs)] * len(s)  # Initialize working configuration w with max(bs).
    ll = list(range(len(s)))  # Initialize layer list ll with all layers of f.
    ll.sort(key=lambda layer: s[layer])  # Sort ll by s in ascending order.
    for b in bs[1:]:  # for b in bs do
        thr = len(ll) // 2  # Initialize threshold thr = length(ll)/2.
        upl = len(ll)  # Initialize upper limit upl to length(ll).
        lowl = 0  # Initialize lower limit lowl to 0.
        while True:  # repeat
            lw = list(w)  # Initialize local working config lw with w.
            for layer in ll[0:thr]:  # lw[ll[0:thr]] <- b.
                lw[layer] = b
            a = Fraction(f(tuple(lw)), TOTAL)  # Evaluate f(x, lw) and save accuracy a.
            asked.append(tuple(lw))
            old = thr
            if a >= t:  # if a >= t then
                lowl = thr  # lowl <- thr.
                thr = thr + (upl - thr) // 2  # thr <- thr + (upl - thr)/2.
            else:  # else
                upl = thr  # upl <- thr.
                thr = thr - (thr - lowl) // 2  # thr <- thr - (thr - lowl)/2.
            if thr == old:  # until thr is not changing.
                break
        for layer in ll[0:thr]:  # w[ll[0:thr]] <- b.
            w[layer] = b
        ll = ll[0:thr]  # ll <- ll[0:thr].
    return tuple(w), asked  # Return: optimal working configuration w.


def algorithm_2(s: list[float], t: Fraction, bs: list[int], f: Accuracy) -> tuple[Config, list[Config]]:
    """Progressive approach for ideal quantization configuration."""
    asked = []
    w = [max(bs)] * len(s)  # Initialize working configuration w with max(bs).
    ll = sorted(range(len(s)), key=lambda layer: s[layer])  # Sort ll by s in ascending order.
    for b in bs[1:]:  # for b in bs do
        ql = []  # Initialize quantizable layer ql <- {}.
        for layer in ll:  # for l in ll do
            working = w[layer]
            w[layer] = b  # w[l] <- b.
            a = Fraction(f(tuple(w)), TOTAL)  # Evaluate f(x, w) and save accuracy a.
            asked.append(tuple(w))
            if a >= t:  # if a >= t then
                ql.append(layer)  # Append l to ql.
            else:  # else
                w[layer] = working  # Set w[l] back to last working value.
        ll = ql  # ll <- ql.
    return tuple(w), asked  # Return: optimal working configuration w.


# ---- the library on the same tables ----------------------------------------------------------------


class Table:
    """Random losses of layers and pairs and a random order; accuracy need not fall from plan to plan."""

    def __init__(self, seed: int) -> None:
        chance = random.Random(seed)
        self.count = chance.randint(1, 24)
        self.scores = [chance.choice((chance.random(), 0.5)) for _ in range(self.count)]  # with ties
        self.single = [chance.expovariate(1 / 6) for _ in range(self.count)]
        self.pair = {(i, j): chance.gauss(0, 2) for i in range(self.count) for j in range(i)}
        self.scatter, self.seed = chance.choice((0, 0, 15)), seed
        self.target = Fraction(chance.randint(900, 1000), 1000)

    def __call__(self, config: Config) -> int:
        weight = [{16: 0.0, 8: 0.3, 4: 1.0}[bits] for bits in config]
        lost = sum(w * loss for w, loss in zip(weight, self.single, strict=True))
        lost += sum(weight[i] * weight[j] * loss for (i, j), loss in self.pair.items())
        if any(weight):
            lost += random.Random(f"{self.seed} {config}").uniform(-self.scatter, self.scatter)
        return TOTAL - min(TOTAL, max(0, round(lost)))

    def problem(self, asked: list[Plan]) -> Problem:
        layers = tuple(Layer(f"layer{i}", "conv2d", (4, 4, 3, 3), ()) for i in range(self.count))
        order = sorted(layers, key=lambda layer: self.scores[layers.index(layer)])

        def judge(plan: Plan, threshold: Fraction | None) -> Evaluation:
            asked.append(plan)
            return Evaluation(self(config_of(plan)), TOTAL, TOTAL)

        allowed: dict[str, tuple[Format, ...]] = {layer.name: (FLOAT, INT8, INT4) for layer in layers}
        return Problem(layers, allowed, lambda format: [layer.name for layer in order], self.target, judge)


def config_of(plan: Plan) -> Config:
    return tuple(BITS[format] for format in plan.values())


@pytest.mark.parametrize(
    ("search", "reference"), [("literal", algorithm_1), ("literal-progressive", algorithm_2)]
)
def test_the_same_plans_and_the_same_evaluations(search: str, reference: Callable[..., object]) -> None:
    for seed in range(1500):
        table, asked = Table(seed), list[Plan]()
        goal = LITERAL.complete(Goal(target="99%", search=search))
        found = solve(table.problem(asked), goal, None)
        plan, configs = reference(table.scores, table.target, [16, 8, 4], table)  # type: ignore[misc]
        assert config_of(found.plan) == plan, seed
        # What is asked twice is remembered; the network in 16 bits is known before any search.
        once = [config for config in dict.fromkeys(configs) if set(config) != {16}]
        judged = [config_of(plan) for plan, _ in found.evaluated]
        assert [config for config in judged if set(config) != {16}] == once, seed
        assert [config for config in dict.fromkeys(map(config_of, asked)) if set(config) != {16}] == once
        assert found.met == (Fraction(table(plan), TOTAL) >= table.target), seed


def test_it_begins_with_no_uniform_plan_and_ends_with_none() -> None:
    """All layers in 4 bits pass here, and neither algorithm asks about it before it has come there."""
    table = Table(1)
    table.single, table.pair, table.scatter = [0.0] * table.count, {}, 0
    asked: list[Plan] = []
    found = solve(table.problem(asked), LITERAL.complete(Goal(target="90%")), None)
    assert config_of(asked[0]).count(8) == table.count // 2
    assert FLOAT in found.plan.values()


# ---- the method as a whole -------------------------------------------------------------------------


def test_every_option_is_as_printed() -> None:
    torch.manual_seed(0)
    layers = nn.Conv2d(1, 4, 3), nn.GELU(), nn.Conv2d(4, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64, 4)
    network = nn.Sequential(*layers).eval()
    x = torch.randn(64, 1, 8, 8, generator=torch.Generator().manual_seed(5))
    with torch.no_grad():
        y = network(x).argmax(1)
    asked = {"method": "paper-literal", "draw": 48, "threads": 1, "probes": 4}
    places = [place for layer in bitsect.layers(network, example=x[:2]).layers for place in layer.places]
    row: dict[Format, float | None] = {FLOAT: 2.0, INT8: 1.0, INT4: 3.0}
    slower = LatencyTable("bench", "made up", tuple(row), {place_key(place): row for place in places})
    result = bitsect.quantize(network, (x, y), target="80%", latency=slower, **asked)
    assert (result.method, result.goal.search, result.scoring.estimator) == (
        "paper-literal",
        "literal",
        "hutchinson",
    )
    assert (result.scoring.clip, result.goal.confidence) == ("sum", None)
    assert result.scores.probing is not None
    assert result.scores.probing.estimator == "hutchinson"
    # Though no layer is faster in 4 bits on that device, the search asked about them.
    assert any(INT4 in plan.values() for plan, _ in result.found.evaluated)
    assert LITERAL.settings.draw == 4096
    with pytest.raises(bitsect.DataError, match="4096 samples asked for, it has 64: ask for 1 to 64"):
        bitsect.sensitivity(network, (x, y), method="paper-literal", metric="random")
