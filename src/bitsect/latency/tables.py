"""Where latency tables come from: computed for a network, or read from a file."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from ..errors import BitsectError
from ..values import LatencyTable, Layer
from .a100 import table as a100

TABLES: dict[str, Callable[[Sequence[Layer]], LatencyTable]] = {"a100": a100}


def latency_table(spec: str | Path | LatencyTable | None, layers: Sequence[Layer]) -> LatencyTable | None:
    """The table that `spec` means for `layers`: a name in TABLES, otherwise a file."""
    if spec is None or isinstance(spec, LatencyTable):
        return spec
    if str(spec) in TABLES:
        return TABLES[str(spec)](layers)
    path = Path(spec)
    if not path.exists():
        raise BitsectError(f"{spec}: no such latency table: use {', '.join(TABLES)}, or a file")
    return LatencyTable.read(path)
