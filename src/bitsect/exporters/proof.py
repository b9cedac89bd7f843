"""The proof that a written model is the one that was judged: it is loaded, run and compared."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from ..errors import DataError
from ..measure.evaluator import naming
from ..network.parts import Rounding
from ..network.program import Program
from ..sources.data import Batch, Samples
from ..sources.tasks.tally import Tally
from ..sources.tasks.task import Outcome, Task
from ..values import megabytes
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
INTEGER_KERNELS = (
    "QLinearConv",
    "QLinearMatMul",
    "MatMulIntegerToFloat",
    "DynamicQuantizeMatMul",
    "QGemm",
    "MatMulInteger",
)
WEIGHT_ONLY_KERNELS = ("MatMulNBits", *INTEGER_KERNELS)
FLOAT_KERNELS = ("Conv", "FusedConv", "ConvTranspose", "Gemm", "FusedGemm", "MatMul", "FusedMatMul", "Einsum")
COUNTED_KERNELS = (*WEIGHT_ONLY_KERNELS, "QLinearAdd", *FLOAT_KERNELS, "Add")


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
    timed_length: int | None = None  # of the sequence that was timed, where any length will do
    exact: bool = False  # whether every output must be the judged one to the last bit
    kernels: dict[str, int] | None = None  # operators of the graph that ran
    float_kernels: tuple[str, ...] = ()  # quantised layers that run on a float kernel
    quantised_kernels: tuple[str, ...] = ()  # float layers that do not

    def __repr__(self) -> str:
        state = "holds" if self.holds else f"FAILS: {self.failures[0]}"
        same = self.samples - len(self.differing)
        return f"Proof: {state}; {same} of {self.samples} predictions are the same in {self.runtime}"

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
        if self.exact and self.identical < self.samples:
            found.append(
                f"the outputs of {self.samples - self.identical} of {self.samples} samples are not those of "
                "the judged model to the last bit"
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
            sample = "sample" if self.timed_length is None else f"sequence of {self.timed_length}"
            lines.append(f"{pace}: {times} for one {sample} in one thread ({self.latency_ratio:.2f}×)")
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


class Runs(Protocol):
    """A written model, loaded: it takes and returns what the network does."""

    def run(self, inputs: Any) -> Any: ...


@dataclass
class BatchComparison:
    """A program under a rounding and the model written of it, batch by batch."""

    program: Program
    rounding: Rounding
    model: Runs
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
        if not self.codes:
            return None
        path: Path = self.model.path  # type: ignore[attr-defined]  # only those of ONNX Runtime have codes
        return Observer(path, self.codes, self.program, self.rounding)

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


def prove_exactly(
    model: Runs,
    runtime: str,
    subject: Subject,
    samples: Samples,
    sizes: tuple[int, int],
    *,
    batch_size: int,
    progress: Callable[[int], None],
) -> Proof:
    """The proof that `model`, loaded from a file, gives the outputs of the judged one to the last bit.

    `sizes` are those of the file and of the float network written likewise, in bytes.
    """
    comparison = BatchComparison(subject.program, subject.rounder(subject.plan), model, subject.task, None)
    for batch in samples.batches(batch_size):
        with naming(samples, batch.indices):
            comparison.add(batch)
        progress(len(batch.indices))
    found = comparison.found(samples)
    return Proof(
        runtime,
        samples_given=len(samples),
        **found,
        size_bytes=sizes[0],
        float_size_bytes=sizes[1],
        exact=True,
    )
