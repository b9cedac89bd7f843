"""Predicted damage against whole passes and explicit matrices, for all kinds of outputs."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from bitsect.errors import BitsectError
from bitsect.measure import sketch as sketch_module
from bitsect.measure.context import Context
from bitsect.measure.damage import output_damage
from bitsect.network.capture import capture
from bitsect.runs.folder import Journal
from bitsect.runs.opening import open_run
from bitsect.sources.tasks.outputs import divergence
from bitsect.sources.tasks.task import task_named
from bitsect.values import FLOAT, INT4, INT8, PAPER, Damage, Format, Plan, Settings
from bitsect.values.pieces import Piece
from odd_models import Block
from tiny import images, judge, refill, residual, residual_context, seeded

Array = np.ndarray[Any, Any]
CHANGES = tuple((layer.name, format) for layer in residual()[1].layers for format in (INT8, INT4))


def moves(context: Context, changes: tuple[tuple[str, Format], ...] = CHANGES) -> tuple[Tensor, Tensor]:
    """Float outputs [N, classes] and what each change moves them by [C, N, classes], by whole passes."""
    evaluator, outputs = context.evaluator, []
    plans = [Plan.uniform(context.program.layers).replace([layer], format) for layer, format in changes]
    for plan in (Plan.uniform(context.program.layers), *plans):
        batches = [
            context.program.run(evaluator.batch(start)[0], evaluator.rounder(plan))
            for start in context.starts()
        ]
        outputs.append(torch.cat(batches).double())
    return outputs[0], torch.stack(outputs[1:]) - outputs[0]


def curvature(logits: Tensor, temperature: float) -> Tensor:
    """½ (diag p − p pᵀ) of one sample."""
    p = (logits / temperature).softmax(0)
    return (torch.diag(p) - torch.outer(p, p)) / 2


@pytest.mark.parametrize("temperature", [math.inf, 4.0, 1.0])
def test_the_gram_matrix_is_that_of_whole_passes(temperature: float) -> None:
    context = residual_context(10)  # two batches of four and one of two
    found, single = output_damage(context, CHANGES, {}, temperature=temperature)
    base, moved = moves(context)
    expected = sum(
        moved[:, n] @ curvature(base[n], temperature) @ moved[:, n].T for n in range(len(base))
    ) / len(base)
    np.testing.assert_allclose(found.gram, expected, rtol=1e-4, atol=1e-9)
    assert found.samples == 10
    np.testing.assert_allclose(single.mean(1), found.gram.diagonal(), rtol=1e-6)


def test_without_a_temperature_it_is_the_squared_length_of_the_centred_move() -> None:
    context = residual_context(8, placement=PAPER)
    found, _ = output_damage(context, CHANGES, {})
    plan = Plan.uniform(context.program.layers, INT4).replace(["stem"], FLOAT)
    _, moved = moves(context)
    total = sum(moved[i] for i, (layer, format) in enumerate(CHANGES) if plan[layer] == format)
    centred = total - total.mean(1, keepdim=True)
    expected = centred.square().sum(1).mean() / 2 / centred.shape[1]
    assert found(plan) == pytest.approx(float(expected), rel=1e-4)


@pytest.mark.parametrize("temperature", [1.0, 4.0])
def test_for_small_moves_it_is_the_divergence(temperature: float) -> None:
    context = residual_context(8, placement=PAPER)
    found = output_damage(context, CHANGES, {}, temperature=temperature)[0].single(INT8)
    base, moved = moves(context)
    for i, (layer, format) in enumerate(CHANGES):
        if format == INT8:
            real = divergence(base / temperature, (base + moved[i]) / temperature).mean() * temperature**2
            assert found[layer] == pytest.approx(float(real), rel=0.05)


def test_a_killed_measurement_ends_with_the_same_bytes(tmp_path: Path) -> None:
    def measure(name: str, kill_after: int | None = None) -> tuple[Damage, Array]:
        journal, batches = Journal(tmp_path / name), 0

        def progress(count: int) -> None:
            nonlocal batches
            batches += count
            if batches == kill_after:
                raise KeyboardInterrupt

        try:
            return output_damage(residual_context(10), CHANGES, journal, progress=progress)
        finally:
            journal.close()

    whole, single = measure("whole")
    with pytest.raises(KeyboardInterrupt):
        measure("killed", kill_after=2)
    again, single_again = measure("killed")
    assert (tmp_path / "killed").read_bytes() == (tmp_path / "whole").read_bytes()
    assert again.gram.tobytes() == whole.gram.tobytes()
    assert single_again.tobytes() == single.tobytes()


def test_other_changes_and_temperatures_have_pieces_of_their_own() -> None:
    done: dict[str, Piece] = {}
    context = residual_context(4)
    output_damage(context, CHANGES, done)
    few, _ = output_damage(context, CHANGES[:3], done)
    output_damage(context, CHANGES, done, temperature=4.0)
    assert len(done) == 3
    np.testing.assert_allclose(few.gram, output_damage(context, CHANGES, done)[0].gram[:3, :3], rtol=1e-6)


def test_outputs_too_wide_for_memory_are_summed_at_random(monkeypatch: pytest.MonkeyPatch) -> None:
    model = refill(
        nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 900))
    )
    context = Context(judge(capture(model, seeded(2, 8)), (seeded(96, 8), torch.arange(96)), batch_size=16))
    changes = tuple((layer, format) for layer in context.layers for format in (INT8, INT4))
    exact, single = output_damage(context, changes, {})
    monkeypatch.setattr(sketch_module, "SKETCH_BYTES", 4 * len(changes) * 16 * 150)
    rough, single_again = output_damage(context, changes, {})
    assert (rough.gram != exact.gram).any()
    length = np.sqrt(np.outer(exact.gram.diagonal(), exact.gram.diagonal()))
    assert np.abs((rough.gram - exact.gram) / length).max() < 0.1
    assert (single_again == single).all()  # single damages are exact all the same


def score_only(outputs: Any, labels: Tensor) -> Tensor:
    return torch.ones(len(labels))


def heads(shape: Any, task: Any = score_only) -> Context:
    """A network whose outputs `shape` makes of two heads, judged by a task of the user's own, or another."""

    def forward(self: Any, x: Tensor) -> Any:
        hidden = torch.tanh(self.body(x))
        return shape(self.one(hidden), self.two(hidden))

    model = refill(Block(forward, body=nn.Linear(3, 5), one=nn.Linear(5, 4), two=nn.Linear(5, 2)))
    data = (seeded(6, 7, 3), torch.zeros(6, dtype=torch.int64))
    return Context(judge(capture(model, data[0][:2]), data, task=task))


def diagonal(context: Context) -> np.ndarray:
    return output_damage(context, [(name, INT4) for name in context.layers], {})[0].gram.diagonal()


def test_token_logits_count_as_the_mean_of_their_tokens() -> None:
    context = heads(lambda one, two: {"logits": one, "hidden": two})
    layer = context.layers[1]
    base = context.program.run(context.evaluator.batch(0)[0])["logits"].double()
    moved = context.program.run(context.evaluator.batch(0)[0], context.rounding(INT4, layer))["logits"] - base
    expected = [
        torch.stack([curvature(b, math.inf) @ m @ m for b, m in zip(base[n], moved[n], strict=True)]).mean()
        for n in range(4)
    ]
    piece: dict[str, Piece] = {}
    output_damage(context, [(layer, INT4)], piece)
    np.testing.assert_allclose(next(iter(piece.values()))["single"][0], expected, rtol=1e-4)
    assert diagonal(context)[2] == 0  # the other head is no logits, so it does not count


def test_outputs_that_are_no_logits_count_by_their_relative_error() -> None:
    context = heads(lambda one, two: (one, 1000 * two))
    _, one, two = diagonal(context)
    assert 1e-5 < one < 1e-1
    assert 1e-5 < two < 1e-1  # although it is a thousand times as large
    base = context.program.run(context.evaluator.batch(0)[0])[0].double()
    moved = (
        context.program.run(context.evaluator.batch(0)[0], context.rounding(INT4, context.layers[1]))[0]
        - base
    )
    first = moved.square().mean() / base.square().mean()
    done: dict[str, Piece] = {}
    output_damage(context, [(context.layers[1], INT4)], done)
    assert next(iter(done.values()))["single"].mean() == pytest.approx(float(first), rel=1e-4)


def test_several_logits_are_all_counted() -> None:
    _, start, end = diagonal(heads(lambda one, two: {"start_logits": one[..., 0], "end_logits": two[..., 0]}))
    assert start > 0
    assert end > 0


@pytest.mark.parametrize("task", ["classification", "multi-label"])
def test_only_the_output_that_is_judged_counts(task: str) -> None:
    named = replace(task_named(task), output="one")
    _, one, two = diagonal(heads(lambda one, two: {"one": one[:, 0], "logits": two[:, 0]}, named))
    assert one > 0
    assert two == 0


def test_outputs_without_samples_are_refused() -> None:
    context = heads(lambda one, two: (one > 0, two > 0))
    with pytest.raises(BitsectError, match="no floating-point output"):
        diagonal(context)


def test_a_single_logit_is_no_choice_between_classes() -> None:
    assert (diagonal(heads(lambda one, two: {"logits": one[..., :1]}))[:2] > 0).all()


def test_two_halves_of_the_samples_say_how_far_the_order_can_be_trusted(tmp_path: Path) -> None:
    with open_run(residual()[0], images(40), Settings(batch_size=20), out=tmp_path / "run") as run:
        found = run.damage(CHANGES).split_half
        assert found is not None
        assert 0.5 < found <= 1
        assert run.damage(CHANGES[:1]).split_half is None


def test_a_run_measures_its_damage_once(tmp_path: Path) -> None:
    model, data = residual()[0], images(8)
    with open_run(model, data, out=tmp_path / "run") as run:
        first = run.damage(CHANGES)
        size = (tmp_path / "run/journals/damage.journal").stat().st_size
    with open_run(model, data, out=tmp_path / "run") as run:
        again = run.damage(CHANGES)
    assert again.gram.tobytes() == first.gram.tobytes()
    assert (tmp_path / "run/journals/damage.journal").stat().st_size == size


# ---- the value -----------------------------------------------------------------------------------


def test_the_order_is_that_of_single_damages_and_ties_stay_in_graph_order() -> None:
    single = {("a", INT8): 2.0, ("b", INT8): 1.0, ("c", INT8): 1.0, ("a", INT4): 3.0}
    damage = Damage.separable(single)
    assert damage.order(INT8) == ("b", "c", "a")
    assert damage.order(INT4) == ("a",)
    assert damage({"a": INT4, "b": FLOAT, "c": INT8}) == 4.0


def test_a_damage_that_cannot_be_is_refused() -> None:
    with pytest.raises(BitsectError, match="2 × 2 numbers for 1 changes"):
        Damage((("a", INT8),), np.ones((2, 2)))
    with pytest.raises(BitsectError, match="layer 'a' at int8 is not finite"):
        Damage((("a", INT8),), np.array([[np.nan]]))
    with pytest.raises(BitsectError, match="layer 'b' at int8 was not measured"):
        Damage.separable({("a", INT8): 1.0})({"b": INT8})
