"""Where values are rounded: a plan is judged under a placement."""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import PlanError


@dataclass(frozen=True)
class Placement:
    """`paper` rounds layer inputs; `onnxruntime` rounds what its integer kernels need rounded.

    With `outputs`, an integer convolution also rounds its output, after batch norm and a following
    ReLU; a sum with a rounded addend is rounded too. Both at 8 bits, whatever the layer's format:
    the runtime's kernels hand on 8-bit values.
    """

    name: str
    outputs: bool
    sign: str  # how tensors that cannot be negative are coded, unless calibration is told otherwise


PAPER = Placement("paper", outputs=False, sign="signed")
ONNXRUNTIME = Placement("onnxruntime", outputs=True, sign="auto")
PLACEMENTS = {placement.name: placement for placement in (PAPER, ONNXRUNTIME)}


def placement_named(name: str) -> Placement:
    if name not in PLACEMENTS:
        raise PlanError(f"unknown placement '{name}': use {' or '.join(PLACEMENTS)}")
    return PLACEMENTS[name]
