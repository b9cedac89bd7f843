"""The referee: quantised files of any tool beside their float file."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import numpy_helper
from onnxruntime.quantization import (
    CalibrationDataReader,
    QuantFormat,
    quantize_dynamic,
    quantize_static,
)
from onnxruntime.quantization.shape_inference import quant_pre_process
from typer.testing import CliRunner

import bitsect
from bitsect.cli import app
from bitsect.errors import BitsectError, DataError, OptionError
from bitsect.exporters.onnx.write import write_onnx
from bitsect.exporters.subject import Subject
from bitsect.network.capture import capture
from bitsect.reports.terminal.files import verdict_lines
from bitsect.rounding.rounder import Rounder
from bitsect.sources.data import load_samples
from bitsect.sources.models.zoo import load_network
from bitsect.sources.tasks.task import task_named
from bitsect.values import ONNXRUNTIME, Plan

DRAW = 256
QUICK = {"draw": DRAW, "timed": False}


class Reader(CalibrationDataReader):
    def __init__(self) -> None:
        samples = load_samples("zoo:fashion-calibration", draw=16)
        self.left = iter([{"x": samples.inputs(slice(i, i + 1)).numpy()} for i in range(16)])

    def get_next(self) -> Any:
        return next(self.left, None)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The float network and what ONNX Runtime's own tools make of it."""
    folder = tmp_path_factory.mktemp("judged")
    network = load_network("fashion-resnet").eval()
    samples = load_samples("zoo:fashion-test", draw=2)
    program = capture(network, samples.inputs(slice(0, 2)))
    subject = Subject(
        program,
        Rounder(program, None, ONNXRUNTIME, "nearest"),
        Plan.uniform(program.layers),
        task_named("classification"),
    )
    write_onnx(subject, folder / "float.onnx")
    torch.export.save(program.exported, folder / "same.pt2")
    bare = onnx.load(folder / "float.onnx")
    del bare.graph.value_info[:]
    onnx.save(bare, folder / "bare.onnx")
    quant_pre_process(str(folder / "bare.onnx"), str(folder / "ready.onnx"))
    quantize_dynamic(str(folder / "bare.onnx"), str(folder / "dynamic.onnx"), per_channel=True)
    for name, form in (("static", QuantFormat.QDQ), ("operators", QuantFormat.QOperator)):
        quantize_static(
            str(folder / "ready.onnx"), str(folder / f"{name}.onnx"), Reader(), form, per_channel=True
        )
    return folder


def scaled(source: Path, name: str, factor: float) -> Path:
    """A copy in which one scale is another."""
    model = onnx.load(source)
    (scale,) = (each for each in model.graph.initializer if each.name == name)
    scale.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(scale) * np.float32(factor), name))
    path = source.with_name(f"bad-{source.name}")
    onnx.save(model, path)
    return path


def test_good_files_are_proven_and_say_so_twice_alike(files: Path) -> None:
    wanted = [files / "dynamic.onnx", files / "static.onnx", files / "same.pt2"]
    verdict = bitsect.judge(files / "float.onnx", wanted, "zoo:fashion-test", target="95%", **QUICK)
    assert [each.outcome for each in verdict.files] == ["proven"] * 3
    assert verdict.exit_code == 0
    assert verdict.files[2].changed == 0
    assert verdict.files[0].size_bytes == (files / "dynamic.onnx").stat().st_size
    assert all("95% kept with 95 % confidence" in each.verdict for each in verdict.files)
    again = bitsect.judge(files / "float.onnx", wanted, "zoo:fashion-test", target="95%", **QUICK)
    assert again.to_json() == verdict.to_json()


@pytest.mark.parametrize(
    ("form", "scale", "factor", "layer"),
    [
        ("static", "blocks.4.conv2.weight.folded_scale", 0.5, "blocks.4.conv2"),
        ("dynamic", "blocks.3.conv2.weight.folded_scale", 0.5, "blocks.3.conv2"),
        ("operators", "blocks.6.conv1.weight.folded_scale", 0.5, "blocks.6.conv1"),
        ("static", "relu_8_scale", 0.1, "blocks.4.conv1"),  # its input
        ("operators", "conv2d_8_scale", 0.1, "blocks.3.conv2"),  # its output
    ],
)
def test_a_planted_bad_layer_is_refused_and_named(
    files: Path, form: str, scale: str, factor: float, layer: str
) -> None:
    bad = scaled(files / f"{form}.onnx", scale, factor)
    verdict = bitsect.judge(files / "float.onnx", bad, "zoo:fashion-test", **QUICK)
    (found,) = verdict.files
    assert found.outcome != "proven"
    assert verdict.exit_code in (1, 3)
    assert found.suspects[0].layer == layer
    assert found.changed is not None
    assert found.changed > 0
    assert found.first_changed[0].startswith("zoo:fashion-test: sample ")


def test_a_layer_is_named_where_no_name_is_the_same(files: Path) -> None:
    """A file of another maker calls everything else: weights are paired by what they are."""
    model = onnx.load(scaled(files / "static.onnx", "blocks.3.conv2.weight.folded_scale", 0.3))
    kept = {each.name for each in (*model.graph.input, *model.graph.output)}
    number = {name: f"t{i}" for i, name in enumerate(_names(model)) if name and name not in kept}
    for node in model.graph.node:
        node.name = ""
        for names in (node.input, node.output):
            names[:] = [number.get(name, name) for name in names]
    for each in model.graph.initializer:
        each.name = number.get(each.name, each.name)
    del model.graph.value_info[:]
    onnx.save(model, files / "renamed.onnx")
    verdict = bitsect.judge(files / "float.onnx", files / "renamed.onnx", "zoo:fashion-test", **QUICK)
    assert verdict.files[0].outcome != "proven"
    assert [each.layer for each in verdict.files[0].suspects] == ["blocks.3.conv2"]


def _names(model: Any) -> list[str]:
    found = [name for node in model.graph.node for name in (*node.input, *node.output)]
    return list(dict.fromkeys([*found, *(each.name for each in model.graph.initializer)]))


def test_times_kernels_and_page(files: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    verdict = bitsect.judge(
        files / "float.onnx", files / "dynamic.onnx", "zoo:fashion-test", draw=32, page=page
    )
    (file,) = verdict.files
    assert verdict.reference.kernels is not None
    assert verdict.reference.kernels.integer == 0
    assert file.kernels is not None
    assert file.kernels.integer >= 22
    assert min(file.ms) == 1
    ratio = verdict.ratio(file, 1)
    assert ratio is not None
    assert ratio > 0
    text = page.read_text()
    assert "dynamic.onnx" in text
    assert "http" not in text.replace("http-equiv", "")


def test_what_does_not_run_is_said_of_its_file_alone(files: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken.onnx"
    broken.write_bytes(b"no model")
    other = tmp_path / "wide.onnx"
    node = onnx.helper.make_node("Relu", ["x"], ["y"])
    value = [onnx.helper.make_tensor_value_info(name, 1, ["b", 7]) for name in "xy"]
    graph = onnx.helper.make_graph([node], "g", value[:1], value[1:])
    onnx.save(
        onnx.helper.make_model(graph, ir_version=10, opset_imports=[onnx.helper.make_opsetid("", 20)]), other
    )
    tflite, pickled = tmp_path / "a.tflite", tmp_path / "a.pt2"
    tflite.write_bytes(b"")
    torch.save(torch.nn.Linear(2, 2), pickled)
    wanted = [broken, other, tmp_path / "none.onnx", tflite, pickled, files / "dynamic.onnx"]
    verdict = bitsect.judge(files / "float.onnx", wanted, "zoo:fashion-test", target="95%", **QUICK)
    assert [each.outcome for each in verdict.files] == ["does not run"] * 5 + ["proven"]
    assert verdict.exit_code == 1
    said = [each.verdict for each in verdict.files]
    for words, expected in zip(
        said, ["or a damaged one", "has shape", "no such file", "a.tflite", "a.pt2"], strict=False
    ):
        assert expected in words
        assert len(words) < 500
        assert "\n" not in words
    timed = replace(verdict, reference=replace(verdict.reference, ms={1: 2.0}))  # as it is without --no-time
    shown = "".join(each for each in verdict_lines(timed) if isinstance(each, str))
    assert "broken.onnx: " in shown


def test_a_network_is_written_as_a_file_and_answers_without_labels_are_floats_own(files: Path) -> None:
    images = load_samples("zoo:fashion-test", draw=64).inputs(slice(0, 64))
    verdict = bitsect.judge("zoo:fashion-resnet", files / "same.pt2", images, timed=False)
    assert verdict.agreement
    assert verdict.reference.accuracy == 1.0
    assert verdict.files[0].outcome == "not proven"  # of 64 samples nothing of the kind can be
    assert verdict.exit_code == 3


def test_openvino_runs_its_own_files_and_onnx(files: Path) -> None:
    openvino = pytest.importorskip("openvino")
    openvino.save_model(openvino.Core().read_model(files / "static.onnx"), files / "static.xml")
    wanted = [files / "static.xml", files / "static.onnx"]
    verdict = bitsect.judge(
        files / "float.onnx", wanted, "zoo:fashion-test", target="95%", draw=128, runtime="openvino"
    )
    assert all(each.outcome != "does not run" for each in verdict.files), verdict
    assert all(each.runtime.startswith("openvino") for each in verdict.files)
    assert verdict.files[0].kernels is not None
    assert verdict.files[0].kernels.integer > 0
    assert verdict.files[0].size_bytes > (files / "static.xml").stat().st_size


def test_the_command(files: Path, tmp_path: Path) -> None:
    run = CliRunner().invoke
    common = ["--data", "zoo:fashion-test", "--draw", str(DRAW), "--no-time"]
    good = run(
        app, ["judge", str(files / "float.onnx"), str(files / "dynamic.onnx"), *common, "--target", "95%"]
    )
    assert good.exit_code == 0, good.output
    assert "95% kept with 95 % confidence" in " ".join(good.output.split())
    bad = scaled(files / "static.onnx", "blocks.4.conv2.weight.folded_scale", 0.2)
    shown = run(app, ["judge", str(files / "float.onnx"), str(bad), *common, "--json"])
    assert shown.exit_code == 1
    said = json.loads(shown.stdout)
    assert said["files"][0]["outcome"] == "missed"
    assert said["files"][0]["suspects"][0]["layer"] == "blocks.4.conv2"
    unsure = run(
        app, ["judge", str(files / "float.onnx"), str(files / "same.pt2"), *common, "--target", "99.9%"]
    )
    assert unsure.exit_code == 3


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"files": []}, OptionError, "which files"),
        ({"files": ["a.txt"]}, OptionError, "ends in"),
        ({"data": None}, DataError, "samples are needed"),
        ({"rounding": "gptq"}, OptionError, "does not apply"),
        ({"runtime": "reference"}, OptionError, "onnxruntime or openvino"),
        ({"confidence": "none"}, OptionError, "needs a confidence"),
        ({"float_file": "none.onnx"}, BitsectError, "no such file"),
        ({"target": "99%", "max_drop": 1.0}, OptionError, "pass one of"),
    ],
)
def test_what_is_refused(files: Path, options: dict[str, Any], error: type[Exception], words: str) -> None:
    asked = {"float_file": files / "float.onnx", "files": files / "dynamic.onnx", "data": "zoo:fashion-test"}
    with pytest.raises(error, match=words):
        bitsect.judge(**{**asked, **options})


def test_nothing_stays_behind(files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import tempfile

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    copy = shutil.copy(files / "dynamic.onnx", tmp_path / "dynamic.onnx")
    bitsect.judge(files / "float.onnx", copy, "zoo:fashion-test", draw=8, timed=False)
    assert [each.name for each in tmp_path.iterdir()] == ["dynamic.onnx"]


class Named(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.network = load_network("fashion-resnet").eval()

    def forward(self, x: Any) -> dict[str, Any]:
        return {"logits": self.network(x)}


def test_a_file_that_does_not_know_what_its_one_output_is_called_is_judged(tmp_path: Path) -> None:
    """As those of other tools, which drop what our files say of themselves."""
    samples = load_samples("zoo:fashion-test", draw=2)
    program = capture(Named(), samples.inputs(slice(0, 2)))
    rounder = Rounder(program, None, ONNXRUNTIME, "nearest")
    subject = Subject(program, rounder, Plan.uniform(program.layers), task_named("classification"))
    path = write_onnx(subject, tmp_path / "named.onnx").path
    bare = onnx.load(path)
    del bare.metadata_props[:]
    onnx.save(bare, tmp_path / "bare.onnx")
    verdict = bitsect.judge(path, [tmp_path / "bare.onnx"], "zoo:fashion-test", draw=64, timed=False)
    assert verdict.files[0].kept == 1.0
