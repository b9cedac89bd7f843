"""Ranks and their correlation, which task and reliability count alike."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def spearman(one: Array, other: Array) -> float:
    """The correlation of two orders, −1 … 1; 0 where one of them is no order at all.

    >>> spearman(np.array([1.0, 2.0, 3.0]), np.array([1.0, 4.0, 9.0]))
    1.0
    """
    a, b = (ranks - ranks.mean() for ranks in (ranked(one), ranked(other)))
    length = np.sqrt((a @ a) * (b @ b))
    return float(a @ b / length) if length else 0.0


def ranked(values: Array) -> Array:
    """The place of each value in the sorted row, equal values sharing the mean of theirs."""
    _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return (last - (counts - 1) / 2)[place]
