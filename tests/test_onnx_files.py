"""ONNX files of others: what they may not read, and what no accuracy is made of."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import bitsect
from bitsect.errors import BitsectError, ExportError
from bitsect.exporters.onnx.pieces import reference_model
from bitsect.exporters.runtimes import apart, vetting
from bitsect.exporters.runtimes import onnxruntime as onnxruntime_models
from bitsect.exporters.runtimes.foreign import ForeignModel
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


def endless(path: Path) -> Path:
    """A model that takes its input round a loop that never ends."""
    kinds = TensorProto

    def value(name: str, kind: int, shape: list[Any] | None) -> Any:
        return helper.make_tensor_value_info(name, kind, shape)

    nodes = [helper.make_node("Identity", [name], [f"{name}2"]) for name in ("on", "v")]
    given = [value("i", kinds.INT64, []), value("on", kinds.BOOL, []), value("v", kinds.FLOAT, None)]
    body = helper.make_graph(
        nodes, "body", given, [value("on2", kinds.BOOL, []), value("v2", kinds.FLOAT, None)]
    )
    loop = helper.make_node("Loop", ["", "always", "x"], ["y"], body=body)
    ends = [value(name, kinds.FLOAT, ["batch", 4]) for name in "xy"]
    always = helper.make_tensor("always", kinds.BOOL, [], [True])
    graph = helper.make_graph([loop], "graph", ends[:1], ends[1:], [always])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9), path)
    return path


def test_a_loop_without_end_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onnxruntime_models, "LONGEST_RUN", 0.2)
    with pytest.raises(BitsectError, match=r"loop.onnx: no answer for one batch in 0.2 seconds"):
        onnxruntime_models.OnnxModel(endless(tmp_path / "loop.onnx")).run_flat(torch.zeros(2, 4))


def test_a_loop_without_end_is_ended_in_a_process_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a file is judged, and where it is timed beside one that runs: that one is timed all the same."""
    monkeypatch.setattr(apart, "LONGEST_RUN", 3)
    path, feed = endless(tmp_path / "loop.onnx"), tmp_path / "feed.npz"
    model = ForeignModel(path, runtime="onnxruntime", threads=1)
    with pytest.raises(ExportError, match=r"loop.onnx does not run in onnxruntime here: no answer in 3 sec"):
        model.run_flat(torch.zeros(2, 4))
    model.close()
    np.savez(feed, **reference_model(tmp_path / "good.onnx"))
    good = apart.Model("good", tmp_path / "good.onnx", feed)
    np.savez(tmp_path / "x.npz", x=np.zeros((2, 4), np.float32))
    with apart.Apart("onnxruntime") as runtime:
        times = runtime.time([good, apart.Model("loop", path, tmp_path / "x.npz")], visits=2)
    assert isinstance(times["good"], apart.Times)
    assert times["loop"] == apart.Fault("no answer in 3 seconds: a loop without end?")


@pytest.mark.parametrize("steps", [28, 0])
def test_functions_that_grow_without_end_are_refused_before_a_runtime_puts_them_in_place(
    tmp_path: Path, steps: int
) -> None:
    """Each calls the next one twice, or itself."""
    names = [f"F{number}" for number in range(steps + 1)]
    opsets = [helper.make_opsetid("mine", 1), helper.make_opsetid("", 18)]
    functions = []
    for name, called in zip(names, [*names[1:], "Relu" if steps else "F0"], strict=True):
        domain = "" if called == "Relu" else "mine"
        nodes = [helper.make_node(called, [a], [b], domain=domain) for a, b in ("ac", "cb")]
        functions.append(helper.make_function("mine", name, ["a"], ["b"], nodes, opsets))
    node = helper.make_node("F0", ["x"], ["y"], domain="mine")
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", 4]) for name in "xy"]
    graph = helper.make_graph([node], "graph", ends[:1], ends[1:])
    path = tmp_path / "net.onnx"
    onnx.save(helper.make_model(graph, functions=functions, opset_imports=opsets, ir_version=9), path)
    with pytest.raises(ExportError, match=r"its functions stand for more than 1,000,000 operators"):
        bitsect.evaluate_file(path, (np.zeros((2, 4), np.float32), np.zeros(2, np.int64)))
