"""One multiply of a network, and what a kernel must know of it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fnmatch import fnmatchcase


@dataclass(frozen=True)
class Signature:
    """The shapes of one multiply at batch one: layers with equal signatures take equal time.

    `operand` is the weight, or the second operand of a matmul of two activations.
    """

    kind: str
    input: tuple[int, ...]
    operand: tuple[int, ...]
    output: tuple[int, ...]
    stride: tuple[int, ...] = ()
    padding: tuple[int, ...] = ()
    dilation: tuple[int, ...] = ()
    groups: int = 1

    @property
    def is_convolution(self) -> bool:
        return self.kind in CONVOLUTIONS


CONVOLUTIONS = ("conv1d", "conv2d", "conv3d", "depthwise", "conv_transpose")
KINDS = (*CONVOLUTIONS, "linear", "grouped", "matmul", "embedding")


@dataclass(frozen=True)
class Place:
    """Where a layer multiplies: most layers have one place, a shared weight has several."""

    name: str
    signature: Signature
    macs: int  # multiply-adds per sample


@dataclass(frozen=True)
class Layer:
    name: str
    kind: str
    weight_shape: tuple[int, ...] | None  # None: both operands are activations
    places: tuple[Place, ...]

    @property
    def weights(self) -> int:
        return math.prod(self.weight_shape) if self.weight_shape is not None else 0

    @property
    def is_look_up(self) -> bool:
        """Whether it is an embedding that nothing multiplies by."""
        return all(place.signature.kind == "embedding" for place in self.places)

    @property
    def macs(self) -> int:
        return sum(place.macs for place in self.places)


@dataclass(frozen=True)
class Skipped:
    """Something of the network that stays in float whatever the plan says, and why."""

    name: str
    operator: str
    reason: str


def matching(pattern: str, layers: tuple[Layer, ...]) -> tuple[Layer, ...]:
    """The layers that `pattern` means: `first`, `last`, `kind:depthwise`, a name or a glob."""
    if pattern == "first":
        return layers[:1]
    if pattern == "last":
        return layers[-1:]
    if pattern.startswith("kind:"):
        return tuple(layer for layer in layers if layer.kind == pattern.removeprefix("kind:"))
    return tuple(layer for layer in layers if fnmatchcase(layer.name, pattern))
