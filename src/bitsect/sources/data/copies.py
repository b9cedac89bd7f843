"""Samples that are given more than once: a copy proves nothing that the first has not proven."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from .arrays import Arrays
from .digests import digests_of

if TYPE_CHECKING:
    from .samples import Samples

NEAR = 1e-3  # of the usual distance between neighbours: what lies nearer to a sample is a copy of it
MOST = 2048  # samples that tell the usual distance
DIRECTIONS = 16  # distances of projections on so many random directions are those of the samples, roughly
AT_ONCE = 1 << 24  # values that are projected at once


def fresh(samples: Samples, seen: Samples) -> Tensor:
    """The indices of the samples whose inputs are not among those `seen`, each input once.

    Inputs in floating point need not be equal: the last digits of a copy may be others. Windows of longer
    texts all count as fresh: what is counted there are questions.
    """
    if samples.groups is not None:
        return torch.arange(samples.count)
    known, first = set(seen.source.digests()), dict[bytes, int]()
    for index, digest in enumerate(samples.source.digests()):
        if digest not in known:
            first.setdefault(digest, index)
    left = torch.tensor(list(first.values()), dtype=torch.int64)
    return left[~_near(samples.select(left), [seen], among_themselves=True)] if len(left) else left


def seen_before(samples: Samples, *seen: Samples) -> int:
    """How many of the samples have inputs that are among those `seen`, up to their last digits."""
    known = {digest for others in seen for digest in others.source.digests()}
    same = torch.tensor([digest in known for digest in samples.source.digests()])
    return int((same | _near(samples, seen)).sum())


def _near(samples: Samples, seen: Sequence[Samples], *, among_themselves: bool = False) -> Tensor:
    """Which samples lie far nearer to one that was seen, or to one before them, than neighbours do.

    What is near is told by those that were seen: a thousandth of the usual distance to a nearest neighbour.
    So one-hot inputs, tables of any units and points on a fine grid are told apart. Only arrays in memory
    are looked at: tokens and files of images have no last digits.
    """
    held = [each.source.tensors for each in (*seen, samples) if isinstance(each.source, Arrays)]
    shapes = [[(n, t.is_floating_point(), t.shape[1:]) for n, t in each.items()] for each in held]
    floats = [name for name, is_float, _ in shapes[-1] if is_float] if shapes else []
    if not floats or len(held) <= len(seen) or any(shape != shapes[0] for shape in shapes):
        return torch.zeros(len(samples), dtype=torch.bool)
    first = sum(map(len, seen))
    points = torch.stack([_projected([each[name] for each in held]) for name in floats]).sum(0)
    few = torch.unique(points[:first][:MOST], dim=0)
    apart = torch.cdist(few, few, compute_mode="donot_use_mm_for_euclid_dist").fill_diagonal_(math.inf)
    tolerance = NEAR * float(apart.amin(1).median()) if len(few) > 1 else 0.0
    rest = [{name: t for name, t in each.items() if name not in floats} for each in held]
    if rest[-1]:  # must be equal: samples that differ there are moved far apart
        ranks = dict[bytes, int]()
        numbers = [ranks.setdefault(digest, len(ranks)) for each in rest for digest in digests_of(each)]
        points[:, 0] += torch.tensor(numbers) * (10 * float(points.abs().max()) + 1)
    order = points[:, 0].argsort(stable=True)
    found = torch.zeros(len(points), dtype=torch.bool)
    for step in range(1, len(points)):  # neighbours along the first direction, next but one, …
        before, after = order[:-step], order[step:]
        close = points[after, 0] - points[before, 0] <= tolerance
        if not close.any():
            break
        one, other = before[close], after[close]
        one, other = torch.minimum(one, other), torch.maximum(one, other)
        near = (points[one] - points[other]).norm(dim=1) <= tolerance
        found[other[near & (among_themselves | (one < first))]] = True
    return found[first:]


def _projected(tensors: Sequence[Tensor]) -> Tensor:
    """Samples on a few random directions, every value in units of the range at its place among the first."""
    rows = [tensor.reshape(len(tensor), -1) for tensor in tensors]
    wide = torch.promote_types(tensors[0].dtype, torch.float32)
    least, most = rows[0].amin(0).to(wide), rows[0].amax(0).to(wide)
    # Places that hardly change count little, but are not blown up.
    units = (most - least).clamp(min=0.01 * float(most.max() - least.min()))
    units = torch.where(units > 0, units, 1)
    generator = torch.Generator().manual_seed(0)
    directions = torch.randn(len(units), DIRECTIONS, generator=generator)
    parts = (part for each in rows for part in torch.split(each, max(1, AT_ONCE // len(units))))
    return torch.cat([((part.to(wide) - least) / units).float() @ directions for part in parts]).double()
