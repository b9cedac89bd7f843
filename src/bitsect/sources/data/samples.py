"""Samples in a fixed order, whatever holds them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
import torch
import torch.utils._pytree as pytree
from numpy.typing import NDArray
from torch import Tensor

from ...errors import DataError
from .sequences import Sequences

Inputs = Tensor | tuple[Tensor, ...] | dict[str, Tensor]


@dataclass(frozen=True)
class Batch:
    """Some samples, as a network takes them."""

    inputs: Inputs
    labels: Tensor | None
    indices: Tensor  # of the samples


class Source(Protocol):
    """What holds the samples: `Arrays` in memory, `Sequences` of any length, or a `Folder` of images."""

    @property
    def labels(self) -> Tensor | None: ...

    @property
    def lengths(self) -> Tensor | None:
        """The length of every sample, where they differ: then only samples of one length run together."""

    @property
    def groups(self) -> Tensor | None:
        """The number of what each sample is a part of, where one question is asked of several windows."""

    @property
    def held(self) -> int:
        """The bytes of inputs that stay in memory."""

    def __len__(self) -> int: ...

    def select(self, indices: Tensor) -> Source: ...

    def without_labels(self) -> Source: ...

    def check(self) -> None:
        """Refuse at once, where it costs little, what reading would refuse later."""

    def stream(self, parts: Sequence[Tensor]) -> Iterator[Inputs]:
        """The inputs of each part (a tensor of indices), in order."""

    def name(self, index: int) -> str:
        """What a user knows this sample by: its file, or its place among those that were given."""

    def contents(self) -> Iterator[Any]:
        """Everything that decides what is read, as buffers of bytes."""

    def digests(self) -> Iterator[bytes]:
        """What the inputs of every sample are known by, so that copies are found."""


@dataclass(frozen=True)
class Samples:
    """Inputs, and labels if there are any, in a fixed order.

    `load_samples(samples.spec, **samples.options)` gives the same samples in another process,
    unless they were given as Python objects.
    """

    source: Source
    spec: str
    options: Mapping[str, Any] = field(default_factory=dict)  # plain values, ready for JSON
    copies: int = 0  # samples that were left out, being copies of others
    families: Tensor | None = None  # the number of what may be wrong together, of each sample
    floats: torch.dtype | None = None  # what floating-point inputs are made for the network at hand

    def __len__(self) -> int:
        return len(self.source)

    def __repr__(self) -> str:
        labels = "without labels" if self.labels is None else "with labels"
        return f"Samples: {len(self):,} of {self.spec}, {labels}"

    @property
    def labels(self) -> Tensor | None:
        return self.source.labels

    @property
    def groups(self) -> Tensor | None:
        """The number of the question that each sample is a window of; None where a sample is a whole."""
        return self.source.groups

    @property
    def count(self) -> int:
        """What accuracy is counted in: samples, or questions where samples are windows of them."""
        groups = self.groups
        return len(self) if groups is None else len(torch.unique(groups))

    def select(self, indices: Tensor) -> Samples:
        """The samples of these indices; where they are windows, those of the questions of these indices."""
        chosen = windows_of(self.groups, indices)
        families = None if self.families is None else self.families[chosen]
        return replace(self, source=self.source.select(chosen), families=families)

    @property
    def counted_families(self) -> NDArray[np.int64] | None:
        """The family of everything that accuracy is counted in: of each sample, or of each question."""
        if self.families is None:
            return None
        families = self.families.numpy()
        if self.groups is None:
            return families
        _, first = np.unique(self.groups.numpy(), return_index=True)
        found: NDArray[np.int64] = families[first]
        return found

    def at_length(self, length: int) -> Samples:
        """Sequences filled up to one length, for a network that takes no other; others as they are."""
        if not isinstance(self.source, Sequences):
            return self
        over = (self.source.sizes > length).nonzero().flatten()
        if len(over):
            raise DataError(
                f"{self.name(int(over[0]))} has {int(self.source.sizes[over[0]])} tokens, the network was "
                f"captured with {length}: pass [max_length={length}] to cut texts"
            )
        return replace(self, source=replace(self.source, fixed=length))

    def name(self, index: int) -> str:
        """What a user knows this sample by: its file, or its place among those that were given."""
        return self.source.name(index)

    def inputs(self, indices: slice | Tensor) -> Inputs:
        return self._cast(next(self.source.stream([torch.arange(len(self))[indices]])))

    def _cast(self, inputs: Inputs) -> Inputs:
        if self.floats is None:
            return inputs

        def cast(leaf: Tensor) -> Tensor:
            return leaf.to(self.floats) if leaf.is_floating_point() else leaf

        found: Inputs = pytree.tree_map_only(Tensor, cast, inputs)
        return found

    def typical(self) -> Inputs:
        """The inputs of one sample to time a network on: the first, of several lengths the middle one."""
        lengths = self.source.lengths
        index = 0 if lengths is None else int((lengths == lengths.median()).nonzero()[0])
        return self.inputs(slice(index, index + 1))

    def parts(self, batch_size: int) -> list[Tensor]:
        """The indices of every batch: in order or, where lengths differ, those of one length together.

        So nothing is ever padded. Batches of several lengths come in a seeded random order, which makes
        the first of them a fair draw of all.
        """
        everything, lengths = torch.arange(len(self)), self.source.lengths
        if lengths is None:
            return list(torch.split(everything, batch_size))
        found = [
            part
            for length in torch.unique(lengths)
            for part in torch.split(everything[lengths == length], batch_size)
        ]
        order = torch.randperm(len(found), generator=torch.Generator().manual_seed(0))
        return [found[index] for index in order.tolist()]

    def batches(self, batch_size: int) -> Iterator[Batch]:
        """All samples in their batches, of which some may be smaller."""
        parts = self.parts(batch_size)
        for indices, inputs in zip(parts, self.source.stream(parts), strict=True):
            yield Batch(self._cast(inputs), None if self.labels is None else self.labels[indices], indices)

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


def windows_of(groups: Tensor | None, indices: Tensor) -> Tensor:
    """The samples that belong to the questions `indices`, in their order; without groups, `indices`."""
    if groups is None:
        return indices
    place = torch.full((int(groups.max()) + 1,), -1)
    place[torch.unique(groups)[indices]] = torch.arange(len(indices))
    wanted = place[groups]
    chosen = (wanted >= 0).nonzero().flatten()
    return chosen[torch.argsort(wanted[chosen], stable=True)]
