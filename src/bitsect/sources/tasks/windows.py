"""Several windows of one long text: its answer is that of the window which is surest."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


def join_windows(scores: Array, weights: Array, groups: Array, windows: Mapping[int, int]) -> Array:
    """The score of every question: that of its window of largest weight, the first of equals.

    A question counts once all its `windows` are there, in the order in which they become complete.

    >>> join_windows(np.array([0.0, 1.0, 0.5]), np.array([2.0, 3.0, 1.0]), np.array([7, 7, 9]), {7: 2, 9: 2})
    array([1.])
    """
    best: dict[int, int] = {}
    seen: dict[int, int] = {}
    found = []
    for index, group in enumerate(groups.tolist()):
        if group not in best or weights[index] > weights[best[group]]:
            best[group] = index
        seen[group] = seen.get(group, 0) + 1
        if seen[group] == windows[group]:
            found.append(scores[best[group]])
    return np.array(found)
