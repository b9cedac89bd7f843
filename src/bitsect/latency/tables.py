"""Where latency tables come from: computed for a network, timed on this machine, or read from a file."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import BitsectError
from ..runs.progress import Progress
from ..values import Format, LatencyTable, Layer
from .a100 import table as a100

if TYPE_CHECKING:
    from ..network.program import Program

TIMED = ("onnxruntime", "openvino")  # runtimes whose kernels are timed on this machine
TABLES: dict[str, Callable[[Sequence[Layer]], LatencyTable]] = {"a100": a100}


def latency_table(spec: str | Path | LatencyTable | None, layers: Sequence[Layer]) -> LatencyTable | None:
    """The table that `spec` means for `layers`: a name in TABLES, otherwise a file."""
    if spec is None or isinstance(spec, LatencyTable):
        return spec
    if str(spec) in TABLES:
        return TABLES[str(spec)](layers)
    path = Path(spec)
    if not path.exists():
        raise BitsectError(f"{spec}: no such latency table: use {', '.join((*TABLES, *TIMED))}, or a file")
    return LatencyTable.read(path)


def network_table(
    spec: Any,
    program: Program,
    inputs: Any,
    formats: Sequence[Format],
    *,
    threads: int = 1,
    mixed: bool = True,
    progress: Progress | None = None,
) -> tuple[LatencyTable | None, tuple[str, ...]]:
    """The table that `spec` means for a network, and notes on it; runtimes are timed on its first sample."""
    if spec not in TIMED:
        return latency_table(spec, program.layers), ()
    from .timed import timed_table

    return timed_table(spec, program, inputs, formats, threads=threads, mixed=mixed, progress=progress)
