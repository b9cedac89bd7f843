"""The operators that a saved program may call: the forward ones of networks, by name.

Made from the captures of the tests' networks, before and after decomposition, with their plain siblings.
None is a backward, a convert or a segment operator or writes to an `out`, since those read or write where a
file says; those that do so where a weight has the wrong size are in `checked`.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import torch

# name.overload; a name alone is the overload `default`.
ATEN = """
__and__.Scalar __and__.Tensor __lshift__.Scalar __or__.Scalar __or__.Tensor __rshift__.Scalar
__rshift__.Tensor _adaptive_avg_pool2d _assert_scalar _assert_tensor_metadata _grouped_mm _log_softmax
_native_batch_norm_legit_functional _native_batch_norm_legit_no_training _safe_softmax _softmax _to_copy
_unsafe_view _weight_norm abs adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d add.Scalar
add.Tensor add_.Scalar add_.Tensor addbmm addcdiv addcmul addmm addmv alias all all.dim amax amin aminmax any
any.dim arange arange.start arange.start_step argmax argmin argsort argsort.stable atan atan2 avg_pool1d
avg_pool2d avg_pool3d baddbmm batch_norm bilinear bitwise_and.Scalar bitwise_and.Tensor bitwise_not
bitwise_or.Scalar bitwise_or.Tensor bmm broadcast_to cat cdist ceil celu chain_matmul chunk clamp clamp.Tensor
clamp_ clamp_max clamp_min clone complex constant_pad_nd contiguous conv1d conv1d.padding conv2d
conv2d.padding conv3d conv3d.padding conv_transpose1d conv_transpose2d.input conv_transpose3d.input
convolution copy copy_ cos cosine_similarity cumprod cumsum detach detach_ diagonal diff div.Scalar div.Tensor
div.Tensor_mode div_.Scalar div_.Tensor dot dropout dropout_ einsum elu elu_ embedding empty_like eq.Scalar
eq.Tensor erf erfc exp exp_ expand expand_as expm1 eye fft_fft fft_fft2 fft_ifft fft_ifft2 fft_irfft
fft_irfft2 fft_rfft fft_rfft2 fill.Scalar fill.Tensor fill_.Scalar fill_.Tensor flatten.using_ints flip floor
floor_divide floor_divide.Scalar full full_like gather ge.Scalar ge.Tensor gelu gelu_ glu grid_sampler
group_norm gru.input gru_cell gt.Scalar gt.Tensor hardsigmoid hardsigmoid_ hardswish hardswish_ hardtanh
hardtanh_ histc hstack im2col index.Tensor index_add index_add_ index_put index_put_ index_select inner
instance_norm isfinite isinf isnan layer_norm le.Scalar le.Tensor leaky_relu leaky_relu_ lerp.Scalar
lerp.Tensor lift_fresh_copy linalg_matmul linalg_multi_dot linalg_vecdot linalg_vector_norm linear linspace
log log1p log2 log_sigmoid log_softmax.int logical_and logical_not logical_or logsumexp lstm.input lstm_cell
lt.Scalar lt.Tensor mH mT masked_fill.Scalar masked_fill.Tensor masked_fill_.Scalar masked_fill_.Tensor
masked_scatter matmul matrix_exp max max.dim max.other max_pool1d max_pool2d max_pool2d_with_indices
max_pool3d max_pool3d_with_indices maximum mean mean.dim median meshgrid meshgrid.indexing min min.dim
min.other minimum mish mm movedim.int movedim.intlist mul.Scalar mul.Tensor mul_.Scalar mul_.Tensor mv
nan_to_num narrow native_dropout native_group_norm native_layer_norm ne.Scalar ne.Tensor neg new_empty
new_full new_ones new_zeros nonzero norm.Scalar norm.ScalarOpt_dim one_hot ones ones_like outer pad permute
pixel_shuffle pixel_unshuffle polar pow.Scalar pow.Tensor_Scalar pow.Tensor_Tensor prelu prod.dim_int rand
rand_like randn randn_like real reciprocal reflection_pad1d reflection_pad2d relu relu6 relu_ remainder.Scalar
repeat repeat_interleave.self_int replication_pad1d replication_pad2d reshape rms_norm rnn_relu.input
rnn_relu_cell rnn_tanh.input rnn_tanh_cell roll round rsqrt rsub.Scalar rsub.Tensor scalar_tensor
scaled_dot_product_attention scatter.reduce scatter.src scatter.value scatter_add scatter_reduce.two
select.int select_scatter selu sigmoid sigmoid_ sign silu silu_ sin slice.Tensor slice_scatter softmax.int
softplus sort sort.stable split.Tensor split.sizes split_with_sizes sqrt sqrt_ square squeeze squeeze.dim
squeeze.dims stack std std.correction std.dim std_mean.correction sub.Scalar sub.Tensor sub_.Scalar
sub_.Tensor sum sum.dim_IntList swapaxes sym_constrain_range sym_constrain_range_for_size sym_numel
sym_size.int t tanh tanh_ tensor_split.indices tensor_split.sections tensordot tile to.device to.dtype
to.dtype_layout topk transpose.int tril triu trunc type_as unbind.int unflatten.int unfold unsqueeze
upsample_bicubic2d upsample_bicubic2d.vec upsample_bilinear2d upsample_bilinear2d.vec upsample_linear1d
upsample_linear1d.vec upsample_nearest1d upsample_nearest1d.vec upsample_nearest2d upsample_nearest2d.vec var
var.correction var.dim var_mean.correction vdot view view.dtype view_as view_as_complex view_as_real vstack
where where.Scalar where.ScalarOther where.ScalarSelf where.self zero zero_ zeros zeros_like
"""
HIGHER = "cond wrap_with_autocast wrap_with_set_grad_enabled"  # that run a part of a graph
PRIMS = "convert_element_type device_put view_of"
BITSECT = "grouped_mm"
TRANSFORMERS = "grouped_mm_fallback"  # known where transformers is loaded
# The functions of Python and torch that compute sizes. Powers are left out: one of them never ends.
OF_OPERATOR = "eq ne le ge lt gt neg pos mul add sub floordiv mod truediv and_ or_ not_ getitem"
OF_MATH = "trunc floor ceil sqrt"
OF_TORCH = "sym_not sym_int sym_float sym_ite sym_max sym_min sym_sqrt sym_sum _sym_sqrt"

# What the texts that operators take may say, by the name of the argument.
TEXTS = {
    "padding": "valid same",
    "mode": "constant reflect replicate circular",
    "approximate": "none tanh",
    "rounding_mode": "trunc floor",
    "indexing": "ij xy",
    "reduce": "sum prod mean amax amin add multiply",
    "side": "left right",
    "norm": "backward ortho forward",
    "ord": "fro nuc",
    "driver": "",
}
DEVICES = "cpu cuda mps xpu"  # that autocast is told


def operators() -> dict[str, Callable[..., Any]]:
    """What may be called, by the name that torch.export writes; made of the names above alone."""
    found: dict[str, Callable[..., Any]] = {}
    for prefix, space, names in (
        ("torch.ops.aten", torch.ops.aten, ATEN),
        ("torch.ops.prims", torch.ops.prims, PRIMS),
        ("torch.ops.bitsect", torch.ops.bitsect, BITSECT),
        ("torch.ops.transformers", torch.ops.transformers, TRANSFORMERS),
    ):
        for name in names.split():
            short, _, overload = name.partition(".")
            overload = overload or "default"
            function = getattr(getattr(space, short, None), overload, None)
            if function is not None:
                found[f"{prefix}.{short}.{overload}"] = function
    found |= {
        f"torch.ops.higher_order.{name}": getattr(torch.ops.higher_order, name) for name in HIGHER.split()
    }
    for prefix, module, names in (
        ("_operator", operator, OF_OPERATOR),
        ("math", math, OF_MATH),
        ("torch", torch, OF_TORCH),
    ):
        found |= {
            f"{prefix}.{name}": getattr(module, name) for name in names.split() if hasattr(module, name)
        }
    return found
