"""Samples of a run in two parts: those it searches on, and those that nothing but a promise looks at."""

from __future__ import annotations

import torch

from ..errors import DataError
from ..solve.confidence import split
from ..sources.data import Samples
from ..values import Settings


def parted(samples: Samples, settings: Settings) -> tuple[Samples, Samples | None]:
    """The samples to calibrate and search on, and those held back from both, if that is asked for."""
    if not settings.hold_out:
        return samples, None
    if samples.count < 2:
        raise DataError("holding samples out needs at least two: give more, or pass [confidence=none]")
    _check_families(samples, settings)
    parts = split(samples.count, settings.seed, samples.counted_families)
    searched, held = (samples.select(torch.from_numpy(part)) for part in parts)
    return searched, held


def _check_families(samples: Samples, settings: Settings) -> None:
    """Refuse samples that cannot be held out by families."""
    if settings.group_by is not None and samples.families is None:
        raise DataError(
            f"{samples.spec} has no columns to group by '{settings.group_by}': give a table, or a folder of "
            "images"
        )
    families = samples.counted_families
    if families is not None and len(set(families.tolist())) < 2:
        raise DataError(
            f"{samples.spec} is one group of samples, none of which can be held out: give more, or pass "
            "[confidence=none]"
        )
