"""From a network and samples to a plan, in Python: what is given, what comes back, what is kept."""

from __future__ import annotations

import gc
import json
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import bitsect
from bitsect import Settings
from bitsect.errors import BitsectError, DataError, RunError, TargetError
from bitsect.pipeline.result import Result
from bitsect.runs.folder import RunFolder
from bitsect.runs.opening import open_run
from bitsect.runs.progress import Progress
from bitsect.solve.search.problem import Found, Problem
from bitsect.values import FLOAT, INT4, INT8, LatencyTable, Plan, Target
from bitsect.values.latency_table import place_key

QUICK = {"method": "paper", "probes": 8}
FEW = 48


class Small(nn.Module):
    """Four layers, dropout and batch norm to notice a forgotten training flag."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, 6, 3, stride=2)
        self.norm = nn.BatchNorm2d(6)
        self.body = nn.Conv2d(6, 8, 3)
        self.drop = nn.Dropout(0.5)
        self.hidden = nn.Linear(8 * 9, 16)
        self.head = nn.Linear(16, 6)

    def forward(self, x: Tensor) -> Tensor:
        x = self.drop(torch.relu(self.body(torch.relu(self.norm(self.stem(x))))))
        return self.head(torch.relu(self.hidden(x.flatten(1))))


class Named(nn.Module):
    """Named inputs, named outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.small = Small()

    def forward(self, pixels: Tensor, gain: Tensor) -> dict[str, Any]:
        x = self.small(pixels * gain[:, None, None, None])
        return {"logits": x, "parts": (x.softmax(1), [x.sum(1)])}


def small() -> nn.Module:
    """A network whose answers differ from image to image: no bias decides them."""
    torch.manual_seed(3)
    network = Small().eval()
    with torch.no_grad():
        for module in (network.stem, network.body, network.hidden, network.head):
            module.bias.zero_()
    return network


def images(count: int = FEW) -> Tensor:
    return torch.randn(count, 1, 12, 12, generator=torch.Generator().manual_seed(5))


def labelled(count: int = FEW) -> tuple[Tensor, Tensor]:
    """Images with the float network's own answers: it gets everything right."""
    with torch.no_grad():
        return images(count), small()(images(count)).argmax(1)


def quantize(model: Any = None, samples: Any = None, **options: Any) -> Result:
    if model is None:
        model, samples = small(), labelled() if samples is None else samples
    options = {"target": 0.95, **QUICK} | options
    return bitsect.quantize(model, samples, **options)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Result:
    """A finished run that tests read, and must not write to."""
    return quantize(test_data=images(), out=tmp_path_factory.mktemp("made") / "run")


@pytest.fixture
def run(made: Result, tmp_path: Path) -> Path:
    """A copy of the finished run, to work in."""
    return Path(shutil.copytree(made.run.folder.path, tmp_path / "run"))


def journals(path: Path) -> dict[str, int]:
    return {file.stem: file.stat().st_size for file in (path / "journals").iterdir()}


# ---- what comes back -----------------------------------------------------------------------------


def test_the_result_says_all_about_the_plan(made: Result, tmp_path: Path) -> None:
    assert made.target_met
    assert made.rows[0].evaluation.accuracy == 1
    assert made.accuracy >= 0.95
    assert set(made.plan) == {"stem", "body", "hidden", "head"}
    assert [row.name for row in made.rows] == ["float", "all int8", "all int4", "plan"]
    assert 0 < made.evaluations <= 6
    assert set(made.seconds) >= {"capture", "calibrate", "traces", "pairs", "search", "compare", "test"}
    assert made.test is not None
    assert not made.agreement
    folder = made.run.folder.path
    assert json.loads((folder / "plan.json").read_text()) == made.plan.to_json()
    assert made.save(tmp_path / "mine.json").read_text() == (folder / "plan.json").read_text()
    assert Plan.read(made.save(), made.run.program.layers) == made.plan


def test_the_model_computes_the_plan(made: Result) -> None:
    x, y = labelled()
    model = made.model()
    assert isinstance(model, nn.Module)
    found = model(x)
    assert (found.argmax(1) == y).float().mean().item() == pytest.approx(made.accuracy)
    assert not torch.equal(found, small()(x))
    assert torch.equal(model(x=x), found)
    assert next(model.parameters()).device == x.device
    assert not found.requires_grad


def test_the_network_given_is_left_as_it_was() -> None:
    model = small().train()
    model.body.eval()
    model.head.weight.requires_grad_(False)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    threads = torch.get_num_threads()
    quantize(model, labelled(), settings=Settings(threads=1))
    assert torch.get_num_threads() == threads
    assert model.training
    assert not model.body.training
    assert model.drop.training
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert [p.requires_grad for p in model.head.parameters()] == [False, True]
    assert all(p.grad is None for p in model.parameters())


def test_structures_come_back_as_the_network_gives_them(tmp_path: Path) -> None:
    torch.manual_seed(3)
    network = Named().eval()
    inputs = {"pixels": images(), "gain": torch.ones(FEW)}
    # Without labels, accuracy is agreement.
    result = quantize(network, [inputs], out=tmp_path / "run")
    assert result.agreement
    assert "no labels" in result.notes[-1]
    assert result.to_json()["agreement"] is True
    model = result.model()
    found, original = model(**inputs), network(**inputs)
    assert list(found) == ["logits", "parts"]
    assert isinstance(found["parts"], tuple)
    assert isinstance(found["parts"][1], list)
    assert found["logits"].shape == original["logits"].shape
    with pytest.raises(DataError, match="by name"):
        model(images(), gain=torch.ones(FEW))
    # The run stands alone: network and samples were stored.
    again = bitsect.quantize(tmp_path / "run", target=0.95, **QUICK)
    assert (again.plan, again.evaluations) == (result.plan, 0)


def test_inputs_in_a_row_are_stored_too(tmp_path: Path) -> None:
    torch.manual_seed(3)
    first = quantize(Named().eval(), [((images(), torch.ones(FEW)),)], out=tmp_path / "run")
    model = first.model()
    assert model(images(4), gain=torch.ones(4))["logits"].shape == (4, 6)
    again = bitsect.quantize(tmp_path / "run", target=0.95, **QUICK)
    assert (again.plan, again.evaluations) == (first.plan, 0)


@pytest.mark.parametrize("form", ["loader", "iterator", "numpy"])
def test_samples_come_in_many_forms(form: str, made: Result) -> None:
    x, y = labelled()
    forms: dict[str, Callable[[], Any]] = {
        "loader": lambda: DataLoader(TensorDataset(x, y), batch_size=7),
        "iterator": lambda: ((x[i : i + 5], y[i : i + 5]) for i in range(0, FEW, 5)),
        "numpy": lambda: (x.numpy(), y.numpy()),
    }
    result = quantize(small(), forms[form](), metric="single")
    assert result.rows[0].evaluation == made.rows[0].evaluation
    assert result.rows[1].evaluation == made.rows[1].evaluation


def test_without_a_folder_nothing_is_left_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    result = quantize(metric="single")
    with pytest.raises(BitsectError, match="no folder to save the plan in"):
        result.save()
    assert result.to_json()["run"] is None
    result.model()(images(2))
    del result
    gc.collect()
    with pytest.raises(BitsectError):
        quantize(small(), (images(), torch.full((FEW,), 99)), metric="single")
    gc.collect()
    assert list(tmp_path.iterdir()) == []


# ---- one's own parts -----------------------------------------------------------------------------


def test_ones_own_evaluation_is_asked_of_modules_and_remembered(tmp_path: Path) -> None:
    x, y = labelled()
    asked: list[nn.Module] = []

    def score(model: nn.Module) -> float:
        device = next(model.parameters()).device
        asked.append(model)
        return 100 * (model(x.to(device)).argmax(1) == y).double().mean().item()

    result = quantize(evaluate=score, metric="single", out=tmp_path / "run")
    assert result.rows[0].evaluation.accuracy == 100
    assert result.accuracy >= 95
    with result.run.reopened() as run:
        assert len(asked) == sum("/own/" in key for key in run.folder.journal("evaluated"))  # each plan once
    before = len(asked)
    again = quantize(evaluate=score, metric="single", out=tmp_path / "run")
    assert len(asked) == before
    assert (again.evaluations, again.plan) == (0, result.plan)
    with pytest.raises(BitsectError, match="evaluate returned nan"):
        quantize(evaluate=lambda model: float("nan"), metric="single", out=tmp_path / "run")
    with pytest.raises(BitsectError, match="cannot be combined with evaluate"):
        quantize(evaluate=score, test_data=images())
    assert repr(result).splitlines()[1].startswith("  accuracy 100 → ")  # on its own scale
    later = bitsect.quantize(tmp_path / "run", target=0.9, metric="single")
    assert any("judged by your own function" in note and "'test_" in note for note in later.notes)


@pytest.mark.parametrize(
    ("evaluate", "message"),
    [
        (lambda model: None, "evaluate returned a NoneType: expected a number"),
        (lambda model: torch.zeros(5), "evaluate returned a Tensor: expected a number"),
        (lambda model: 1 / 0, "raised ZeroDivisionError"),
        (0.5, "evaluate is a float: expected a function of a module"),
    ],
)
def test_a_judge_that_gives_no_number(evaluate: Any, message: str) -> None:
    with pytest.raises(BitsectError, match=message):
        quantize(evaluate=evaluate, metric="single")


def test_points_are_of_a_share(tmp_path: Path) -> None:
    """Of a figure in per cent nobody knows what a drop of one point is."""
    with pytest.raises(BitsectError, match=r"max_drop counts points of a share from 0 to 1, and .* is 93:"):
        quantize(evaluate=lambda model: 93.0, metric="single", target=None, max_drop=1)


def test_a_figure_that_rises_by_rounding_is_told(tmp_path: Path) -> None:
    x, _ = labelled()
    float_outputs: list[torch.Tensor] = []

    def error(model: nn.Module) -> float:
        float_outputs.append(model(x))
        return 0.01 + (float_outputs[-1] - float_outputs[0]).abs().mean().item()

    result = quantize(evaluate=error, metric="random", out=tmp_path / "run")
    assert any("so an error or a loss must be turned round" in note for note in result.notes)


def test_ones_own_task_is_a_function(tmp_path: Path) -> None:
    def lenient(outputs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        loss = nn.functional.cross_entropy(outputs, labels, reduction="none")
        return loss, (outputs.topk(2).indices == labels[:, None]).any(1).float()

    result = quantize(task=lenient, out=tmp_path / "run")
    assert result.accuracy >= 0.95
    with pytest.raises(RunError, match="task that is not found"):
        bitsect.quantize(tmp_path / "run", target=0.9)
    with pytest.raises(RunError, match="was made with task test_ones_ow…, not classification"):
        quantize(task="classification", out=tmp_path / "run")
    again = bitsect.quantize(tmp_path / "run", target=0.95, task=lenient, **QUICK)
    assert again.evaluations == 0


# ---- runs ----------------------------------------------------------------------------------------


def test_an_identical_call_evaluates_nothing(run: Path, made: Result) -> None:
    before = journals(run)
    files = {name: (run / name).read_bytes() for name in ("plan.json", "result.json", "run.json")}
    again = quantize(test_data=images(), out=run)
    assert again.evaluations == 0
    assert again.plan == made.plan
    assert journals(run) == before
    assert {name: (run / name).read_bytes() for name in files} == files
    assert json.loads((run / "effort.json").read_text())["evaluations"] == 0


def test_another_target_measures_nothing_again(run: Path, made: Result) -> None:
    """While the first result is still held, in the same process."""
    before = journals(run)
    higher = bitsect.quantize(run, target="100%", **QUICK)
    assert higher.target_met
    after = journals(run)
    assert {name for name in after if after[name] != before.get(name)} <= {"evaluated"}
    # A plan that was judged for one target is known for all.
    back = bitsect.quantize(run, target=0.95, **QUICK)
    assert (back.plan, back.evaluations) == (made.plan, 0)
    assert journals(run) == after


def test_metrics_share_what_was_measured(run: Path) -> None:
    before = journals(run)
    for metric in ("hessian", "interlayer", "single", "sqnr", "random"):
        scores = bitsect.sensitivity(run, metric=metric, **QUICK)
        assert len(scores.values) == 4
        assert scores.samples == (None if metric in ("hessian", "random") else FEW)
        assert (scores.probes is not None) == (metric == "hessian")
        assert list(run.glob(f"scores-{metric}-int8-*.json"))
    new = journals(run).keys() - before.keys()
    assert new <= {"single-int8"}  # what exact pairs keep serves them alone


def test_one_process_works_in_a_run_at_a_time(run: Path) -> None:
    folder = RunFolder(run)
    with pytest.raises(RunError, match="another bitsect is working"):
        bitsect.quantize(run, target=0.9)
    folder.close()
    # A call that fails gives the folder up again.
    with pytest.raises(DataError):
        quantize(small(), (images().fill_(float("nan")), labelled()[1]), out=run)
    bitsect.quantize(run, target=0.95, **QUICK)


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"settings": {"rounding": "nearest"}}, "rounding squant, not nearest"),
        ({"settings": {"range": "mse"}}, "range percentile, not mse"),
        ({"settings": {"sign": "auto"}}, "sign signed, not auto"),
        ({"settings": {"placement": "onnxruntime"}}, "placement paper, not onnxruntime"),
        ({"settings": {"batch_size": 8}}, "batch size 64, not 8"),
        ({"task": "classification-top5"}, "task classification, not classification-top5"),
        ({"samples": images(8)}, "made with other samples"),
        ({"seed": 1}, "seed 0, not 1"),
        ({"draw": 5}, "draw null, not 5"),
        ({"model": Small().eval()}, "another network, or other weights"),
    ],
)
def test_what_changed_is_named_with_both_ways_out(run: Path, change: dict[str, Any], what: str) -> None:
    given = {"model": small(), "samples": labelled()} | change
    with pytest.raises(RunError, match=what) as caught:
        quantize(given.pop("model"), given.pop("samples"), out=run, **given)
    assert "quantize starts it anew with fresh=True" in str(caught.value)
    assert "out='FOLDER'" in str(caught.value)


def test_a_draw_of_a_run_is_not_another_draw(run: Path) -> None:
    with pytest.raises(RunError, match="draw null, not 5"):
        bitsect.quantize(run, target=0.9, draw=5)


def test_a_network_without_layers_is_refused() -> None:
    with pytest.raises(BitsectError, match="no layer to quantise"):
        quantize(nn.Flatten(), images())
    with pytest.raises(BitsectError, match="no weights, only shapes"):
        quantize(small().to("meta"), images())


def test_what_is_not_given_is_the_runs_own(tmp_path: Path) -> None:
    settings = Settings(placement="onnxruntime", rounding="nearest", batch_size=16, threads=2)
    first = quantize(metric="single", settings=settings, out=tmp_path / "run")
    for given in (None, {"rounding": "nearest"}, settings):
        again = bitsect.quantize(tmp_path / "run", target=0.95, metric="single", settings=given)
        assert (again.evaluations, again.plan) == (0, first.plan)
    with pytest.raises(RunError, match="rounding nearest, not squant"):
        bitsect.quantize(tmp_path / "run", target=0.95, settings={"rounding": "squant"})
    # Threads belong to the machine a run began on; they are not chosen twice.
    elsewhere = Settings(placement="onnxruntime", rounding="nearest", batch_size=16, threads=None)
    with open_run(small(), labelled(), elsewhere, out=tmp_path / "run"):
        assert torch.get_num_threads() == 2


def test_settings_that_were_not_written_out_are_the_runs_own(tmp_path: Path) -> None:
    first = quantize(metric="random", settings={"range": "max", "batch_size": 16}, out=tmp_path / "run")
    ask = {"target": 0.95, "metric": "random"}
    again = bitsect.quantize(tmp_path / "run", settings=Settings(range="max"), **ask)
    assert (again.evaluations, again.plan) == (0, first.plan)
    with pytest.raises(RunError, match="batch size 16, not 64"):
        bitsect.quantize(tmp_path / "run", settings=Settings(batch_size=64), **ask)


# ---- damaged and foreign -------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["model.pt2", "samples.safetensors"])
def test_one_flipped_bit_in_a_kept_object_is_refused_and_mended(run: Path, name: str, made: Result) -> None:
    whole = (run / name).read_bytes()
    damaged = bytearray(whole)
    damaged[len(damaged) // 2] ^= 1
    for bad in (bytes(damaged), whole[:-9], b""):
        (run / name).write_bytes(bad)
        with pytest.raises(RunError, match=f"{name} is damaged, .*call quantize with the Python objects"):
            bitsect.evaluate(run)
    (run / name).unlink()
    with pytest.raises(RunError, match=f"{name} is not there"):
        bitsect.evaluate(run)
    quantize(out=run, metric="random")
    assert (run / name).read_bytes() == whole
    assert bitsect.evaluate(run, format="int8").plan.evaluation == made.rows[1].evaluation


def test_labels_that_were_replaced_are_not_answered_by_old_journals(run: Path) -> None:
    arrays = load_file(run / "samples.safetensors")
    save_file(arrays | {"labels": (arrays["labels"] + 1) % 6}, run / "samples.safetensors")
    with pytest.raises(RunError, match=r"samples\.safetensors is damaged, or another"):
        bitsect.quantize(run, target=0.95, metric="random")


def test_journals_of_other_samples_are_not_adopted(run: Path) -> None:
    (run / "run.json").unlink()
    x, y = labelled()
    with pytest.raises(RunError, match=r"\.journal is of another run, whose run.json is gone"):
        quantize(small(), (x, (y + 1) % 6), out=run)
    assert not (run / "run.json").exists()
    assert quantize(out=run, metric="random", target=0.5).rows[0].evaluation.accuracy == 1


def test_ranges_that_were_damaged_or_come_from_another_run_are_refused(run: Path, tmp_path: Path) -> None:
    text = (run / "ranges.json").read_text()
    digit = next(place for place, sign in enumerate(text) if sign in "1234" and text[place - 1] == ".")
    (run / "ranges.json").write_text(text[:digit] + "5" + text[digit + 1 :])
    with pytest.raises(RunError, match=r"ranges\.json is damaged, or was edited: remove it"):
        bitsect.evaluate(run)
    quantize(metric="random", settings={"range": "max"}, out=tmp_path / "other")
    shutil.copy(tmp_path / "other" / "ranges.json", run / "ranges.json")
    with pytest.raises(RunError, match=r"ranges\.json is of another run"):
        bitsect.evaluate(run)
    (run / "ranges.json").unlink()
    bitsect.evaluate(run)
    assert (run / "ranges.json").read_text() == text


def test_a_task_with_another_body_is_another_task(tmp_path: Path) -> None:
    def named(body: Callable[[Tensor, Tensor], Tensor]) -> Callable[[Tensor, Tensor], Tensor]:
        body.__qualname__ = "judge"
        return body

    right = named(lambda outputs, labels: (outputs.argmax(1) == labels).float())
    wrong = named(lambda outputs, labels: (outputs.argmax(1) != labels).float())
    ask = {"metric": "random", "out": tmp_path / "run"}
    quantize(task=right, **ask)
    assert quantize(task=right, **ask).evaluations == 0
    with pytest.raises(RunError, match=r"made with task code .*…, not .*…: quantize starts it anew"):
        quantize(task=wrong, **ask)


def test_an_evaluation_with_another_body_is_asked_again(tmp_path: Path) -> None:
    def judge(share: float) -> Callable[[nn.Module], float]:
        return lambda model: share

    for share in (0.5, 0.25):
        for _ in range(2):
            result = quantize(evaluate=judge(share), metric="random", out=tmp_path / "run")
            assert result.accuracy == share
    assert result.evaluations == 0


def test_a_result_does_not_go_on_in_a_folder_that_became_another_run(tmp_path: Path) -> None:
    first = quantize(metric="random", out=tmp_path / "run")
    quantize(metric="random", out=tmp_path / "run", fresh=True, settings={"rounding": "nearest"})
    with pytest.raises(RunError, match=r"run\.json is of another run"):
        first.run.reopened()


def test_a_run_is_not_made_anew_from_its_own_files(run: Path) -> None:
    with pytest.raises(RunError, match="is a file of the run that fresh=True removes: copy it elsewhere"):
        quantize(run / "model.pt2", labelled(), out=run, fresh=True)
    assert (run / "model.pt2").exists()


def test_no_work_goes_into_a_sub_folder_that_is_a_link(run: Path, tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (run / "under-onnxruntime").symlink_to(tmp_path / "outside")
    with open_run(run) as opened, pytest.raises(RunError, match="is a link"):
        opened.under("onnxruntime")
    assert list((tmp_path / "outside").iterdir()) == []


# ---- the same run --------------------------------------------------------------------------------


def test_a_run_is_continued_where_it_is(run: Path, tmp_path: Path) -> None:
    for other in ({"out": tmp_path / "other"}, {"fresh": True}):
        with pytest.raises(RunError, match="name its model"):
            bitsect.quantize(run, target=0.9, **other)
    assert (run / "plan.json").exists()
    assert bitsect.quantize(run, target=0.95, out=run, **QUICK).evaluations == 0


def test_fresh_begins_anew(run: Path) -> None:
    result = quantize(out=run, fresh=True, settings={"rounding": "nearest"}, metric="single")
    assert result.evaluations > 0
    assert not list(run.glob("scores-aughessian-int8-*.json"))


def test_folders_that_are_no_runs(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="is not a run"):
        bitsect.quantize(tmp_path, target=0.9)
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(RunError, match="something else than a run"):
        quantize(out=tmp_path)
    with pytest.raises(RunError, match="is a file"):
        quantize(out=tmp_path / "notes.txt")
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_a_wrong_setting_leaves_no_folder(tmp_path: Path) -> None:
    for name in ("placement", "rounding", "range", "sign"):
        with pytest.raises(BitsectError, match=f"unknown {name} 'odd': use .* or "):
            quantize(settings={name: "odd"}, out=tmp_path / "run")
    for name, value in (("percentile", 0), ("percentile", 101), ("batch_size", 0), ("threads", -1)):
        with pytest.raises(BitsectError, match="is not"):
            quantize(settings={name: value}, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


# ---- targets, pins, latency, budgets -------------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"target": None}, "what must be kept"),
        ({"target": "most"}, "target 'most'"),
        ({"formats": ()}, "no format to try"),
        ({"formats": ("float",)}, "no format to try"),
        ({"formats": ("int9",)}, "format bits"),
        ({"metric": "sensitivity"}, "unknown metric"),
        ({"search": "bisect"}, "unknown search 'bisect'"),
        ({"score_format": "int99"}, "format bits"),
        ({"objective": "speed"}, "unknown objective 'speed'"),
        ({"pairs": "all"}, "unknown pairs 'all'"),
        ({"loss": "mse"}, "unknown loss 'mse'"),
        ({"probs": 8}, r"unknown argument of quantize\(\) 'probs': did you mean 'probes'"),
        ({"scoring": {"probs": 8}}, "unknown option of Scoring 'probs': did you mean 'probes'"),
        ({"scoring": Settings()}, "expected a Scoring, got a Settings"),
        ({"probes": "8"}, "probes 8 is not a whole number"),
        ({"tolerance": None}, "tolerance None is not a number"),
        (
            {"settings": {"threads": 1, "rangs": "max"}},
            "unknown option of Settings 'rangs': did you mean 'range'",
        ),
        ({"settings": {"threads": "abc"}}, "threads abc is not a whole number"),
        ({"settings": {"percentile": "x"}}, "percentile x is not a number"),
        ({"budget": "0.5x"}, "needs a latency table: pass latency='a100'"),
        ({"max_size": "12"}, "size budget '12'"),
    ],
)
def test_what_cannot_be_is_refused_before_any_work(asked: dict[str, Any], message: str) -> None:
    with pytest.raises(BitsectError, match=message):
        quantize("not even a model", "nor data", **asked)


def all_or_nothing(network: nn.Module) -> float:
    """Right if no layer is rounded, or all are: half-way it is not."""
    return float(len(network.rounding.weights) in (0, 4))


def timid(problem: Problem) -> Found:
    """A search of one's own that never dares."""
    return Found(problem.start, problem.judge(problem.start, None), (), True, "nothing tried")


@pytest.mark.parametrize("search", ["bisection", "progressive", "literal", "test_pipeline:timid"])
def test_no_cheaper_row_that_keeps_the_target_stands_above_the_plan(search: str, run: Path) -> None:
    ask = {"target": 0.95, "evaluate": all_or_nothing, "formats": ["int8"], "metric": "random"}
    result = bitsect.quantize(run, search=search, **ask)
    named = "all int8 keeps the target too and costs less: search='bisection' takes it" in result.notes
    if search == "literal":  # as printed, and so it says what it overlooked
        assert named
        return
    assert set(result.plan.values()) == {INT8}
    assert not named
    pinned = bitsect.quantize(run, search=search, keep=["first=float,int8", "last=int8"], **ask)
    assert set(pinned.plan.values()) == {INT8}


def test_pins_hold_in_the_uniform_rows_too(run: Path) -> None:
    result = bitsect.quantize(run, target=0.5, keep=["last=float"], metric="random")
    assert [row.name for row in result.rows] == ["float", "int8 where allowed", "int4 where allowed", "plan"]
    assert result.rows[1].plan["head"] == FLOAT
    assert list(result.to_json()["uniform"]) == ["int8", "int4"]


def test_uniform_plans_cost_no_evaluations_of_their_own(run: Path) -> None:
    asked: list[nn.Module] = []

    def counted(network: nn.Module) -> float:
        asked.append(network)
        return float(len(network.rounding.weights) == 0)

    bitsect.quantize(run, target=0.95, evaluate=counted, metric="random")
    # Float, all int8, all int4, and of the four layers two, one.
    assert len(asked) == 5


def test_with_a_latency_table_a_uniform_plan_bounds_the_latency(run: Path, made: Result) -> None:
    device = table(made, int8={"stem": 2.0, "body": 0.5, "hidden": 0.5, "head": 0.5})
    ask = {"target": 0.95, "formats": ["int8"], "metric": "random", "latency": device}

    def all_faster_or_nothing(network: nn.Module) -> float:
        return float(len(network.rounding.weights) in (0, 3))

    plan = bitsect.quantize(run, evaluate=all_faster_or_nothing, **ask).plan
    assert dict(plan) == {"stem": FLOAT, "body": INT8, "hidden": INT8, "head": INT8}
    sized = bitsect.quantize(run, evaluate=all_or_nothing, objective="size", **ask)
    assert set(sized.plan.values()) == {INT8}


def test_within_a_budget_no_row_that_fits_is_more_accurate(run: Path) -> None:
    result = bitsect.quantize(run, max_size="0.5x", evaluate=all_or_nothing, metric="random")
    assert result.accuracy == 1
    assert result.rows[-1].cost.size_ratio <= 0.5


# ---- what is known before any measuring ----------------------------------------------------------


class Heard(Progress):
    """Progress that notes the stages and what is said, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.heard: list[str] = []

    def say(self, what: str) -> None:
        self.heard.append(what)

    @contextmanager
    def shown(self, name: str, total: int | None) -> Iterator[Callable[[int], None]]:
        self.heard.append(name)
        yield lambda count: None


def test_the_float_network_is_judged_first_and_said_at_once() -> None:
    x, y = labelled()
    heard = Heard()
    quantize(small(), (x, torch.where(torch.arange(FEW) % 4 == 0, (y + 1) % 6, y)), progress=heard)
    assert heard.heard[0].startswith("for bits: ")
    assert heard.heard[1:5] == ["capture", "float", "float network: 75.00% (36 of 48 samples)", "calibrate"]
    wrong = Heard()
    with pytest.raises(DataError, match="gets no sample right"):
        quantize(small(), (x, (y + 1) % 6), progress=wrong)
    with pytest.raises(DataError, match="data: sample 7 has label 9"):
        quantize(small(), (x, torch.where(torch.arange(FEW) == 7, 9, y)), progress=wrong)
    assert not {"calibrate", "traces", "pairs"} & set(wrong.heard)


def test_accuracy_near_chance_is_noted() -> None:
    x, y = labelled()
    shuffled = y[torch.randperm(FEW, generator=torch.Generator().manual_seed(0))]
    result = quantize(small(), (x, shuffled), metric="random", target=0.5)
    assert any("where one answer for all gets" in note for note in result.notes)
    assert not any("one answer" in note for note in quantize(metric="random").notes)
    same = quantize(small(), x[:1].expand(FEW, -1, -1, -1), metric="random")
    assert any("gives 48 of 48 samples the same answer: agreement says little" in n for n in same.notes)


def test_accuracy_that_is_low_is_noted() -> None:
    model = nn.Linear(6, 10)
    x = torch.randn(200, 6, generator=torch.Generator().manual_seed(0))
    y = model(x).argmax(1)
    y[:140] = torch.arange(140) % 10
    result = quantize(model, (x, y), metric="random", target=0.5)
    assert any("of the samples right: check the labels" in note for note in result.notes)


@pytest.mark.parametrize(("task", "columns"), [("multi-label", 3), ("binary", 1)])
def test_probabilities_are_no_logits(task: str, columns: int) -> None:
    model = nn.Sequential(nn.Linear(6, columns), nn.Sigmoid())
    x, y = torch.randn(FEW, 6), torch.randint(2, (FEW, columns))
    with pytest.raises(DataError, match=f"the network ends in a sigmoid, and the task {task} goes by"):
        quantize(model, (x, y if columns > 1 else y[:, 0]), task=task, target=0.5)
    assert quantize(model[:1], (x, y if columns > 1 else y[:, 0]), task=task, target=0.5).plan


class Normalised(nn.Module):
    """A layer whose inputs are normalised over the batch, or blurred."""

    def __init__(self, normalise: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.normalise, self.head = normalise, nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.normalise(x))


@pytest.mark.parametrize(
    ("normalise", "note"),
    [
        (lambda x: x - x.mean(0), "depends on the others in its batch"),
        (lambda x: x + torch.randn_like(x), "draws random numbers in evaluation mode"),
        (lambda x: x - x.mean(1, keepdim=True), None),
    ],
)
def test_answers_that_are_not_of_a_sample_alone_are_told(normalise: Any, note: str | None) -> None:
    result = quantize(
        Normalised(normalise).eval(), (rows(), torch.arange(FEW) % 3), metric="random", target=0.1
    )
    said = [line for line in result.notes if "batch" in line or "random" in line]
    assert note in said[0] if note else not said


@pytest.mark.parametrize(
    ("target", "note"),
    [
        ("99%", "99% lets none of the 48 samples that are right be lost: about 100 samples, not 48"),
        (Target.drop(0.5), "max drop 0.5 points lets none of the 48 .* about 200 samples, not 48"),
        ("97%", None),  # one of 48 may go
        (1.0, None),  # none was asked for
    ],
)
def test_a_target_finer_than_the_samples_is_said_up_front(target: Any, note: str | None, run: Path) -> None:
    heard = Heard()
    result = bitsect.quantize(run, target=target, metric="random", progress=heard)
    said = [line for line in heard.heard if "samples that are right be lost" in line]
    assert said == [line for line in result.notes if "samples that are right be lost" in line]
    assert re.search(note, said[0]) if note else not said


# ---- which output, and which samples -------------------------------------------------------------


class TwoHeads(nn.Module):
    """Hidden states, and either one output that could be logits or two."""

    def __init__(self, names: tuple[str, ...]) -> None:
        super().__init__()
        self.body, self.heads = nn.Linear(6, 8), nn.ModuleList(nn.Linear(8, 4) for _ in names)
        self.names = names

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        h = torch.relu(self.body(x))
        return {"hidden": h[:, None], **{n: f(h) for n, f in zip(self.names, self.heads, strict=True)}}


ASIDE = "the mean over outputs and samples; labels are left aside"


def rows(count: int = FEW) -> Tensor:
    return torch.randn(count, 6, generator=torch.Generator().manual_seed(2))


def test_the_output_that_is_judged_is_said_and_part_of_the_run(tmp_path: Path) -> None:
    torch.manual_seed(0)
    ask = {"method": "paper", "target": 0.9, "metric": "random", "out": tmp_path / "run"}
    pooled = bitsect.quantize(TwoHeads(("pooler_output",)), rows(), **ask)
    assert "output 'pooler_output' is what is judged, not hidden: output='NAME' takes another" in pooled.notes
    torch.manual_seed(0)
    model, ask["out"] = TwoHeads(("start_logits", "end_logits")), tmp_path / "two"
    unclear = bitsect.quantize(model, rows(), **{**ask, "out": None})  # which of them, nobody said
    assert unclear.run.task.name == "outputs"
    assert any(ASIDE in note for note in unclear.notes)
    result = bitsect.quantize(model, rows(), output="end_logits", fresh=True, **ask)
    assert json.loads((tmp_path / "two" / "run.json").read_text())["output"] == "end_logits"
    with torch.no_grad():
        own = model(rows())["end_logits"].argmax(1)
    by_hand = (result.model()(rows())["end_logits"].argmax(1) == own).double().mean().item()
    assert result.accuracy == pytest.approx(by_hand)
    with pytest.raises(RunError, match="was made with output end_logits, not start_logits"):
        bitsect.quantize(model, rows(), output="start_logits", **ask)
    with pytest.raises(DataError, match="no output 'middle': it gives hidden, start_logits, end_logits"):
        bitsect.quantize(model, rows(), output="middle", **ask)
    assert bitsect.quantize(tmp_path / "two", target=0.9, metric="random").plan == result.plan
    assert bitsect.evaluate(tmp_path / "two").plan.evaluation == result.rows[-1].evaluation


def test_a_network_with_one_logit_is_judged_by_its_sign() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 1))
    with torch.no_grad():
        signs = (model(rows())[:, 0] > model(rows()).median()).long()
        model[2].bias -= model(rows()).median()
    ask = {"method": "paper", "target": 0.999, "metric": "single"}
    for data in (rows(), (rows(), signs * 2)):  # a logit, or a quantity?
        unclear = bitsect.quantize(model, data, **ask)
        assert unclear.run.task.name == "outputs"
        assert any(ASIDE in note for note in unclear.notes)
    agreed = bitsect.quantize(model, rows(), task="binary", **ask)
    labelled = bitsect.quantize(model, (rows(), signs.float()), **ask)
    for result in (agreed, labelled):
        int4 = result.model().program.run(rows(), result.run.calibrate([INT4])(result.rows[2].plan))
        kept = ((int4[:, 0] > 0).long() == signs).double().mean().item()
        assert result.rows[2].evaluation.accuracy == pytest.approx(kept)
    assert labelled.rows[0].evaluation.accuracy >= 0.95


def test_a_task_of_ones_own_without_labels_is_told_what_it_needs() -> None:
    with pytest.raises(DataError, match="needs labels"):
        quantize(small(), images(), task=lambda outputs, labels: torch.ones(len(labels)))
    several = quantize(small(), (images(), torch.zeros(FEW, 2, dtype=torch.long)))
    assert any(ASIDE in note for note in several.notes)


def test_the_samples_of_a_run_come_in_a_seeded_random_order(tmp_path: Path) -> None:
    x, y = labelled()
    order = y.argsort()  # a folder is sorted by class
    with open_run(small(), (x[order], y[order])) as first:
        assert len(set(first.samples.labels[:12].tolist())) > 1
        assert torch.equal(small()(first.samples.inputs(slice(None))).argmax(1), first.samples.labels)
        with open_run(small(), (x[order], y[order]), Settings(seed=1)) as other:
            assert not torch.equal(other.samples.labels, first.samples.labels)
    out = tmp_path / "run"
    with open_run(small(), (x, y), Settings(seed=5), out=out) as made:
        labels = made.samples.labels
    with open_run(out) as alone:
        assert torch.equal(alone.samples.labels, labels)


def test_the_two_ends_are_said_in_words(run: Path) -> None:
    none = bitsect.quantize(run, target=1.0, formats=("int2",), metric="random")
    assert set(none.plan.values()) == {FLOAT}
    assert none.target_met
    assert "nothing lower keeps the target" in none.notes[0]
    every = bitsect.quantize(run, target=Target.drop(99), formats=("int8", "int4"), metric="random")
    assert set(every.plan.values()) == {INT4}
    assert "the lowest format already keeps the target" in every.notes[0]


def test_pins_hold_and_are_named_when_they_cannot(run: Path) -> None:
    keep = ["first=int8", "h*=int4,float", "last=float"]
    result = bitsect.quantize(run, target=0.5, keep=keep, metric="single", **QUICK)
    assert result.plan["stem"] == INT8
    assert result.plan["hidden"] in (INT4, FLOAT)
    assert result.plan["head"] == FLOAT
    with pytest.raises(
        TargetError, match=r"^keep='kind:conv2d=int2': the target cannot be kept: with 'stem'"
    ):
        bitsect.quantize(run, target=1.0, keep=["last=float", "kind:conv2d=int2"], metric="single")


@pytest.mark.parametrize("search", ["bisection", "literal", "progressive"])
def test_every_search_and_scores_of_each_format(search: str, run: Path) -> None:
    result = bitsect.quantize(run, target=0.9, search=search, score_format="each", **QUICK)
    assert list(run.glob("scores-aughessian-int4-*.json"))
    assert result.target_met or search == "literal"
    assert result.scores.format == INT8


def test_formats_are_tried_from_high_to_low(run: Path) -> None:
    result = bitsect.quantize(run, target=0.9, formats=("int4", "float", "w8a8", "int4"), metric="single")
    assert [row.name for row in result.rows] == ["float", "all int8", "all int4", "plan"]
    assert result.scores.format == INT8
    weights = bitsect.quantize(run, target=0.9, formats=("w4a16", "w8a16"), metric="single")
    assert [row.name for row in weights.rows] == ["float", "all w8a16", "all w4a16", "plan"]
    # A pin may name a format beyond those, in every width.
    six = bitsect.quantize(run, target=0.5, formats=("int5",), keep=["*=int6"], metric="single")
    assert set(map(str, six.plan.values())) == {"int6"}


def table(made: Result, **columns: dict[str, float | None]) -> LatencyTable:
    """A device on which layers take the milliseconds given, one each in float."""
    layers = made.run.program.layers
    rows = {
        place_key(layer.places[0]): {FLOAT: 1.0}
        | {
            bitsect.Format.parse(name): column[layer.name]
            for name, column in columns.items()
            if layer.name in column
        }
        for layer in layers
    }
    formats = (FLOAT, *map(bitsect.Format.parse, columns))
    return LatencyTable("bench", "made up", formats, rows)


def test_no_layer_takes_a_format_that_is_not_faster(run: Path, made: Result) -> None:
    device = table(
        made,
        int8={"stem": 0.5, "body": 0.5, "hidden": 0.5, "head": 0.5},
        int4={"stem": 0.4, "body": 0.5, "hidden": 0.6, "head": None},
    )
    ask = {"target": Target.drop(99), "metric": "single", "latency": device}
    plan = bitsect.quantize(run, **ask).plan
    assert dict(plan) == {"stem": INT4, "body": INT8, "hidden": INT8, "head": INT8}
    sized = bitsect.quantize(run, objective="size", **ask)
    assert dict(sized.plan) == {"stem": INT4, "body": INT4, "hidden": INT4, "head": INT8}
    shown = sized.to_json()
    assert shown["plan"]["latency_ms"] == pytest.approx(2.0)
    assert shown["plan"]["latency_ratio"] == pytest.approx(0.5)
    assert shown["float"]["latency_ms"] == pytest.approx(4.0)
    assert "latency_ms" not in shown["uniform"]["int4"]  # the head does not run there


def test_formats_that_are_never_faster_are_said(run: Path, made: Result) -> None:
    slow = table(made, int8=dict.fromkeys(made.plan, 2.0))
    result = bitsect.quantize(run, target=0.5, metric="single", latency=slow, formats=("int8",))
    assert set(result.plan.values()) == {FLOAT}
    assert "no layer is faster in int8 on bench" in result.notes[0]


def test_a_missing_row_is_named(run: Path, made: Result) -> None:
    full = table(made, int8=dict.fromkeys(made.plan, 0.5))
    rows = dict(list(full.rows.items())[1:])
    with pytest.raises(BitsectError, match="layer 'stem'"):
        bitsect.quantize(run, target=0.5, latency=LatencyTable("bench", "made up", full.formats, rows))


def test_budgets_beside_and_instead_of_a_target(run: Path, made: Result) -> None:
    ask = {"metric": "single", "latency": table(made, int8=dict.fromkeys(made.plan, 0.5))}
    for budget, limit in (("0.7x", 2.8), ("2.6ms", 2.6), ("2ms", 2.0)):
        result = bitsect.quantize(run, budget=budget, formats=("int8",), **ask)
        cost = result.rows[-1].cost
        assert cost.latency_ms is not None
        assert cost.latency_ms <= limit
        assert result.target is None
        assert result.to_json()["target_met"] is None
    with pytest.raises(
        TargetError, match=r"budget 1ms.*nearest \(4 int8\) takes [\d,]+ B, .*, 2 ms, 0.5000x"
    ):
        bitsect.quantize(run, budget="1ms", formats=("int8",), **ask)
    anywhere = {"latency": None, "budget": None, "formats": ("int8", "int4")}
    smaller = bitsect.quantize(run, target=1.0, max_size="0.26x", metric="single", **anywhere)
    assert smaller.rows[-1].cost.size_ratio <= 0.26
    assert not smaller.target_met
    assert "misses the target" in smaller.reason
    roomy = bitsect.quantize(run, target=0.95, max_size="1GB", metric="single")
    assert roomy.target_met


# ---- evaluate and sensitivity --------------------------------------------------------------------


def test_evaluate_judges_float_and_plan(run: Path, made: Result) -> None:
    x, y = labelled()
    judgement = bitsect.evaluate(small(), (x, y), method="paper")
    assert judgement.float.evaluation == made.rows[0].evaluation
    assert judgement.plan.evaluation == made.rows[1].evaluation  # int8 where nothing is said
    assert not judgement.agreement
    # A run brings its samples, ranges and plan along; other samples are judged under its ranges.
    assert bitsect.evaluate(run).plan.evaluation == made.rows[-1].evaluation
    assert bitsect.evaluate(run, format="int4").plan.evaluation == made.rows[2].evaluation
    assert bitsect.evaluate(run, draw=5).float.evaluation.total == 5
    assert bitsect.evaluate(run, images()).agreement
    others = bitsect.evaluate(run, (x[:9], y[:9]), plan=run / "plan.json").plan.evaluation
    assert others.total == 9
    apart = bitsect.evaluate(
        small(), (x[:9], y[:9]), method="paper", calibration=images(), plan=made.plan
    ).plan.evaluation
    assert apart == others


def test_evaluate_refuses_a_plan_of_another_network(run: Path, made: Result) -> None:
    with pytest.raises(BitsectError, match="unknown layer 'tail'"):
        bitsect.evaluate(run, plan=Plan({**made.plan, "tail": INT8}))
    with pytest.raises(BitsectError, match="not both"):
        bitsect.evaluate(run, plan=made.plan, format="int8")


def test_until_stable_says_how_many_samples_it_took() -> None:
    settings = Settings(batch_size=8)
    ask = {"metric": "single", "loss": "kl", "settings": settings}
    assert bitsect.sensitivity(small(), images(), until_stable=0.0, **ask).samples == 8
    scores = bitsect.sensitivity(small(), images(), until_stable=1.0, **ask)
    assert scores.samples == FEW
    assert scores == bitsect.sensitivity(small(), images(), until_stable=None, **ask)


@pytest.mark.parametrize(("metric", "fewest"), [("hessian", (None, 2)), ("single", (8, None))])
def test_until_stable_counts_what_a_metric_rests_on(
    metric: str, fewest: tuple[int | None, int | None]
) -> None:
    ask = {"metric": metric, "settings": Settings(batch_size=8), "probes": 16, "tolerance": 0}
    scores = bitsect.sensitivity(small(), labelled(), until_stable=0.0, **ask)
    assert (scores.samples, scores.probes) == fewest
    scores = bitsect.sensitivity(small(), labelled(), until_stable=1.0, **ask)
    assert (scores.samples, scores.probes) == (fewest[0] and FEW, fewest[1] and 16)


def test_a_task_without_a_loss_is_scored_by_divergence() -> None:
    def right(outputs: Tensor, labels: Tensor) -> Tensor:
        return (outputs.argmax(1) == labels).float()

    ask = {"task": right, "metric": "single"}
    with pytest.raises(BitsectError, match="has no task loss: pass loss='kl'"):
        bitsect.sensitivity(small(), labelled(), **ask)
    assert bitsect.sensitivity(small(), labelled(), loss="kl", **ask).samples == FEW
    assert bitsect.sensitivity(small(), labelled(), task=right, metric="sqnr").samples == FEW


def test_scores_for_float_are_refused() -> None:
    with pytest.raises(BitsectError, match="no format to try besides float"):
        bitsect.sensitivity(small(), images(), score_format="float")


# ---- killed and continued ------------------------------------------------------------------------

KILLED = """
import os, signal, sys
import bitsect.runs.disk as disk
left, command = int(sys.argv[1]), sys.argv[2:]
write = disk.write_bytes

def count():
    global left
    left -= 1
    return left == 0

def kept(self, key, arrays):
    keep(self, key, arrays)
    if count():  # in the middle of a record
        os.truncate(self.path, os.path.getsize(self.path) - 5)
        os.kill(os.getpid(), signal.SIGKILL)

def written(path, data):
    if count():  # before the file is moved into place
        path.with_name(f".{path.name}.1.tmp").write_bytes(data[:-3])
        os.kill(os.getpid(), signal.SIGKILL)
    write(path, data)

disk.write_bytes = written
import bitsect.runs.folder as store
keep, store.Journal.__setitem__ = store.Journal.__setitem__, kept
sys.argv = ["bitsect", *command]
from bitsect.cli import main
main()
"""


NETWORK = """
import torch
from torch import nn

def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3), nn.Flatten(), nn.Linear(64, 5))
"""


@pytest.mark.parametrize("method", ["paper", "bitsect"])
def test_killed_anywhere_the_same_command_ends_with_the_same_bytes(
    method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from bitsect.cli import main

    whole, parts = tmp_path / "one" / "run", tmp_path / "other" / "run"  # apart: a folder has one ledger
    (tmp_path / "killed_network.py").write_text(NETWORK)
    np.savez(tmp_path / "some.npz", x=np.random.default_rng(0).normal(size=(24, 1, 8, 8)))
    command = ["quantize", "killed_network:network", "--data", "some.npz", "--test-data", "some.npz"]
    command += ["--target", "95%", "--probes", "8", "--threads", "1", "--batch-size", "8", "--method", method]
    command += ["--for", "bits", "--out"]  # where nothing is timed, which differs from run to run
    for moment in (1, 9, 21):
        dying = [sys.executable, "-c", KILLED, str(moment), *command, "other/run"]
        done = subprocess.run(dying, cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == -9, done.stderr
    monkeypatch.chdir(tmp_path)
    for name in ("other/run", "one/run"):
        monkeypatch.setattr(sys, "argv", ["bitsect", *command, name])
        with pytest.raises(SystemExit, match=r"^[03]$"):  # so few samples prove nothing
            main()
    names = {str(file.relative_to(whole)) for file in whole.rglob("*") if file.is_file()}
    assert names == {str(file.relative_to(parts)) for file in parts.rglob("*") if file.is_file()}
    for name in names - {
        "effort.json",
        "report.html",
        "export.json",
    }:  # which say how long it took, and where
        assert (parts / name).read_bytes() == (whole / name).read_bytes(), name
