"""Tasks against torch's own functions, and what they refuse."""

import sys
from collections import namedtuple
from dataclasses import dataclass

import pytest
import torch
from torch.nn import functional as F

from bitsect.errors import BitsectError, DataError
from bitsect.names import resolve
from bitsect.sources.tasks.classification import check_labels
from bitsect.sources.tasks.fitting import fitting_task
from bitsect.sources.tasks.outputs import divergence, logits, logits_name, named_tensors
from bitsect.sources.tasks.task import Task, task_named

SCORES = torch.randn(7, 9, generator=torch.Generator().manual_seed(0))
LABELS = torch.tensor([0, 8, 3, 3, 5, 1, 2])


CLASSES = ("classification", "classification-top5", "binary")


@pytest.mark.parametrize("task", map(task_named, CLASSES), ids=CLASSES)
def test_every_task_of_classes_gives_one_differentiable_loss_and_one_score_per_sample(task):
    binary = task.name == "binary"
    outputs, labels = (SCORES[:, :1], LABELS % 2) if binary else (SCORES, LABELS)
    outputs = outputs.clone().requires_grad_()
    loss, score, _ = task.outcome(outputs, labels)
    assert loss.shape == score.shape == (7,)
    assert loss.dtype == torch.float32
    assert torch.equal(loss, task.loss(outputs, labels))
    assert torch.equal(score, task.score(outputs, labels))
    (gradient,) = torch.autograd.grad(loss.sum(), outputs)
    if binary:
        slow = F.binary_cross_entropy_with_logits(outputs[:, 0], labels.float(), reduction="none")
        torch.testing.assert_close(loss, slow)
        expected = outputs.sigmoid() - labels[:, None]
    else:
        assert torch.equal(loss, F.cross_entropy(outputs, labels, reduction="none"))
        expected = SCORES.softmax(1) - F.one_hot(LABELS, 9)
    torch.testing.assert_close(gradient, expected)
    assert task.mean
    assert task.score_all(score) == pytest.approx(score.mean().item())
    assert task.divergence(outputs, outputs + 1).shape == task.answers(outputs).shape == (7,)
    assert 0 < task.chance(labels) <= 1


@pytest.mark.parametrize(("name", "top"), [("classification", 1), ("classification-top5", 5)])
def test_scores_are_the_ranks_of_the_labels(name, top):
    rank = (SCORES.gather(1, LABELS[:, None]) < SCORES).sum(1)
    assert torch.equal(task_named(name).score(SCORES, LABELS), (rank < top).float())


def test_top5_of_five_classes_is_refused_since_it_is_always_right():
    with pytest.raises(DataError, match="each of 5 classes is among the five largest"):
        task_named("classification-top5").score(SCORES[:, :5], LABELS % 5)
    assert 0 <= task_named("classification-top5").score(SCORES[:, :6], LABELS % 6).mean() < 1


@pytest.mark.parametrize("name", ["classification", "classification-top5"])
def test_probabilities_are_judged_as_the_logits_they_were_made_of(name):
    task, moved = task_named(name), SCORES + 0.3 * SCORES.flip(0)
    loss, score, _ = task.outcome(SCORES.softmax(1), LABELS)
    torch.testing.assert_close(loss.float(), task.loss(SCORES, LABELS))
    assert torch.equal(score, task.score(SCORES, LABELS))
    for compare in (task.divergence, task.expected):
        pair = compare(SCORES.softmax(1), moved.softmax(1)), compare(SCORES, moved)
        torch.testing.assert_close(pair[0].double(), pair[1].double(), atol=1e-6, rtol=1e-4)
    sure = torch.tensor([[0.0, 1.0], [1.0, 0.0]])  # what float32 makes of logits far apart
    assert task_named("classification").loss(sure, torch.tensor([1, 1])).isfinite().all()


def test_half_precision_is_widened_and_double_kept():
    assert task_named("classification").loss(SCORES.bfloat16(), LABELS).dtype == torch.float32
    assert task_named("classification").loss(SCORES.double(), LABELS).dtype == torch.float64


def test_outputs_that_are_not_finite_give_a_loss_that_is_not():
    outputs = SCORES.clone()
    outputs[2, 4] = float("nan")
    assert task_named("classification").loss(outputs, LABELS).isnan().tolist() == [i == 2 for i in range(7)]
    assert divergence(SCORES, outputs).isnan().tolist() == [i == 2 for i in range(7)]


@dataclass
class Answer:
    hidden: torch.Tensor
    logits: torch.Tensor


@dataclass
class Unnamed:
    loss: None
    classes: torch.Tensor


def test_logits_are_found_in_any_structure():
    hidden, ids = torch.zeros(7, 2), torch.zeros(7, 9, dtype=torch.int64)
    for outputs in (
        SCORES,
        (SCORES, ids),
        [ids, SCORES.unsqueeze(0), SCORES],
        {"hidden": hidden, "logits": SCORES},
        {"ids": ids, "answer": (SCORES,)},
        Answer(hidden, SCORES),
        Unnamed(None, SCORES),
        namedtuple("Pair", "hidden logits")(hidden, SCORES),
    ):
        assert logits(outputs) is SCORES
    assert torch.equal(task_named("classification").answers((SCORES,)), SCORES.argmax(1))


def test_logits_of_a_hugging_face_output():
    outputs = pytest.importorskip("transformers.modeling_outputs")
    assert logits(outputs.SequenceClassifierOutput(logits=SCORES)) is SCORES


@pytest.mark.parametrize("outputs", [SCORES[None], {"ids": LABELS}, None, (), SCORES.long()])
def test_outputs_without_logits_are_refused(outputs):
    with pytest.raises(
        DataError,
        match=r"not float \[batch, classes\]: judge all outputs .* by task='outputs', or give",
    ):
        logits(outputs)


def test_outputs_have_names():
    pair = namedtuple("Pair", "hidden logits")(SCORES, None)
    assert list(named_tensors({"a": SCORES, "parts": (SCORES, [SCORES]), "pair": pair})) == [
        "a",
        "parts.0",
        "parts.1.0",
        "pair.hidden",
    ]
    assert list(named_tensors(SCORES)) == [""]


def test_of_several_outputs_that_could_be_logits_none_is_guessed():
    answers = {"start_logits": SCORES, "end_logits": -SCORES}
    with pytest.raises(
        DataError, match=r"could be the logits \(start_logits, end_logits\): name one with output='NAME'"
    ):
        task_named("classification").answers(answers)
    ends = task_named("classification").on("end_logits", answers)
    assert torch.equal(ends.answers(answers), SCORES.argmin(1))
    assert torch.equal(ends.score(answers, SCORES.argmin(1)), torch.ones(7))
    assert torch.equal(
        ends.divergence(answers, {**answers, "start_logits": SCORES * 2}), torch.zeros(7).double()
    )
    with pytest.raises(DataError, match="no output 'middle': it gives start_logits, end_logits"):
        task_named("classification").on("middle", answers)
    with pytest.raises(DataError, match="its one output has no name"):
        task_named("classification").on("logits", SCORES)


def test_the_only_output_that_fits_is_taken_and_can_be_named():
    outputs = {"last_hidden_state": SCORES[None], "pooler_output": SCORES}
    assert logits_name(outputs) == "pooler_output"
    assert task_named("classification").on(None, outputs).output == "pooler_output"
    assert task_named("classification").on(None, SCORES).output is None
    mine = Task("mine", lambda outputs, labels: outputs[:, 0].sigmoid())
    assert mine.on(None, outputs).output is None  # it is given everything
    assert torch.equal(mine.on("pooler_output", outputs).score(outputs, LABELS), SCORES[:, 0].sigmoid())


@pytest.mark.parametrize("squeezed", [False, True])
def test_the_sign_of_one_logit_is_its_class(squeezed):
    logit = torch.tensor([-2.0, 0.5, 3.0, -0.1])
    outputs = logit if squeezed else logit[:, None]
    labels = torch.tensor([0, 1, 0, 1])
    for given in (labels, labels.float(), labels[:, None], labels.bool()):
        assert task_named("classification").score(outputs, given).tolist() == [1, 1, 0, 0]
        assert task_named("binary").score(outputs, given).tolist() == [1, 1, 0, 0]
    assert task_named("binary").answers(outputs).tolist() == [0, 1, 1, 0]


def test_one_column_that_may_be_a_quantity_is_refused():
    column = SCORES[:, :1]
    for labels in (torch.tensor([0.0, 1, 1, 0.5, 0, 1, 0]), torch.tensor([0, 1, 2, 0, 0, 0, 0])):
        with pytest.raises(
            DataError, match=r"one number for each sample, a logit if labels .* task=f with f"
        ):
            task_named("classification").outcome(column, labels)
    with pytest.raises(DataError, match=r"without labels may be a logit or a quantity: .* task binary"):
        task_named("classification").answers(column)
    with pytest.raises(DataError, match="among the five largest whatever it is"):
        task_named("classification-top5").outcome(column, LABELS % 2)
    with pytest.raises(DataError, match="takes a single logit, the network gives 9: use classification"):
        task_named("binary").outcome(SCORES, LABELS)
    regression = Task("mine", lambda outputs, labels: torch.ones(len(labels)))
    assert regression.divergence(column, column + 1) is None


def test_chance_is_what_one_answer_for_all_gets_right():
    labels = torch.tensor([0, 0, 0, 1, 1, 2, 3, 4, 5, 6])
    assert task_named("classification").chance(labels) == 0.3
    assert task_named("classification-top5").chance(labels) == 0.8
    assert task_named("binary").chance(torch.tensor([[1.0], [0.0], [1.0], [1.0]])) == 0.75


def test_a_task_of_ones_own_needs_labels_or_answers():
    mine = Task("mine", lambda outputs, labels: torch.ones(len(labels)))
    with pytest.raises(DataError, match=r"task 'mine' needs labels: give \(inputs, labels\), or .* answer=f"):
        mine.answers(SCORES)
    assert torch.equal(
        Task("mine", mine.function, answer=lambda o: o.argmin(1)).answers(SCORES), SCORES.argmin(1)
    )


def test_labels_that_the_network_has_no_class_for():
    with pytest.raises(DataError, match="row 4 has label 5, but the network has 5 classes"):
        check_labels(LABELS % 6, 5)
    with pytest.raises(DataError, match="row 1 has label 8, but the network has 5 classes"):
        task_named("classification").outcome(SCORES[:, :5], LABELS)
    with pytest.raises(
        DataError, match="one integer for each sample, or a row that is 1 for its class; for any"
    ):
        check_labels(LABELS[:, None].expand(7, 2), 9)
    with pytest.raises(DataError, match="one integer for each sample"):
        check_labels(LABELS.float(), 9)


def test_divergence_is_torchs_and_never_negative():
    generator = torch.Generator().manual_seed(1)
    other = SCORES + 0.1 * torch.randn(SCORES.shape, generator=generator)
    p, q = torch.distributions.Categorical(logits=SCORES), torch.distributions.Categorical(logits=other)
    expected = torch.distributions.kl_divergence(p, q)
    torch.testing.assert_close(divergence(SCORES, other).float(), expected, atol=1e-6, rtol=1e-5)
    assert (divergence(SCORES, SCORES + 3) >= 0).all()
    # KL ≈ ½·dᵀ(diag p − ppᵀ)d: float32 would see only noise at this distance.
    step = torch.zeros(7, 9)
    step[:, 0] = 1e-6
    p0 = SCORES.double().softmax(1)[:, 0]
    near = divergence(SCORES.double(), SCORES.double() + step)
    torch.testing.assert_close(near, 0.5e-12 * p0 * (1 - p0), rtol=1e-2, atol=1e-16)


def test_a_task_of_ones_own(tmp_path, monkeypatch):
    (tmp_path / "mylab_tasks.py").write_text(
        "import torch\n"
        "from bitsect import Task\n"
        "def both(outputs, labels):\n"
        "    return (outputs[:, 0] - labels) ** 2, torch.ones(len(labels))\n"
        "def score(outputs, labels):\n"
        "    return torch.ones(len(labels)) / 2\n"
        "worst = Task('worst', score, combine=lambda scores: float(scores.min()))\n"
        "number = 3\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    both = task_named("mylab_tasks:both")
    assert both.name == "mylab_tasks:both"
    assert torch.equal(both.loss(SCORES, LABELS), (SCORES[:, 0] - LABELS) ** 2)
    score = task_named("mylab_tasks:score")
    assert score.outcome(SCORES, LABELS).loss is None
    assert score.score_all(score.score(SCORES, LABELS)) == 0.5
    with pytest.raises(BitsectError, match=r"'mylab_tasks:score' gives no loss .* return \(loss, score\)"):
        score.loss(SCORES, LABELS)
    worst = task_named("mylab_tasks:worst")
    assert not worst.mean
    assert worst.score_all(torch.tensor([0.25, 1.0])) == 0.25
    with pytest.raises(BitsectError, match="is a int: name a function or a Task"):
        task_named("mylab_tasks:number")
    assert task_named(both) is both
    assert task_named(resolve("mylab_tasks:both", "task")).name == "both"


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (torch.ones(6), r"the score of 7 samples is \(6,\): return a tensor with one value per sample"),
        ((torch.ones(7, 1), torch.ones(7)), r"the loss of 7 samples is \(7, 1\)"),
        (0.5, "the score of 7 samples is float"),
        (torch.full((7,), 1.5), "a score of 1.5: scores are from 0 to 1"),
        (torch.full((7,), float("nan")), "a score of nan: scores are from 0 to 1"),
    ],
)
def test_a_task_that_answers_wrongly(answer, message):
    with pytest.raises(BitsectError, match=message):
        Task("mine", lambda outputs, labels: answer).outcome(SCORES, LABELS)


def test_unknown_tasks():
    with pytest.raises(BitsectError, match="unknown task 'clasification': did you mean 'classification'"):
        task_named("clasification")
    with pytest.raises(
        BitsectError,
        match=r"use classification, classification-top5, binary, multi-label, .* or package\.module",
    ):
        task_named("zzz")


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        ("math", "metric 'math': expected package.module:attribute"),
        (":tau", "expected package.module:attribute"),
        ("math:", "expected package.module:attribute"),
        ("nowhere_at_all.deep:f", "no module 'nowhere_at_all'"),
        ("math:tauu", "'math' has no 'tauu'; did you mean 'tau'?"),
        ("reference_broken:f", "importing 'reference_broken' raises ZeroDivisionError: division by zero"),
        (
            "reference_needy:f",
            "importing 'reference_needy' raises ModuleNotFoundError: No module named 'nope'",
        ),
        ("reference_exits:f", "importing 'reference_exits' raises SystemExit: 3"),
    ],
)
def test_references_that_cannot_be_resolved(reference, message, tmp_path, monkeypatch):
    (tmp_path / "reference_broken.py").write_text("1 / 0\n")
    (tmp_path / "reference_needy.py").write_text("import nope\n")
    (tmp_path / "reference_exits.py").write_text("import sys\nsys.exit(3)\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    with pytest.raises(BitsectError) as caught:
        resolve(reference, "metric")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_references_reach_into_classes():
    assert resolve("pathlib:Path.cwd", "anything")() is not None


# The outputs as a whole

FLOAT = {
    "boxes": torch.randn(6, 3, 4),
    "classes": torch.arange(12).reshape(6, 2),
    "time": torch.randn(5, 6, 2),
}
AXES = {"boxes": (0, 1), "classes": (0, 1), "time": (1, 1)}


def outputs_task(axes=AXES, output=None):
    return task_named("outputs").on(output, FLOAT, axes)


def relative(found, wanted, axis=0):
    """The slow reference: the relative squared error of every sample, in numpy's words."""
    rows = [(f, w) for f, w in zip(found.unbind(axis), wanted.unbind(axis), strict=True)]
    least = 0.1 * torch.stack([w.square().sum() for _, w in rows]).mean()
    return torch.stack([(f - w).square().sum() / max(w.square().sum(), least) for f, w in rows])


def test_outputs_are_scored_by_their_relative_error_whatever_their_shape():
    moved = {name: each + 0.05 * torch.randn(each.shape) for name, each in FLOAT.items() if name != "classes"}
    moved["classes"] = FLOAT["classes"].clone()
    moved["classes"][2, 0] = 99  # one of its two numbers
    task = outputs_task()
    loss, score, _ = task.outcome(moved, task.answers(FLOAT))
    boxes, time = relative(moved["boxes"], FLOAT["boxes"]), relative(moved["time"], FLOAT["time"], 1)
    changed = torch.tensor([0, 0, 0.5, 0, 0, 0])
    torch.testing.assert_close(score.float(), 1 - (boxes + time + changed) / 3)
    torch.testing.assert_close(loss.float(), (boxes + time) / 2)
    assert (task.score(FLOAT, task.answers(FLOAT)) == 1).all()
    one = outputs_task(output="time")
    torch.testing.assert_close(one.score(moved, one.answers(FLOAT)).float(), 1 - time)
    assert torch.equal(task.divergence(FLOAT, moved), 1 - score)


def test_outputs_that_are_zero_have_a_score():
    task = task_named("outputs").on(None, FLOAT, {"": (0, 1)})
    zero, few = torch.zeros(3, 2), torch.tensor([[0.0, 0], [1, 1], [2, 2]])
    assert task.score(zero, task.answers(zero)).tolist() == [1, 1, 1]
    assert task.score(zero + torch.eye(3)[:, :2], task.answers(zero)).tolist() == [0, 0, 1]
    score = task.score(few + 0.1, task.answers(few))
    assert score[0] == pytest.approx(1 - 0.02 / (0.1 * 10 / 3))  # by a tenth of the mean square of all
    assert score[2] == pytest.approx(1 - 0.02 / 8)


def test_several_entries_of_a_sample_and_complex_numbers():
    task = task_named("outputs").on(None, FLOAT, {"": (0, 5)})
    flat = torch.randn(20, 3, dtype=torch.complex64)  # 5 boxes of each of 4 images
    moved = flat.clone()
    moved[7] += 1
    score = task.score(moved, task.answers(flat))
    assert (score < 1).tolist() == [False, True, False, False]
    assert task.answers(flat).shape == (4, 30)


def test_whole_numbers_alone_have_a_score_and_no_loss():
    task = outputs_task({"classes": (0, 1)})
    loss, score, _ = task.outcome({"classes": FLOAT["classes"] + 1}, task.answers(FLOAT))
    assert loss is None
    assert score.tolist() == [0] * 6
    with pytest.raises(DataError, match="no output of the network is made by layers for every sample"):
        outputs_task({})
    with pytest.raises(DataError, match="not the output 'boxes' of the network is made by layers"):
        outputs_task({"time": (1, 1)}, "boxes")


def test_logits_are_judged_alone_where_a_network_calls_them_so():
    outputs = {"logits": SCORES[:, None], "hidden": SCORES}
    task = task_named("outputs").on(None, outputs, {"logits": (0, 1), "hidden": (0, 1)})
    assert task.output == "logits"
    assert task.answers(outputs).shape == (7, 9)


@pytest.mark.parametrize(
    ("outputs", "axes", "labels", "expected"),
    [
        (SCORES, (0, 1), LABELS, "classification"),
        (SCORES, (0, 1), None, "classification"),
        (SCORES, (0, 1), F.one_hot(LABELS, 9), "classification"),
        (SCORES, (0, 1), F.one_hot(LABELS, 9).float(), "classification"),
        (SCORES, (0, 1), LABELS[:, None].float(), "classification"),
        (SCORES, (0, 1), LABELS + 100, "classification"),  # where they are refused, as labels to mend
        (SCORES, (0, 1), F.one_hot(LABELS, 9) | F.one_hot(LABELS * 0, 9), "multi-label"),
        (SCORES, (0, 1), SCORES, "outputs"),
        (SCORES, (0, 1), SCORES[:, 0], "outputs"),
        (SCORES, (0, 1), torch.zeros(7, 4).long(), "outputs"),
        (SCORES, (1, 1), LABELS, "outputs"),
        (SCORES, (0, 7), LABELS[:1], "outputs"),
        (SCORES[:, :1], (0, 1), LABELS % 2, "classification"),
        (SCORES[:, 0], (0, 1), LABELS.float() % 2, "classification"),
        (SCORES[:, :1], (0, 1), None, "outputs"),
        (SCORES[:, :1], (0, 1), SCORES[:, 0], "outputs"),
        (SCORES[None], (1, 1), LABELS, "outputs"),
        (LABELS, (0, 1), LABELS, "outputs"),
    ],
)
def test_the_task_that_fits_where_nobody_names_one(outputs, axes, labels, expected):
    name, why = fitting_task(outputs, {"": axes}, labels)
    assert name == expected
    assert bool(why) == (name != "classification")


def test_one_hot_labels_are_the_classes_that_they_name():
    task = task_named("classification")
    hot = F.one_hot(LABELS, 9)
    for given in (hot, hot.float(), hot.bool(), LABELS.float(), LABELS[:, None]):
        assert torch.equal(task.score(SCORES, given), task.score(SCORES, LABELS))
        assert task.chance(given) == task.chance(LABELS)
    with pytest.raises(DataError, match="one-hot labels of 9 classes: the network has 5"):
        task.score(SCORES[:, :5], hot)
