"""What was timed on one machine, kept in the user's cache folder and shared between runs."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from ..errors import BitsectError
from ..files import read_json
from ..values import Format
from .machine import Machine, cache_folder

VERSION = 4  # counts up when kernels are cut out or called otherwise than before


@dataclass(frozen=True)
class Time:
    """The least time of a kernel with the spread of its repetitions; or why it does not run here."""

    ms: float | None
    spread_ms: float = 0.0
    why: str | None = None


@dataclass
class Timings:
    """Rows by kernel and format; times of whole models by network and plan.

    All are as long as they would be with the reference kernel at its best (see `clock`): what was timed
    while the machine was busy stands beside what was timed when it was not.
    """

    machine: Machine
    rows: dict[str, dict[Format, Time]] = field(default_factory=dict)
    wholes: dict[str, dict[str, float]] = field(default_factory=dict)
    reference_ms: float = math.inf  # the least that the reference was ever seen to take here

    def at_best(self, reference_ms: float) -> None:
        """Let all be as with a reference that was seen to take less than ever before."""
        if reference_ms >= self.reference_ms:
            return
        by = reference_ms / self.reference_ms if math.isfinite(self.reference_ms) else 1.0
        self.reference_ms = reference_ms
        self.rows = {
            key: {f: replace(t, ms=t.ms and t.ms * by, spread_ms=t.spread_ms * by) for f, t in row.items()}
            for key, row in self.rows.items()
        }
        self.wholes = {key: {plan: ms * by for plan, ms in row.items()} for key, row in self.wholes.items()}

    @property
    def path(self) -> Path:
        return cache_folder() / f"{self.machine.key}.json"

    @classmethod
    def of(cls, machine: Machine, say: Callable[[str], None] = lambda note: None) -> Timings:
        """What is known of a machine; what is damaged is made again, and that is said."""
        timings = cls(machine)
        if not timings.path.exists():
            return timings
        try:
            data = read_json(timings.path, what="file of timings")
            if not isinstance(data, dict) or data.get("machine") != asdict(machine):
                raise BitsectError(f"{timings.path}: not the timings of {machine}")
            if data.get("version") != VERSION:
                raise BitsectError(f"{timings.path}: written by another version of bitsect")
            rows = {key: _row(row) for key, row in data["rows"].items()}
            wholes = {key: {plan: _ms(ms) for plan, ms in row.items()} for key, row in data["wholes"].items()}
            reference_ms = _ms(data["reference_ms"])
        except (BitsectError, KeyError, TypeError, ValueError, AttributeError) as error:
            say(f"the timings in {timings.path} are damaged and made again: {error}")
            return timings
        return cls(machine, rows, wholes, reference_ms)

    def write(self) -> None:
        """Write all, beside what others wrote meanwhile; a cache that cannot be written is no fault."""
        known = Timings.of(self.machine)
        known.at_best(self.reference_ms)
        self.at_best(known.reference_ms)
        for key, row in self.rows.items():
            known.rows[key] = {**known.rows.get(key, {}), **row}
        for key, times in self.wholes.items():
            known.wholes[key] = {**known.wholes.get(key, {}), **times}
        self.rows, self.wholes = known.rows, known.wholes
        data = {
            "bitsect": "timings",
            "version": VERSION,
            "machine": asdict(self.machine),
            "rows": {
                key: {format.name: [time.ms, time.spread_ms, time.why] for format, time in row.items()}
                for key, row in self.rows.items()
            },
            "wholes": self.wholes,
            "reference_ms": self.reference_ms,
        }
        part = self.path.with_name(f".{self.path.name}.{os.getpid()}.part")
        with suppress(OSError):
            part.parent.mkdir(parents=True, exist_ok=True)
            try:
                part.write_text(json.dumps(data), encoding="utf-8")
                part.replace(self.path)
            finally:
                part.unlink(missing_ok=True)

    def knows(self, key: str, format: Format) -> bool:
        return format in self.rows.get(key, {})


def _row(row: Mapping[str, Any]) -> dict[Format, Time]:
    times = {}
    for name, (ms, spread, why) in row.items():
        if why is not None and not isinstance(why, str):
            raise ValueError(f"{why!r} is no reason")
        times[Format.parse(name)] = Time(None if ms is None else _ms(ms), _ms(spread, least=-1.0), why)
    return times


def _ms(value: Any, least: float = 0.0) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not least < value < math.inf:
        raise ValueError(f"{value!r} is no time")
    return float(value)
