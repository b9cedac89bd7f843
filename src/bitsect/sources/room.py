"""What samples may take: looked up in the headers of their files, before anything is decoded."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ..errors import DataError

SHARE = 0.75  # of what is free, where no limit is given
LARGE = 2**20  # bytes: of less, shapes are compared once it is read
COPIES = 2  # samples are read, and then taken in a random order


@dataclass(frozen=True)
class Room:
    """The memory that may be used, and the shapes of a sample that the network takes, if they are fixed."""

    limit: int | None = None  # bytes, as asked for; else what is free counts
    takes: Mapping[str, Sequence[int]] = field(default_factory=dict)

    def check(self, title: str, size: float) -> None:
        """Refuse what takes more bytes than there are."""
        allowed = self.limit or SHARE * free_bytes()
        if size > allowed:
            limit = "[memory=] allows" if self.limit else "what may be used is"
            raise DataError(
                f"{title}: about {gigabytes(size)} of memory are needed, and {limit} {gigabytes(allowed)}: "
                "give fewer or smaller samples, or allow more with [memory=SIZE]"
            )

    def check_shape(self, title: str, name: str, shape: Sequence[int], size: float) -> None:
        """Refuse many bytes that are no input `name` of the network; a sample is of this `shape`."""
        takes = self.takes.get(name)
        if size > LARGE and takes is not None and math.prod(takes) != math.prod(shape):
            given, wanted = ("×".join(map(str, sizes)) or "one number" for sizes in (shape, takes))
            raise DataError(f"{title}: samples of '{name}' are {given}, the network takes {wanted}")


ANY = Room()


def free_bytes() -> float:
    """What is free on this machine, or for this group of processes; without an answer, all there could be."""
    found = [float("inf")]
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                found.append(1024.0 * int(line.split()[1]))
    except OSError:  # another system: half of what there is
        if hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
            found.append(0.5 * os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    try:
        group = Path("/sys/fs/cgroup")
        most, now = ((group / name).read_text().strip() for name in ("memory.max", "memory.current"))
        if most != "max":
            found.append(max(0.0, float(most) - float(now)))
    except (OSError, ValueError):  # no group, or one of another kind
        pass
    return min(found)


def gigabytes(size: float) -> str:
    return f"{size / 1e9:.2g} GB" if size >= 1e9 else f"{size / 1e6:.0f} MB"
