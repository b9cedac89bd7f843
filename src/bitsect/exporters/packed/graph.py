"""What tells one architecture from another, however often and wherever it is captured."""

from __future__ import annotations

import hashlib

from torch.fx.node import map_arg

from ...network.program import Program


def architecture(program: Program) -> str:
    """A hash of the graph and its layers; not of parameters or devices, nor of how torch numbers nodes."""
    number = {node: f"%{index}" for index, node in enumerate(program.exported.graph.nodes)}
    lines = []
    for node in number:
        options = {name: value for name, value in node.kwargs.items() if name != "device"}
        lines.append(f"{node.op} {node.target} {map_arg((node.args, options), number.__getitem__)}")
    return hashlib.sha256("\n".join([*lines, repr(program.layers)]).encode()).hexdigest()
