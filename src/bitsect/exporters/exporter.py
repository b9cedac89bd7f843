"""What an exporter brings: its packages, how it writes and how it proves."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..network.program import Program
from ..values import Plan


@dataclass(frozen=True)
class Exporter:
    """A way out: it writes a model, and proves that what it wrote is the model that was judged."""

    extra: str  # of the package, that brings `packages` along
    packages: tuple[str, ...]
    check: Callable[[Program, Plan], None]  # refuses at once what it cannot write
    write: Callable[..., Any]  # (subject, path, destination, metadata) → what was written
    prove: Callable[..., Any]  # (written, subject, samples) → the proof
