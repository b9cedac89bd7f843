"""What layers are called: by the module that holds their weight, or by where they multiply."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence

from torch.fx import Node

from .operators import operator_name, origins, through_reshapes
from .parts import Operand

# Into how many parts nn.MultiheadAttention splits `in_proj_weight` → what they project.
PACKED = {2: ("q", "kv"), 3: ("q", "k", "v")}


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


def made_name(root: Node, path: str, names: Mapping[Node, str]) -> str | None:
    """What a weight that is computed belongs to: the module at `path`, if it is made of that module's weight.

    So weight norm, a convolution that standardises its weight and autocast leave names as they are, and
    the packed projections of nn.MultiheadAttention are q, k and v. `names` are those of constants.
    """
    split = root.args[0] if root.target is operator.getitem else None
    if isinstance(split, Node) and split.all_input_nodes:
        owner, _, packed = names.get(split.all_input_nodes[0], "").rpartition(".")
        parts = PACKED.get(len(split.meta["val"])) if packed == "in_proj_weight" else None
        if parts is not None:
            return join(owner, parts[int(str(root.args[1]))])
    held = (names.get(origin, "") for origin in origins(root))
    own = (join(path, "weight"), join(path, "parametrizations.weight."))
    return path if path and any(name.startswith(own) for name in held) else None


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
