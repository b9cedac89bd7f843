"""The proof that a written model is the one that was judged: it is loaded, run and compared."""

from __future__ import annotations

import math
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor

from ..errors import DataError, ExportError
from ..measure.evaluator import naming
from ..network.parts import Multiply, Rounding
from ..network.program import Program
from ..sources.data import Batch, Samples
from ..sources.tasks.tally import Tally
from ..sources.tasks.task import Outcome, Task
from ..values import FLOAT, Format, Plan, megabytes
from .onnx.write import Written, is_weights_of, write_onnx
from .runtimes.apart import Apart, Fault, Model, Times
from .runtimes.onnxruntime import OnnxModel, ReferenceModel, feed_of, kernels, latencies_ms
from .runtimes.openvino import OpenVinoModel
from .subject import Subject
from .ties import CodesOf, Key, Observer, Ties

LEAST_AGREEMENT = 0.995
LARGEST_ACCURACY_GAP = 0.002
LARGEST_OUTPUT_GAP = 0.05
LAST_BITS = 1e-5  # of the largest output: by more, a code has moved
LARGEST_UNOBSERVED_GAP = 0.5  # where nobody tells ties from faults
MOST_BY_TIES = 0.05
# OpenVINO computes in an arithmetic of its own, which the judged model does not follow bit by bit.
OWN_ARITHMETIC = ("openvino",)
LEAST_OWN_AGREEMENT = 0.97
LARGEST_OWN_ACCURACY_GAP = 0.01
INTEGER_KERNELS = ("QLinearConv", "QLinearMatMul", "MatMulIntegerToFloat", "QGemm", "MatMulInteger")
WEIGHT_ONLY_KERNELS = ("MatMulNBits", *INTEGER_KERNELS)
FLOAT_KERNELS = ("Conv", "FusedConv", "ConvTranspose", "Gemm", "FusedGemm", "MatMul", "FusedMatMul", "Einsum")
COUNTED_KERNELS = (*WEIGHT_ONLY_KERNELS, "QLinearAdd", *FLOAT_KERNELS, "Add")
LARGEST_KEPT_BYTES = 100_000_000
_FLOAT_MODELS: WeakKeyDictionary[Program, dict[str, bytes]] = WeakKeyDictionary()
REFERENCE_SAMPLES = 16  # the reference evaluator takes a second and more for each


@dataclass(frozen=True)
class Proof:
    """What came out when the written model ran on the samples."""

    runtime: str
    samples: int
    samples_given: int  # of which a slow runtime takes the first few
    differing: tuple[int, ...]  # samples with another prediction
    identical: int  # samples whose outputs are the same to the last bit
    judged_accuracy: float
    observed_accuracy: float  # of the torch model when ties are resolved as the runtime resolved them
    runtime_accuracy: float
    size_bytes: int
    float_size_bytes: int
    by_ties: tuple[int, ...] = ()  # more samples with another prediction, by nothing but ties
    ties: Ties = field(default_factory=Ties)  # in the first batch, and where predictions differ
    outputs_off: float = 0.0  # the largest difference of outputs, ties apart, to the largest output
    latency_ms: float | None = None
    float_latency_ms: float | None = None
    kernels: dict[str, int] | None = None  # operators of the graph that ran
    float_kernels: tuple[str, ...] = ()  # quantised layers that run on a float kernel
    quantised_kernels: tuple[str, ...] = ()  # float layers that do not

    @property
    def agreement(self) -> float:
        return 1 - len(self.differing) / self.samples

    @property
    def latency_ratio(self) -> float | None:
        if self.latency_ms is None or self.float_latency_ms is None:
            return None
        return self.latency_ms / self.float_latency_ms

    @property
    def slower(self) -> bool:
        return self.latency_ratio is not None and self.latency_ratio > 1

    @property
    def failures(self) -> tuple[str, ...]:
        """Why the model is not proven to be the one that was judged; nothing if it is."""
        found = []
        own = self.runtime.startswith(OWN_ARITHMETIC)
        least = LEAST_OWN_AGREEMENT if own else LEAST_AGREEMENT
        if self.agreement < least:
            some = ", ".join(str(index) for index in self.differing[:20])
            found.append(
                f"{len(self.differing)} of {self.samples} predictions differ in {self.runtime}, more than "
                f"{1 - least:.1%}: samples {some}{' …' if len(self.differing) > 20 else ''}"
            )
        gap = LARGEST_OWN_ACCURACY_GAP if own else LARGEST_ACCURACY_GAP
        if abs(self.observed_accuracy - self.runtime_accuracy) > gap:
            found.append(
                f"accuracy was judged to be {self.observed_accuracy:.2%}, "
                f"it is {self.runtime_accuracy:.2%} in {self.runtime}"
            )
        if not self.ties.explain:
            found.append(
                f"codes of float values differ by up to {self.ties.furthest}, "
                f"{self.ties.ties:,} of {self.ties.codes:,}: more than rounding ties explain"
            )
        if len(self.by_ties) > MOST_BY_TIES * self.samples:
            found.append(
                f"{len(self.by_ties)} of {self.samples} predictions differ by ties, too many to trust"
            )
        if not self.outputs_off <= (LARGEST_OUTPUT_GAP if self.ties.codes else LARGEST_UNOBSERVED_GAP):
            limit = LARGEST_OUTPUT_GAP if self.ties.codes else LARGEST_UNOBSERVED_GAP
            found.append(
                f"outputs differ by up to {self.outputs_off:.1%} of the largest output (limit {limit:.0%}), "
                "even where predictions agree"
            )
        if self.quantised_kernels:
            found.append(f"float layers are quantised by the runtime: {', '.join(self.quantised_kernels)}")
        return tuple(found)

    @property
    def holds(self) -> bool:
        return not self.failures

    def to_json(self) -> dict[str, Any]:
        return {
            **asdict(self),
            "agreement": self.agreement,
            "latency_ratio": self.latency_ratio,
            "holds": self.holds,
        }

    def __str__(self) -> str:
        """A few lines; that a model is slower than the float one is said first."""
        lines = []
        if self.latency_ratio is not None:
            pace = "SLOWER than float" if self.slower else "faster than float"
            pace = "as fast as float" if self.latency_ratio == 1 else pace
            times = f"{self.latency_ms:.3g} ms against {self.float_latency_ms:.3g} ms"
            lines.append(f"{pace}: {times} for one sample in one thread ({self.latency_ratio:.2f}×)")
        share = self.size_bytes / self.float_size_bytes
        sizes = f"{megabytes(self.size_bytes)} against {megabytes(self.float_size_bytes)}"
        lines.append(f"size: {sizes} ({share:.2f}×)")
        bits = "; all outputs are bit-identical" if self.identical == self.samples else ""
        few = f" (the first of {self.samples_given})" if self.samples < self.samples_given else ""
        lines.append(
            f"accuracy: {self.runtime_accuracy:.2%} in {self.runtime}, judged {self.judged_accuracy:.2%}; "
            f"{len(self.differing)} of {self.samples} predictions differ{few}{bits}"
        )
        if self.by_ties and self.ties.explain:
            lines.append(
                f"ties: {len(self.by_ties)} more differ because {self.ties.ties:,} of {self.ties.codes:,} "
                "float values lie so close to the middle of two codes that torch and the runtime part"
            )
        if self.kernels:
            counted = [f"{self.kernels[name]} {name}" for name in COUNTED_KERNELS if name in self.kernels]
            lines.append(f"kernels: {', '.join(counted)}")
        if self.float_kernels:
            lines.append(f"quantised layers on a float kernel: {', '.join(self.float_kernels)}")
        return "\n".join([*lines, *(f"NOT PROVEN: {failure}" for failure in self.failures)])


def prove(
    written: Written,
    subject: Subject,
    samples: Samples,
    *,
    batch_size: int = 64,
    progress: Callable[[int], None] = lambda count: None,
) -> Proof:
    """Run the written model on `samples` and compare it with the program under the same rounding.

    Where predictions differ, ties are told from faults by the tensors that hold the codes of rounded
    values, in ONNX Runtime; OpenVINO's own arithmetic is let differ a little more. A model for a runtime
    is timed against the float one exported the same way, in turns, one sample in one thread. A portable
    one runs on a few samples in the reference evaluator and is not timed.
    """
    program, plan, path = subject.program, subject.plan, written.path
    for_runtime = written.destination == "onnxruntime"
    elsewhere = written.destination == "openvino"
    model = _model_of(written, samples)
    codes = written.codes if for_runtime else None
    comparison = _Comparison(program, subject.rounder(plan), model, subject.task, codes)
    for batch in samples.batches(batch_size if for_runtime or elsewhere else 4):
        with naming(samples, batch.indices):
            comparison.add(batch)
        progress(len(batch.indices))
        if isinstance(model, ReferenceModel) and comparison.count >= REFERENCE_SAMPLES:
            break
    with tempfile.TemporaryDirectory() as folder:
        float_path = Path(folder) / "float.onnx"
        float_size = _write_float(subject, float_path, written.destination)
        timed: list[float | None] = [None, None]
        if for_runtime:
            timed = [*latencies_ms([path, float_path], samples.inputs(slice(0, 1)))]
        elif isinstance(model, OpenVinoModel):
            model.close()
            timed = [*_elsewhere_ms("openvino", [path, float_path], samples)]
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
        kernels=dict(Counter(operator for _, operator in ran).most_common()) or None,
        float_kernels=_on_kernels(program, plan, ran, quantised=True) if for_runtime else (),
        quantised_kernels=_on_kernels(program, plan, ran, quantised=False),
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


def _elsewhere_ms(engine: str, paths: list[Path], samples: Samples) -> list[float]:
    """The least time of one run of each file in one thread of a runtime apart, in turns."""
    with tempfile.TemporaryDirectory() as folder, Apart(engine) as apart:
        feed = Path(folder) / "feed.npz"
        np.savez(feed, **feed_of(paths[0], samples.inputs(slice(0, 1))))  # type: ignore[arg-type]
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


@dataclass
class _Comparison:
    """A program under a rounding and the model written of it, batch by batch."""

    program: Program
    rounding: Rounding
    model: OnnxModel
    task: Task
    codes: Mapping[Key, CodesOf] | None
    differing: list[int] = field(default_factory=list)
    by_ties: list[int] = field(default_factory=list)
    ties: Ties = field(default_factory=Ties)
    outputs_off: float = 0.0
    identical: int = 0
    tallies: dict[str, Tally] = field(
        default_factory=lambda: {name: Tally() for name in ("judged", "observed", "runtime")}
    )

    @cached_property
    def observer(self) -> Observer | None:
        return Observer(self.model.path, self.codes, self.program, self.rounding) if self.codes else None

    @property
    def count(self) -> int:
        return self.tallies["runtime"].samples

    def add(self, batch: Batch) -> None:
        judged, ran = self.program.run(batch.inputs, self.rounding), self.model.run(batch.inputs)
        labels = batch.labels
        if labels is None:  # then accuracy is agreement with the float network
            labels = self.task.answers(self.program.run(batch.inputs)).cpu()
        same, equal, off = _compare(judged, ran, self.task, labels)
        self.identical += int(equal.sum())
        self._count("judged", judged, labels, batch)
        doubtful = not self.count or not same.all() or not off <= LAST_BITS
        if doubtful and self.observer is not None:
            observed = self.observer.rounding(self.rounding, batch.inputs, _tensors(ran), self.ties)
            if observed is not None:
                judged, differing = self.program.run(batch.inputs, observed), ~same
                same, _, off = _compare(judged, ran, self.task, labels)
                self.by_ties += batch.indices[differing & same].tolist()
        self._count("observed", judged, labels, batch)
        self._count("runtime", ran, labels, batch)
        self.differing += batch.indices[~same].tolist()
        self.outputs_off = max(self.outputs_off, off)

    def _count(self, name: str, outputs: Any, labels: Tensor, batch: Batch) -> None:
        self.tallies[name].add(_outcome(self.task, outputs, labels), labels, batch.indices)

    def found(self, samples: Samples) -> dict[str, Any]:
        return {
            "samples": self.count,
            "differing": tuple(self.differing),
            "by_ties": tuple(self.by_ties),
            "ties": self.ties,
            "outputs_off": self.outputs_off,
            "identical": self.identical,
            **{f"{name}_accuracy": t.accuracy(self.task, samples) for name, t in self.tallies.items()},
        }


def _compare(judged: Any, ran: Any, task: Task, labels: Tensor) -> tuple[Tensor, Tensor, float]:
    """Which samples have the same prediction (or else the same score), which the same bits in all outputs,
    and the largest difference of outputs to the largest output, infinite if that cannot be said."""
    one, other = (_outcome(task, outputs, labels).score.double() for outputs in (judged, ran))
    same = (one - other).abs() <= task.tolerance
    with suppress(DataError):  # a task that names no class for a sample has nothing but scores to compare
        answers = task.answers(judged).cpu()
        if answers.ndim == 1 and not answers.is_floating_point():
            same = answers == task.answers(ran)
    equal, off = torch.ones_like(same), 0.0
    left, right = _tensors(judged), _tensors(ran)
    if [value.shape for value in left] != [value.shape for value in right]:
        return same, ~equal, float("inf")
    for one, other in zip(left, right, strict=True):
        one = one.cpu()
        if one.ndim and len(one) == len(equal):
            equal &= (one == other).reshape(len(equal), -1).all(1)
        if one.is_floating_point() and one.numel():
            gap = float(
                (one.double() - other.double()).abs().max() / one.double().abs().max().clamp(min=1e-30)
            )
            off = max(off, gap if math.isfinite(gap) else float("inf"))
    return same, equal, off


def _outcome(task: Task, outputs: Any, labels: Tensor) -> Outcome:
    """The outcome of the program's outputs, which may be on another device than the labels."""
    (first, *_) = _tensors(outputs)
    outcome = task.outcome(outputs, labels.to(first.device))
    return Outcome(None, outcome.score.cpu(), None if outcome.weight is None else outcome.weight.cpu())


def _tensors(outputs: Any) -> list[Tensor]:
    leaves = torch.utils._pytree.tree_leaves(dict(outputs) if isinstance(outputs, dict) else outputs)
    return [leaf for leaf in leaves if isinstance(leaf, Tensor)]


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
    return format.is_float or multiply.weight is not None or format.activation_bits is not None


def _is_of(node: str, place: str) -> bool:
    """Whether a node of the optimised graph does the work of `place`; fusions append to its name."""
    return node == place or node.startswith((f"{place}_token_", f"{place}/"))


def _size(path: Path) -> int:
    files = [path, *(item for item in path.parent.iterdir() if is_weights_of(path, item))]
    return sum(item.stat().st_size for item in files)
