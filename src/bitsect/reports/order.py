"""An order of layers in which those that hurt together stand together."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def seriated(table: NDArray[np.floating[Any]]) -> list[int]:
    """The rows of a symmetric table by its Fiedler vector: like stands by like.

    Entries below zero and unknown ones are no likeness; the vector belongs to the second eigenvalue of the
    normalised Laplacian, and its sign is that which keeps the first row in the first half.

    >>> table = np.array([[0, 0, 9, 0.1], [0, 0, 0.2, 8], [9, 0.2, 0, 0], [0.1, 8, 0, 0]])
    >>> seriated(table)
    [0, 2, 1, 3]
    """
    count = len(table)
    if count < 3:
        return list(range(count))
    likeness = np.maximum(np.nan_to_num(np.asarray(table, np.float64), posinf=0.0), 0.0)
    np.fill_diagonal(likeness, 0.0)
    peak = likeness.max()
    if peak <= 0:
        return list(range(count))
    likeness = np.sqrt(likeness / peak) + 1e-6  # so that a few strong pairs do not hide the rest
    np.fill_diagonal(likeness, 0.0)
    root = np.sqrt(likeness.sum(axis=1))
    laplacian = np.eye(count) - likeness / np.outer(root, root)
    vector = np.linalg.eigh(laplacian)[1][:, 1] / root
    if vector[0] > np.median(vector):
        vector = -vector
    return [int(row) for row in np.argsort(vector.round(9), kind="stable")]
