"""Tasks against torch's own functions, and what they refuse."""

import sys
from collections import namedtuple
from dataclasses import dataclass

import pytest
import torch
from torch.nn import functional as F

from bitsect.errors import BitsectError, DataError
from bitsect.references import resolve
from bitsect.tasks import TASKS, Task, check_labels, divergence, logits, own_answers, task_named

SCORES = torch.randn(7, 9, generator=torch.Generator().manual_seed(0))
LABELS = torch.tensor([0, 8, 3, 3, 5, 1, 2])


@pytest.mark.parametrize("task", TASKS.values(), ids=TASKS)
def test_every_task_gives_one_differentiable_loss_and_one_score_per_sample(task):
    outputs = SCORES.clone().requires_grad_()
    loss, score = task.judge(outputs, LABELS)
    assert loss.shape == score.shape == (7,)
    assert loss.dtype == torch.float32
    assert torch.equal(loss, F.cross_entropy(outputs, LABELS, reduction="none"))
    assert torch.equal(loss, task.loss(outputs, LABELS))
    assert torch.equal(score, task.score(outputs, LABELS))
    (gradient,) = torch.autograd.grad(loss.sum(), outputs)
    expected = SCORES.softmax(1) - F.one_hot(LABELS, 9)
    torch.testing.assert_close(gradient, expected)
    assert task.mean
    assert task.score_all(score) == pytest.approx(score.mean().item())


@pytest.mark.parametrize(("name", "top"), [("classification", 1), ("classification-top5", 5)])
def test_scores_are_the_ranks_of_the_labels(name, top):
    rank = (SCORES.gather(1, LABELS[:, None]) < SCORES).sum(1)
    assert torch.equal(TASKS[name].score(SCORES, LABELS), (rank < top).float())


def test_top5_of_three_classes_is_always_right():
    assert TASKS["classification-top5"].score(SCORES[:, :3], LABELS % 3).tolist() == [1.0] * 7


def test_half_precision_is_widened_and_double_kept():
    assert TASKS["classification"].loss(SCORES.bfloat16(), LABELS).dtype == torch.float32
    assert TASKS["classification"].loss(SCORES.double(), LABELS).dtype == torch.float64


def test_outputs_that_are_not_finite_give_a_loss_that_is_not():
    outputs = SCORES.clone()
    outputs[2, 4] = float("nan")
    assert TASKS["classification"].loss(outputs, LABELS).isnan().tolist() == [i == 2 for i in range(7)]
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
        (SCORES, hidden),
        [ids, SCORES.unsqueeze(0), SCORES],
        {"hidden": hidden, "logits": SCORES},
        {"ids": ids, "answer": (SCORES,)},
        Answer(hidden, SCORES),
        Unnamed(None, SCORES),
        namedtuple("Pair", "hidden logits")(hidden, SCORES),
    ):
        assert logits(outputs) is SCORES
    assert torch.equal(own_answers((SCORES,)), SCORES.argmax(1))


def test_logits_of_a_hugging_face_output():
    outputs = pytest.importorskip("transformers.modeling_outputs")
    assert logits(outputs.SequenceClassifierOutput(logits=SCORES)) is SCORES


@pytest.mark.parametrize("outputs", [SCORES[0], {"ids": LABELS}, None, (), SCORES.long()])
def test_outputs_without_logits_are_refused(outputs):
    with pytest.raises(DataError, match=r"not float \[batch, classes\]: give a task of your own"):
        logits(outputs)


def test_labels_that_the_network_has_no_class_for():
    with pytest.raises(DataError, match="sample 4 has label 5, but the network has 5 classes"):
        check_labels(LABELS % 6, 5)
    with pytest.raises(DataError, match="row 1 has label 8, but the network has 5 classes"):
        TASKS["classification"].judge(SCORES[:, :5], LABELS)
    with pytest.raises(DataError, match="one integer for each sample"):
        check_labels(LABELS[:, None], 9)
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
        "from bitsect.tasks import Task\n"
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
    assert score.judge(SCORES, LABELS).loss is None
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
        Task("mine", lambda outputs, labels: answer).judge(SCORES, LABELS)


def test_unknown_tasks():
    with pytest.raises(BitsectError, match="unknown task 'clasification': did you mean 'classification'"):
        task_named("clasification")
    with pytest.raises(BitsectError, match=r"give classification, classification-top5 or package\.module"):
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
