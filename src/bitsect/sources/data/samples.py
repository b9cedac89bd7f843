"""Samples in a fixed order, whatever holds them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor

from ...errors import DataError

Inputs = Tensor | tuple[Tensor, ...] | dict[str, Tensor]


@dataclass(frozen=True)
class Batch:
    """Some samples, as a network takes them."""

    inputs: Inputs
    labels: Tensor | None
    indices: Tensor  # of the samples
    rows: Tensor | None = None  # the sample of each row of `inputs`, where one spans several rows


class Source(Protocol):
    """What holds the samples: `Arrays` in memory, or a `Folder` of images."""

    @property
    def labels(self) -> Tensor | None: ...

    def __len__(self) -> int: ...

    def select(self, indices: Tensor) -> Source: ...

    def check(self) -> None:
        """Refuse at once, where it costs little, what reading would refuse later."""

    def stream(self, parts: Sequence[Tensor]) -> Iterator[Inputs]:
        """The inputs of each part (a tensor of indices), in order."""

    def name(self, index: int) -> str:
        """What a user knows this sample by: its file, or its place among those that were given."""

    def contents(self) -> Iterator[Any]:
        """Everything that decides what is read, as buffers of bytes."""


@dataclass(frozen=True)
class Samples:
    """Inputs, and labels if there are any, in a fixed order.

    `load_samples(samples.spec, **samples.options)` gives the same samples in another process,
    unless they were given as Python objects.
    """

    source: Source
    spec: str
    options: Mapping[str, Any] = field(default_factory=dict)  # plain values, ready for JSON

    def __len__(self) -> int:
        return len(self.source)

    @property
    def labels(self) -> Tensor | None:
        return self.source.labels

    def name(self, index: int) -> str:
        """What a user knows this sample by: its file, or its place among those that were given."""
        return self.source.name(index)

    def inputs(self, indices: slice | Tensor) -> Inputs:
        return next(self.source.stream([torch.arange(len(self))[indices]]))

    def batches(self, batch_size: int) -> Iterator[Batch]:
        """All samples in order; the last batch may be smaller."""
        parts = torch.split(torch.arange(len(self)), batch_size)
        for indices, inputs in zip(parts, self.source.stream(parts), strict=True):
            yield Batch(inputs, None if self.labels is None else self.labels[indices], indices)

    def fingerprint(self) -> str:
        """SHA-256 of the samples, their order and how they are normalised; not of where they lie."""
        digest = hashlib.sha256()
        for part in self.source.contents():
            digest.update(part)
        return digest.hexdigest()


def drawn(name: str, total: int, samples: int | None, seed: int) -> Tensor:
    """`samples` of `total` indices (all, if None) without replacement, in random order.

    Being shuffled, its first n are themselves a draw, whatever order the data lies in.
    """
    samples = total if samples is None else samples
    if not 1 <= samples <= total:
        raise DataError(f"{name}: {samples} samples asked for, it has {total}: ask for 1 to {total}")
    return torch.randperm(total, generator=torch.Generator().manual_seed(seed))[:samples]
