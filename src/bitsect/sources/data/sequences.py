"""Samples of any length: token sequences, held side by side and read without padding."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from ...errors import DataError
from .digests import digests_of


@dataclass(frozen=True)
class Sequences:
    """Named rows of tokens. They are held at the length of the longest; beyond its own each is filled up.

    Samples of one length are read as long as they are. Where several lengths are asked for at once, as
    for an example, what the shorter ones are filled up with is masked.
    """

    title: str
    tensors: Mapping[str, Tensor]  # [samples, longest, …] each
    sizes: Tensor  # how long each sample is
    labels: Tensor | None
    places: Sequence[str]  # what messages call each sample: `line 7`
    groups: Tensor | None = None  # the question of each window
    fillers: Mapping[str, int] = field(default_factory=dict)  # what a shorter row is filled up with, if not 0
    fixed: int | None = None  # one length for all, where a network takes no other

    def __post_init__(self) -> None:
        if not len(self.sizes):
            raise DataError(f"{self.title}: holds no samples: give at least one")
        shortest = int(self.sizes.argmin())
        if not self.sizes[shortest]:
            raise DataError(f"{self.name(shortest)} has no token: leave it out")

    @property
    def lengths(self) -> Tensor | None:
        return self.sizes if self.fixed is None else None

    @property
    def held(self) -> int:
        return sum(tensor.nbytes for tensor in self.tensors.values())

    def __len__(self) -> int:
        return len(self.sizes)

    def select(self, indices: Tensor) -> Sequences:
        longest = int(self.sizes[indices].max()) if len(indices) else 0
        return replace(
            self,
            tensors={name: tensor[indices, :longest] for name, tensor in self.tensors.items()},
            sizes=self.sizes[indices],
            labels=None if self.labels is None else self.labels[indices],
            places=[self.places[index] for index in indices.tolist()],
            groups=None if self.groups is None else self.groups[indices],
        )

    def arrays(self) -> dict[str, Tensor]:
        """All that it holds as named tensors, from which `of` makes it again."""
        optional = {"labels": self.labels, "groups": self.groups}
        inputs = {f"input.{name}": tensor for name, tensor in self.tensors.items()}
        fillers = {f"filler.{name}": torch.tensor(value) for name, value in self.fillers.items()}
        return {
            **inputs,
            **fillers,
            "sizes": self.sizes,
            **{k: v for k, v in optional.items() if v is not None},
        }

    @classmethod
    def of(cls, arrays: Mapping[str, Tensor], title: str) -> Sequences:
        tensors = {name[6:]: value for name, value in arrays.items() if name.startswith("input.")}
        fillers = {name[7:]: int(value) for name, value in arrays.items() if name.startswith("filler.")}
        sizes, places = arrays["sizes"], [f"sample {number}" for number in range(len(arrays["sizes"]))]
        return cls(title, tensors, sizes, arrays.get("labels"), places, arrays.get("groups"), fillers)

    def without_labels(self) -> Sequences:
        return replace(self, labels=None)

    def check(self) -> None:
        """Nothing: whatever made the tokens has looked at every sample."""

    def name(self, index: int) -> str:
        return f"{self.title}: {self.places[index]}"

    def stream(self, parts: Sequence[Tensor]) -> Iterator[dict[str, Tensor]]:
        for indices in parts:
            length = self.fixed or int(self.sizes[indices].max())
            taken = {name: tensor[indices, :length] for name, tensor in self.tensors.items()}
            for name, tensor in taken.items():
                if missing := length - tensor.shape[1]:
                    rest = tensor.new_full((len(tensor), missing), self.fillers.get(name, 0))
                    taken[name] = torch.cat([tensor, rest], 1)
            yield taken

    def contents(self) -> Iterator[Any]:
        optional = {"y": self.labels, "groups": self.groups}
        yield f"{self.fixed}".encode()
        held = {**self.tensors, "sizes": self.sizes, **{k: v for k, v in optional.items() if v is not None}}
        for name, tensor in held.items():
            yield f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode()
            yield tensor.contiguous().reshape(-1).view(torch.uint8).numpy()

    def digests(self) -> Iterator[bytes]:
        for row, size in enumerate(self.sizes.tolist()):  # without what it is filled up with
            yield from digests_of({name: t[row : row + 1, :size] for name, t in self.tensors.items()})


def shown(mask: Tensor) -> slice:
    """The part of a row that its mask shows: from the first token to the last.

    >>> shown(torch.tensor([0, 1, 1, 0, 1, 0]))
    slice(1, 5, None)
    """
    inside = mask.nonzero().flatten()
    return slice(int(inside[0]), int(inside[-1]) + 1) if len(inside) else slice(0, 0)


def filled(rows: Sequence[Sequence[int] | Tensor], filler: int | float) -> Tensor:
    """Rows of several lengths as one tensor, each filled up to the longest.

    >>> filled([[1, 2], [3]], 0)
    tensor([[1, 2],
            [3, 0]])
    """
    return torch.nn.utils.rnn.pad_sequence(
        [torch.as_tensor(row) for row in rows], batch_first=True, padding_value=filler
    )
