"""The damage at which plans begin to fail, learnt from those that were judged."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray

Numbers = NDArray[np.float64]

LEAST = 1e-300  # a damage of nothing has a logarithm too
NOTHING = 1e-6  # as a share of the largest damage
SPREADS = np.array([0.15, 0.3, 0.6])  # of log(damage) between plans that just pass and just fail
CURVED = 0.4  # how far the logarithm of what is lost may be off, as a share of how far it is from the limit
REACH, STEPS = 3.0, 241  # how far beyond what is likely limits are thought of, and how many of them


@dataclass(frozen=True)
class Limit:
    """What is known of the limit, as weights of many possible ones.

    A plan of damage D passes with the probability σ(1.7 (log limit − log D) / spread): accuracy on a
    few hundred samples is noisy, and by how much is learnt as well. A plan that loses r times what
    is allowed says more than that it failed: what is lost is about in proportion to the damage, so
    that the limit is near D / r.
    """

    limits: Numbers  # logarithms, [L]
    weights: Numbers  # [spreads, L], their sum 1

    @classmethod
    def learnt(cls, damage: ArrayLike, passed: ArrayLike, lost: ArrayLike) -> Limit:
        """From the damage of plans, whether each passed, and what it lost over what was allowed."""
        known = np.array([damage, passed, lost], dtype=np.float64)
        told = known[0] > NOTHING * known[0].max()  # plans that do next to no damage say nothing of a limit
        does, passes, share = known[:, told] if told.any() else known
        seen, sign = np.log(np.maximum(does, LEAST)), np.where(passes > 0, 1.0, -1.0)
        far = np.log(np.where(share > 0, share, 1.0))
        likely = np.concatenate([seen, seen - far])
        limits = np.linspace(likely.min() - REACH, likely.max() + REACH, STEPS)
        margin = limits[:, None] - seen
        logs = np.zeros((len(SPREADS), STEPS))
        for row, spread in enumerate(SPREADS):
            deviation = np.hypot(spread, CURVED * far)
            near = -0.5 * ((margin + far) / deviation) ** 2 - np.log(deviation)
            logs[row] = _log_chance(sign * margin, spread).sum(axis=1) + near[:, share > 0].sum(axis=1)
        weights = np.exp(logs - logs.max())
        return cls(limits, weights / weights.sum())

    def chance(self, damage: Numbers) -> Numbers:
        """P that a plan of this predicted damage passes."""
        seen = np.log(np.maximum(damage, LEAST))
        return np.asarray(np.interp(seen, self.limits, self._chances))

    @cached_property
    def _chances(self) -> Numbers:
        """P that a plan passes whose damage is each of the limits."""
        found = np.zeros(len(self.limits))
        for spread, weights in zip(SPREADS, self.weights, strict=True):
            found += np.exp(_log_chance(self.limits - self.limits[:, None], spread)) @ weights
        return found


def _log_chance(margin: Numbers, spread: float) -> Numbers:
    return np.asarray(-np.logaddexp(0.0, -1.7 * margin / spread))
