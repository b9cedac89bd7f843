"""What plans share: the same bytes as each on its own, within the room that there is."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from bitsect.measure.prefixes import CUTS, Prefixes, _bytes, cuts
from bitsect.network.footprint import footprint
from bitsect.network.parts import FLOAT_ROUNDING, Rounding
from bitsect.network.program import Program
from bitsect.runs.opening import open_run
from bitsect.runs.run import Run
from bitsect.values import FLOAT, INT4, INT8, Plan, Settings
from bitsect.values.grid import Grid
from tiny import Residual, images, refill

PLANS = 24


@pytest.fixture(scope="module", params=["paper", "onnxruntime"])
def run(request: pytest.FixtureRequest) -> Iterator[Run]:
    settings = Settings(batch_size=8, threads=1, rounding="gptq", range="mse", placement=request.param)
    with open_run(refill(Residual()), images(22), settings) as run:
        yield run


def drawn(run: Run) -> list[Plan]:
    """Plans that a search could try: each with a layer or two changed in one from before."""
    draw, names = random.Random(0), [layer.name for layer in run.layers]
    plans = [Plan.uniform(run.layers, INT8)]
    while len(plans) < PLANS:
        chosen = draw.sample(names, draw.choice((1, 2)))
        plans.append(draw.choice(plans).replace(chosen, draw.choice((FLOAT, INT8, INT4))))
    return plans


def judged(run: Run, prefixes: Prefixes | None) -> list[bytes]:
    evaluator = run.evaluator((INT8, INT4))
    evaluator.done, evaluator.prefixes = {}, prefixes
    for plan in drawn(run):
        evaluator(plan)
    return [array.tobytes() for key in evaluator.done for array in evaluator.done[key].values()]


class Counted(Program):
    """Counts the steps that it takes."""

    steps_taken = 0

    def _walk(self, values: Any, rows: int, start: int, stop: int, *more: Any, **named: Any) -> None:
        self.steps_taken += stop - start
        super()._walk(values, rows, start, stop, *more, **named)


@pytest.mark.parametrize("room", [0.0, 3e5, 1e9])
def test_plans_that_share_their_beginning_are_judged_to_the_same_bytes(run: Run, room: float) -> None:
    assert judged(run, Prefixes(run.program, room)) == judged(run, None)


def test_what_is_shared_is_not_computed_again(run: Run) -> None:
    evaluator = run.evaluator((INT8, INT4))
    steps = {}
    for room in (0.0, 1e9):
        program = Counted(run.program.contents)
        prefixes = Prefixes(program, room)
        for plan in drawn(run):
            for start in evaluator.parts:
                prefixes.run(run.samples, start, evaluator.batch(start)[0], evaluator.rounding(plan))
        steps[room] = program.steps_taken
    assert steps[1e9] < 0.7 * steps[0.0]


def test_no_more_is_kept_than_there_is_room_for(run: Run) -> None:
    prefixes = Prefixes(run.program, 3e5)
    judged(run, prefixes)
    kept = [state for batch in prefixes._kept.values() for state in batch.values()]
    assert 0 < sum(map(_bytes, kept)) <= 3e5


def test_values_are_kept_where_least_is_alive(run: Run) -> None:
    sizes = footprint(run.program).before
    chosen = cuts(run.program, 1e9)
    assert 1 < len(chosen) <= CUTS
    assert chosen == sorted(chosen, key=run.program.start)
    assert run.program.layers[0].name not in chosen
    fewer = cuts(run.program, 4 * sum(sizes[name] for name in chosen) - 1)
    assert set(chosen) - set(fewer) == {max(chosen, key=sizes.__getitem__)}
    assert cuts(run.program, 0) == []


def test_a_rounding_that_differs_in_anything_before_a_layer_has_another_number(run: Run) -> None:
    prefixes = Prefixes(run.program, 1e9)
    prefixes._begin(run.samples)
    cut = prefixes._cuts[-1]
    first = run.program.multiplies[0].node.name
    grid = Grid(0.5, -7, 7)
    weight = torch.ones(2)
    alike = [Rounding(weights={(first, 1): weight}), Rounding(weights={(first, 1): weight})]
    other = [
        FLOAT_ROUNDING,
        Rounding(weights={(first, 1): weight.clone()}),
        Rounding(inputs={(first, 0): grid}),
        Rounding(inputs={(first, 0): Grid(0.5, -8, 7)}),
        Rounding(results={first: grid}),
        Rounding(biases={first: weight}),
        Rounding(kernels={first: lambda *_: weight}),
        Rounding(kernels={first: lambda *_: weight}),
        Rounding(done=[first]),
    ]
    assert len({prefixes._numbers(each)[cut] for each in alike}) == 1
    assert len({prefixes._numbers(each)[cut] for each in [*alike, *other]}) == 1 + len(other)


def test_other_samples_begin_anew(run: Run) -> None:
    prefixes, rounding = Prefixes(run.program, 1e9), run.evaluator((INT8,)).rounding(drawn(run)[0])
    halves = [run.samples.select(torch.arange(0, 8)), run.samples.select(torch.arange(8, 16))]
    for samples in (*halves, *halves):
        inputs = samples.inputs(slice(0, 8))
        found = prefixes.run(samples, 0, inputs, rounding)
        np.testing.assert_array_equal(found.numpy(), run.program.run(inputs, rounding).numpy())
