"""Between which layers values change from float to codes and back, under the placement of a runtime.

Convolutions and residual sums hand on codes there; everything else (linear layers, softmax, norms) hands on
values, which every layer in integers rounds, once for all that read the same tensor.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from torch.fx import Node

from ..network.operators import through_pooling
from ..network.parts import Multiply
from ..network.program import Program
from ..values.boundary import Boundary
from .placements.integers import INTEGER_CONVOLUTIONS


def boundaries(program: Program) -> tuple[Boundary, ...]:
    """Every boundary of the network, in graph order.

    A sum counts as made by the last layer of its two addends: an approximation, since it is rounded as soon
    as either is.
    """
    order = {layer.name: number for number, layer in enumerate(program.layers)}
    made_by: dict[Node, str] = {}
    for multiply in program.multiplies:
        if multiply.place.signature.kind in INTEGER_CONVOLUTIONS:
            made_by[program.tensors[multiply.output]] = multiply.layer
    found: list[Boundary] = []
    for total in program.sums:
        makers = [made_by.get(through_pooling(addend)) for addend in total.addends]
        known = sorted({name for name in makers if name is not None}, key=order.__getitem__)
        if not known:
            continue
        made_by[program.tensors[total.tensor]] = known[-1]
        elements = _elements(total.node)
        found.append(Boundary(None if None in makers else known[0], known[-1], elements))
    found += _readings(program, made_by)
    return tuple(each for each in found if each.before != each.after)


def _readings(program: Program, made_by: dict[Node, str]) -> Iterator[Boundary]:
    """The boundaries in front of every layer."""
    last_reader: dict[Node, str] = {}  # of a tensor of values
    for multiply in program.multiplies:
        for index, operand in enumerate(multiply.activations):
            source, elements = through_pooling(operand.node), _read(multiply, index)
            if multiply.place.signature.kind == "embedding":
                continue
            if source in made_by:
                yield Boundary(made_by[source], multiply.layer, elements)
            elif source in last_reader:
                yield Boundary(last_reader[source], multiply.layer, elements, back=False)
            else:
                yield Boundary(None, multiply.layer, elements)
            if source not in made_by:
                last_reader[source] = multiply.layer


def _read(multiply: Multiply, index: int) -> int:
    """How many values of one sample a layer reads: its input, or its second operand."""
    signature = multiply.place.signature
    return math.prod(signature.input if index == 0 else signature.operand)


def _elements(node: Node) -> int:
    """The values of one sample: the leading axis is the batch."""
    shape = node.meta["val"].shape[1:]
    return math.prod(int(size) for size in shape if isinstance(size, int)) or 1
