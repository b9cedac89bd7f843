"""What a referee says of quantised files: each beside the float one, on the same samples."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from .cost import megabytes

PROVEN, UNPROVEN, MISSED, FAULT = "proven", "not proven", "missed", "does not run"
EXIT_CODES = {PROVEN: 0, UNPROVEN: 3, MISSED: 1, FAULT: 1}
FIRST = 10  # samples whose answers changed that are named


@dataclass(frozen=True)
class Kernels:
    """The kernels of a file that multiply, as its runtime ran them."""

    integer: int
    floats: int
    float_share: float  # of the time of a run
    float_names: tuple[str, ...] = ()  # `name (operator)`, those that took longest first

    def to_json(self) -> dict[str, Any]:
        return {
            "integer": self.integer,
            "float": self.floats,
            "float_share": self.float_share,
            "float_names": list(self.float_names),
        }


@dataclass(frozen=True)
class JudgedFile:
    """One file: what it keeps, what it costs, and what is wrong with it."""

    name: str
    runtime: str = ""
    outcome: str = FAULT  # proven, not proven, missed; or it does not run
    verdict: str = ""  # in words
    accuracy: float | None = None
    kept: float | None = None  # the share kept, or the fraction lost
    bound: float | None = None  # the least that is kept, or the most that is lost, with the confidence asked
    difference: tuple[float, float, float] | None = None  # of the accuracy, and its 95 % interval
    changed: int | None = None  # answers
    first_changed: tuple[str, ...] = ()  # the samples, by what a user knows them by
    moved: float | None = None  # how far outputs moved from float's, as the task measures it
    size_bytes: int = 0
    ms: Mapping[int, float] = field(default_factory=dict)  # of one sample, by the number of threads
    kernels: Kernels | None = None
    suspects: tuple[Any, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return {
            "file": self.name,
            "runtime": self.runtime,
            "outcome": self.outcome,
            "verdict": self.verdict,
            "accuracy": self.accuracy,
            "kept": self.kept,
            "bound": self.bound,
            "difference": None
            if self.difference is None
            else dict(zip(("mean", "low", "high"), self.difference, strict=True)),
            "changed": self.changed,
            "first_changed": list(self.first_changed),
            "moved": self.moved,
            "size_bytes": self.size_bytes,
            "ms": {str(threads): ms for threads, ms in self.ms.items()},
            "kernels": None if self.kernels is None else self.kernels.to_json(),
            "suspects": [each.to_json() for each in self.suspects],
        }


@dataclass(frozen=True)
class Verdict:
    """Quantised files beside their float file: which keep the target, how fast and how large they are."""

    reference: JudgedFile  # the float file
    files: tuple[JudgedFile, ...]
    target: str
    confidence: float
    samples: int
    task: str
    agreement: bool = False  # there were no labels: accuracy is agreement with the float file
    length: int | None = None  # of the sequence that was timed, where any will do
    notes: tuple[str, ...] = ()

    @property
    def exit_code(self) -> int:
        """0 where all keep the target, 3 where some are not proven to, 1 where some miss it or do not run."""
        codes = {EXIT_CODES[each.outcome] for each in self.files}
        return 1 if 1 in codes else max(codes, default=0)

    def ratio(self, file: JudgedFile, threads: int) -> float | None:
        """The time of `file` over that of the float file."""
        if threads not in file.ms or threads not in self.reference.ms:
            return None
        return file.ms[threads] / self.reference.ms[threads]

    def __repr__(self) -> str:
        lines = [f"Verdict: {self.target} of {self.reference.name} on {self.samples:,} samples"]
        for each in self.files:
            ratio = self.ratio(each, 1)
            time = "" if ratio is None else f", {ratio:.2f} of the time"
            lines.append(f"  {each.name}: {each.verdict}{time}, {megabytes(each.size_bytes)}")
        return "\n".join(lines)

    def to_json(self) -> dict[str, Any]:
        return {
            "target": self.target,
            "confidence": self.confidence,
            "samples": self.samples,
            "task": self.task,
            "agreement": self.agreement,
            "length": self.length,
            "float": self.reference.to_json(),
            "files": [each.to_json() for each in self.files],
            "exit_code": self.exit_code,
            "notes": list(self.notes),
        }
