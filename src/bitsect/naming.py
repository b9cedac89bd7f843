"""What layers are called: by the module that holds their weight, or by where they multiply."""

from __future__ import annotations

import re
from collections.abc import Sequence

from torch.fx import Node

from .operators import operator_name, through_reshapes
from .program import Operand


def module_path(node: Node) -> str:
    """Where in the network `node` was called: `encoder.layer.0.attention`."""
    stack = node.meta.get("nn_module_stack") or {}
    paths = [entry[0] for entry in stack.values()]
    path = paths[-1] if paths else ""
    return "" if path.startswith("_empty_nn_module_stack") else path.partition("@")[0]


def is_layer(node: Node) -> bool:
    """Whether the module that calls `node` is a linear layer or a convolution of torch."""
    stack = node.meta.get("nn_module_stack") or {}
    kinds = [str(entry[1]) for entry in stack.values()]
    return bool(kinds) and re.search(r"^torch\.nn\..*(Linear|Conv\w*\dd)$", kinds[-1]) is not None


def is_recurrent(node: Node) -> bool:
    """Whether the module that calls `node` is a recurrent layer or cell of torch."""
    stack = node.meta.get("nn_module_stack") or {}
    kinds = [str(entry[1]) for entry in stack.values()]
    return bool(kinds) and kinds[-1].startswith("torch.nn.modules.rnn.")


def parameter_name(aliases: Sequence[str], path: str) -> str:
    """The module that holds a weight; of several, the one that multiplies by it."""
    target = next((alias for alias in aliases if alias.rpartition(".")[0] == path), aliases[0])
    owner, _, last = target.rpartition(".")
    return owner if last == "weight" and owner else target


def role(node: Node, operands: tuple[Operand, ...]) -> str:
    """`qk` and `av` for the two matmuls of an attention, otherwise the operator's name."""
    if all(operand.layout is None for operand in operands):
        if any(_comes_from_softmax(operand.node) for operand in operands):
            return "av"
        if _goes_to_softmax(node):
            return "qk"
    return operator_name(node.target)


def _comes_from_softmax(node: Node) -> bool:
    source = through_reshapes(node)
    if operator_name(source.target) in ("_to_copy", "to") and isinstance(source.args[0], Node):
        source = through_reshapes(source.args[0])
    return source.op == "call_function" and "softmax" in operator_name(source.target)


def _goes_to_softmax(node: Node, depth: int = 6) -> bool:
    for user in node.users:
        name = operator_name(user.target) if user.op == "call_function" else ""
        if "softmax" in name:
            return True
        scores = name in (
            "add",
            "mul",
            "div",
            "masked_fill",
            "where",
            "_to_copy",
            "to",
            "view",
            "tanh",
            "expand",
        )
        if scores and depth and _goes_to_softmax(user, depth - 1):
            return True
    return False


def join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name
