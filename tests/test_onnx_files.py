"""ONNX files of others: what they may not read, and what no accuracy is made of."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bitsect
from bitsect.errors import BitsectError, ExportError
from bitsect.exporters.runtimes import vetting
from bitsect.runs.progress import Progress

onnx = pytest.importorskip("onnx")
from onnx import TensorProto, helper, numpy_helper  # noqa: E402

WEIGHTS = np.arange(8, dtype=np.float32).reshape(4, 2)


def outside(location: str, name: str = "w", **more: str) -> Any:
    tensor = TensorProto(name=name, data_type=TensorProto.FLOAT, dims=[4, 2])
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in {"location": location, **more}.items():
        tensor.external_data.add(key=key, value=value)
    return tensor


def in_initializer(tensor: Any) -> Any:
    return graph([helper.make_node("MatMul", ["x", "w"], ["y"])], [tensor])


def in_constant(tensor: Any) -> Any:
    nodes = [
        helper.make_node("Constant", [], ["w"], value=tensor),
        helper.make_node("MatMul", ["x", "w"], ["y"]),
    ]
    return graph(nodes)


def in_sparse(tensor: Any) -> Any:
    model = graph([helper.make_node("MatMul", ["x", "w"], ["y"])])
    tensor.dims[:] = [8]
    indices = numpy_helper.from_array(np.arange(8), "indices")
    model.graph.sparse_initializer.append(helper.make_sparse_tensor(tensor, indices, [4, 2]))
    return model


def in_branch(tensor: Any) -> Any:
    branch = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["z"])],
        "branch",
        [],
        [helper.make_tensor_value_info("z", TensorProto.FLOAT, None)],
        [tensor],
    )
    true = helper.make_tensor("true", TensorProto.BOOL, [], [True])
    return graph([helper.make_node("If", ["true"], ["y"], then_branch=branch, else_branch=branch)], [true])


def in_function(tensor: Any) -> Any:
    nodes = [
        helper.make_node("Constant", [], ["w"], value=tensor),
        helper.make_node("MatMul", ["a", "w"], ["b"]),
    ]
    opsets = [helper.make_opsetid("", 18)]
    model = graph([helper.make_node("Own", ["x"], ["y"], domain="own")])
    model.functions.append(helper.make_function("own", "Own", ["a"], ["b"], nodes, opsets))
    return model


def graph(nodes: list[Any], initializers: list[Any] | None = None) -> Any:
    value = helper.make_tensor_value_info
    made = helper.make_graph(
        nodes,
        "graph",
        [value("x", TensorProto.FLOAT, ["n", 4])],
        [value("y", TensorProto.FLOAT, ["n", 2])],
        initializers or [],
    )
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("own", 1)]
    return helper.make_model(made, opset_imports=opsets, ir_version=9)


def evaluated(path: Path, **more: Any) -> Any:
    x = np.random.default_rng(0).normal(size=(8, 4)).astype(np.float32)
    return bitsect.evaluate_file(path, (x, np.arange(8) % 2), progress=Progress(), **more)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "secret.bin").write_bytes(WEIGHTS.tobytes())
    folder = tmp_path / "model"
    (folder / "deep").mkdir(parents=True)
    (folder / "weights.bin").write_bytes(WEIGHTS.tobytes())
    (folder / "link.bin").symlink_to("../secret.bin")
    (folder / "up").symlink_to("..")
    os.link(tmp_path / "secret.bin", folder / "hard.bin")
    os.mkfifo(folder / "pipe.bin")
    return folder


@pytest.mark.parametrize("place", [in_initializer, in_constant, in_sparse, in_branch, in_function])
@pytest.mark.parametrize(
    ("location", "why"),
    [
        ("../secret.bin", "outside of the model's folder"),
        ("deep/../../secret.bin", "outside of the model's folder"),
        ("deep\\..\\..\\secret.bin", "outside of the model's folder"),
        ("/etc/passwd", "outside of the model's folder"),
        ("C:\\secret.bin", "outside of the model's folder"),
        ("", "outside of the model's folder"),
        ("*/_ORT_MEM_ADDR_/*", "at an address in memory"),
        ("link.bin", "which is a link"),
        ("up/secret.bin", "which is a link"),
        ("hard.bin", "no file of its own"),
        ("pipe.bin", "no file of its own"),
        ("deep", "no file of its own"),
        ("gone.bin", "cannot be read"),
    ],
)
def test_weights_elsewhere_are_refused_before_a_runtime_sees_them(
    place: Callable[[Any], Any], location: str, why: str, folder: Path
) -> None:
    (folder / "model.onnx").write_bytes(place(outside(location)).SerializeToString())
    with pytest.raises(ExportError, match=f"model.onnx: the values of 'w' lie .*{why}") as caught:
        evaluated(folder / "model.onnx")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("more", [{"offset": "8"}, {"length": "33"}, {"offset": "-8"}, {"offset": "9" * 30}])
def test_weights_beyond_the_end_of_their_file_are_refused(more: dict[str, str], folder: Path) -> None:
    tensor = outside("weights.bin", **{"length": "32", **more})
    (folder / "model.onnx").write_bytes(in_initializer(tensor).SerializeToString())
    with pytest.raises(ExportError, match=r"lie beyond the end of 'weights.bin'"):
        evaluated(folder / "model.onnx")


def test_weights_beside_the_model_are_read(folder: Path) -> None:
    path = folder / "model.onnx"
    path.write_bytes(in_initializer(outside("weights.bin", length="32")).SerializeToString())
    inside = folder / "inside.onnx"
    inside.write_bytes(in_initializer(numpy_helper.from_array(WEIGHTS, "w")).SerializeToString())
    assert evaluated(path).accuracy == evaluated(inside).accuracy


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("place", [in_initializer, in_constant, in_branch, in_function])
@pytest.mark.parametrize("kind", [np.float32, np.float16])
def test_weights_that_are_no_numbers_are_refused(
    value: float, place: Callable[[Any], Any], kind: type, tmp_path: Path
) -> None:
    weights = WEIGHTS.astype(kind)
    weights[1, 1] = value
    path = tmp_path / "model.onnx"
    path.write_bytes(place(numpy_helper.from_array(weights, "w")).SerializeToString())
    with pytest.raises(ExportError, match=r"its weights 'w' hold NaN or infinity$"):
        evaluated(path)


@pytest.mark.parametrize("runtime", ["onnxruntime", "openvino", "reference"])
def test_outputs_that_are_no_numbers_give_no_accuracy(runtime: str, tmp_path: Path) -> None:
    pytest.importorskip("openvino" if runtime == "openvino" else "onnx")
    nodes = [helper.make_node("MatMul", ["x", "w"], ["z"]), helper.make_node("Sqrt", ["z"], ["y"])]
    path = tmp_path / "model.onnx"
    path.write_bytes(graph(nodes, [numpy_helper.from_array(WEIGHTS, "w")]).SerializeToString())
    with pytest.raises(
        BitsectError, match=r"model.onnx: its outputs hold NaN or infinity: check the samples"
    ):
        evaluated(path, runtime=runtime)


def test_masks_may_be_infinite(tmp_path: Path) -> None:
    mask = numpy_helper.from_array(np.float32([[0, 0]]), "mask")
    below = numpy_helper.from_array(np.float32([[-np.inf, -np.inf]]), "below")
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["z"]),
        helper.make_node("Max", ["z", "below"], ["m"]),
        helper.make_node("Add", ["m", "mask"], ["y"]),
    ]
    model = graph(nodes, [numpy_helper.from_array(WEIGHTS, "w"), mask, below])
    path = tmp_path / "model.onnx"
    path.write_bytes(model.SerializeToString())
    vetting.check_onnx(path)
    assert evaluated(path).samples == 8
