"""Files that a runtime's own tools make: alike each time, apart from this process, or a reason in a line."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import onnx
import pytest

import bitsect
from bitsect.exporters import rivals
from bitsect.exporters.onnx.write import write_onnx
from bitsect.exporters.rivals import candidates
from bitsect.exporters.subject import Subject
from bitsect.rounding.rounder import Rounder
from bitsect.sources.data import load_samples
from bitsect.sources.tasks.task import task_named
from bitsect.values import ONNXRUNTIME, Plan
from tiny import images, residual


@pytest.fixture(scope="module")
def float_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    program = residual()[1]
    rounder = Rounder(program, None, ONNXRUNTIME, "nearest")
    subject = Subject(program, rounder, Plan.uniform(program.layers), task_named("classification"))
    path = tmp_path_factory.mktemp("rivals") / "float.onnx"
    return write_onnx(subject, path, metadata={"bitsect.task": "classification"}).path


def test_the_runtimes_own_files_are_made_alike_and_nothing_else(float_file: Path, tmp_path: Path) -> None:
    samples, made = load_samples(images(12)), []
    for name in ("first", "second"):
        folder = tmp_path / name
        folder.mkdir()
        found = candidates(float_file, samples, "onnxruntime", folder)
        assert [each.name for each in found] == ["quantize_dynamic", "quantize_static"]
        assert [each.path for each in found] == [folder / f"{each.name}.onnx" for each in found]
        assert sorted(folder.iterdir()) == sorted(each.path for each in found if each.path is not None)
        made.append([each.path.read_bytes() for each in found if each.path is not None])
    assert made[0] == made[1]
    about = {each.key: each.value for each in onnx.load(found[1].path).metadata_props}
    assert about["bitsect.task"] == "classification"  # as the float file is judged
    assert "bitsect.plan" not in about  # which is not theirs
    kinds = {node.op_type for node in onnx.load(found[1].path).graph.node}
    assert "QuantizeLinear" in kinds
    verdict = bitsect.judge(
        float_file, [each.path for each in found if each.path], images(12), target="50%", timed=False
    )
    assert all(each.accuracy is not None for each in verdict.files)


def test_a_tool_that_takes_too_long_is_ended(float_file: Path, tmp_path: Path) -> None:
    samples = load_samples(images(4))
    (late,) = candidates(
        float_file, samples, "onnxruntime", tmp_path, names=["quantize_dynamic"], seconds=0.01
    )
    assert (late.path, late.why) == (None, "it took more than 0.01 s")
    assert list(tmp_path.iterdir()) == []


def test_a_tool_that_is_not_installed_is_left_out(
    float_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(rivals.TOOLS, "openvino", [replace(rivals.NNCF, package="no_such_package")])
    assert candidates(float_file, load_samples(images(2)), "openvino", tmp_path) == []


def test_what_a_tool_says_last_is_the_reason(
    float_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unknown = replace(rivals.ONNX_TOOLS[0], name="no_such_tool")
    monkeypatch.setitem(rivals.TOOLS, "onnxruntime", [unknown])
    (failed,) = candidates(float_file, load_samples(images(2)), "onnxruntime", tmp_path)
    assert failed.path is None
    assert failed.why == "KeyError: 'no_such_tool'"
    assert "\n" not in failed.why
