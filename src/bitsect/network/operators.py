"""What bitsect knows of ATen operators: which multiply, which only move values, which never go negative."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch.fx import Node

from .grouped import GROUPED
from .recurrent import RECURRENCES

aten = torch.ops.aten

LINEAR = {aten.linear.default}
# operator → position of its two operands
MATMULS: dict[Any, tuple[int, int]] = {
    aten.matmul.default: (0, 1),
    aten.mm.default: (0, 1),
    aten.bmm.default: (0, 1),
    aten.mv.default: (0, 1),
    aten.addmm.default: (1, 2),
}
CONVOLUTIONS = {
    aten.conv1d.default,
    aten.conv1d.padding,
    aten.conv2d.default,
    aten.conv2d.padding,
    aten.conv3d.default,
    aten.conv3d.padding,
    aten.convolution.default,
}
TRANSPOSED_CONVOLUTIONS = {
    aten.conv_transpose1d.default,
    aten.conv_transpose2d.input,
    aten.conv_transpose3d.input,
}
EINSUM = aten.einsum.default
EMBEDDING = aten.embedding.default
MULTIPLIES = {*LINEAR, *MATMULS, *CONVOLUTIONS, *TRANSPOSED_CONVOLUTIONS, EINSUM, GROUPED}

RECURRENT = {"lstm", "gru", "rnn_tanh", "rnn_relu", "lstm_cell", "gru_cell", "rnn_tanh_cell", "rnn_relu_cell"}
OPAQUE_MULTIPLIES = {
    "bilinear",
    "_trilinear",
    "cdist",
    "_cdist_forward",
    "conv_tbc",
    "_native_multi_head_attention",
    "_transformer_encoder_layer_fwd",
    "_scaled_dot_product_flash_attention",
    "_scaled_dot_product_flash_attention_for_cpu",
    "_scaled_dot_product_efficient_attention",
    "_scaled_dot_product_cudnn_attention",
    "_scaled_dot_product_fused_attention_overrideable",
    "_scaled_dot_product_attention_math",
    "_scaled_mm",
    "_grouped_mm",
    "_scaled_grouped_mm",
    "_int_mm",
    "dot",
    "vdot",
    "linalg_vecdot",
    "addmv",
    "addbmm",
    "embedding_bag",
    "_embedding_bag",
}
TRAINING = {"_native_batch_norm_legit", "_native_batch_norm_legit_functional"}

# Same values in another shape: a tensor keeps its range and its name through these.
RESHAPES = {
    "view",
    "reshape",
    "_unsafe_view",
    "transpose",
    "permute",
    "t",
    "numpy_T",
    "unsqueeze",
    "squeeze",
    "expand",
    "clone",
    "contiguous",
    "flatten",
    "unflatten",
    "alias",
    "detach",
    "movedim",
    "lift_fresh_copy",
}
NEVER_NEGATIVE = {
    "relu",
    "relu6",
    "sigmoid",
    "hardsigmoid",
    "softmax",
    "_softmax",
    "_safe_softmax",
    "abs",
    "exp",
    "square",
    "softplus",
}
# Non-negative where every tensor they take is.
KEEPS_SIGN = {
    "max_pool1d",
    "max_pool2d",
    "max_pool3d",
    "avg_pool1d",
    "avg_pool2d",
    "avg_pool3d",
    "adaptive_avg_pool1d",
    "adaptive_avg_pool2d",
    "adaptive_avg_pool3d",
    "mean",
    "sum",
    "cat",
    "add",
    "mul",
    "div",
    "dropout",
    "slice",
    "select",
    "split",
    "chunk",
    "getitem",
    "upsample_nearest2d",
    "constant_pad_nd",
    "pad",
    "sqrt",
    "pow",
}


def operator_name(target: Any) -> str:
    """`conv2d` for `aten.conv2d.default`."""
    if isinstance(target, torch._ops.OpOverload):
        return target._schema.name.rpartition("::")[2]
    return getattr(target, "__name__", str(target))


def module_path(node: Node) -> str:
    """Where in the network `node` was called: `encoder.layer.0.attention`."""
    stack = node.meta.get("nn_module_stack") or {}
    paths = [entry[0] for entry in stack.values()]
    path = paths[-1] if paths else ""
    return "" if path.startswith("_empty_nn_module_stack") else path.partition("@")[0]


def is_reshape(node: Node) -> bool:
    if node.op != "call_function":
        return False
    name = operator_name(node.target)
    return name in RESHAPES or (name == "dropout" and not is_random(node))


def is_random(node: Node) -> bool:
    """Whether `node` draws numbers; dropout, also inside recurrent cells, does so only in training."""
    name = operator_name(node.target)
    if torch.Tag.nondeterministic_seeded not in getattr(node.target, "tags", ()) or name in RECURRENT:
        return False
    return "dropout" not in name or node.args[2:3] == (True,)


def through_reshapes(node: Node) -> Node:
    """The node whose values `node` shows in another shape."""
    while is_reshape(node) and isinstance(node.args[0], Node):
        node = node.args[0]
    return node


def origins(node: Node) -> list[Node]:
    """The inputs and constants that `node` is computed from, the nearest first."""
    found: dict[Node, None] = {}
    waiting, seen = [node], {node}
    while waiting:
        node = waiting.pop(0)
        if not node.all_input_nodes:
            found[node] = None
        fresh = [source for source in node.all_input_nodes if source not in seen]
        seen.update(fresh)
        waiting += fresh
    return list(found)


def through_pooling(node: Node) -> Node:
    """The node whose values `node` passes on: reshaped, some of them, the largest, or with zeros around."""
    node = through_reshapes(node)
    while _passes_on(node):
        source = node.args[0]
        assert isinstance(source, Node)
        node = through_reshapes(source)
    return node


def _passes_on(node: Node) -> bool:
    if node.op != "call_function":
        return False
    name = operator_name(node.target)
    if name == "pad":
        return node.args[2:3] in ((), ("constant",)) and not any(node.args[3:])
    if name == "constant_pad_nd":
        return not any(node.args[2:])
    return name == "slice" or name.startswith("max_pool")


def is_rectifier(node: Node) -> bool:
    """ReLU, ReLU6 and other clamps at zero: integer kernels do them while rounding."""
    if node.op != "call_function":
        return False
    name = operator_name(node.target)
    if name in ("relu", "relu6"):
        return True
    return name in ("hardtanh", "clamp", "clamp_min") and _lower_bound(node) == 0


def rectifier_bounds(node: Node) -> tuple[float, float]:
    """What a rectifier clamps to."""
    name = operator_name(node.target)
    if name == "relu6":
        return 0.0, 6.0
    bound = None
    if name in ("hardtanh", "clamp"):
        default = 1.0 if name == "hardtanh" else None
        bound = (*node.args, None, None)[2]
        bound = node.kwargs.get("max_val", node.kwargs.get("max", default)) if bound is None else bound
    return 0.0, float(bound) if isinstance(bound, int | float) else float("inf")


def _lower_bound(node: Node) -> float | None:
    if operator_name(node.target) == "hardtanh":
        bound = node.args[1] if len(node.args) > 1 else node.kwargs.get("min_val", -1.0)
    else:
        bound = node.args[1] if len(node.args) > 1 else node.kwargs.get("min")
    return float(bound) if isinstance(bound, int | float) else None


def never_negative(node: Node, depth: int = 64) -> bool:
    """Whether the operators that made `node` rule negative values out."""
    node = through_reshapes(node)
    if node.op != "call_function" or depth == 0:
        return False
    name = operator_name(node.target)
    if name in NEVER_NEGATIVE:
        return True
    if name in ("hardtanh", "clamp", "clamp_min"):
        bound = _lower_bound(node)
        return bound is not None and bound >= 0
    if name not in KEEPS_SIGN:
        return False
    flat = [arg for arg in _flat(node.args) if not isinstance(arg, bool)]
    numbers = [*flat, node.kwargs.get("alpha")] if name in ("add", "mul", "div") else []
    if name in ("constant_pad_nd", "pad"):  # a value to pad with comes last, after the widths and the mode
        numbers = list(node.args[{"constant_pad_nd": 2, "pad": 3}[name] :])
    if any(isinstance(number, int | float) and number < 0 for number in numbers):
        return False
    tensors = [arg for arg in flat if isinstance(arg, Node) and is_tensor(arg)]
    if name in ("getitem", "split", "chunk"):
        tensors = [arg for arg in flat if isinstance(arg, Node)]
    return bool(tensors) and all(never_negative(arg, depth - 1) for arg in tensors)


def _flat(args: Any) -> list[Any]:
    if isinstance(args, list | tuple):
        return [leaf for arg in args for leaf in _flat(arg)]
    return [args]


def is_tensor(node: Node) -> bool:
    return isinstance(node.meta.get("val"), torch.Tensor)


def is_float(node: Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and value.is_floating_point()


def attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    """softmax(q·kᵀ·scale + mask)·v, in the order of operations of torch's MATH backend.

    q and k are each multiplied by √scale, which keeps the result equal to that backend bit for bit.
    """
    dtype = query.dtype
    if dtype in (torch.float16, torch.bfloat16):  # that backend computes in single precision
        query, key, value = query.float(), key.float(), value.float()
    share = math.sqrt(1 / math.sqrt(query.size(-1)) if scale is None else abs(scale))
    if enable_gqa:
        key = key.repeat_interleave(query.size(-3) // key.size(-3), -3)
        value = value.repeat_interleave(query.size(-3) // value.size(-3), -3)
    negative = scale is not None and scale < 0
    scores = torch.matmul(query * (-share if negative else share), key.transpose(-2, -1) * share)
    if is_causal:
        shape = (query.size(-2), key.size(-2))
        attn_mask = torch.ones(shape, dtype=torch.bool, device=query.device).tril()
    if attn_mask is None:
        weights = torch.softmax(scores, -1)
    else:
        if attn_mask.dtype == torch.bool:
            zero = torch.zeros_like(attn_mask, dtype=dtype)
            attn_mask = zero.masked_fill(attn_mask.logical_not(), float("-inf"))
        # A row that is masked out whole gives zeros, not NaN.
        weights = aten._safe_softmax(scores + attn_mask, -1)
    if dropout_p > 0:
        weights = torch.dropout(weights, dropout_p, True)
    return torch.matmul(weights, value).to(dtype)


def hardsigmoid(x: torch.Tensor) -> torch.Tensor:
    """clamp(x + 3, 0, 6) / 6, as the kernel does it; that one cannot be differentiated twice."""
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    return ((wide + 3).clamp(0, 6) / 6).to(x.dtype)


def copied(x: torch.Tensor, source: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
    """`source` in the type and shape of `x`: what a slice that is assigned becomes."""
    return source.to(device=x.device, dtype=x.dtype).expand(x.shape)


def distances(
    x: torch.Tensor, y: torch.Tensor, p: float = 2.0, compute_mode: int | None = None
) -> torch.Tensor:
    """The p-norm of every difference between a row of `x` and a row of `y`, as torch.cdist computes it.

    Euclidean distances of many rows come from a product: |x − y|² = |x|² + |y|² − 2·x·yᵀ.
    """
    few = all(isinstance(rows, int) and rows <= 25 for rows in (x.shape[-2], y.shape[-2]))
    if p == 2 and compute_mode != 2 and (compute_mode == 1 or not few):
        squares = x.square().sum(-1).unsqueeze(-1) + y.square().sum(-1).unsqueeze(-2)
        return _root((squares - 2 * torch.matmul(x, y.transpose(-2, -1))).clamp(min=0), 2)
    apart = (x.unsqueeze(-2) - y.unsqueeze(-3)).abs()
    if p == 0:
        return (apart != 0).sum(-1).to(x.dtype)
    if p == math.inf:
        return apart.amax(-1)
    return apart.sum(-1) if p == 1 else _root(apart.pow(p).sum(-1), p)


def _root(x: torch.Tensor, degree: float) -> torch.Tensor:
    """x^(1/degree), with a derivative of 0 where `x` is 0."""
    zero = x == 0
    return x.masked_fill(zero, 1).pow(1 / degree).masked_fill(zero, 0)


def stable_sort(x: torch.Tensor, dim: int = -1, descending: bool = False) -> Any:
    """Sorted values and their places, equals in their order: torch promises none, runtimes do."""
    return aten.sort.stable(x, stable=True, dim=dim, descending=descending)


# What is split, so that the multiplies are seen, masks are added after them, and all of it can be
# differentiated twice; recurrences are unrolled; products that only call matmul by another name are what
# they call.
DECOMPOSITIONS: dict[Any, Callable[..., Any]] = {
    aten.scaled_dot_product_attention.default: attention,
    **RECURRENCES,
    aten.sort.default: stable_sort,
    aten.argsort.default: lambda *args, **more: stable_sort(*args, **more)[1],
    aten.hardsigmoid.default: hardsigmoid,
    aten.copy.default: copied,
    aten.cdist.default: distances,
    **{
        product: torch.export.default_decompositions()[product]
        for product in (
            aten.baddbmm.default,
            aten.inner.default,
            aten.tensordot.default,
            aten.linalg_matmul.default,
            aten.linalg_multi_dot.default,
            aten.chain_matmul.default,
        )
    },
}
