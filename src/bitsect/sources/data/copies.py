"""Samples that are given more than once: a copy proves nothing that the first has not proven."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from hashlib import blake2b
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from .samples import Samples


def fresh(samples: Samples, seen: Samples) -> Tensor:
    """The indices of the samples whose inputs are not among those `seen`, each input once.

    Windows of longer texts all count as fresh: what is counted there are questions.
    """
    if samples.groups is not None:
        return torch.arange(samples.count)
    known, first = set(seen.source.digests()), dict[bytes, int]()
    for index, digest in enumerate(samples.source.digests()):
        if digest not in known:
            first.setdefault(digest, index)
    return torch.tensor(list(first.values()), dtype=torch.int64)


def seen_before(samples: Samples, *seen: Samples) -> int:
    """How many of the samples have inputs that are among those `seen`."""
    known = {digest for others in seen for digest in others.source.digests()}
    return sum(digest in known for digest in samples.source.digests())


def digests_of(tensors: Mapping[str, Tensor]) -> Iterator[bytes]:
    """What the inputs of every sample are known by; the first dimension is the sample."""
    rows = (
        tensor.reshape(len(tensor), -1).contiguous().view(torch.uint8).numpy() for tensor in tensors.values()
    )
    for parts in zip(*rows, strict=True):
        digest = blake2b(digest_size=16)
        for part in parts:
            digest.update(part)
        yield digest.digest()
