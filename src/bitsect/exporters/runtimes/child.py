"""The process in which written models run apart: a kernel that kills it kills nothing else.

It reads one request per line from stdin and answers in lines of JSON on stdout; arrays travel as .npz files.
Only NumPy and the runtime are loaded.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np

from ...names import choose

Feed = Mapping[str, np.ndarray[Any, Any]]
Run = Callable[[Feed], list[np.ndarray[Any, Any]]]
Say = Callable[[dict[str, Any]], None]

ENGINES = {
    "onnxruntime": "bitsect.exporters.runtimes.child:OnnxRuntimeEngine",
    "openvino": "bitsect.exporters.runtimes.child:OpenVinoEngine",
    "torch": "bitsect.exporters.runtimes.engines:TorchEngine",
    "litert": "bitsect.exporters.runtimes.engines:LiteRtEngine",
    "executorch": "bitsect.exporters.runtimes.engines:ExecuTorchEngine",
}
WARM_UP = 3
MOST_RUNS = 400  # in one visit


class Engine(Protocol):
    """A runtime: `load` makes a function of a model's inputs that returns its outputs."""

    version: str

    def load(self, path: str, threads: int) -> Run: ...

    def about(self, path: str) -> dict[str, Any]: ...


class OnnxRuntimeEngine:
    def __init__(self) -> None:
        import onnxruntime

        self.module, self.version = onnxruntime, str(onnxruntime.__version__)

    def _session(self, path: str, threads: int) -> Any:
        options = self.module.SessionOptions()
        options.log_severity_level = 4
        options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
        return self.module.InferenceSession(path, options, ["CPUExecutionProvider"])

    def load(self, path: str, threads: int) -> Run:
        session = self._session(path, threads)
        return lambda feed: list(session.run(None, dict(feed)))

    def about(self, path: str) -> dict[str, Any]:
        """The inputs with their types and shapes, the outputs, and what the file says of itself."""
        session = self._session(path, 1)
        return {
            "inputs": [[each.name, each.type, list(each.shape)] for each in session.get_inputs()],
            "outputs": [each.name for each in session.get_outputs()],
            "metadata": dict(session.get_modelmeta().custom_metadata_map),
        }


class OpenVinoEngine:
    def __init__(self) -> None:
        # It would send word of its use over the network, in a process that outlives this one.
        sys.modules["openvino_telemetry"] = None  # type: ignore[assignment]
        import openvino

        self.module, self.version = openvino, str(openvino.__version__).partition("-")[0]
        self.core = openvino.Core()

    def load(self, path: str, threads: int, shapes: Mapping[str, Any] | None = None) -> Run:
        """With `shapes`, the inputs have these for good: it may choose other kernels."""
        self.loaded = compiled = self.compiled(path, threads, shapes)
        request, outputs = compiled.create_infer_request(), compiled.outputs

        def run(feed: Feed) -> list[np.ndarray[Any, Any]]:
            found = request.infer(dict(feed), share_inputs=True, share_outputs=True)
            return [found[output] for output in outputs]

        return run

    def about(self, path: str) -> dict[str, Any]:
        """The inputs with their types and shapes, and the outputs; nothing that the file says of itself."""
        model = self.core.read_model(path)
        return {
            "inputs": [
                [
                    each.get_any_name() if each.get_names() else each.get_node().get_friendly_name(),
                    each.get_element_type().to_dtype().name,
                    [None if size.is_dynamic else size.get_length() for size in each.get_partial_shape()],
                ]
                for each in model.inputs
            ],
            "outputs": [min(each.get_names(), default=f"output {i}") for i, each in enumerate(model.outputs)],
            "metadata": {},
        }

    def compiled(self, path: str, threads: int, shapes: Mapping[str, Any] | None = None, **more: Any) -> Any:
        model = self.core.read_model(path)
        if shapes is not None:
            model.reshape({name: list(shape) for name, shape in shapes.items()})
        nodes = [node for node in model.get_ordered_ops() if node.get_output_size()]
        half = any(node.get_output_element_type(0) == self.module.Type.f16 for node in nodes)
        # Left to itself it computes float layers in bfloat16 where the processor has that.
        options = {
            "PERFORMANCE_HINT": "LATENCY",
            "INFERENCE_NUM_THREADS": threads,
            "NUM_STREAMS": 1,
            "INFERENCE_PRECISION_HINT": "f16" if half else "f32",
            **more,
        }
        return self.core.compile_model(model, "CPU", options)


class Engines(dict[str, Engine]):
    """The runtimes of this process, each loaded when it is first asked for."""

    def __missing__(self, name: str) -> Engine:
        engine: Engine = choose("runtime", name, ENGINES, own=True)()
        self[name] = engine
        return engine


def time_group(engines: Engines, request: dict[str, Any], say: Say) -> None:
    """Say how long the models of a group take in each visit: the least, and how long a run was waited for.

    They take turns in an order that changes, so that whatever else the machine does hits all alike.
    """
    runs: dict[str, tuple[Run, Feed, int]] = {}
    feed: Feed
    alone = request["threads"] == 1
    for each in request["models"]:
        say({"began": each["name"]})
        try:
            engine = engines[each.get("engine") or request["engine"]]
            run, feed = engine.load(each["path"], request["threads"]), _feed(each["feed"])
            took = []
            for _ in range(WARM_UP):
                took.append(_took(run, feed, alone)[0])
        except Exception as error:  # each runtime has classes of its own
            say({"failed": each["name"], "why": str(error)})
            continue
        count = int(request["visit_seconds"] / max(min(took), 1e-9))
        runs[each["name"]] = run, feed, min(max(count, 1), MOST_RUNS)
        say({"ran": each["name"]})
    shuffle = random.Random(0).shuffle
    least: dict[str, list[float]] = {name: [] for name in runs}
    mean: dict[str, list[float]] = {name: [] for name in runs}
    names = list(runs)
    for _ in range(request["visits"]):
        shuffle(names)
        for name in names:
            run, feed, count = runs[name]
            say({"began": name})  # every answer says that it goes on
            run(feed)  # with its weights in the cache again
            visit = [_took(run, feed, alone) for _ in range(count)]
            least[name].append(1000 * min(used for used, _ in visit))
            mean[name].append(1000 * sum(passed for _, passed in visit) / count)
    for name in runs:
        say({"timed": name, "least": least[name], "mean": mean[name]})


def _took(run: Run, feed: Feed, alone: bool) -> tuple[float, float]:
    """Seconds of one run, in one thread without what other processes took of it; and those that passed."""
    start, used = time.perf_counter(), time.process_time()
    run(feed)
    used, passed = time.process_time() - used, time.perf_counter() - start
    return min(used, passed) if alone and used > 0 else passed, passed


def run_model(run: Run, request: dict[str, Any]) -> None:
    """Write the outputs of a model, in its order, for the inputs in a file: all at once, or in `rows`."""
    feed, rows = _feed(request["feed"]), request.get("rows")
    if not rows:
        return np.savez(request["out"], *run(feed))
    count = len(next(iter(feed.values())))
    parts = []
    for start in range(0, count, rows):
        taken = np.minimum(np.arange(start, start + rows), count - 1)  # the last one filled up
        parts.append([np.array(each) for each in run({name: each[taken] for name, each in feed.items()})])
    return np.savez(request["out"], *(np.concatenate(part)[:count] for part in zip(*parts, strict=True)))


def _feed(path: str) -> dict[str, np.ndarray[Any, Any]]:
    with np.load(path, allow_pickle=False) as file:
        return {name: file[name] for name in file.files}


def main() -> None:
    # What a library prints must not come between the lines of answers.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    def say(what: dict[str, Any]) -> None:
        answers.write(json.dumps(what) + "\n")
        answers.flush()

    engines = Engines()
    loaded: Run | None = None
    for line in sys.stdin:
        request = json.loads(line)
        try:
            name = request["engine"]
            if request["do"] == "engine":
                say({"version": engines[name].version})
            elif request["do"] == "time":
                time_group(engines, request, say)
            elif request["do"] == "load":
                loaded = engines[name].load(request["path"], request["threads"])
            elif request["do"] == "load fixed":
                openvino: Any = engines[name]
                loaded = openvino.load(request["path"], request["threads"], request["shapes"])
            elif request["do"] == "about":
                say({"about": engines[name].about(request["path"])})
            elif request["do"] in ("kernels", "operators", "values"):
                from . import inside

                say(getattr(inside, request["do"])(engines[name], request))
            else:
                assert loaded is not None
                run_model(loaded, request)
            say({"done": request["do"]})
        except Exception as error:
            say({"error": f"{type(error).__name__}: {error}"})
