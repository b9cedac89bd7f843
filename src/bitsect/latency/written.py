"""A network as it is written to be timed, and which of its layers a runtime has kernels for."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..errors import CaptureError
from ..exporters.onnx.write import write_onnx
from ..exporters.subject import Subject
from ..network.operators import never_negative
from ..network.program import Program
from ..rounding.rounder import Rounder
from ..sources.tasks.task import task_named
from ..values import ONNXRUNTIME, Format, Layer, Place, Plan, Range, Ranges
from ..values.latency_table import gemm_shape


@dataclass(frozen=True)
class TimingModel:
    """A network that is written to be timed: its program, and a rounder for its runtime.

    How long a kernel takes hangs on shapes and types, not on values: any ranges will do that end before
    rectifiers do, as calibrated ones do, so that these are left to the rounding.
    """

    program: Program
    rounder: Rounder
    inputs: Any  # of one sample
    destination: str
    paths: dict[Plan, Path] = field(default_factory=dict)  # of what was written before

    @classmethod
    def of(cls, program: Program, inputs: Any, destination: str) -> TimingModel:
        _check_weights(program)
        table = {
            name: dict.fromkeys((8, 4), Range(1.0, all(map(never_negative, program.nodes_of(name)))))
            for name in program.tensors
        }
        ranges = Ranges("max", "auto", 100.0, 1, table)
        return cls(program, Rounder(program, ranges, ONNXRUNTIME, "nearest"), inputs, destination)

    def write(self, plan: Plan, path: Path) -> Path:
        if plan not in self.paths:
            subject = Subject(self.program, self.rounder, plan, task_named("classification"))
            self.paths[plan] = write_onnx(subject, path, self.destination).path
        return self.paths[plan]


def takes(layer: Layer, format: Format) -> bool:
    """Whether a runtime has a kernel for it: weight-only and dynamic ones are for linear layers."""
    return format.is_float or all(_has_kernel(place, format) for place in layer.places)


def _has_kernel(place: Place, format: Format) -> bool:
    kind = place.signature.kind
    if kind == "embedding":  # fewer bits are held in as many
        return format.weight_bits == 8 and format.group_size is None
    if format.has_ranges:
        return format.group_size is None
    return kind == "linear" and (format.dynamic or gemm_shape(place)[2] % (format.group_size or 1) == 0)


def _check_weights(program: Program) -> None:
    if program.device.type == "meta":
        raise CaptureError("the network has no weights, only shapes: it cannot be timed")
