"""What a runtime does inside of a model: the kernels that it ran, and the values of named tensors."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

Row = tuple[str, str, bool, float, bool]  # name, operator, all float, time, whether it multiplies
MOST_NAMES = 20_000  # of tensors, beyond which nobody is asked for their values
# Operators of ONNX Runtime's graphs that multiply by far more than they add: what integer kernels are for.
MULTIPLIES = ("Conv", "MatMul", "Gemm", "Attention", "LSTM", "GRU", "RNN", "Einsum")
OPENVINO_MULTIPLIES = ("Convolution", "FullyConnected", "MatMul", "Deconvolution", "RNN", "LSTM", "GRU")
# Types of which only the name in the graph is left: float32 and its halves.
FLOATS = ("float", "float16", "bfloat16", "f32", "f16", "bf16", "double")


def kernels(engine: Any, request: dict[str, Any]) -> dict[str, Any]:
    """Every kernel that multiplies: name, operator, whether all it read was float, and its share of the time.

    None where a runtime does not tell.
    """
    told = {"OnnxRuntimeEngine": _onnxruntime, "OpenVinoEngine": _openvino}.get(type(engine).__name__)
    if told is None:
        return {"kernels": None}
    rows = list(told(engine, request["path"], _feed(request["feed"])))
    whole = sum(row[3] for row in rows) or 1.0
    shown = [
        (name, kind, floats, time / whole) for name, kind, floats, time, multiplies in rows if multiplies
    ]
    return {"kernels": shown}


def _onnxruntime(engine: Any, path: str, feed: dict[str, Any]) -> Iterator[Row]:
    with tempfile.TemporaryDirectory() as folder:
        options = engine.module.SessionOptions()
        options.log_severity_level, options.intra_op_num_threads = 4, 1
        options.enable_profiling, options.profile_file_prefix = True, str(Path(folder) / "profile")
        session = engine.module.InferenceSession(path, options, ["CPUExecutionProvider"])
        for _ in range(4):
            session.run(None, feed)
        events = json.loads(Path(session.end_profiling()).read_text())
    found: dict[tuple[str, str], tuple[bool, list[float]]] = {}
    for event in events:
        if event.get("cat") == "Node" and event["name"].endswith("_kernel_time"):
            about = event["args"]
            kind, read = about["op_name"], [name for each in about["input_type_shape"] for name in each]
            key = event["name"].removesuffix("_kernel_time"), kind
            floats = bool(read) and all(name in FLOATS for name in read) and not kind.startswith("Dynamic")
            found.setdefault(key, (floats, []))[1].append(float(event["dur"]))
    for (name, kind), (floats, times) in found.items():
        yield name, kind, floats, min(times), any(each in kind for each in MULTIPLIES)


def _openvino(engine: Any, path: str, feed: dict[str, Any]) -> Iterator[Row]:
    compiled = engine.compiled(path, 1, PERF_COUNT=True)
    request = compiled.create_infer_request()
    for _ in range(4):
        request.infer(feed)
    times = {each.node_name: each.real_time.total_seconds() for each in request.get_profiling_info()}
    for node in compiled.get_runtime_model().get_ordered_ops():
        about = node.get_rt_info()
        kind, precision = (str(about[key].value) for key in ("layerType", "runtimePrecision"))
        name = node.get_friendly_name()
        multiplies = any(each in kind for each in OPENVINO_MULTIPLIES)
        yield name, kind, precision in FLOATS, times.get(name, 0.0), multiplies


def operators(engine: Any, request: dict[str, Any]) -> dict[str, Any]:
    """Every operator of the model that OpenVINO loaded last: names of all that went into it, and its type."""
    about = [node.get_rt_info() for node in engine.loaded.get_runtime_model().get_ordered_ops()]
    keys = "originalLayersNames", "runtimePrecision"
    return {"operators": [[str(each[key].value) for key in keys] for each in about]}


def values(engine: Any, request: dict[str, Any]) -> dict[str, Any]:
    """The names of all tensors; or, where some are asked for, these written to a file."""
    if type(engine).__name__ == "OpenVinoEngine":
        return _openvino_values(engine, request)
    import onnx

    model = onnx.load(request["path"])
    if "names" not in request:
        return {"names": [name for node in model.graph.node for name in node.output if name][:MOST_NAMES]}
    known = {each.name for each in model.graph.output}
    model.graph.output.extend(
        onnx.ValueInfoProto(name=name) for name in request["names"] if name not in known
    )
    options = engine.module.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 4, 1
    options.graph_optimization_level = engine.module.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = engine.module.InferenceSession(model.SerializeToString(), options, ["CPUExecutionProvider"])
    outputs = session.run(request["names"], _feed(request["feed"]))
    np.savez(request["out"], *(np.asarray(each) for each in outputs))
    return {"names": request["names"]}


def _openvino_values(engine: Any, request: dict[str, Any]) -> dict[str, Any]:
    model = engine.core.read_model(request["path"])
    named = {
        name: output
        for node in model.get_ordered_ops()
        if node.get_type_name() not in ("Result", "Constant", "Parameter")
        for output in node.outputs()
        for name in output.get_names()
    }
    if "names" not in request:
        return {"names": list(named)[:MOST_NAMES]}
    added = model.add_outputs([named[name] for name in request["names"]])
    options = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": 1}
    compiled = engine.core.compile_model(model, "CPU", options)
    found = compiled.create_infer_request().infer(_feed(request["feed"]))
    places = [each.get_index() for each in added]
    np.savez(request["out"], *(np.array(found[compiled.outputs[place]]) for place in places))
    return {"names": request["names"]}


def _feed(path: str) -> dict[str, Any]:
    with np.load(path, allow_pickle=False) as file:
        return {name: file[name] for name in file.files}
