"""How the operands of a layer are held."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..errors import PlanError

if TYPE_CHECKING:
    from .layer import Layer

FLOAT_BITS = 16  # what a value left in float counts as, in sizes and in latency classes


@dataclass(frozen=True)
class Format:
    """Bits of the weights and of the activations; None means left in float.

    >>> Format.parse("int8") == Format(8, 8)
    True
    >>> Format.parse("w4a16g128").name
    'w4a16g128'
    >>> Format.parse("w4a4").name
    'int4'
    >>> Format.parse("w8a8d") == Format(8, 8, dynamic=True)
    True
    """

    weight_bits: int | None = None
    activation_bits: int | None = None
    group_size: int | None = None  # weights share a scale in runs of this length along the input
    dynamic: bool = False  # activations take their range from each sample as it runs: nothing is calibrated

    def __post_init__(self) -> None:
        for bits in (self.weight_bits, self.activation_bits):
            if bits is not None and not 2 <= bits <= 8:
                raise PlanError(f"format bits must be 2 to 8, or 16 for float: got {bits}")
        if self.group_size is not None and (self.group_size < 1 or self.weight_bits is None):
            raise PlanError("a group size must be at least 1 and needs weight bits, as in w4a16g128")
        if self.weight_bits is None and self.activation_bits is not None:
            raise PlanError("activations are rounded only together with weights")
        if self.dynamic and (self.weight_bits, self.activation_bits, self.group_size) != (8, 8, None):
            raise PlanError("ranges are found at run time for 8-bit operands alone: use w8a8d")

    @property
    def name(self) -> str:
        if self.is_float:
            return "float"
        if self.group_size is None and self.weight_bits == self.activation_bits and not self.dynamic:
            return f"int{self.weight_bits}"
        group = f"g{self.group_size}" if self.group_size else ""
        ranges = "d" if self.dynamic else ""
        return f"w{self.weight_bits}a{self.activation_bits or FLOAT_BITS}{ranges}{group}"

    @property
    def is_float(self) -> bool:
        return self.weight_bits is None

    def rounds(self, layer: Layer) -> bool:
        """Whether it rounds anything in `layer`.

        Weight-only formats leave a matmul of activations alone, dynamic ones all but linear layers and
        embeddings.
        """
        if self.is_float or (self.dynamic and layer.kind not in ("linear", "embedding")):
            return False
        return layer.weight_shape is not None or self.has_ranges

    @property
    def has_ranges(self) -> bool:
        """Whether activations are rounded within ranges that were calibrated."""
        return self.activation_bits is not None and not self.dynamic

    @property
    def stored_bits(self) -> int:
        """Bits that one weight occupies."""
        return self.weight_bits or FLOAT_BITS

    def size_bytes(self, layer: Layer) -> float:
        """What the weights of `layer` occupy, with the scales of groups and of the rows of embeddings.

        A scale counts as any value in float does; that of a whole channel is not counted, as in the paper.
        """
        return (layer.weights * self.stored_bits + self._scales(layer) * FLOAT_BITS) / 8

    def _scales(self, layer: Layer) -> float:
        if self.is_float or layer.weight_shape is None:
            return 0
        if any(place.signature.kind == "embedding" for place in layer.places):
            return layer.weights / layer.weight_shape[-1]
        if self.group_size is None:
            return 0
        first = layer.places[0].signature
        inputs, taps = first.input[-1], 1
        if first.is_convolution:
            inputs, taps = first.input[1] // first.groups, math.prod(layer.weight_shape[2:])
        return layer.weights / (taps * min(self.group_size, inputs))

    @property
    def compute_bits(self) -> int:
        """Bits that decide which kernel runs: those of the larger operand."""
        return max(self.weight_bits or FLOAT_BITS, self.activation_bits or FLOAT_BITS)

    @classmethod
    def parse(cls, name: str) -> Format:
        """The format called `name`: float, int8, int4, or by rule w4a16, w4a8, w8a8d, w4a16g128 …"""
        if name == "float":
            return FLOAT
        if match := re.fullmatch(r"int(\d+)", name):
            bits = int(match[1])
            return cls(bits, bits)
        if match := re.fullmatch(r"w(\d+)a(\d+)(d?)(?:g(\d+))?", name):
            weight, activation = (None if int(b) == FLOAT_BITS else int(b) for b in match.groups()[:2])
            return cls(weight, activation, int(match[4]) if match[4] else None, bool(match[3]))
        raise PlanError(
            f"unknown format '{name}': use float, int8, int4, w8a8d, or w<bits>a<bits>[g<group>] such as "
            "w4a16"
        )

    def __str__(self) -> str:
        return self.name


FLOAT = Format()
INT8 = Format(8, 8)
INT4 = Format(4, 4)
DYNAMIC = Format(8, 8, dynamic=True)


def high_to_low(formats: Iterable[Format]) -> tuple[Format, ...]:
    """The formats once each, from the most to the fewest bits: of the kernel, then of the weights.

    >>> [str(f) for f in high_to_low(map(Format.parse, ["int4", "int8", "w4a16", "float", "int4"]))]
    ['float', 'w4a16', 'int8', 'int4']
    """
    return tuple(sorted(set(formats), key=rank))


def rank(format: Format) -> tuple[float, ...]:
    """Where a format stands between the most and the fewest bits."""
    # Activation bits and group size only break ties, so that the order never hangs on a set's.
    activation = 16 if format.activation_bits is None else format.activation_bits
    group = math.inf if format.group_size is None else format.group_size
    # A range of each sample's own loses less than one that serves them all: it stands above.
    return -format.compute_bits, -format.stored_bits, -activation, group, not format.dynamic
