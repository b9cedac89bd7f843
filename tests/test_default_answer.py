"""Without a word about where it will run, the answer is a file for ONNX Runtime on this machine."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnxruntime
import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import bitsect
from bitsect.cli import app
from bitsect.errors import ExportError, in_command
from bitsect.exporters.proof import Proof
from bitsect.pipeline.methods import destined
from bitsect.values import Goal, Settings
from bitsect.values.method import METHODS
from tiny import images, residual

ASK: dict[str, Any] = {"target": "30%", "confidence": None, "formats": "int8", "metric": "sqnr"}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made") / "run"
    bitsect.quantize(residual()[0], images(48), out=folder, **ASK)
    return folder


def usual(method: str = "bitsect", settings: dict[str, Any] | None = None, **goal: Any) -> str:
    settings_, goal_ = Settings(**settings or {}), Goal(target="99%", **goal)
    return destined("zoo:fashion-resnet", None, settings_, goal_, METHODS[method])[0].name


def test_where_it_will_run_follows_from_what_is_said(tmp_path: Path) -> None:
    assert usual() == "onnxruntime"
    assert usual(destination="bits") == usual("paper") == "bits"
    assert usual("paper", destination="onnxruntime") == "onnxruntime"
    assert usual(latency="openvino") == "openvino"
    assert usual(latency="a100") == "bits"  # a table is of another device than this
    assert usual(settings={"placement": "paper"}) == "bits"


def test_the_answer_is_a_file_that_runs(run: Path) -> None:
    told = json.loads((run / "export.json").read_text())
    assert told["path"] == told["file"] == str((run / "model.onnx").resolve())
    assert told["proven"]
    assert told["proof"]["latency_ms"] > 0
    x, _ = images(5)
    session = onnxruntime.InferenceSession(run / "model.onnx")
    (out,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
    assert out.shape == (5, 5)
    assert json.loads((run / "result.json").read_text())["goal"]["destination"] == "onnxruntime"


def test_the_command_ends_with_the_file_beside_floats_and_what_to_type_next(run: Path) -> None:
    said = CliRunner().invoke(app, ["search", str(run), "--target", "20%"])
    assert said.exit_code == 0, said.output
    shown = " ".join(said.output.split())
    assert "beside" in shown
    for part in ("model.onnx: ", " kB beside ", " ms beside ", "accuracy ", "answers are the judged model's"):
        assert part in shown, part
    following = [line for line in said.output.splitlines() if line.startswith("Next: ")]
    assert [line.split()[1:3] for line in following] == [["bitsect", "evaluate"], ["bitsect", "report"]]


def test_a_file_is_written_where_it_is_asked_for_and_replaced_only_by_its_own_run(
    run: Path, tmp_path: Path
) -> None:
    asked = tmp_path / "mine.onnx"
    for _ in range(2):
        result = bitsect.quantize(run, target="30%", export=asked)
        assert result.delivery is not None
        assert result.delivery.path == asked
        assert asked.exists()
    asked.write_text("somebody's")
    with pytest.raises(ExportError, match="exists"):
        bitsect.quantize(residual()[0], images(48), export=asked, **ASK)
    assert asked.read_text() == "somebody's"


def test_a_run_without_a_folder_and_one_for_bits_write_no_file(tmp_path: Path) -> None:
    assert bitsect.quantize(residual()[0], images(48), destination="bits", **ASK).delivery is None
    result = bitsect.quantize(residual()[0], images(48), destination="bits", out=tmp_path / "run", **ASK)
    assert result.delivery is None
    assert not (tmp_path / "run" / "model.onnx").exists()
    named = bitsect.quantize(tmp_path / "run", target="30%", export=tmp_path / "packed.safetensors")
    assert named.delivery is not None
    assert named.delivery.proof.holds


def test_a_slower_file_is_never_without_the_word_and_the_way_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from bitsect.exporters.onnx import exporter

    def slow(*args: Any, **more: Any) -> Proof:
        return replace(exporter.prove(*args, **more), latency_ms=2.0, float_latency_ms=1.0)

    monkeypatch.setattr("bitsect.exporters.onnx.exporter.ONNX", replace(exporter.ONNX, prove=slow))
    run = tmp_path / "run"
    result = bitsect.quantize(
        residual()[0], images(48), destination="bits", out=run, export=tmp_path / "a.onnx", **ASK
    )
    assert result.delivery is not None
    assert any("slower than float" in note for note in result.delivery.notes)
    assert any("destination='onnxruntime'" in bitsect.errors.in_python(n) for n in result.delivery.notes)
    said = CliRunner().invoke(app, ["export", str(run), "--out", str(tmp_path / "b.onnx")])
    shown = " ".join(said.output.split())
    assert "SLOWER than float" in shown
    assert "--for onnxruntime" in shown


def test_a_network_that_no_file_can_hold_has_a_way_out() -> None:
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(8, 5)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.fc(torch.special.bessel_j0(x))

    with pytest.raises(bitsect.BitsectError, match="destination='bits'") as error:
        bitsect.quantize(Odd().eval(), torch.randn(16, 8), target="50%", confidence=None)
    assert "--for bits" in in_command(error.value.args[0]) or "\n" not in str(error.value)
