"""Resources: what a run may use."""

from __future__ import annotations

import re
from typing import Any

from ..errors import OptionError
from .options import check_options, option, options
from .settings import MACHINE

UNITS = {"B": 1, "kB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}


@options
class Resources:
    """What a run may use: it decides how long a run takes, never what comes out of it.

    >>> Resources(memory="1.5GB").memory_bytes
    1500000000
    """

    workers: int | None = option(
        "Processes that share the work; default: this one alone.", MACHINE, default=None, type=int, least=1
    )
    ray: str | None = option(
        "Or those of a Ray cluster: auto (that of RAY_ADDRESS, else one of its own), or ray://HOST:PORT.",
        MACHINE,
        default=None,
    )
    memory: Any = option(
        "Memory that may be used, as 8GB; default: three quarters of what is free.",
        MACHINE,
        default=None,
        python="str | int | None",
    )

    def __post_init__(self) -> None:
        check_options(self)
        if self.ray is not None and self.ray != "auto" and not re.fullmatch(r"ray://[^\s/]+:\d+", self.ray):
            raise OptionError(f"ray '{self.ray}' is no cluster: pass auto, or ray://HOST:PORT")
        _ = self.memory_bytes

    @property
    def memory_bytes(self) -> int | None:
        """The limit that was asked for."""
        if self.memory is None:
            return None
        if isinstance(self.memory, int) and not isinstance(self.memory, bool) and self.memory > 0:
            return self.memory
        words = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kMGT]?B)", str(self.memory).strip())
        if words is None or float(words[1]) == 0:
            raise OptionError(f"memory '{self.memory}' is no size: pass one as 800MB or 16GB")
        return int(float(words[1]) * UNITS[words[2]])
