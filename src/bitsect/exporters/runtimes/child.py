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
}
WARM_UP = 3
MOST_RUNS = 400  # in one visit


class Engine(Protocol):
    """A runtime: `load` makes a function of a model's inputs that returns its outputs."""

    version: str

    def load(self, path: str, threads: int) -> Run: ...


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


class OpenVinoEngine:
    def __init__(self) -> None:
        # It would send word of its use over the network, in a process that outlives this one.
        sys.modules["openvino_telemetry"] = None  # type: ignore[assignment]
        import openvino

        self.module, self.version = openvino, str(openvino.__version__).partition("-")[0]
        self.core = openvino.Core()

    def load(self, path: str, threads: int) -> Run:
        model = self.core.read_model(path)
        nodes = [node for node in model.get_ordered_ops() if node.get_output_size()]
        half = any(node.get_output_element_type(0) == self.module.Type.f16 for node in nodes)
        # Left to itself it computes float layers in bfloat16 where the processor has that.
        options = {
            "PERFORMANCE_HINT": "LATENCY",
            "INFERENCE_NUM_THREADS": threads,
            "NUM_STREAMS": 1,
            "INFERENCE_PRECISION_HINT": "f16" if half else "f32",
        }
        compiled = self.core.compile_model(model, "CPU", options)
        request, outputs = compiled.create_infer_request(), compiled.outputs

        def run(feed: Feed) -> list[np.ndarray[Any, Any]]:
            found = request.infer(dict(feed), share_inputs=True, share_outputs=True)
            return [found[output] for output in outputs]

        return run


def time_group(engine: Engine, request: dict[str, Any], say: Say) -> None:
    """Say how long the models of a group take in each visit: the least, and how long a run was waited for.

    They take turns in an order that changes, so that whatever else the machine does hits all alike.
    """
    runs: dict[str, tuple[Run, Feed, int]] = {}
    feed: Feed
    alone = request["threads"] == 1
    for each in request["models"]:
        say({"began": each["name"]})
        try:
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
    """Write the outputs of a model, in its order, for the inputs in a file."""
    outputs = run(_feed(request["feed"]))
    np.savez(request["out"], *outputs)


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

    engine: Engine | None = None
    loaded: Run | None = None
    for line in sys.stdin:
        request = json.loads(line)
        try:
            if request["do"] == "engine":
                engine = choose("runtime", request["name"], ENGINES)()
                say({"version": engine.version})
            elif request["do"] == "time":
                assert engine is not None
                time_group(engine, request, say)
            elif request["do"] == "load":
                assert engine is not None
                loaded = engine.load(request["path"], request["threads"])
            else:
                assert loaded is not None
                run_model(loaded, request)
            say({"done": request["do"]})
        except Exception as error:
            say({"error": f"{type(error).__name__}: {error}"})
