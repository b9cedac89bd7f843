"""A weight as a kernel takes it: codes and scales in its orientation, with batch norm folded in.

    γ/σ·(s·q)∗x  =  (s·|γ/σ| · sign(γ)·q)∗x

The codes stay what the rounding made of them, negated where γ is negative; where γ = 0 they become zeros.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...network.layout import Layout
from ...rounding.folding import Folded
from ...rounding.placements.integers import IntegerLayer
from ...rounding.weights import Codes

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class CodedWeight:
    """Integer codes and a scale for each of them."""

    codes: Array
    scales: Array

    @classmethod
    def of(cls, made: Codes, layout: Layout, folded: Folded) -> CodedWeight:
        """The codes of a weight with its batch norm folded in."""
        codes, scales = layout.to_kernels(made.codes), layout.to_kernels(made.scales)
        if folded.factor is not None:
            factor = folded.factor[:, None, None]
            codes, scales = codes * factor.sign().float(), (scales * factor.abs()).float()
        dead = scales == 0  # a factor of zero, or one too small for float32
        codes, scales = torch.where(dead, 0, codes), torch.where(dead, 1, scales)
        shape = made.codes.shape
        return cls(*(to_array(layout.from_kernels(part, shape)) for part in (codes, scales)))

    @classmethod
    def of_integer(cls, layer: IntegerLayer, layout: Layout) -> CodedWeight:
        """The codes that an integer kernel was judged with."""
        kernels = layout.to_kernels(layer.codes)
        scales = layout.from_kernels(layer.scales[:, None, None].expand_as(kernels), layer.codes.shape)
        return cls(to_array(layer.codes), to_array(scales))

    def turned(self, axes: tuple[int, ...]) -> CodedWeight:
        return CodedWeight(self.codes.transpose(axes), self.scales.transpose(axes))

    def squeezed(self) -> CodedWeight:
        """Without leading axes of length 1 beyond two."""
        extra = next(
            (axis for axis, size in enumerate(self.codes.shape[:-2]) if size > 1), self.codes.ndim - 2
        )
        shape = self.codes.shape[max(extra, 0) :]
        return CodedWeight(self.codes.reshape(shape), self.scales.reshape(shape))

    def scale_form(self) -> tuple[Array, dict[str, Any]]:
        """The scales as DequantizeLinear takes them: one, one per channel, or one per block along an axis."""
        scales = self.scales.astype(np.float32)
        runs = [_run(scales, axis) for axis in range(scales.ndim)]
        varying = [axis for axis, run in enumerate(runs) if run < scales.shape[axis]]
        if not varying:
            return scales.reshape(-1)[0], {}
        if len(varying) == 1:
            index = tuple(slice(None) if axis == varying[0] else 0 for axis in range(scales.ndim))
            return scales[index], {"axis": varying[0]}
        axis = int(np.argmax(runs))
        firsts = np.take(scales, range(0, scales.shape[axis], runs[axis]), axis)
        return firsts, {"axis": axis, "block_size": runs[axis]}


def folded_weight(weight: Tensor, layout: Layout, folded: Folded) -> Array:
    """A float weight times γ/σ of its channels."""
    assert folded.factor is not None
    kernels = layout.to_kernels(weight) * folded.factor[:, None, None]
    return to_array(layout.from_kernels(kernels.float(), weight.shape))


def to_array(tensor: Tensor) -> Array:
    return tensor.detach().cpu().numpy()


def _run(scales: Array, axis: int) -> int:
    """The longest block along `axis`, a divisor of its length, within which scales do not change."""
    moved = np.moveaxis(scales, axis, 0)
    length = len(moved)
    same = (moved[1:] == moved[:-1]).all(axis=tuple(range(1, moved.ndim)))
    if same.all():
        return length
    starts = np.flatnonzero(~same) + 1  # where scales change: the block divides all of these
    return int(np.gcd.reduce([length, *starts]))
