"""Memory: kept for the next batch while a run is open, and given back after it."""

from __future__ import annotations

import ctypes
import math
from functools import cache
from typing import Any

from ..network.program import Program
from ..values.settings import ROWS

# Of glibc's mallopt; see malloc.h.
M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_MAX = -1, -2, -4

TENSOR_BYTES = 64e6  # what the largest tensor of a batch may take: more is slower, not faster


@cache
def keep_freed_memory() -> None:
    """Let this process keep what it frees, instead of asking the system for it again at every layer.

    glibc gives large blocks back at once and gets them back page by page, all zeroed: for tensors of
    tens of megabytes that takes more time than the layers themselves. Other systems' allocators are
    left as they are.
    """
    if (libc := _glibc()) is not None:
        libc.mallopt(M_MMAP_MAX, 0)
        libc.mallopt(M_TRIM_THRESHOLD, 2**31 - 1)
        libc.mallopt(M_TOP_PAD, 2**20)


def give_memory_back() -> None:
    """Give the system all that is free."""
    if (libc := _glibc()) is not None:
        libc.malloc_trim(0)


def comfortable_rows(program: Program) -> int:
    """How many samples run at once: 64, or the power of two whose largest tensor stays within 64 MB."""
    largest = max(
        (
            max(math.prod(place.signature.input), math.prod(place.signature.output))
            for layer in program.layers
            for place in layer.places
        ),
        default=1,
    )
    fitting = max(1, int(TENSOR_BYTES / 4 / max(1, largest)))
    return int(min(ROWS, 1 << (fitting.bit_length() - 1)))


@cache
def _glibc() -> Any:
    try:
        libc = ctypes.CDLL(None)
        libc.gnu_get_libc_version  # noqa: B018 (another C library has no such function)
        return libc
    except (OSError, AttributeError, TypeError):
        return None
