"""Methods and promises: named defaults, and targets that samples held out from the search prove."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

import bitsect
from bitsect import Goal, Plan, Scoring, Settings
from bitsect.cli.commands import answered
from bitsect.errors import OptionError
from bitsect.pipeline.judge import Judge
from bitsect.pipeline.methods import DEFAULT, method_of
from bitsect.pipeline.notes import notes_on_population
from bitsect.runs.opening import open_run
from bitsect.values import INT4, Evaluation
from bitsect.values.method import BITSECT, METHODS, PAPER
from bitsect.values.options import given, to_json
from tiny import refill, seeded

COUNT = 400


def network() -> nn.Module:
    return refill(
        nn.Sequential(
            nn.Conv2d(1, 6, 3), nn.ReLU(), nn.Conv2d(6, 6, 3), nn.ReLU(), nn.Flatten(), nn.Linear(96, 4)
        )
    )


def labelled(count: int = COUNT, seed: int = 1) -> tuple[torch.Tensor, torch.Tensor]:
    """Images with the float network's own answers: it gets everything right."""
    x = seeded(count, 1, 8, 8, seed=seed)
    with torch.no_grad():
        return x, network()(x).argmax(1)


BITS: dict[str, Any] = {"method": "bitsect", "destination": "bits"}


def quantize(**options: Any) -> bitsect.Result:
    return bitsect.quantize(network(), labelled(), **{"target": 0.9, **BITS, **options})


# Methods


def test_a_method_gives_way_to_what_is_asked_for() -> None:
    assert BITSECT.complete(Settings(range="max")).range == "max"
    assert BITSECT.complete(Settings(range="max")).rounding == "gptq"
    assert BITSECT.complete(Goal(target=0.9)).confidence == 0.95
    assert BITSECT.complete(Scoring(metric="single")).metric == "single"
    # What a method leaves alone still counts as not given: a continued run keeps its own.
    assert set(given(BITSECT.complete(Settings()))) == {"range", "sign", "rounding"}


def test_the_papers_method_is_the_defaults() -> None:
    assert (PAPER.settings, PAPER.scoring, PAPER.goal) == (Settings(), Scoring(), Goal())
    assert method_of("zoo:fashion-resnet", None, None).name == DEFAULT == "bitsect"
    with pytest.raises(OptionError, match="unknown method 'papre': did you mean 'paper'"):
        method_of("zoo:fashion-resnet", None, "papre")


def test_a_run_is_searched_again_by_its_own_method(tmp_path: Path) -> None:
    first = quantize(out=tmp_path / "run")
    assert json.loads((tmp_path / "run" / "run.json").read_text())["method"] == "bitsect"
    again = bitsect.quantize(tmp_path / "run", target=0.8)
    assert (again.method, again.goal.search, again.goal.confidence) == ("bitsect", "frontier", 0.95)
    assert to_json(again.run.settings) == to_json(first.run.settings)
    plain = bitsect.quantize(tmp_path / "run", target=0.9, method="paper", metric="single")
    assert (plain.method, plain.goal.search, plain.promise) == ("paper", "bisection", None)


def test_the_frontier_goes_by_damage_alone() -> None:
    for method in METHODS:  # asked for by name
        with pytest.raises(OptionError, match="goes by the damage"):
            quantize(method=method, search="frontier", metric="hessian")


def test_damage_is_a_metric_like_others() -> None:
    scores = bitsect.sensitivity(network(), labelled(64), metric="damage", score_format="int4")
    result = bitsect.quantize(network(), labelled(64), method="paper", metric="damage", target=0.9)
    assert scores.standard_error is not None
    assert all(value > 0 for value in scores.values)
    assert result.scores.metric == "damage"


# What the search goes by


def test_expected_accuracy_is_the_mean_probability_of_the_answers() -> None:
    with open_run(network(), labelled(), BITSECT.settings) as run:
        evaluator = run.evaluator([INT4])
        plan = Plan.uniform(run.layers, INT4)
        x = run.samples.inputs(slice(None))
        with torch.no_grad():
            likely = network()(x).softmax(1)
        answers = run.program.run(x, evaluator.rounding(plan)).argmax(1)
        found = evaluator.expected(plan)
        assert found.accuracy == pytest.approx(likely[torch.arange(len(x)), answers].double().mean().item())
        known = evaluator.judged_batches
        assert evaluator(plan).accuracy == (answers == run.samples.labels).double().mean().item()
        assert evaluator.judged_batches == known  # labels were compared in the same pass
        least = evaluator.expected(Plan.uniform(run.layers)).accuracy
        assert least == pytest.approx(likely.amax(1).double().mean().item())
        assert least >= found.accuracy


def test_labels_decide_what_is_called_kept() -> None:
    x, y = labelled()
    assert bitsect.quantize(network(), (x, y), target=0.9, confidence="none", **BITS).goal.guide == "labels"
    result = bitsect.quantize(network(), (x, y), target=0.9, confidence="none", guide="expected", **BITS)
    assert result.target_met is (result.accuracy >= 0.9 * result.float_accuracy)
    assert result.found.evaluation == result.rows[-1].evaluation


def test_without_labels_every_changed_answer_counts() -> None:
    with open_run(network(), labelled()[0], BITSECT.settings) as run:
        judge = Judge(run, None)
        assert judge.guide("expected") is judge
    with open_run(network(), labelled(), BITSECT.settings) as run:
        judge = Judge(run, None)
        assert judge.guide("expected") == judge.expected
        assert judge.guide("labels") is judge
        assert Judge(run, lambda module: 1.0).guide("expected") != judge.expected


# Promises


def test_samples_that_prove_the_target_are_not_searched_on() -> None:
    result = quantize()
    assert result.run.held_out is not None
    searched, held = (
        {tuple(row.flatten().tolist()) for row in samples.inputs(slice(None))}
        for samples in (result.run.samples, result.run.held_out)
    )
    assert len(searched) + len(held) == COUNT
    assert not searched & held
    assert result.rows[0].evaluation.total == len(searched)
    assert result.promise is not None
    assert result.promise.samples == len(held)


def test_a_target_that_is_proven_is_promised() -> None:
    result = quantize(target=0.7)
    assert result.promise is not None
    assert result.promise.proven
    assert result.verdict == "kept with 95 % confidence"
    assert result.promise.look.bound >= 0.7
    assert result.plan == result.promise.plan
    assert "kept with 95 % confidence" in repr(result)
    assert result.to_json()["promise"]["method"] == "group-sequential paired score bound"


def test_a_target_finer_than_the_samples_is_said_before_the_work() -> None:
    said: list[str] = []

    class Said(bitsect.Progress):
        def say(self, what: str) -> None:
            said.append(what)

    result = quantize(target=0.9999, progress=Said())
    assert any("held-out samples cannot prove 99.99%" in line and "would" in line for line in said)
    assert result.promise is not None
    assert not result.promise.proven
    assert result.verdict.startswith(("not proven", "not kept"))


def test_other_samples_may_prove_the_target() -> None:
    result = quantize(validation_data=labelled(200, seed=5), hold_out=False)
    assert result.promise is not None
    assert result.promise.samples == 200
    assert result.run.held_out is None
    assert result.rows[0].evaluation.total == COUNT


def test_a_function_of_the_network_promises_nothing() -> None:
    assert quantize(evaluate=lambda module: 1.0).promise is None
    with pytest.raises(OptionError, match="pass confidence='none'"):
        quantize(evaluate=lambda module: 1.0, confidence=0.95)


def test_another_metric_is_searched_by_bisection() -> None:
    result = quantize(metric="single")
    assert (result.goal.search, result.goal.confidence, result.scores.metric) == ("bisection", 0.95, "single")


def test_a_run_keeps_the_settings_that_it_was_given(tmp_path: Path) -> None:
    quantize(out=tmp_path / "run", range="max")
    again = bitsect.quantize(tmp_path / "run", target=0.8)
    assert (again.method, again.run.settings.range, again.run.settings.rounding) == ("bitsect", "max", "gptq")
    assert len(bitsect.sensitivity(tmp_path / "run").layers) == 3
    with pytest.raises(OptionError, match="rounds as it did when it was made"):
        bitsect.evaluate(tmp_path / "run", method="paper")


def test_a_promise_stays_within_the_budget() -> None:
    for target in (0.9, 0.99):
        result = quantize(target=target, max_size="0.3x")
        assert result.size_ratio <= 0.3
        assert result.promise is not None


@pytest.mark.parametrize("keep", ["*=int8", "*=int4", "*=float"])
def test_pins_may_leave_nothing_to_search(keep: str) -> None:
    result = quantize(target=0.3, keep=keep)
    assert set(map(str, result.plan.values())) == {keep.removeprefix("*=")}
    assert result.promise is not None


def test_a_promise_is_never_dropped_without_a_word(tmp_path: Path) -> None:
    # The paper's method holds samples out too, where a promise is asked for.
    asked = {"method": "paper", "metric": "single", "target": 0.8}
    assert quantize(confidence="95%", **asked).promise is not None
    plain = quantize(out=tmp_path / "run", **asked)
    assert plain.promise is None
    for wrong in ({"confidence": 0.95}, {"validation_data": labelled(20, seed=3)}):
        with pytest.raises(OptionError, match=r"samples that the search does not see|proves a promise"):
            bitsect.quantize(tmp_path / "run", target=0.8, metric="single", **wrong)
    with pytest.raises(OptionError, match="are those searched on"):
        quantize(validation_data=labelled(), hold_out=False)


def test_copies_prove_nothing() -> None:
    few, others = labelled(100), labelled(200, seed=5)
    both = tuple(torch.cat(parts) for parts in zip(labelled(150), others, others, strict=True))
    result = quantize(validation_data=both, hold_out=False)
    assert result.promise is not None
    assert result.promise.samples == 200
    assert "350 of 550 held-out samples are copies" in "".join(result.notes)
    # Ten copies of a hundred samples would prove far more than a hundred samples can.
    repeated = bitsect.quantize(network(), tuple(torch.cat([part] * 10) for part in few), target=0.98, **BITS)
    assert repeated.promise is not None
    assert repeated.promise.samples < 20
    assert not repeated.promise.proven
    with pytest.raises(OptionError, match="are those searched on: pass others, or confidence='none'"):
        bitsect.quantize(network(), tuple(torch.cat([part[:1]] * 50) for part in few), target=0.98, **BITS)


def test_test_samples_that_were_searched_on_are_told() -> None:
    x, y = labelled(60)
    result = quantize(
        test_data=(torch.cat([x, seeded(40, 1, 8, 8, seed=9)]), y.repeat(2)[:100]), confidence=None
    )
    assert "60 of 100 test samples are among those that were searched on" in "".join(result.notes)
    held_out = labelled(200, seed=5)
    result = quantize(validation_data=held_out, test_data=(held_out[0] + 1e-6, held_out[1]), hold_out=False)
    assert "200 of 200 test samples are among those that were held out" in "".join(result.notes)


def test_features_of_one_tower_say_what_they_do_not_judge() -> None:
    class Towers(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.image, self.text = nn.Linear(8, 4), nn.Linear(8, 4)

        def forward(self, image: torch.Tensor, text: torch.Tensor) -> dict[str, torch.Tensor]:
            return {"text_embeds": self.text(text), "image_embeds": self.image(image)}

    data = {"image": seeded(8, 8), "text": seeded(8, 8, seed=2)}
    result = bitsect.quantize(refill(Towers()), data, target=0.5, task="features", confidence=None, **BITS)
    assert "the features are output 'image_embeds'; not judged: 'text_embeds'" in "".join(result.notes)


def test_what_was_proven_on_other_samples_is_exported(tmp_path: Path) -> None:
    """A few searched samples that happen to miss the target do not refute what many others prove."""
    x, y = labelled(100)
    all_int4 = {"keep": "*=int4", "target": 0.8, **BITS}
    right = bitsect.quantize(network(), (x, y), confidence=None, **all_int4).model()(x).argmax(1) == y
    few = torch.cat([(~right).nonzero()[:4, 0], right.nonzero()[:8, 0]])
    others = labelled(500, seed=8)
    run, data = tmp_path / "run", (x[few], y[few])
    result = bitsect.quantize(network(), data, validation_data=others, out=run, **all_int4)
    assert result.verdict == "kept with 95 % confidence"
    assert result.accuracy < 0.8
    assert result.export(tmp_path / "a.safetensors").proof.holds
    again = bitsect.export(run, tmp_path / "b.safetensors")
    assert (again.failures, again.target_kept) == ((), True)  # on the samples that prove it
    assert any("was judged on other samples: kept" in note for note in again.notes)


def test_a_largest_drop_is_promised_in_points() -> None:
    result = quantize(target=None, max_drop=20)
    assert result.promise is not None
    assert "points lost, at most" in result.promise.seen


def test_samples_too_few_to_hold_out_are_refused() -> None:
    with pytest.raises(bitsect.DataError, match="at least two"):
        bitsect.quantize(network(), labelled(1), target=0.9, **BITS)


def test_one_sample_to_search_on_is_refused_with_the_number_that_is_needed() -> None:
    with pytest.raises(OptionError, match=r"1 sample to calibrate .* about [\d,]+ samples prove 99%"):
        bitsect.quantize(network(), labelled(3), target=0.99, **BITS)


def test_searches_on_the_same_samples_are_counted(tmp_path: Path) -> None:
    first = quantize(out=tmp_path / "one")
    other = bitsect.quantize(tmp_path / "one", metric="single")
    assert first.promise is not None
    assert other.promise is not None
    assert (first.promise.search, other.promise.search) == (1, 2)
    assert other.promise.seen.endswith("; second search on these samples")
    assert "search on these samples" not in first.promise.seen
    assert other.promise.look.level < first.promise.look.level or first.promise.proven
    for again in (quantize(out=tmp_path / "one", fresh=True), quantize(out=tmp_path / "two", target=0.7)):
        assert again.promise is not None
        assert again.promise.search == 1  # the same request, and another target of it
    seeded_anew = quantize(out=tmp_path / "three", seed=1)
    assert seeded_anew.promise is not None
    assert seeded_anew.promise.search == 3


@pytest.mark.parametrize(("met", "code"), [(True, 0), (None, 3), (False, 1)])
def test_the_exit_code_says_whether_the_target_is_proven(met: bool | None, code: int) -> None:
    results: Any = [
        SimpleNamespace(target="99%", target_met=met),
        SimpleNamespace(target="98%", target_met=True),
    ]
    assert answered(results, dict).code == code


def test_samples_of_another_kind_are_told_from_the_test_samples() -> None:
    def notes(held: float, tested: float) -> tuple[str, ...]:
        promise: Any = SimpleNamespace(accuracy={"float": held}, samples=1000)
        on_test: Any = SimpleNamespace(float=Evaluation(1000 * tested, 1000, 1000))
        return notes_on_population(promise, on_test)

    assert notes(0.93, 0.92) == ()
    (note,) = notes(0.998, 0.92)
    assert note.startswith("the float network is 99.80% right on the held-out samples and 92.00% on the test")
    assert notes_on_population(None, None) == ()


@pytest.mark.parametrize("text", ["95", "40%", 1.0, "sure", "nan"])
def test_what_is_no_confidence_is_refused(text: object) -> None:
    with pytest.raises(OptionError, match=r"confidence .* such as 95%"):
        Goal(confidence=text)


def test_a_promise_is_found_again_to_the_same_bytes(tmp_path: Path) -> None:
    first = quantize(out=tmp_path / "one")
    quantize(out=tmp_path / "two")
    again = quantize(out=tmp_path / "one")
    assert again.evaluations == 0
    assert (tmp_path / "one" / "result.json").read_bytes() == (tmp_path / "two" / "result.json").read_bytes()
    assert Plan.read(tmp_path / "one" / "plan.json", first.run.layers) == first.plan


def test_a_curve_says_what_the_last_search_limits_it_to(tmp_path: Path) -> None:
    said: list[str] = []

    class Said(bitsect.Progress):
        def say(self, what: str) -> None:
            said.append(what)

    quantize(out=tmp_path / "run", keep="first=int8")
    bitsect.frontier(tmp_path / "run", targets="90%", progress=Said())
    assert any("limited as in the last search: [keep=first=int8]" in line for line in said), said
