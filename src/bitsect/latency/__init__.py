"""Where latency tables come from: the A100 formula, this machine, files of profilers."""

from ..solve.costs import bit_operations, cost, cost_table, describe, faster_formats, latency_ms
from ..values.budget import Budget
from .cutlass import import_cutlass
from .tables import TABLES, TIMED, latency_table, network_table

__all__ = [
    "TABLES",
    "TIMED",
    "Budget",
    "bit_operations",
    "cost",
    "cost_table",
    "describe",
    "faster_formats",
    "import_cutlass",
    "latency_ms",
    "latency_table",
    "network_table",
]
