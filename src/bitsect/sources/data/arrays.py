"""Samples held in memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor

from ...errors import DataError
from .digests import digests_of
from .pixels import Pixels
from .samples import Inputs

LABELS = ("labels", "label")  # what labels are called among named inputs
SAME = "give all of them the same number"
GRAPH = (
    "the first axis of every input is that of the samples; stack the nodes and the edges of several graphs, "
    "and put the network inside one whose forward(x, edges) is "
    "torch.stack([net(*graph) for graph in zip(x, edges)])"
)
Form = Literal["tensor", "tuple", "dict"]  # how the network takes its inputs


@dataclass(frozen=True)
class Arrays:
    """Named tensors whose first dimension is the sample."""

    title: str  # what messages call them
    tensors: Mapping[str, Tensor]
    form: Form
    labels: Tensor | None
    pixels: Pixels | None  # how `x` is normalised when it is read, if it holds pixels
    origin: Tensor | None = None  # the indices before a draw, by which messages name a sample

    def __post_init__(self) -> None:
        lengths = {name: len(tensor) if tensor.ndim else 0 for name, tensor in self.tensors.items()}
        if self.labels is not None:
            lengths["y"] = len(self.labels) if self.labels.ndim else 0
        if len(set(lengths.values())) > 1:
            counts = ", ".join(f"'{name}' has {length}" for name, length in lengths.items())
            graph = self.form != "tensor" and len({lengths[name] for name in self.tensors}) > 1
            raise DataError(f"{self.title}: of samples {counts}: {GRAPH if graph else SAME}")
        if not any(lengths.values()):
            raise DataError(f"{self.title}: holds no samples: give at least one")

    @property
    def lengths(self) -> None:
        """All are of one shape."""

    @property
    def groups(self) -> None:
        """Each is a whole."""

    @property
    def held(self) -> int:
        return sum(tensor.nbytes for tensor in self.tensors.values())

    def __len__(self) -> int:
        return len(next(iter(self.tensors.values())))

    def select(self, indices: Tensor) -> Arrays:
        return replace(
            self,
            tensors={name: tensor[indices] for name, tensor in self.tensors.items()},
            labels=None if self.labels is None else self.labels[indices],
            origin=indices if self.origin is None else self.origin[indices],
        )

    def without_labels(self) -> Arrays:
        return replace(self, labels=None)

    def check(self) -> None:
        """Nothing: what labels may be only the task knows, and inputs are looked at as they are read."""

    def name(self, index: int) -> str:
        return f"{self.title}: sample {index if self.origin is None else int(self.origin[index])}"

    def stream(self, parts: Sequence[Tensor]) -> Iterator[Inputs]:
        for indices in parts:
            tensors = {name: tensor[indices] for name, tensor in self.tensors.items()}
            for name, tensor in tensors.items():
                if tensor.is_floating_point() and not tensor.isfinite().all():
                    self._refuse(~tensor.isfinite(), f"has NaN or infinity in '{name}': mend it", indices)
            if self.pixels is not None:
                tensors["x"] = self.pixels(tensors["x"])
            yield _formed(tensors, self.form)

    def contents(self) -> Iterator[Any]:
        yield f"{self.form} {self.pixels}".encode()
        labels = {} if self.labels is None else {"y": self.labels}
        for name, tensor in (*self.tensors.items(), *labels.items()):
            yield f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode()
            yield tensor.contiguous().reshape(-1).view(torch.uint8).numpy()

    def digests(self) -> Iterator[bytes]:
        return digests_of(self.tensors)

    def _refuse(self, bad: Tensor, why: str, indices: Tensor) -> None:
        """Raise for the first sample with anything bad; row i of `bad` is sample `indices[i]`."""
        rows = bad.reshape(len(bad), -1).any(1).nonzero().flatten()
        if len(rows):
            raise DataError(f"{self.name(int(indices[rows[0]]))} {why}")


def take_labels(named: dict[str, Any], title: str) -> Any:
    """The labels among named arrays, taken out of them; None if there are none."""
    found = [name for name in LABELS if name in named]
    if len(found) > 1:
        raise DataError(f"{title} holds {' and '.join(found)}: leave one out, or give (inputs, labels)")
    return named.pop(found[0]) if found else None


def make_arrays(
    name: str, tensors: Mapping[str, Tensor], form: Form, labels: Tensor | None, pixels: Pixels
) -> Arrays:
    """Checked arrays; a single uint8 input is an image, the only input that `pixels` may be given for."""
    if labels is not None and not labels.is_floating_point():
        labels = labels.to(torch.int64)
    if form != "tensor" or tensors["x"].dtype != torch.uint8:
        if pixels != Pixels():
            raise DataError(f"{name}: mean, std and scale are for images in uint8: leave them out")
        return Arrays(name, tensors, form, labels, None)
    shape = tuple(tensors["x"].shape)
    channels_first = len(shape) == 4 and shape[1] <= 4 < shape[3]
    if len(shape) not in (3, 4) or channels_first:
        raise DataError(f"{name}: uint8 inputs are images, N×H×W×C or N×H×W, not {shape}: transpose or cast")
    return Arrays(name, tensors, form, labels, pixels)


def _formed(tensors: dict[str, Tensor], form: Form) -> Inputs:
    if form == "tensor":
        return tensors["x"]
    return tensors if form == "dict" else tuple(tensors.values())
