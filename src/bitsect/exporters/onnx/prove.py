"""The proof that a written ONNX model is the one that was judged: it runs where it will run."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from weakref import WeakKeyDictionary

import numpy as np

from ...errors import DataError, ExportError
from ...measure.evaluator import naming
from ...network.parts import Multiply
from ...network.program import Program
from ...sources.data import Samples
from ...sources.data.samples import Inputs
from ...values import FLOAT, Format, Plan
from ..exporter import Written
from ..proof import INTEGER_KERNELS, WEIGHT_ONLY_KERNELS, BatchComparison, Proof
from ..runtimes.apart import Apart, Fault, Model, Times
from ..runtimes.onnxruntime import OnnxModel, ReferenceModel, feed_of, kernels, latencies_ms
from ..runtimes.openvino import OpenVinoModel
from ..subject import Subject
from .write import is_weights_of, write_onnx

LARGEST_KEPT_BYTES = 100_000_000
_FLOAT_MODELS: WeakKeyDictionary[Program, dict[str, bytes]] = WeakKeyDictionary()
FIXED_SAMPLES = 4  # that OpenVINO runs with fixed shapes too
REFERENCE_SAMPLES = 16  # the reference evaluator takes a second and more for each


def prove(
    written: Written,
    subject: Subject,
    samples: Samples,
    *,
    batch_size: int = 64,
    progress: Callable[[int], None] = lambda count: None,
    timed_on: Inputs | None = None,
) -> Proof:
    """Run the written model on `samples` and compare it with the program under the same rounding.

    Where predictions differ, ties are told from faults by the tensors that hold the codes of rounded
    values, in ONNX Runtime; OpenVINO's own arithmetic is let differ a little more. A model for a runtime
    is timed against the float one exported the same way, in turns, one sample (`timed_on`, else a typical
    one) in one thread. A portable one runs on a few samples in the reference evaluator and is not timed.
    """
    program, plan, path = subject.program, subject.plan, written.path
    for_runtime = written.destination == "onnxruntime"
    timed_on = samples.typical() if timed_on is None else timed_on
    elsewhere = written.destination == "openvino"
    model = _model_of(written, samples)
    codes = written.codes if for_runtime else None
    if any(format.dynamic for format in plan.values()):
        batch_size = 1  # its ranges are those of all that is in a batch
    comparison = BatchComparison(program, subject.rounder(plan), model, subject.task, codes)
    for batch in samples.batches(batch_size if for_runtime or elsewhere else min(batch_size, 4)):
        with naming(samples, batch.indices):
            comparison.add(batch)
        progress(len(batch.indices))
        if isinstance(model, ReferenceModel) and comparison.count >= REFERENCE_SAMPLES:
            break
    in_float: tuple[str, ...] = ()
    if isinstance(model, OpenVinoModel):
        in_float = _openvino_in_float(model, comparison, plan, samples)
        model.close()
    with tempfile.TemporaryDirectory() as folder:
        float_path = Path(folder) / "float.onnx"
        float_size = _write_float(subject, float_path, written.destination or "onnxruntime")
        timed: list[float | None] = [None, None]
        if for_runtime:
            timed = [*latencies_ms([path, float_path], timed_on)]
        elif elsewhere:
            timed = [*_elsewhere_ms("openvino", [path, float_path], timed_on)]
    if set(plan.values()) == {FLOAT}:  # the same file twice
        timed = [timed[1]] * 2
    ran = kernels(path) if for_runtime else []
    return Proof(
        runtime=model.runtime,
        samples_given=len(samples),
        **comparison.found(samples),
        size_bytes=_size(path),
        float_size_bytes=float_size,
        latency_ms=timed[0],
        float_latency_ms=timed[1],
        timed_length=program.length_of(timed_on),
        kernels=dict(Counter(operator for _, operator in ran).most_common()) or None,
        float_kernels=_on_kernels(program, plan, ran, quantised=True) if for_runtime else in_float,
        quantised_kernels=_on_kernels(program, plan, ran, quantised=False),
    )


def _openvino_in_float(
    model: OpenVinoModel, found: BatchComparison, plan: Plan, samples: Samples
) -> tuple[str, ...]:
    """Layers in integers that OpenVINO runs in float, where lengths are free or where all shapes are fixed.

    It may choose other kernels for fixed shapes, so the first samples are compared in that way too.
    """
    batch = next(iter(samples.batches(FIXED_SAMPLES)))
    fixed = OpenVinoModel(model.path, fixed=batch.inputs)
    again = BatchComparison(found.program, found.rounding, fixed, found.task, None)
    with naming(samples, batch.indices):
        again.add(batch)
    found.differing = sorted({*found.differing, *again.differing})
    found.outputs_off = max(found.outputs_off, again.outputs_off)
    ran = [
        {
            name
            for names, precision in each.operators()
            if precision in ("u8", "i8")
            for name in names.split(",")
        }
        for each in (model, fixed)
    ]
    fixed.close()
    return tuple(
        multiply.place.name
        for multiply in found.program.multiplies
        if plan[multiply.layer].has_ranges
        and multiply.weight is not None
        and not all(any(_is_of(name, multiply.place.name) for name in names) for names in ran)
    )


def _write_float(subject: Subject, path: Path, destination: str) -> int:
    """Write the float model; a small one is made once for each program, whatever plans are proven of it."""
    known = _FLOAT_MODELS.setdefault(subject.program, {})
    if destination in known:
        path.write_bytes(known[destination])
        return len(known[destination])
    size = write_onnx(subject.in_float, path, destination).size_bytes
    if size == path.stat().st_size <= LARGEST_KEPT_BYTES:
        known[destination] = path.read_bytes()
    return size


def _model_of(written: Written, samples: Samples) -> OnnxModel:
    """The written model where it will run, or else by the letter."""
    if written.destination == "openvino":
        return OpenVinoModel(written.path)
    if written.destination == "onnxruntime":
        return OnnxModel(written.path, exact=True)
    return _by_the_letter(written.path, samples)


def _elsewhere_ms(engine: str, paths: list[Path], inputs: Inputs) -> list[float]:
    """The least time of one run of each file in one thread of a runtime apart, in turns."""
    with tempfile.TemporaryDirectory() as folder, Apart(engine) as apart:
        feed = Path(folder) / "feed.npz"
        np.savez(feed, **feed_of(paths[0], inputs))  # type: ignore[arg-type]
        models = [Model(str(number), path.resolve(), feed) for number, path in enumerate(paths)]
        found = apart.time(models, visits=12, visit_seconds=0.02)
    faults = [times.why for times in found.values() if isinstance(times, Fault)]
    if faults:
        raise ExportError(f"{paths[0]} does not run in {engine} here: {faults[0]}")
    return [min(times.least) for _, times in sorted(found.items()) if isinstance(times, Times)]


def _by_the_letter(path: str | Path, samples: Samples) -> OnnxModel:
    """The reference evaluator; where it fails at an operator, ONNX Runtime without its optimiser."""
    model = ReferenceModel(path)
    try:
        model.run(samples.inputs(slice(0, 1)))
    except DataError:
        return OnnxModel(path, optimise=False)
    return model


def _on_kernels(
    program: Program, plan: Plan, ran: Sequence[tuple[str, str]], *, quantised: bool
) -> tuple[str, ...]:
    """Quantised layers that run on a float kernel; or else, float layers that run on an integer one."""
    found = []
    for multiply in program.multiplies:
        format = plan[multiply.layer]
        if format.is_float is quantised or not _multiplies(multiply, format):
            continue
        operators = [operator for name, operator in ran if _is_of(name, multiply.place.name)]
        expected = (
            INTEGER_KERNELS if format.activation_bits is not None or not quantised else WEIGHT_ONLY_KERNELS
        )
        integer = any(operator in expected for operator in operators)
        if integer is not quantised:
            found.append(multiply.place.name)
    return tuple(found)


def _multiplies(multiply: Multiply, format: Format) -> bool:
    """Not so a look-up, nor two activations in a weight-only format, which leaves them in float."""
    if multiply.place.signature.kind == "embedding":
        return False
    return format.is_float or multiply.weight is not None or format.has_ranges


def _is_of(node: str, place: str) -> bool:
    """Whether a node of the optimised graph does the work of `place`; fusions append to its name."""
    return node == place or node.startswith((f"{place}_token_", f"{place}/"))


def _size(path: Path) -> int:
    files = [path, *(item for item in path.parent.iterdir() if is_weights_of(path, item))]
    return sum(item.stat().st_size for item in files)
