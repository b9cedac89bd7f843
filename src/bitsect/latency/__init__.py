"""Where latency tables come from: the A100 formula, this machine, files of profilers."""

from .cutlass import import_cutlass
from .tables import TABLES, TIMED, latency_table, network_table

__all__ = ["TABLES", "TIMED", "import_cutlass", "latency_table", "network_table"]
