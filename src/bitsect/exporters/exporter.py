"""What an exporter brings: its packages, how it writes and how it proves; and what was written."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import ExportError
from ..network.program import Program
from ..values import Plan

if TYPE_CHECKING:
    from .onnx.form import Note
    from .ties import CodesOf, Key


@dataclass(frozen=True)
class Written:
    """A written model."""

    path: Path
    destination: str | None  # None where the model is held as it was judged, wherever it will run
    size_bytes: int  # with the file of its weights, where there is one
    notes: tuple[Note, ...] = ()
    codes: Mapping[Key, CodesOf] = field(default_factory=dict)  # where a runtime shows them


@dataclass(frozen=True)
class Exporter:
    """A way out: it writes a model, and proves that what it wrote is the model that was judged."""

    about: str  # what it writes, in a few words
    extra: str | None  # of the package, that brings `packages` along
    packages: tuple[str, ...]
    check: Callable[[Program, Plan, str], None]  # refuses at once what it cannot write; of which source
    write: Callable[..., Any]  # (subject, path, destination, metadata) → what was written
    prove: Callable[..., Any]  # (written, subject, samples) → the proof
    for_runtimes: bool = False  # whether files are made for a destination, under its placement


def check_calibrated(plan: Plan, what: str) -> None:
    """Refuse formats whose ranges are found at run time, for which only ONNX Runtime has kernels."""
    for name, format in plan.items():
        if format.dynamic:
            raise ExportError(
                f"layer '{name}' is {format}, for which {what} has no kernel: write it for onnxruntime; "
                "`bitsect search RUN --formats int8` finds a plan for others"
            )
