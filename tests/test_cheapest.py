"""The cheapest plan is tried first; layers are scored only where it fails."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import bitsect
from bitsect.cli import app
from bitsect.exporters.rivals import Rival
from bitsect.pipeline import rivals
from bitsect.pipeline.rivals import Other
from bitsect.values import FLOAT, INT8
from tiny import images, residual

NOT_SCORED = "no layer had to be scored"
BITS: dict[str, Any] = {"destination": "bits", "confidence": None}


def test_where_the_cheapest_plan_keeps_the_target_nothing_is_scored(tmp_path: Path) -> None:
    run = tmp_path / "run"
    result = bitsect.quantize(residual()[0], images(48), target=0.05, formats="int8", out=run, **BITS)
    assert set(result.plan.values()) == {INT8}
    assert NOT_SCORED in result.reason
    assert result.scores is None
    assert [row.name for row in result.rows] == ["float", "plan"]
    assert not list(run.glob("scores-*.json"))
    assert not (run / "journals" / "damage.journal").exists()
    scores = bitsect.sensitivity(run)  # when somebody looks
    assert len(scores.layers) == len(result.plan)


def test_where_it_misses_layers_are_scored_and_searched(tmp_path: Path) -> None:
    def strict(network: Any) -> float:
        return float(len(network.rounding.weights) < 2)

    result = bitsect.quantize(residual()[0], images(48), target=0.99, formats="int8", evaluate=strict, **BITS)
    assert NOT_SCORED not in result.reason
    assert result.scores is not None
    assert result.accuracy == 1.0
    assert result.plan.counts["int8"] < len(result.plan)


@pytest.mark.parametrize(
    "asked", [{"search": "bisection", "metric": "sqnr"}, {"method": "paper", "probes": 2}]
)
def test_a_search_that_was_asked_for_is_not_passed_over(asked: dict[str, Any]) -> None:
    result = bitsect.quantize(residual()[0], images(48), target=0.05, formats="int8", **asked, **BITS)
    assert NOT_SCORED not in result.reason


def test_a_plan_that_held_out_samples_do_not_prove_is_searched_further() -> None:
    x, _ = images(400)
    result = bitsect.quantize(residual()[0], x, target=0.999, formats="int8", destination="bits")
    assert result.promise is not None
    assert not result.promise.proven
    assert NOT_SCORED not in result.reason
    assert result.target_met is not True


def theirs(ratio: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tool whose file is the float one, and takes `ratio` of the time of ours."""

    def candidates(float_file: Path, samples: Any, runtime: str, folder: Path) -> list[Rival]:
        path = folder / "tool.onnx"
        path.write_bytes(float_file.read_bytes())
        return [Rival("tool", "a tool", path), Rival("other", "another", None, "it failed")]

    def times(run: Any, runtime: str, paths: Any) -> dict[Path, float]:
        base, ours, *others = paths
        return {base: 2.0, ours: 1.0} | dict.fromkeys(others, ratio)

    monkeypatch.setattr(rivals, "candidates", candidates)
    monkeypatch.setattr(rivals, "_times", times)
    monkeypatch.setattr("bitsect.pipeline.written.others", rivals.others)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("beside") / "run"
    x, _ = images(1200)
    bitsect.quantize(residual()[0], x, target="50%", out=run)
    return run


@pytest.mark.parametrize(("ratio", "large", "said"), [(0.99, 1, "not faster"), (0.5, 0, "larger")])
def test_a_file_of_another_tool_has_to_be_faster_and_no_larger(
    ratio: float, large: int, said: str, made: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs(ratio, monkeypatch)
    monkeypatch.setattr(rivals, "size_on_disk", lambda path: 1 if "model" in path.name else 2 - large)
    (made / "export.json").unlink(missing_ok=True)
    (made / "model.onnx").unlink(missing_ok=True)
    result = bitsect.quantize(made, target="50%")
    assert [(other.tool, other.said) for other in result.others] == [
        ("a tool", said),
        ("another", "it failed"),
    ]
    assert not any(other.is_answer for other in result.others)


def test_a_better_file_of_another_tool_is_the_answer_and_said_to_be(
    made: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs(0.5, monkeypatch)
    monkeypatch.setattr(rivals, "size_on_disk", lambda path: 1)
    (made / "export.json").unlink(missing_ok=True)
    (made / "model.onnx").unlink(missing_ok=True)
    result = bitsect.quantize(made, target="50%")
    best = result.others[0]
    assert best.is_answer
    assert "kept" in best.said
    assert best.path == str(made / "model.tool.onnx")
    assert (made / "model.tool.onnx").is_file()
    told = json.loads((made / "export.json").read_text())["others"]
    assert [Other(**each) for each in told] == list(result.others)
    monkeypatch.setattr(rivals, "candidates", lambda *args: pytest.fail("it was made again"))
    with pytest.raises(pytest.fail.Exception, match="made again"):  # what is proven for 50 % is not for 60
        bitsect.quantize(made, target="60%")
    said = CliRunner().invoke(app, ["search", str(made), "--target", "50%"])
    assert said.exit_code == 0, said.output
    assert "model.tool.onnx, made by a tool: 0.25 of the time of float" in " ".join(said.output.split())


def test_what_was_asked_of_the_formats_is_for_no_other_tool(
    made: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bitsect.pipeline.written.others", lambda *of: pytest.fail("they know no pins"))
    result = bitsect.quantize(made, target="50%", keep=["stem=float"])
    assert result.plan["stem"] == FLOAT
    assert result.others == ()


def test_layers_alike_of_which_one_cannot_take_a_format_do_not_end_a_search() -> None:
    """The projection before attention has its samples second in one layer and first in the next."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(32, 2, 32, batch_first=True, dropout=0.0)
    network = nn.Sequential(
        nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), nn.Flatten(), nn.Linear(192, 3)
    )
    x = torch.randn(64, 6, 32)
    with torch.no_grad():
        answers = network.eval()(x).argmax(1)
    result = bitsect.quantize(network, (x, answers), target=0.9)
    assert result.plan
