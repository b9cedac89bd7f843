"""Why an operator stays in float although it multiplies, or may do so."""

from __future__ import annotations

import torch
from torch.fx import Node

from .operators import (
    EMBEDDING,
    MULTIPLIES,
    OPAQUE_MULTIPLIES,
    RECURRENT,
    TRAINING,
    is_float,
    is_random,
    is_tensor,
    operator_name,
)


def reason_for(node: Node, *, is_fixed: bool, embeddings: bool) -> str | None:
    """The reason why `node`, which is no layer, stays in float; None if nobody would expect otherwise.

    `is_fixed` says that its value depends on no input.
    """
    name = operator_name(node.target)
    if name in RECURRENT:
        return "recurrent, of open length or in training: its multiplies stay inside one operator"
    if is_random(node):
        return "random operator: results differ from run to run"
    if is_fixed:
        return None
    if node.target in MULTIPLIES:
        operands = [source for source in node.all_input_nodes if is_tensor(source)]
        if len(operands) < 2:
            return None
        if not all(is_float(operand) for operand in operands):
            return "its operands are not floating point"
        return "not a sum of products of two operands"
    if name in OPAQUE_MULTIPLIES:
        return "this multiply has no quantised form"
    if name in TRAINING:
        return "batch norm in training mode: results depend on the rest of the batch"
    if node.target == EMBEDDING and not embeddings:
        return "embedding: a look-up, quantised where embeddings are asked for"
    if isinstance(node.target, torch._ops.HigherOrderOperator):
        return "control flow: the layers inside its branches are not seen"
    if isinstance(node.target, torch._ops.OpOverload) and node.target.namespace not in ("aten", "prims"):
        return "custom operator: bitsect does not know whether it multiplies"
    return None
