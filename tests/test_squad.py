"""SQuAD's figures by its published rules, and the other tasks against slow, obvious references."""

import json
import math

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from bitsect.errors import BitsectError, DataError
from bitsect.sources.data.records import listed_records
from bitsect.sources.data.texts import encode
from bitsect.sources.preparation import Preparation, Reading
from bitsect.sources.tasks.quantities import spearman
from bitsect.sources.tasks.squad import best_answer, exact_match, f1, normalize
from bitsect.sources.tasks.task import task_named
from bitsect.sources.tasks.windows import join_windows

GENERATOR = torch.Generator().manual_seed(0)


@pytest.mark.parametrize(
    ("answer", "wanted", "exact", "overlap"),
    [
        ("the Panthers", ["Panthers"], 1, 1),  # articles do not count
        ("An apple a day", ["apple day"], 1, 1),
        ("Denver Broncos.", ["denver broncos"], 1, 1),  # nor case and punctuation
        ("U.S.", ["US"], 1, 1),
        ("24–10", ["2410"], 0, 0),  # an en dash is no ASCII punctuation
        ("24-10", ["2410"], 1, 1),
        ("  two   blanks ", ["two blanks"], 1, 1),
        ("theatre", ["atre"], 0, 0),  # an article inside a word stays
        ("cat sat", ["cat", "the cat sat", "dog"], 1, 1),  # the best of several answers
        ("cat sat mat", ["cat sat"], 0, 0.8),
        ("cat cat", ["cat"], 0, 2 / 3),  # a word counts as often as it is in both
        ("dog", ["cat"], 0, 0),
        ("", [], 1, 1),  # SQuAD 2: no answer, and none given
        ("cat", [], 0, 0),
        ("", ["cat"], 0, 0),
        ("the", ["a"], 1, 1),  # nothing is left of either
    ],
)
def test_exact_match_and_f1(answer: str, wanted: list[str], exact: float, overlap: float) -> None:
    assert exact_match(answer, wanted) == exact
    assert f1(answer, wanted) == pytest.approx(overlap)


def test_normal_form() -> None:
    assert normalize("The  Dog's (new) A-team") == "dogs new ateam"


def _record(**more: object) -> dict:
    spans = [None, None, [0, 3], [4, 7], [8, 11], None]
    return {"text": "the cat sat", "spans": spans, "answers": ["cat"], "null": False, **more}


def test_the_best_span_lies_in_the_context_in_order_and_is_short() -> None:
    start, end = torch.tensor([9.0, 9, 0, 2, 0, 9]), torch.tensor([9.0, 9, 1, 0, 0.5, 9])
    assert best_answer(start, end, _record()) == ("cat sat", 2.5)
    assert best_answer(torch.zeros(6), torch.tensor([0.0, 0, 1, 0, 0, 0]), _record())[0] == "the"


def test_no_answer_is_given_where_it_is_likelier() -> None:
    start, end = torch.tensor([2.0, 0, 0, 1, 0, 0]), torch.tensor([2.0, 0, 0, 1, 0, 0])
    assert best_answer(start, end, _record(null=True)) == ("", -2.0)
    assert best_answer(start / 4, end, _record(null=True))[0] == ""
    assert best_answer(start, end, _record(null=False))[0] == "cat"


def _label(**more: object) -> list[int]:
    return [3, 0, 3, 0, *json.dumps(_record(**more)).encode()]


def test_question_answering_by_the_slow_way() -> None:
    labels = torch.tensor([_label(), _label()], dtype=torch.uint8)
    start, end = torch.randn(2, 6, generator=GENERATOR), torch.randn(2, 6, generator=GENERATOR)
    outputs = {"start_logits": start, "end_logits": end}
    task = task_named("question-answering")
    outcome = task.outcome(outputs, labels)
    at = torch.tensor([3, 3])
    slow = (F.cross_entropy(start, at, reduction="none") + F.cross_entropy(end, at, reduction="none")) / 2
    torch.testing.assert_close(outcome.loss, slow)
    torch.testing.assert_close(task.loss(outputs, labels), slow)
    for row in range(2):
        best = max(
            ((float(start[row, i] + end[row, j]), i, j) for i in (2, 3, 4) for j in range(i, 5)),
            key=lambda x: x[0],
        )
        assert float(outcome.weight[row]) == pytest.approx(best[0])
    with pytest.raises(BitsectError, match="start_logits"):
        task.outcome({"logits": start}, labels)
    with pytest.raises(BitsectError, match="judged by texts"):
        task.outcome(outputs, torch.tensor([1, 2]))


def test_a_question_takes_the_answer_of_its_surest_window() -> None:
    scores, weights = np.array([0.2, 0.9, 0.5, 0.1]), np.array([1.0, 0.5, 3.0, 4.0])
    groups = np.array([4, 4, 7, 7])
    assert join_windows(scores, weights, groups, {4: 2, 7: 2}).tolist() == [0.2, 0.1]
    assert join_windows(scores[:3], weights[:3], groups[:3], {4: 2, 7: 2}).tolist() == [0.2]


def test_tokens_are_judged_where_they_have_a_label() -> None:
    logits = torch.randn(2, 4, 3, generator=GENERATOR)
    labels = torch.tensor([[0, -100, 2, -100, -100], [1, 1, 1, -100, -100]])  # held at the longest length
    outcome = task_named("token-classification").outcome(logits, labels)
    for row, kept in enumerate(([0, 2], [0, 1, 2])):
        slow = F.cross_entropy(logits[row, kept], labels[row, kept])
        assert float(outcome.loss[row]) == pytest.approx(float(slow))
        right = (logits[row, kept].argmax(-1) == labels[row, kept]).double().mean()
        assert float(outcome.score[row]) == pytest.approx(float(right))


def test_a_language_model_is_asked_for_the_next_token() -> None:
    logits = torch.randn(2, 5, 11, generator=GENERATOR)
    ids = torch.randint(11, (2, 5), generator=GENERATOR)
    outcome = task_named("language-modelling").outcome(logits, ids)
    slow = [F.cross_entropy(logits[row, :-1], ids[row, 1:]) for row in range(2)]
    torch.testing.assert_close(outcome.loss, torch.stack(slow))
    blind = task_named("language-modelling").outcome(torch.zeros(1, 5, 11), ids[:1])
    assert float(blind.score) == pytest.approx(0, abs=1e-6)
    assert float(blind.loss) == pytest.approx(math.log(11))


def test_ranks_share_ties() -> None:
    scores, labels = torch.tensor([0.1, 0.2, 0.3, 0.4]), torch.tensor([1.0, 1.0, 2.0, 3.0])
    ranks = np.array([1.5, 1.5, 3, 4])
    assert spearman(scores, labels) == pytest.approx(np.corrcoef([1, 2, 3, 4], ranks)[0, 1])
    assert spearman(scores, -labels) == 0
    task = task_named("regression")
    outputs = torch.tensor([[-500.0], [0.0], [0.5], [900.0]])
    outcome = task.outcome(outputs, labels)
    assert task.score_all(outcome.score, labels) == pytest.approx(spearman(outputs, labels))
    assert not task.mean


@pytest.mark.parametrize("unit", [1e-6, 1.0, 1e9, 1e17, 1e30])
def test_ranks_are_known_in_any_unit(unit: float) -> None:
    task, labels = task_named("regression"), torch.randn(500, generator=GENERATOR)
    outputs = (unit * (labels + 0.5 * torch.randn(500, generator=GENERATOR)))[:, None]
    score = task.outcome(outputs, labels).score
    assert len(score.unique()) == len(outputs.unique())
    assert task.score_all(score, labels) == pytest.approx(spearman(outputs, labels))


def test_what_cannot_be_ranked_is_refused() -> None:
    task, labels = task_named("regression"), torch.arange(4.0)
    with pytest.raises(DataError, match="too small to be ranked"):
        task.outcome(1e-15 * labels[:, None], labels)
    with pytest.raises(DataError, match="row 2 has NaN or infinity for a label"):
        task.outcome(labels[:, None], torch.tensor([0.0, 1.0, math.nan, 3.0]))


def test_segmentation_by_hand() -> None:
    labels = torch.tensor([[[0, 0], [1, 255]]])
    logits = F.one_hot(torch.tensor([[[0, 1], [1, 0]]]), 2).movedim(-1, 1).float()
    outcome = task_named("segmentation").outcome(logits, labels)
    assert float(outcome.score) == pytest.approx((1 / 2 + 1 / 2) / 2)


def test_several_classes_at_once() -> None:
    outputs = torch.tensor([[2.0, -1.0, 3.0], [-1.0, -1.0, -1.0]])
    labels = torch.tensor([[1.0, 1.0, 1.0], [0.0, 0.0, 0.0]])
    outcome = task_named("multi-label").outcome(outputs, labels)
    assert outcome.score.tolist() == pytest.approx([0.8, 1.0])


def test_features_are_compared_with_their_own() -> None:
    task = task_named("features")
    outputs = {"last_hidden_state": torch.randn(2, 3, 4, generator=GENERATOR)}
    own = task.answers(outputs)
    assert own.shape == (2, 4)
    assert task.score(outputs, own).tolist() == pytest.approx([1, 1])
    assert float(task.divergence(outputs, outputs).max()) == pytest.approx(0, abs=1e-12)


def test_questions_are_not_taken_for_texts_to_classify() -> None:
    row = {"question": "Who?", "context": "She did.", "answers": {"text": ["She"], "answer_start": [0]}}
    reading = Reading(preparation=Preparation("a classifier"), task="classification")
    with pytest.raises(DataError, match="holds questions with answers, which a classifier does not give"):
        encode(listed_records([row]), reading)
