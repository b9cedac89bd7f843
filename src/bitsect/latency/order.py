"""Times of kernels that cannot all be true: another process ran while one of them was timed."""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import permutations

from ..values import Format

FASTER = 10.0  # times that a kernel is faster than one that has less to do
FORMATS = 16.0  # times that a kernel is faster in one format than in another
FLOOR_MS = 0.0005  # what the time of a kernel may be wrong by, however short it is

Kernel = tuple[str, Format]


def contradictions(ms: Mapping[Kernel, float]) -> set[frozenset[Kernel]]:
    """Pairs of kernels whose times go against each other.

    A kernel as large as another in every size should not be ten times faster in the same format, nor one
    kernel sixteen times faster in one format than in another.

    >>> int8, float_ = Format(8, 8), Format()
    >>> ms = {("gemm m384 n2 k384 b1", int8): 1e-4, ("gemm m384 n2 k384 b1", float_): 0.0345}
    >>> [len(pair) for pair in contradictions(ms)]
    [2]
    """
    by_kind: dict[str, list[tuple[tuple[int, ...], Kernel]]] = {}
    for key, format in ms:
        kind, sizes = _sizes(key)
        by_kind.setdefault(kind, []).append((sizes, (key, format)))
    found = set()
    for kernels in by_kind.values():
        for (large, fast), (small, slow) in permutations(kernels, 2):
            most = FORMATS if large == small else FASTER if fast[1] == slow[1] else None
            larger = all(a >= b for a, b in zip(large, small, strict=True))
            if larger and most is not None and most * (ms[fast] + FLOOR_MS) < ms[slow]:
                found.add(frozenset((fast, slow)))
    return found


def _sizes(key: str) -> tuple[str, tuple[int, ...]]:
    """What kernels must share to be compared, and the sizes that decide how much there is to do.

    >>> _sizes("conv2d 1x9x9x32 k16 3x3 s1 p1 d1 g1")
    ('conv2d 3x3 s1 p1 d1 g1', (1, 9, 9, 32, 16))
    >>> _sizes("gemm m384 n2 k1024 b1 at length 9")
    ('gemm m n k b at length 9', (384, 2, 1024, 1))
    """
    key, at, length = key.partition(" at length")
    kind, *words = key.split(" ")
    sizing = 2 if words[2:] and "x" in words[0] else len(words)
    sized = " ".join(words[:sizing])
    names = [re.sub(r"[\dx]+", "", word) for word in words[:sizing]] if sizing == len(words) else []
    shared = " ".join([kind, *names, *words[sizing:]]) + at + length
    return shared, tuple(map(int, re.findall(r"\d+", sized)))
