"""Wide rows kept as random sums of their entries, which keep inner products."""

from __future__ import annotations

import torch
from torch import Tensor

SKETCH_BYTES = 256e6  # what the sketches of all changes on one batch may take


class Sketch:
    """A random linear map from `width` numbers to `kept`, the same for the same seed.

    Every entry goes with a random sign to a random sum. Inner products stay right in the mean, and
    hundreds of samples average out the rest. Where everything fits nothing is summed.
    """

    def __init__(self, width: int, rows: int, seed: int) -> None:
        """For `rows` rows in all."""
        self.width = width
        self.kept = min(width, max(64, int(SKETCH_BYTES / 4 / rows)))
        generator = torch.Generator().manual_seed(seed)
        self._bucket = torch.randint(self.kept, (width,), generator=generator)
        self._sign = torch.randint(2, (width,), generator=generator).float() * 2 - 1

    def __call__(self, rows: Tensor) -> Tensor:
        """[rows, width] → [rows, kept]."""
        if self.kept == self.width:
            return rows
        return torch.zeros(len(rows), self.kept).index_add_(1, self._bucket, rows * self._sign)
