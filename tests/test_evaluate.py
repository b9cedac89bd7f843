"""Evaluation: whole or in parts, with and without labels, and what it says when outputs are broken."""

from __future__ import annotations

from fractions import Fraction
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from bitsect.errors import BitsectError, DataError
from bitsect.measure.evaluator import Evaluator, check_finite
from bitsect.network.capture import capture
from bitsect.network.parts import FLOAT_ROUNDING
from bitsect.network.program import Program
from bitsect.sources.data import load_samples
from bitsect.sources.tasks.task import Outcome, Task
from bitsect.values import INT4, INT8, Evaluation, Plan
from bitsect.values.pieces import Piece
from odd_models import Block, program_of
from tiny import CLASSES, images, judge, refill, residual, seeded

calm = settings(max_examples=40)


class Journal(dict[str, Piece]):
    """A dictionary that refuses to be told anything twice, as work done twice would."""

    def __setitem__(self, key: str, value: Piece) -> None:
        assert key not in self
        super().__setitem__(key, value)


def plans() -> dict[str, Plan]:
    layers = residual()[1].layers
    return {
        "float": Plan.uniform(layers),
        "int8": Plan.uniform(layers, INT8),
        "int4": Plan.uniform(layers, INT4),
    }


def slowly(evaluator: Evaluator, plan: Plan, labels: Tensor) -> tuple[list[float], list[float]]:
    """Loss and score of every sample, from the outputs of whole batches."""
    losses, scores = [], []
    for batch in evaluator.samples.batches(evaluator.batch_size):
        outputs = evaluator.program.run(batch.inputs, evaluator.rounder(plan))
        for row, index in zip(outputs, batch.indices.tolist(), strict=True):
            losses.append(-float(row.log_softmax(0)[labels[index]]))
            scores.append(float(row.argmax() == labels[index]))
    return losses, scores


@pytest.mark.parametrize("name", ["float", "int8", "int4"])
@pytest.mark.parametrize("batch_size", [1, 4, 7, 64])
def test_loss_and_score_of_every_sample(name: str, batch_size: int) -> None:
    data = images(7)
    evaluator = judge(residual()[1], data, batch_size=batch_size)
    plan = plans()[name]
    losses, scores = slowly(evaluator, plan, data[1])
    found = evaluator(plan)
    assert (found.correct, found.seen, found.total) == (sum(scores), 7, 7)
    assert found.loss == pytest.approx(np.mean(losses), rel=1e-6)
    assert found.accuracy == float(found.exact) == sum(scores) / 7
    assert found.complete
    assert evaluator.scores(plan).tolist() == scores


# Thresholds


@cache
def two_classes() -> Program:
    return capture(refill(nn.Sequential(nn.Linear(2, 2))), torch.zeros(2, 2))


def marked(right: list[int]) -> Evaluator:
    """An evaluator whose float network is right on exactly these samples (1) and wrong on the others (0)."""
    x = seeded(len(right), 2)
    own = two_classes().run(x).argmax(1)
    return judge(two_classes(), (x, torch.where(torch.tensor(right) == 1, own, 1 - own)), batch_size=2)


@calm
@given(st.lists(st.integers(0, 1), min_size=1, max_size=9), st.fractions(0, 1, max_denominator=9))
def test_a_threshold_is_decided_as_soon_as_it_can_be_and_never_wrongly(
    right: list[int], threshold: Fraction
) -> None:
    whole, part = marked(right), marked(right)
    plan = Plan.uniform(whole.program.layers)
    truth = Fraction(sum(right), len(right)) >= threshold
    assert whole(plan).reaches(threshold) == truth
    found = part(plan, threshold)
    assert found.reaches(threshold) == truth
    # With one batch less nothing was decided yet, and what was seen was counted.
    before = right[: found.seen - 1 - (found.seen - 1) % 2] if found.seen else []
    assert not found.seen or Evaluation(sum(before), len(before), len(right)).reaches(threshold) is None
    assert found.correct == sum(right[: found.seen])
    assert part.judged_batches == -(-found.seen // 2)
    # Asked for more, it goes on from there and comes to the same.
    assert part(plan) == whole(plan)
    assert part.judged_batches == whole.judged_batches == -(-len(right) // 2)


def test_an_evaluation_goes_on_from_what_was_seen_in_another_process() -> None:
    evaluator = marked([0, 0, 0, 1, 1, 1, 1, 1])
    plan = Plan.uniform(evaluator.program.layers)
    early = evaluator(plan, Fraction(9, 10))
    assert (early.seen, early.reaches(Fraction(9, 10))) == (2, False)
    kept = Journal(evaluator.done)
    later = Evaluator(
        evaluator.program, evaluator.rounder, evaluator.samples, evaluator.task, batch_size=2, done=kept
    )
    assert (later(plan, Fraction(3, 8)).correct, later(plan, Fraction(3, 8)).seen) == (3, 6)
    assert later(plan) == marked([0, 0, 0, 1, 1, 1, 1, 1])(plan)
    assert later.judged_batches == 3


def test_plans_are_judged_once_and_apart() -> None:
    done = Journal()
    evaluator = judge(residual()[1], images(7), batch_size=3, done=done)
    results = {name: evaluator(plan) for name, plan in plans().items()}
    assert evaluator.judged_batches == len(done) == 9
    assert {name: evaluator(plan) for name, plan in plans().items()} == results
    assert evaluator.judged_batches == 9
    assert len({result.loss for result in results.values()}) == 3


def test_progress_counts_every_sample_also_those_remembered() -> None:
    evaluator = judge(residual()[1], images(7), batch_size=3)
    for _ in range(2):
        rows: list[int] = []
        evaluator.progress = rows.append
        evaluator(plans()["int8"])
        assert rows == [3, 3, 1]


# Labels


def test_without_labels_the_float_network_s_answers_are_the_labels() -> None:
    model, program = residual()
    x, _ = images(7)
    evaluator = judge(program, x, batch_size=3)
    with torch.no_grad():
        own = model(x).argmax(1)
    assert torch.equal(evaluator.labels, own)
    assert evaluator(plans()["float"]).accuracy == 1
    labelled = judge(program, (x, own), batch_size=3)
    assert evaluator(plans()["int4"]) == labelled(plans()["int4"])
    assert (
        evaluator(plans()["int4"]).accuracy < 1
        or evaluator(plans()["int4"]).loss != evaluator(plans()["float"]).loss
    )


def test_own_answers_are_remembered() -> None:
    done = Journal()
    program = residual()[1]
    first = judge(program, images(7)[0], batch_size=3, done=done)
    labels = first.labels
    second = Evaluator(program, first.rounder, first.samples, first.task, batch_size=3, done=done)
    assert torch.equal(second.labels, labels)
    assert len(done) == 3


@pytest.mark.parametrize("label", [CLASSES, 99, -1])
def test_a_label_out_of_range_names_where_it_is(label: int) -> None:
    x, labels = images(7)
    labels[5] = label
    evaluator = judge(residual()[1], (x, labels), batch_size=3)
    with pytest.raises(DataError, match=f"data: sample 5 has label {label}, but the network has 5"):
        evaluator(plans()["float"])


def test_samples_of_another_shape_are_refused() -> None:
    with pytest.raises(DataError, match="has shape"):
        judge(residual()[1], seeded(3, 3, 9, 9, 2)[..., 0, :])


# Tasks


def test_a_score_that_is_no_mean_needs_every_sample() -> None:
    """The geometric mean: one wrong sample makes it 0, which no part of the samples can rule out."""

    def confidence(outputs: Tensor, labels: Tensor) -> Tensor:
        return outputs.softmax(1).gather(1, labels[:, None])[:, 0]

    task = Task("geometric", confidence, combine=lambda scores: float(scores.log().mean().exp()))
    data = images(7)
    evaluator = judge(residual()[1], data, task=task, batch_size=3)
    plan = plans()["int8"]
    seen: list[int] = []
    evaluator.progress = seen.append
    found = evaluator(plan, Fraction(1, 10**6))
    assert seen == [3, 3, 1]
    assert (found.seen, found.total, found.loss) == (1, 1, None)
    scores = np.array(
        [
            float(
                evaluator.program.run(batch.inputs, evaluator.rounder(plan)).softmax(1)[row, data[1][index]]
            )
            for batch in evaluator.samples.batches(3)
            for row, index in enumerate(batch.indices.tolist())
        ]
    )
    assert found.accuracy == pytest.approx(np.exp(np.log(scores).mean()), rel=1e-5)
    assert evaluator.scores(plan) == pytest.approx(scores, rel=1e-6)


def test_scores_between_0_and_1_are_summed_the_same_in_one_go_or_several() -> None:
    def confidence(outputs: Tensor, labels: Tensor) -> Outcome:
        share = outputs.softmax(1).gather(1, labels[:, None])[:, 0]
        return Outcome(-share.log(), share)

    task = Task("confidence", confidence)
    data = images(11)
    one, other = (judge(residual()[1], data, task=task, batch_size=2) for _ in range(2))
    plan = plans()["int8"]
    for threshold in (Fraction(9, 10), Fraction(1, 100), Fraction(1, 5)):
        early = other(plan, threshold)
        assert early.reaches(threshold) == one(plan).reaches(threshold)
    assert other(plan) == one(plan)


# Outputs that are not finite


@pytest.mark.parametrize("labelled", [True, False])
def test_the_first_tensor_that_is_not_finite_is_named(labelled: bool) -> None:
    """It was finite on the samples of calibration."""

    def run(self: Any, x: Tensor) -> Tensor:
        return self.c(self.b(self.a(x).relu()).sqrt().relu())

    parts = {"a": nn.Linear(4, 4), "b": nn.Linear(4, 4), "c": nn.Linear(4, 2)}
    model = refill(Block(run, **parts))
    with torch.no_grad():
        model.b.bias.fill_(1.0)
    program = capture(model, torch.zeros(2, 4))
    calibrated = judge(program, torch.zeros(2, 4))
    x = seeded(5, 4) * 100
    samples = load_samples((x, torch.zeros(5, dtype=torch.long)) if labelled else x)
    evaluator = Evaluator(program, calibrated.rounder, samples, calibrated.task, batch_size=2)
    with pytest.raises(BitsectError, match=r"NaN or infinity: 'c\.input' is the first tensor that holds"):
        evaluator(Plan.uniform(program.layers))
    assert not evaluator.done


def test_what_breaks_after_the_last_layer_is_said_so() -> None:
    program = capture(Block(lambda self, x: (self.a(x) - 1e9).log(), a=nn.Linear(4, 2)), torch.zeros(2, 4))
    x = seeded(3, 4)
    with pytest.raises(BitsectError, match="they arise after the last layer"):
        check_finite(program, x, program.run(x), FLOAT_ROUNDING)


def test_masked_scores_are_not_blamed() -> None:
    def run(self: Any, x: Tensor) -> Tensor:
        scores = x @ x.transpose(1, 2)
        scores = scores + torch.full_like(scores, float("-inf")).triu(1)
        return self.out(scores.softmax(-1) @ x).sum(1) / 0

    program = capture(refill(Block(run, out=nn.Linear(8, 3))), seeded(2, 5, 8))
    x = seeded(2, 5, 8)
    with pytest.raises(BitsectError, match="they arise after the last layer"):
        check_finite(program, x, program.run(x), FLOAT_ROUNDING)


def test_integer_outputs_are_no_matter() -> None:
    program = capture(Block(lambda self, x: (self.a(x), x.argmax(1)), a=nn.Linear(4, 2)), torch.zeros(2, 4))
    check_finite(program, seeded(3, 4), program.run(seeded(3, 4)), FLOAT_ROUNDING)


# Batches


def test_a_fixed_batch_is_never_exceeded() -> None:
    program = program_of("fixed_view")
    x, labels = seeded(5, 5, 8), torch.tensor([0, 1, 2, 0, 1])
    evaluator = judge(program, (x, labels), batch_size=64)
    assert evaluator.batch_size == program.fixed_batch == 2
    plan = Plan.uniform(program.layers, INT8)
    found = evaluator(plan)
    assert found.seen == 5
    # The last batch is filled up, which must not count.
    alone = program.run(x[4:], evaluator.rounder(plan))
    assert evaluator.scores(plan)[4] == float(alone.argmax(1) == labels[4])


def test_dictionary_outputs_and_inputs() -> None:
    def run(self: Any, x: Tensor, scale: Tensor) -> dict[str, Tensor]:
        hidden = self.a(x * scale)
        return {"hidden": hidden, "logits": self.b(hidden.relu())}

    model = refill(Block(run, a=nn.Linear(4, 6), b=nn.Linear(6, 3)))
    x, scale = seeded(5, 4), seeded(5, 1)
    program = capture(model, {"x": x[:2], "scale": scale[:2]})
    labels = model(x, scale)["logits"].argmax(1)
    evaluator = judge(program, [({"x": x, "scale": scale}, labels)], batch_size=2)
    assert evaluator(Plan.uniform(program.layers)).accuracy == 1
