"""The exporter of packed files, and the proof that its reader gives the judged model back."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import safetensors
import torch
from torch import Tensor

from ...network.program import Program
from ...sources.data import Samples
from ...values import Plan
from ..exporter import Exporter, Written
from ..proof import Proof, prove_exactly
from ..subject import Subject
from .read import Packed
from .write import float_bytes, write_packed


class Read:
    """A packed model, read back into a program of which every parameter was wiped out before."""

    def __init__(self, path: Path, program: Program) -> None:
        wiped = {
            node: torch.zeros_like(value)
            for node, value in program.contents.constants.items()
            if isinstance(value, Tensor)
        }
        self.model = Packed.read(path).of_program(program.with_constants(wiped))

    def run(self, inputs: Any) -> Any:
        return self.model.program.run(inputs, self.model.rounding)


def prove_packed(
    written: Written,
    subject: Subject,
    samples: Samples,
    *,
    batch_size: int = 64,
    progress: Callable[[int], None] = lambda count: None,
    timed_on: Any = None,
) -> Proof:
    """The file, read into the bare architecture, gives the judged outputs bit for bit."""
    model = Read(file_of(written.path), subject.program)
    sizes = written.size_bytes, float_bytes(subject.program)
    runtime = f"bitsect.load of safetensors {safetensors.__version__}"
    return prove_exactly(model, runtime, subject, samples, sizes, batch_size=batch_size, progress=progress)


def file_of(path: Path) -> Path:
    """The packed file at `path`, or in that folder."""
    return path / "quantized.safetensors" if path.is_dir() else path


def check(program: Program, plan: Plan, source: str) -> None:
    """Nothing: what can be judged can be packed."""


PACKED = Exporter(
    "codes and scales, which bitsect.load reads",
    None,
    (),
    check=check,
    write=write_packed,
    prove=prove_packed,
)
