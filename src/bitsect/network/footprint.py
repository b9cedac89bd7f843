"""What the values of a network take in memory, counted on its example.

A value is alive from the step that makes it to the last one that reads it; values that share their memory
count once. What is alive before any layer is what a float batch keeps so that every layer can run again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch.utils._pytree as pytree
from torch import Tensor
from torch.fx import Node

from .program import Program


@dataclass(frozen=True)
class Footprint:
    """Bytes of one sample."""

    running: float  # the most that a pass holds at once, with operands that are being rounded
    states: float  # what is alive before any layer: kept of a pass from which every layer runs again
    besides: float  # the most that a pass holds at once besides those
    everything: float  # all values of a pass, as a backward pass keeps them
    outputs: float
    before: Mapping[str, float]  # what is alive before each layer


def footprint(program: Program) -> Footprint:
    """What a sample of `program` takes; the example is run once in float, and holds no more than any pass."""
    steps = {node: index for index, node in enumerate(program.step_nodes)}
    last = {source: index for node, index in steps.items() for source in node.all_input_nodes}
    last |= dict.fromkeys(program.output_nodes, len(steps))
    starts = {program.start(layer.name): layer.name for layer in program.layers}
    operands = {multiply.node: multiply.activations for multiply in program.multiplies}
    alive: dict[Node, dict[int, _Block]] = {}  # the memory of each value that is alive, by its address
    states: set[_Block] = set()
    before: dict[str, float] = {}
    passing: list[tuple[set[_Block], int]] = []  # what is alive at each step, and what comes and goes
    everything: set[_Block] = set()

    def note(node: Node, value: Any) -> None:
        index = steps.get(node, -1)  # −1: an input
        if index in starts:
            states.update(_blocks(alive))
            before[starts[index]] = _size(_blocks(alive))
        known = {address: block for found in alive.values() for address, block in found.items()}
        alive[node] = {}
        for leaf in pytree.tree_leaves(value):
            if isinstance(leaf, Tensor):
                memory = leaf.untyped_storage()
                address = memory.data_ptr()
                alive[node][address] = known.get(address) or _Block(memory.nbytes())
        everything.update(alive[node].values())
        if index >= 0:
            rounded = [alive.get(operand.node, {}) for operand in operands.get(node, ())]
            passing.append((_blocks(alive), sum(block.size for each in rounded for block in each.values())))
            for each in [each for each in alive if last.get(each, -1) <= index]:
                del alive[each]

    rows = program.watch(note)
    outputs = sum(block.size for node in program.output_nodes for block in alive.get(node, {}).values())
    return Footprint(
        max((_size(found) + copies for found, copies in passing), default=0) / rows,
        _size(states) / rows,
        max((_size(found - states) + copies for found, copies in passing), default=0) / rows,
        _size(everything) / rows,
        outputs / rows,
        {name: size / rows for name, size in before.items()},
    )


@dataclass(frozen=True, eq=False)
class _Block:
    """A piece of memory, which several values may share."""

    size: int


def weight_bytes(program: Program) -> list[int]:
    """What each of the weights of all layers takes."""
    nodes = {multiply.weight.node for multiply in program.multiplies if multiply.weight is not None}
    return [program.constant(node).nbytes for node in nodes]


def _blocks(values: dict[Node, dict[int, _Block]]) -> set[_Block]:
    return {block for found in values.values() for block in found.values()}


def _size(blocks: set[_Block]) -> int:
    return sum(block.size for block in blocks)
