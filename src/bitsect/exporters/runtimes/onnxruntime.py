"""Running a written ONNX model: in ONNX Runtime, or by the letter in ONNX's reference evaluator."""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from threading import Timer
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...errors import BitsectError, DataError, ExportError, MissingExtraError
from ...files import first_line, parse_json, reading
from ...measure.evaluator import naming
from ...sources.data import Inputs, Samples
from ...sources.tasks.tally import Tally
from ...sources.tasks.task import Task
from .apart import LONGEST_RUN

BATCH = "bitsect.batch"  # how many samples run at once, in a file whose ranges hang on what is in a batch
TIMING_SECONDS = 1.0  # that each model is timed for
Array = np.ndarray[Any, Any]


class Outputs(dict[str, Tensor]):
    """Outputs by the names that the network gives them, also as attributes."""

    def __getattr__(self, name: str) -> Tensor:
        if name not in self:
            raise AttributeError(name)
        return self[name]


class OnnxModel:
    """A model in ONNX Runtime that takes and returns what the network did."""

    def __init__(
        self,
        path: str | Path,
        *,
        threads: int | None = None,
        exact: bool = False,
        optimise: bool = True,
        optimised: Path | None = None,
    ) -> None:
        """`exact` lets weight-only kernels take their inputs as they are, which by default are rounded to
        8 bits in blocks; `optimised` is where the graph that really runs is written to.
        """
        try:
            import onnxruntime
        except ImportError:
            raise MissingExtraError("onnxruntime", None, "running an ONNX model") from None
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4  # what counts is raised
        options.intra_op_num_threads = torch.get_num_threads() if threads is None else threads
        options.inter_op_num_threads = 1
        if exact:
            options.add_session_config_entry("session.qdq_matmulnbits_accuracy_level", "1")
        if not optimise:
            options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        if optimised is not None:
            options.optimized_model_filepath = str(optimised)
        _check_exists(path)
        try:
            self.session = onnxruntime.InferenceSession(str(path), options, ["CPUExecutionProvider"])
        except Exception as error:  # its classes of errors have no common parent
            raise ExportError(f"{path}: ONNX Runtime cannot load it: {first_line(error)}") from error
        self.path, self.runtime = Path(path), f"onnxruntime {onnxruntime.__version__}"
        self.inputs = {each.name: each.shape for each in self.session.get_inputs()}
        self.outputs = [each.name for each in self.session.get_outputs()]
        self.metadata: Mapping[str, str] = self.session.get_modelmeta().custom_metadata_map

    def run(self, inputs: Inputs) -> Any:
        """The outputs: a tensor, or several by name or in order."""
        outputs = self.run_flat(inputs)
        names = self._recorded("bitsect.outputs", list)
        if names is None:  # in a file of other makers, its own
            return outputs[0] if len(outputs) == 1 else Outputs(zip(self.outputs, outputs, strict=True))
        if len(names) != len(outputs) or not all(isinstance(name, str) for name in names):
            raise ExportError(
                f"{self.path}: it has {len(outputs)} outputs and names {names}: export it again"
            )
        return tuple(outputs) if all(map(str.isdigit, names)) else Outputs(zip(names, outputs, strict=True))

    @property
    def judged_rows(self) -> int | None:
        """How many samples it was judged with at once, where that makes a difference."""
        return 1 if BATCH in self.metadata else None

    @property
    def pixels(self) -> dict[str, Any]:
        """How images were normalised for the network, as options of `load_samples`."""
        pixels: dict[str, Any] = self._recorded("bitsect.pixels", dict) or {}
        for name, value in pixels.items():
            numbers = value if isinstance(value, list) else [value]
            numeric = all(isinstance(number, int | float) for number in numbers)
            if name not in ("mean", "std", "scale") or not numeric:
                raise ExportError(f"{self.path}: its pixels are given as {name} {value!r}: export it again")
        return pixels

    def _recorded(self, name: str, kind: type) -> Any:
        """What the file says of itself under `name`, None if it says nothing."""
        with reading(self.path, ExportError, what="ONNX model", way_out="export it again"):
            value = parse_json(self.metadata.get(name, "null"))
        if value is not None and not isinstance(value, kind):
            raise ExportError(f"{self.path}: its {name} is a {type(value).__name__}: export it again")
        return value

    def run_flat(self, inputs: Inputs) -> list[Tensor]:
        """The outputs in the order of the file."""
        feed = {name: value.detach().cpu().numpy() for name, value in self._named(inputs).items()}
        for name, array in feed.items():
            self._check_shape(name, array)
        outputs = self._run_in_batches(feed)
        try:
            return [torch.from_numpy(array) for array in outputs]
        except TypeError as error:  # sequences, maps and texts, which ONNX has too
            raise DataError(f"{self.path}: an output is no tensor: {first_line(error)}") from None

    def _run(self, feed: dict[str, Array]) -> list[Array]:
        from onnxruntime import RunOptions

        options = RunOptions()
        options.log_severity_level = 4  # what goes wrong is said below
        watch = Timer(LONGEST_RUN, setattr, (options, "terminate", True))
        watch.daemon = True
        watch.start()
        try:
            outputs: list[Array] = self.session.run(None, feed, options)
        except Exception as error:
            if options.terminate:
                raise DataError(
                    f"{self.path}: no answer for one batch in {LONGEST_RUN:,} seconds: a loop without end?"
                ) from None
            raise DataError(f"ONNX Runtime cannot run these samples: {first_line(error)}") from error
        finally:
            watch.cancel()
        return outputs

    def _named(self, inputs: Inputs) -> dict[str, Tensor]:
        if isinstance(inputs, dict) and inputs.keys() == self.inputs.keys():
            return inputs
        values = list(inputs.values()) if isinstance(inputs, dict) else inputs
        listed = [values] if isinstance(values, Tensor) else list(values)
        if len(listed) != len(self.inputs) or (isinstance(inputs, dict) and len(inputs) > 1):
            raise DataError(f"the model takes the inputs {', '.join(self.inputs)}")
        return dict(zip(self.inputs, listed, strict=True))

    def _check_shape(self, name: str, array: Array) -> None:
        """Refuse a sample of another shape; batches are another matter."""
        wanted = self.inputs[name]
        sizes = zip(wanted[1:], array.shape[1:], strict=False)
        if len(wanted) != array.ndim or any(isinstance(size, int) and size != got for size, got in sizes):
            shape = " × ".join(["batch", *map(str, wanted[1:])])
            raise DataError(f"input '{name}' has shape {array.shape}; the model takes {shape}")

    @cached_property
    def _fixed_batch(self) -> int | None:
        sizes = {shape[0] for shape in self.inputs.values() if shape}
        first = sizes.pop() if len(sizes) == 1 else None
        return first if isinstance(first, int) and first > 0 else None

    def _run_in_batches(self, feed: dict[str, Array]) -> list[Array]:
        """A model whose batch is fixed is given whole batches, the last one filled up."""
        batch = self._fixed_batch
        rows = len(next(iter(feed.values())))
        if batch is None or batch == rows:
            return self._run(feed)
        parts = []
        for start in range(0, rows, batch):
            taken = np.minimum(np.arange(start, start + batch), rows - 1)
            parts.append(self._run({name: array[taken] for name, array in feed.items()}))
        return [np.concatenate(part)[:rows] for part in zip(*parts, strict=True)]


class ReferenceModel(OnnxModel):
    """The same model in ONNX's reference evaluator: the meaning of every operator in plain NumPy."""

    def __init__(self, path: str | Path, *, threads: int | None = None) -> None:
        try:
            import onnx
            from onnx.reference import ReferenceEvaluator
        except ImportError:
            raise MissingExtraError("onnx", None, "running an ONNX model") from None
        _check_exists(path)
        try:
            model = onnx.load(path)
            self.evaluator = ReferenceEvaluator(model)
        except Exception as error:  # of protobuf, or of operators that it does not know
            raise ExportError(
                f"{path}: the reference evaluator cannot load it: {first_line(error)}"
            ) from error
        self.path, self.runtime = Path(path), f"onnx {onnx.__version__} reference evaluator"
        self.inputs, self.outputs, self.metadata = _about(model)

    def _run(self, feed: dict[str, Array]) -> list[Array]:
        try:
            return [np.asarray(array) for array in self.evaluator.run(None, feed)]
        except Exception as error:
            raise DataError(
                f"the reference evaluator cannot run these samples: {first_line(error)}"
            ) from error


def read_about(path: str | Path) -> tuple[dict[str, Any], list[str], dict[str, str]]:
    """The inputs with their shapes, the outputs, and what the file at `path` says of itself."""
    try:
        import onnx
    except ImportError:
        raise MissingExtraError("onnx", None, "reading an ONNX model") from None
    _check_exists(path)
    with reading(path, ExportError, what="ONNX model", way_out="export it again"):
        return _about(onnx.load(path, load_external_data=False))


def _about(model: Any) -> tuple[dict[str, Any], list[str], dict[str, str]]:
    inputs = {
        each.name: [size.dim_param or size.dim_value or None for size in each.type.tensor_type.shape.dim]
        for each in model.graph.input
    }
    about = {each.key: each.value for each in model.metadata_props}
    return inputs, [each.name for each in model.graph.output], about


RUNTIMES: dict[str, Any] = {
    "onnxruntime": OnnxModel,
    "openvino": "bitsect.exporters.runtimes.openvino:OpenVinoModel",
    "reference": ReferenceModel,
}


@dataclass(frozen=True)
class Ran:
    """How a model did where it ran."""

    accuracy: float
    samples: int
    latency_ms: float | None  # of one sample in one thread, the least of many runs
    runtime: str
    output: str | None = None  # which was judged, where the model has several

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def run_onnx(
    model: OnnxModel,
    samples: Samples,
    task: Task,
    *,
    batch_size: int = 64,
    progress: Callable[[int], None] = lambda count: None,
) -> Ran:
    """Accuracy of a model on labelled samples, and its latency, but for the reference evaluator's."""
    if samples.labels is None:
        raise DataError(f"{samples.spec}: no labels: an ONNX model is judged by labels")
    tally = Tally()
    for batch in samples.batches(batch_size):
        assert batch.labels is not None
        with naming(samples, batch.indices):
            outputs = model.run(batch.inputs)
            _check_finite(model, outputs)
            tally.add(task.outcome(outputs, batch.labels), batch.labels, batch.indices)
        progress(len(batch.indices))
    latency = None
    if type(model) is OnnxModel:
        latency = latencies_ms([model.path], samples.inputs(slice(0, 1)))[0]
    return Ran(tally.accuracy(task, samples), samples.count, latency, model.runtime, task.output)


def _check_finite(model: OnnxModel, outputs: Any) -> None:
    """Refuse outputs that are no numbers, of which the greatest would be called an answer."""
    for output in outputs.values() if isinstance(outputs, dict) else outputs:
        if output.is_floating_point() and not torch.isfinite(output).all():
            raise DataError(f"{model.path}: its outputs hold NaN or infinity: check the samples and the file")


def latencies_ms(paths: Sequence[str | Path], inputs: Inputs, *, seconds: float | None = None) -> list[float]:
    """The least time of one run of each model in one thread; they take turns on the same machine.

    In an order that changes: after a model that heats the processor or empties its caches all are slower.
    """
    models = [OnnxModel(path, threads=1) for path in paths]
    feeds = [
        {name: value.cpu().numpy() for name, value in _whole_batch(model, inputs).items()} for model in models
    ]
    turns = list(enumerate(zip(models, feeds, strict=True)))
    shuffle = random.Random(0).shuffle
    best = [float("inf")] * len(models)
    end = time.perf_counter() + (seconds or TIMING_SECONDS) * len(models)
    rounds = 0
    while rounds < 3 or time.perf_counter() < end:
        shuffle(turns)
        for index, (model, feed) in turns:
            for _ in range(3):
                start = time.perf_counter()
                model.session.run(None, feed)
                best[index] = min(best[index], time.perf_counter() - start)
        rounds += 1
    return [1000 * value for value in best]


def feed_of(path: str | Path, inputs: Inputs) -> dict[str, Array]:
    """The inputs of one sample as the file at `path` takes them."""
    return {n: v.detach().cpu().numpy() for n, v in _whole_batch(OnnxModel(path, threads=1), inputs).items()}


def kernels(path: str | Path) -> list[tuple[str, str]]:
    """(name, operator) of every node of the graph that ONNX Runtime really runs."""
    import onnx

    with tempfile.TemporaryDirectory() as folder:
        optimised = Path(folder) / "optimised.onnx"
        OnnxModel(path, threads=1, optimised=optimised)
        graph = onnx.load(optimised, load_external_data=False).graph
    return [(node.name, node.op_type) for node in graph.node]


def _whole_batch(model: OnnxModel, inputs: Inputs) -> dict[str, Tensor]:
    named = model._named(inputs)
    if model._fixed_batch is None:
        return named
    return {name: value[:1].expand(model._fixed_batch, *value.shape[1:]) for name, value in named.items()}


def _check_exists(path: str | Path) -> None:
    if not Path(path).is_file():
        raise BitsectError(f"{path}: no such file")
