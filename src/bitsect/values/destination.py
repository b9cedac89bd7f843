"""Where a model will run: what is rounded there, which formats pay, how it is timed and written."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import OptionError
from ..names import unknown
from .format import DYNAMIC, INT4, INT8, Format
from .goal import Goal
from .options import given
from .placement import ONNXRUNTIME, PAPER, Placement
from .settings import Settings

# In a runtime for processors: no kernel takes 4-bit codes of values; weight-only ones pay for few rows.
CPU_FORMATS = (INT8, Format(8, None), Format(4, None, 128))
ONNXRUNTIME_FORMATS = (DYNAMIC, *CPU_FORMATS)  # it alone finds ranges as the file says, for each run
DEFAULT, BITS = "onnxruntime", "bits"  # where nothing is said; where latencies are of a table, or none


@dataclass(frozen=True)
class Destination:
    """What follows from where a model will run; whatever a user asks for goes before it."""

    name: str
    about: str
    placement: Placement
    formats: tuple[Format, ...] | None = (INT8, INT4)  # None: those of its latency table
    latency: str | None = None  # a source of latency tables, or a file
    runtime: str | None = None  # in which its files run, and are timed on this machine
    form: str | None = None  # in which its files are written; None where there are none

    def in_words(self, *, by_table: bool) -> str:
        """What is known of it, after "for NAME: "; `by_table`: latencies of a table were asked for."""
        return "latencies are those of a table" if by_table and self.name == BITS else self.about

    def complete_goal(self, goal: Goal) -> Goal:
        """`goal` with what follows from the destination where nothing else was asked for."""
        follows: dict[str, Any] = {} if self.latency is None else {"latency": self.latency}
        if self.formats is not None:
            follows["formats"] = self.formats
        return Goal(**{**follows, **given(goal), "destination": self.name})

    def complete_settings(self, settings: Settings) -> Settings:
        """The settings of a new run: values are rounded as the destination has it, if not told otherwise.

        Where a runtime has a kernel for them, embeddings are layers like all others.
        """
        follows = {"placement": self.placement.name, "embeddings": self.runtime is not None}
        return Settings(**{**follows, **given(settings)})


DESTINATIONS = {
    each.name: each
    for each in (
        Destination(
            "onnxruntime",
            "ONNX Runtime on this machine, whose kernels are timed here",
            ONNXRUNTIME,
            ONNXRUNTIME_FORMATS,
            latency="onnxruntime",
            runtime="onnxruntime",
            form="onnxruntime",
        ),
        Destination(
            "openvino",
            "OpenVINO on this machine, whose kernels are timed here",
            ONNXRUNTIME,
            CPU_FORMATS,
            latency="openvino",
            runtime="openvino",
            form="openvino",
        ),
        Destination("a100", "an A100 by a formula fitted to the paper's totals", PAPER, latency="a100"),
        Destination(BITS, "bits are counted, nothing is timed", PAPER),
        Destination("portable", "plain ONNX, 4-bit tensors packed; nothing is timed", PAPER, form="portable"),
    )
}
WRITTEN = tuple(name for name, each in DESTINATIONS.items() if each.form is not None)


def destination_named(name: str | Path) -> Destination:
    """The destination called `name`; or the device of a latency table, if that is a file.

    >>> destination_named("onnxruntime").placement.name
    'onnxruntime'
    """
    if str(name) in DESTINATIONS:
        return DESTINATIONS[str(name)]
    if Path(name).is_file():
        return Destination(str(name), "the device of that latency table", PAPER, None, latency=str(name))
    if str(name).endswith(".json"):
        raise OptionError(f"{name}: no such latency table: `bitsect import-latency` makes one")
    raise unknown("destination", str(name), [*DESTINATIONS, "FILE.json"])


def check_written(name: str, names: Collection[str] = WRITTEN) -> Destination:
    """The destination called `name`, if files can be written for it."""
    if name not in names:
        raise unknown("destination", name, names)
    return DESTINATIONS[name]
