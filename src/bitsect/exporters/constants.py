"""What of a network a file must hold besides the codes of its weights."""

from __future__ import annotations

from torch import Tensor
from torch.fx import Node

from ..network.exported_program import constants_of
from ..network.parts import Multiply, Operand
from ..network.program import Program
from ..values import Plan


def rounded_weights(program: Program, plan: Plan) -> list[tuple[Multiply, Operand]]:
    """The weights that are rounded under `plan`, with the places that multiply by them."""
    return [
        (multiply, operand)
        for multiply in program.multiplies
        for operand in multiply.operands
        if operand.layout is not None and not plan[multiply.layer].is_float
    ]


def needed_constants(program: Program, plan: Plan) -> dict[str, tuple[Node, Tensor]]:
    """The tensors that are read as they are, by the names that the network gives them.

    Not so a weight of which only codes are multiplied; but one that is looked up elsewhere, too.
    """
    replaced = {(multiply.node, operand.node) for multiply, operand in rounded_weights(program, plan)}
    read, prologue = {*program.output_nodes}, {*program.prologue}
    for node in reversed(program.nodes):
        if node not in prologue or node in read:
            read |= {source for source in node.all_input_nodes if (node, source) not in replaced}
    values, targets = constants_of(program.exported)
    given = program.contents.constants
    return {
        targets.get(node, str(node.target)): (node, given[node].detach())
        for node in values
        if node in read and isinstance(given[node], Tensor)
    }
