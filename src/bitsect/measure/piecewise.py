"""Which layers the network's outputs are piecewise linear in: there the Hessian is its Gauss–Newton part."""

from __future__ import annotations

from torch import Tensor
from torch.fx import Node

from ..network.operators import (
    CONVOLUTIONS,
    EINSUM,
    LINEAR,
    MATMULS,
    RESHAPES,
    TRANSPOSED_CONVOLUTIONS,
    is_random,
)
from ..network.operators import operator_name as name_of
from ..network.program import Program

# Linear, or linear in pieces, in all that they take together.
PIECEWISE_LINEAR = RESHAPES | {
    *("add", "sub", "rsub", "neg", "sum", "mean", "cumsum", "cat", "stack", "dropout", "native_dropout"),
    *("relu", "relu6", "hardtanh", "clamp", "clamp_min", "clamp_max", "leaky_relu", "threshold"),
    *("hardsigmoid", "hardshrink", "softshrink", "abs", "maximum", "minimum", "max", "min", "amax", "amin"),
    *("where", "masked_fill", "tril", "triu", "pad", "constant_pad_nd", "reflection_pad2d"),
    *("replication_pad2d", "getitem", "split", "split_with_sizes", "chunk", "unbind", "tensor_split"),
    *("select", "slice", "narrow", "index", "index_select", "gather", "diagonal", "unfold", "im2col"),
    *("roll", "flip", "repeat", "repeat_interleave", "tile", "expand_as", "view_as", "reshape_as"),
    *("pixel_shuffle", "pixel_unshuffle", "channel_shuffle", "to", "_to_copy", "type_as"),
    *("upsample_nearest1d", "upsample_nearest2d", "upsample_bilinear2d", "upsample_bicubic2d"),
    *(f"{kind}_pool{d}d" for kind in ("max", "avg", "adaptive_avg") for d in (1, 2, 3)),
    *(f"max_pool{d}d_with_indices" for d in (2, 3)),
    *(f"adaptive_max_pool{d}d" for d in (1, 2, 3)),
    *("_adaptive_avg_pool2d", "_adaptive_avg_pool3d"),
}
# Linear in the first of what they take, if nothing else depends on the layer.
LINEAR_IN_THE_FIRST = {"div", "batch_norm", "_native_batch_norm_legit_no_training"}
# Without a derivative: what they give depends on nothing.
FLAT = {"zeros_like", "ones_like", "full_like", "new_zeros", "new_ones", "sign", "floor", "ceil", "round"}
# Products of two of their arguments: linear in the layer if one of these depends on it, not both.
FACTORS = {
    **MATMULS,
    **dict.fromkeys((*LINEAR, *CONVOLUTIONS, *TRANSPOSED_CONVOLUTIONS), (0, 1)),
}
NAMED_FACTORS = {"mul": (0, 1), "embedding": (0, 1), "prelu": (0, 1), "dot": (0, 1)}


def piecewise_linear_layers(program: Program) -> frozenset[str]:
    """The layers that, all else fixed, the outputs are piecewise linear in.

    Decided from the operators between a layer and the outputs; one that is not known is taken for curved.
    """
    alive = _ancestors(program)
    nodes = [node for node in program.nodes if node in alive]
    return frozenset(
        layer.name for layer in program.layers if _is_piecewise_linear(_variables(program, layer.name), nodes)
    )


def _variables(program: Program, layer: str) -> set[Node]:
    """What is differentiated: a weight; a product of two activations is linear in each of them."""
    places = [multiply for multiply in program.multiplies if multiply.layer == layer]
    found: set[Node] = set()
    for multiply in places:
        weight = multiply.weight
        found.add(multiply.node if weight is None or weight.root is None else weight.root)
    return found


def _is_piecewise_linear(variables: set[Node], nodes: list[Node]) -> bool:
    dependent = set(variables)
    for node in nodes:
        if node in dependent or not any(source in dependent for source in node.all_input_nodes):
            continue
        if _has_derivative(node):
            if not _keeps_linear(node, dependent):
                return False
            dependent.add(node)
    return True


def _keeps_linear(node: Node, dependent: set[Node]) -> bool:
    name = name_of(node.target)
    if node.target == EINSUM:
        factors = node.args[1]
        assert isinstance(factors, list | tuple)
        return sum(factor in dependent for factor in factors) == 1
    positions = FACTORS.get(node.target) or NAMED_FACTORS.get(name)
    if positions is not None:
        return sum(node.args[position] in dependent for position in positions) <= 1
    if name in LINEAR_IN_THE_FIRST:
        others = (source for source in node.all_input_nodes if source is not node.args[0])
        return not any(source in dependent for source in others) and node.args.count(node.args[0]) == 1
    return name in PIECEWISE_LINEAR and not is_random(node)


def _has_derivative(node: Node) -> bool:
    value = node.meta.get("val")
    if name_of(node.target) in FLAT:
        return False
    if isinstance(value, Tensor):
        return value.is_floating_point()
    return isinstance(value, list | tuple)  # sizes and other numbers have none


def _ancestors(program: Program) -> set[Node]:
    """The nodes that the outputs are made of."""
    found, waiting = set(program.output_nodes), list(program.output_nodes)
    while waiting:
        for source in waiting.pop().all_input_nodes:
            if source not in found:
                found.add(source)
                waiting.append(source)
    return found
