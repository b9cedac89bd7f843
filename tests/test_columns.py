"""Columns: the weight times each of them is what the layer answers there."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from bitsect.network.capture import capture
from bitsect.network.parts import Multiply
from bitsect.network.program import Program
from bitsect.rounding.columns import Columns, are_known, channel_axis
from odd_models import BATCH, Block, batch_of, model_of, program_of, weight
from odd_models import one_thread as one_thread
from short import named
from tiny import refill, seeded

CONVOLUTIONS: dict[str, tuple[nn.Module, tuple[int, ...]]] = {
    "plain": (nn.Conv2d(3, 4, 3), (3, 7, 6)),
    "bias": (nn.Conv2d(3, 4, 3, padding=1), (3, 6, 6)),
    "stride": (nn.Conv2d(3, 4, (3, 2), stride=(2, 3), padding=(2, 1)), (3, 9, 8)),
    "dilation": (nn.Conv2d(3, 4, 3, dilation=(2, 1), padding=2), (3, 9, 8)),
    "groups": (nn.Conv2d(6, 4, 3, groups=2, padding=1, stride=2), (6, 7, 7)),
    "depthwise": (nn.Conv2d(4, 8, 3, groups=4, padding=1), (4, 5, 6)),
    "same": (nn.Conv2d(3, 4, (4, 3), padding="same", dilation=(1, 2)), (3, 7, 6)),
    "valid": (nn.Conv2d(3, 4, 3, padding="valid", stride=2), (3, 7, 6)),
    "1d": (nn.Conv1d(3, 4, 3, stride=2, padding=1), (3, 9)),
    "3d": (nn.Conv3d(2, 3, (1, 2, 3), stride=(1, 2, 1), padding=(0, 1, 1)), (2, 3, 4, 5)),
    "transposed": (nn.ConvTranspose2d(3, 4, 3, stride=2, padding=1, output_padding=1), (3, 4, 5)),
    "transposed groups": (nn.ConvTranspose2d(4, 6, (2, 3), groups=2, dilation=(3, 2), padding=2), (4, 5, 6)),
    "transposed 1d": (nn.ConvTranspose1d(3, 4, 4, stride=3), (3, 5)),
    "transposed 3d": (nn.ConvTranspose3d(2, 3, 2, stride=(2, 1, 2), padding=(1, 0, 0)), (2, 2, 3, 3)),
}


def read(program: Program, inputs: Any) -> dict[str, tuple[Multiply, Tensor, Tensor]]:
    """Every multiply by a weight with the operand that it gets and the result that it gives."""
    seen: dict[str, Tensor] = {}
    made: dict[str, Tensor] = {}
    see = {}
    for multiply in program.multiplies:
        if multiply.weight is not None and multiply.activations:
            name = multiply.node.name
            key = (name, multiply.operands.index(multiply.activations[0]))
            see[key] = lambda value, name=name: seen.setdefault(name, value)
    program.observe_operands(inputs, see)
    keep = {name: lambda value, name=name: made.setdefault(name, value) for name in seen}
    with named(program, {m.node.name: m.node for m in program.multiplies if m.node.name in seen}):
        program.observe(inputs, keep)
    return {
        m.node.name: (m, seen[m.node.name], made[m.node.name])
        for m in program.multiplies
        if m.node.name in seen
    }


def check(program: Program, multiply: Multiply, value: Tensor, made: Tensor) -> None:
    operand, axis = multiply.weight, channel_axis(multiply)
    assert operand is not None
    assert operand.layout is not None
    columns = Columns.of(multiply, value)
    positions = torch.randperm(len(columns), generator=torch.Generator().manual_seed(0))[:50]
    kernels = operand.layout.to_kernels(program.constant(operand.node))
    groups = multiply.place.signature.groups
    matrix = kernels.reshape(groups, len(kernels) // groups, -1)
    products = (columns.take(positions) @ matrix.mT).movedim(0, 1).flatten(1)
    flat = made[..., None] if axis is None else made.movedim(axis, -1)
    expected = flat.reshape(-1, flat.shape[-1])
    assert len(expected) == len(columns)
    offset = expected[positions] - products
    own = bias_of(program, multiply)
    if own is not None:
        offset = offset - own
    assert offset.abs().max() < 1e-5, multiply.layer


def bias_of(program: Program, multiply: Multiply) -> Tensor | None:
    given = (*multiply.node.args, None, None)[2]
    if "addmm" in str(multiply.node.target) or "baddbmm" in str(multiply.node.target):
        given = multiply.node.args[0]
    elif "matmul" in str(multiply.node.target) or "mm" in str(multiply.node.target):
        given = None
    return None if given is None else program.constant(given).reshape(-1)


PRODUCTS = {
    "linear": lambda self, x: torch.nn.functional.linear(x, self.w),
    "right": lambda self, x: x @ self.w,
    "left": lambda self, x: self.w @ x,
    "vector": lambda self, x: x @ self.w[0],
    "mm": lambda self, x: torch.mm(x[:, 0], self.w),
    "addmm": lambda self, x: torch.addmm(self.b, x[:, 0], self.w),
    "addmm from the left": lambda self, x: torch.addmm(self.b[0] * 0, self.w, x[0]),
    "bmm": lambda self, x: torch.bmm(x, self.w.expand(x.shape[0], 6, 6)),
    "bmm from the left": lambda self, x: torch.bmm(self.w.expand(x.shape[0], 6, 6), x),
}
UNKNOWN = {
    "stacked": lambda self, x: x[:, None] @ self.s,
    "einsum": lambda self, x: torch.einsum("bij,jk->bik", x, self.w),
    "scaled": lambda self, x: torch.addmm(self.b, x[:, 0], self.w, alpha=0.5),
    "activations": lambda self, x: x @ x,
}


class Side(nn.Module):
    """Networks side by side, each with an input of its own."""

    def __init__(self, parts: dict[str, nn.Module]) -> None:
        super().__init__()
        self.parts = nn.ModuleList(parts.values())

    def forward(self, *inputs: Tensor) -> list[Tensor]:
        return [part(x) for part, x in zip(self.parts, inputs, strict=True)]


@cache
def side_by_side() -> tuple[Program, dict[str, tuple[Multiply, Tensor, Tensor]]]:
    """All of the above captured at once, and what each multiply reads and makes."""
    torch.manual_seed(0)
    parts = {name: refill(model) for name, (model, _) in CONVOLUTIONS.items()}
    inputs = [seeded(BATCH, *shape) for _, shape in CONVOLUTIONS.values()]
    for name, run in {**PRODUCTS, **UNKNOWN}.items():
        parts[name] = Block(run, w=weight(6, 6), s=weight(2, 6, 6), b=torch.randn(6))
        inputs.append(seeded(BATCH, 6, 6))
    program = capture(Side(parts).eval(), tuple(inputs))
    found = read(program, tuple(torch.randn_like(each) for each in inputs))
    names = list(parts)
    return program, {names[int(each[0].layer.split(".")[1])]: each for each in found.values()}


@pytest.mark.parametrize("name", [*CONVOLUTIONS, *PRODUCTS])
def test_the_columns_of_a_layer_reproduce_it(name: str) -> None:
    program, found = side_by_side()
    assert are_known(found[name][0])
    check(program, *found[name])


@pytest.mark.parametrize("name", UNKNOWN)
def test_products_that_it_does_not_know_are_said_to_be_unknown(name: str) -> None:
    program, _ = side_by_side()
    index = [*CONVOLUTIONS, *PRODUCTS, *UNKNOWN].index(name)
    (multiply,) = (m for m in program.multiplies if m.layer.split(".")[1] == str(index))
    assert not are_known(multiply)


@pytest.mark.parametrize(
    "name", ["shared_weight", "tied_decoder", "expanded_weight", "autoencoder", "gpt2_conv1d"]
)
def test_the_columns_of_odd_networks_reproduce_their_layers(name: str) -> None:
    program = program_of(name)
    found = read(program, batch_of(model_of(name)[1], BATCH))
    assert found
    for each in found.values():
        check(program, *each)


def test_operands_are_shown_as_the_multiply_gets_them_without_the_rows_that_fill_a_batch() -> None:
    model = Block(lambda self, x: (torch.relu(x) @ self.w).reshape(4, 6), w=weight(6, 6)).eval()
    program = capture(model, seeded(4, 6))
    (multiply,) = program.multiplies
    seen: list[Tensor] = []
    x = seeded(3, 6, seed=2)
    program.observe_operands(x, {(multiply.node.name, 0): seen.append})
    assert program.fixed_batch == 4
    assert len(seen) == 1
    assert torch.equal(seen[0], x.relu())
