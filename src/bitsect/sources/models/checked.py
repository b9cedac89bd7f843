"""Operators whose kernels end the process or go beyond weights of a wrong size, with the check they lack.

A size that is open is refused where it meets a weight: what fits the example need not fit the next batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from .archive import DamagedError

aten = torch.ops.aten


def _fits(*pairs: tuple[Any, Any]) -> None:
    for one, other in pairs:
        if not (isinstance(one, int) and isinstance(other, int) and one == other):
            raise DamagedError(f"a weight has {other} elements in an axis that takes {one}")


def _shaped(value: Tensor | None, *shape: Any) -> None:
    if value is not None:
        _fits((len(shape), value.ndim), *zip(shape, value.shape, strict=False))


def evaluated_norm(x: Tensor, *weights: Any, **options: Any) -> Any:
    """Batch norm as a captured network has it, decomposed."""
    for weight in weights[:4]:
        _shaped(weight, x.shape[1])
    return aten._native_batch_norm_legit_no_training.default(x, *weights, **options)


def functional_norm(x: Tensor, *weights: Any, **options: Any) -> Any:
    """Batch norm that also gives the statistics it would keep."""
    for weight in weights[:4]:
        _shaped(weight, x.shape[1])
    return aten._native_batch_norm_legit_functional.default(x, *weights, **options)


def weight_norm(v: Tensor, g: Tensor, dim: int = 0) -> Any:
    """A weight of a given length along one axis."""
    _shaped(g, *(size if axis == dim % v.ndim else 1 for axis, size in enumerate(v.shape)))
    return aten._weight_norm.default(v, g, dim)


def attention(q: Tensor, k: Tensor, v: Tensor, *options: Any, **more: Any) -> Any:
    """Attention with as many keys as values."""
    if k.shape[:-1] != v.shape[:-1] or q.shape[-1] != k.shape[-1]:
        raise DamagedError("an attention has keys and values of different sizes")
    return aten.scaled_dot_product_attention.default(q, k, v, *options, **more)


def divided(x: Tensor, y: Any, *, rounding_mode: str | None = None) -> Any:
    """A quotient, but of whole numbers not by −1: dividing the least of them so ends the process."""
    if rounding_mode == "trunc" and not (x.is_floating_point() or isinstance(y, float)):
        if isinstance(y, int):
            return aten.neg.default(x) if y == -1 else aten.div.Tensor_mode(x, y, rounding_mode="trunc")
        if not y.is_floating_point():
            negative = aten.eq.Scalar(y, -1)
            quotient = aten.div.Tensor_mode(x, aten.masked_fill.Scalar(y, negative, 1), rounding_mode="trunc")
            return aten.where.self(negative, aten.neg.default(quotient), quotient)
    return aten.div.Tensor_mode(x, y, rounding_mode=rounding_mode)


def _recurrent(gates: int, kernel: Callable[..., Any]) -> Callable[..., Any]:
    def run(x: Tensor, first: Any, params: Sequence[Tensor], *options: Any) -> Any:
        has_biases, num_layers, _, _, bidirectional, _ = options
        states = [first] if isinstance(first, Tensor) else list(first)
        directions, width = 2 if bidirectional else 1, states[-1].shape[-1]
        given = states[0].shape[-1]  # other than the width where states are projected
        each = (4 if has_biases else 2) + (given != width)
        _fits((each * num_layers * directions, len(params)))
        for state in states:
            _fits((num_layers * directions, state.shape[0]), (3, state.ndim), (3, x.ndim))
        for index in range(num_layers * directions):
            taken = x.shape[-1] if index < directions else given * directions
            own = params[index * each : (index + 1) * each]
            _shaped(own[0], gates * width, taken)
            _shaped(own[1], gates * width, given)
            for bias in own[2:4] if has_biases else ():
                _shaped(bias, gates * width)
            if given != width:
                _shaped(own[-1], given, width)
        return kernel(x, first, params, *options)

    return run


lstm = _recurrent(4, aten.lstm.input)
gru = _recurrent(3, aten.gru.input)
rnn_tanh = _recurrent(1, aten.rnn_tanh.input)
rnn_relu = _recurrent(1, aten.rnn_relu.input)

CHECKED: dict[Any, Callable[..., Any]] = {
    aten._native_batch_norm_legit_no_training.default: evaluated_norm,
    aten._native_batch_norm_legit_functional.default: functional_norm,
    aten._weight_norm.default: weight_norm,
    aten.scaled_dot_product_attention.default: attention,
    aten.div.Tensor_mode: divided,
    aten.lstm.input: lstm,
    aten.gru.input: gru,
    aten.rnn_tanh.input: rnn_tanh,
    aten.rnn_relu.input: rnn_relu,
}
for _name in ("lstm", "gru", "rnn_tanh", "rnn_relu"):  # under which the code that torch makes finds them
    globals()[_name].__name__ = globals()[_name].__qualname__ = _name
