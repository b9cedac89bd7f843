"""Recurrent networks as the multiplies they are made of: torch's one operator, unrolled over its steps.

    g_t = W_ih·x_t + b_ih,    h_t = step(g_t, W_hh·h_{t−1} + b_hh)

All g_t are one matmul; each h_t is a matmul of its own, for it needs the one before. The order of
operations is that of torch's plain kernel; its fused one, of oneDNN, differs by some 1e-7.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear

aten = torch.ops.aten

State = tuple[Tensor, ...]  # h, and of an LSTM also c
Step = Callable[[Tensor, Tensor, State], State]  # from both matmuls and the state to the next state


def _lstm_step(given: Tensor, recalled: Tensor, state: State) -> State:
    enter, keep, new, leave = (given + recalled).chunk(4, -1)
    c = keep.sigmoid() * state[1] + enter.sigmoid() * new.tanh()
    return leave.sigmoid() * c.tanh(), c


def _gru_step(given: Tensor, recalled: Tensor, state: State) -> State:
    given_reset, given_keep, given_new = given.chunk(3, -1)
    reset, keep, new = recalled.chunk(3, -1)
    fresh = (given_new + (given_reset + reset).sigmoid() * new).tanh()
    return ((state[0] - fresh) * (given_keep + keep).sigmoid() + fresh,)


def _tanh_step(given: Tensor, recalled: Tensor, state: State) -> State:
    return ((given + recalled).tanh(),)


def _relu_step(given: Tensor, recalled: Tensor, state: State) -> State:
    return ((given + recalled).relu(),)


def _sequence(
    step: Step,
    x: Tensor,
    first: Tensor | Sequence[Tensor],
    params: Sequence[Tensor],
    has_biases: bool,
    num_layers: int,
    *options: Any,
) -> Any:
    """What torch's operator gives: the last layer's states at all times, and every layer's last state."""
    dropout, train, bidirectional, batch_first = options
    x = x.transpose(0, 1) if batch_first else x
    if (train and dropout) or not isinstance(x.shape[0], int):
        return NotImplemented
    directions = 2 if bidirectional else 1
    each = len(params) // (num_layers * directions)
    states = (first,) if isinstance(first, Tensor) else tuple(first)
    last: list[State] = []
    for layer in range(num_layers):
        outputs = []
        for direction in range(directions):
            index = layer * directions + direction
            weights = params[index * each : (index + 1) * each]
            start = tuple(state[index] for state in states)
            output, end = _one_direction(step, x, start, weights, has_biases, bool(direction))
            outputs.append(output)
            last.append(end)
        x = torch.cat(outputs, -1) if bidirectional else outputs[0]
    x = x.transpose(0, 1) if batch_first else x
    return (x, *(torch.stack(ends) for ends in zip(*last, strict=True)))


def _one_direction(
    step: Step,
    x: Tensor,
    state: State,
    weights: Sequence[Tensor],
    has_biases: bool,
    backwards: bool,
) -> tuple[Tensor, State]:
    """The states at all times, and the last one to be computed."""
    w_ih, w_hh, *rest = weights
    b_ih, b_hh = rest[:2] if has_biases else (None, None)
    projection = rest[2 if has_biases else 0 :]
    given = linear(x, w_ih, b_ih)
    steps = range(len(x))
    outputs: list[Tensor] = []
    for moment in reversed(steps) if backwards else steps:
        state = step(given[moment], linear(state[0], w_hh, b_hh), state)
        if projection:
            state = (linear(state[0], projection[0]), *state[1:])
        outputs.append(state[0])
    return torch.stack(outputs[::-1] if backwards else outputs), state


def _cell(
    step: Step,
    x: Tensor,
    state: Tensor | Sequence[Tensor],
    w_ih: Tensor,
    w_hh: Tensor,
    b_ih: Tensor | None = None,
    b_hh: Tensor | None = None,
) -> Any:
    before = (state,) if isinstance(state, Tensor) else tuple(state)
    after = step(linear(x, w_ih, b_ih), linear(before[0], w_hh, b_hh), before)
    return after if len(after) > 1 else after[0]


RECURRENCES: dict[Any, Callable[..., Any]] = {
    aten.lstm.input: partial(_sequence, _lstm_step),
    aten.gru.input: partial(_sequence, _gru_step),
    aten.rnn_tanh.input: partial(_sequence, _tanh_step),
    aten.rnn_relu.input: partial(_sequence, _relu_step),
    aten.lstm_cell.default: partial(_cell, _lstm_step),
    aten.gru_cell.default: partial(_cell, _gru_step),
    aten.rnn_tanh_cell.default: partial(_cell, _tanh_step),
    aten.rnn_relu_cell.default: partial(_cell, _relu_step),
}
