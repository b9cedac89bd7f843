"""What a convolution or a rounding takes over from the nodes around it."""

from __future__ import annotations

import numpy as np

from ...values.grid import Grid
from .marks import DOMAIN
from .nodes import Node, Nodes, attribute, input_of

RECTIFIERS = ("Relu", "Clip")
MOVERS = ("Slice", "MaxPool", "Reshape", "Transpose", "Flatten", "Squeeze", "Unsqueeze", "Expand")


def absorb_padding(nodes: Nodes, conv: Node) -> tuple[int, ...]:
    """Let a convolution do the zero padding in front of it: zero is zero on every grid.

    Returns how much that is before and after each axis, from the last to the first, as torch has it.
    """
    reader, pad = conv, conv.inputs[0].producer()
    if pad is not None and pad.domain == DOMAIN:
        reader, pad = pad, pad.inputs[0].producer()
    if pad is None or pad.op_type != "Pad" or attribute(conv, "auto_pad", "NOTSET") != "NOTSET":
        return ()
    pads, axes = nodes.constant(input_of(pad, 1)), input_of(pad, 3)
    if pads is None or axes is not None or not _adds_zeros(nodes, pad) or (pads < 0).any():
        return ()
    before, after = np.split(pads, 2)
    if before[:2].any() or after[:2].any():  # of the batch or of the channels
        return ()
    added = np.concatenate([before[2:], after[2:]])
    total = added + np.array(attribute(conv, "pads", np.zeros_like(added)))
    conv.attributes["pads"] = nodes.ir.AttrInt64s("pads", total.tolist())
    reader.replace_input_with(0, pad.inputs[0])
    return tuple(int(size) for ends in zip(before[::-1], after[::-1], strict=True) for size in ends)


def _adds_zeros(nodes: Nodes, pad: Node) -> bool:
    fill = input_of(pad, 2)
    return _is_constant(pad) and (fill is None or nodes.constant(fill) == 0)


def _is_constant(pad: Node) -> bool:
    return bool(attribute(pad, "mode", "constant") == "constant")


def passes_on(nodes: Nodes, node: Node) -> bool:
    """Whether a node leaves every value on the grid it was on."""
    if node.op_type == "Pad":
        return _adds_zeros(nodes, node) or not _is_constant(node)
    return node.op_type in MOVERS


def bounds(nodes: Nodes, rectifier: Node) -> tuple[float, float] | None:
    """What a rectifier clips at; None if that is computed."""
    if rectifier.op_type == "Relu":
        return 0.0, float("inf")
    ends = [float("-inf"), float("inf")]
    for index, value in enumerate(rectifier.inputs[1:3]):
        constant = nodes.constant(value)
        if value is not None and constant is None:
            return None
        ends[index] = ends[index] if constant is None else float(constant)
    return ends[0], ends[1]


def is_superfluous(nodes: Nodes, rectifier: Node, grid: Grid) -> bool:
    """Whether rounding to `grid` leaves a rectifier in front of it nothing to do."""
    ends = bounds(nodes, rectifier)
    return ends is not None and grid.is_within(*ends)
