"""Gradients of a loss and products of its Hessian, or one line about what cannot be differentiated."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.fx import Node

from ..errors import BitsectError
from .binding import Inputs
from .operators import module_path, operator_name
from .parts import Multiply, Operand

if TYPE_CHECKING:
    from .program import Program


@dataclass(frozen=True)
class Derivative:
    """Gradients of a loss at one batch, and products of its Hessian with vectors."""

    gradients: dict[str, tuple[Tensor, ...]]
    variables: dict[str, tuple[Tensor, ...]]
    _tracked: dict[str, tuple[Tensor, ...]]
    _steps: Sequence[Node]

    def product(self, vectors: Mapping[str, Sequence[Tensor]]) -> dict[str, tuple[Tensor, ...]]:
        """H·v, with v zero on every layer that `vectors` does not name."""
        pairs = [
            (gradient, vector)
            for layer, layer_vectors in vectors.items()
            for gradient, vector in zip(self._tracked[layer], layer_vectors, strict=True)
        ]
        names = list(vectors)
        flat = [variable for name in names for variable in self.variables[name]]
        connected = [(gradient, vector) for gradient, vector in pairs if gradient.requires_grad]
        if not connected:  # a loss that is linear in these variables
            products = [torch.zeros_like(variable) for variable in flat]
        else:
            gradients, directions = zip(*connected, strict=True)
            with explained(self._steps):
                products = list(
                    torch.autograd.grad(
                        gradients,
                        flat,
                        directions,
                        retain_graph=True,
                        allow_unused=True,
                        materialize_grads=True,
                    )
                )
        split = iter(products)
        return {name: tuple(next(split) for _ in self.variables[name]) for name in names}


def differentiate(
    program: Program,
    inputs: Inputs,
    loss: Callable[[Any], Tensor],
    layers: Sequence[str],
    *,
    once: bool = False,
) -> Derivative:
    """Derivatives of `loss(outputs)` with respect to each layer's weight.

    A matmul of two activations has none: there, with respect to zeros added to its operands.
    Differentiated `once` there are no Hessian products, at a fraction of the memory.
    """
    variables: dict[str, list[Tensor]] = {name: [] for name in layers}

    def add_zeros(multiply: Multiply, operand: Operand, value: Tensor) -> Tensor:
        if multiply.layer not in variables or multiply.weight is not None:
            return value
        zeros = torch.zeros_like(value, requires_grad=True)
        variables[multiply.layer].append(zeros)
        return value + zeros

    value = _tracked_loss(program, inputs, loss, variables, add_zeros)
    flat = [variable for group in variables.values() for variable in group]
    with explained(program.nodes):
        gradients = iter(
            torch.autograd.grad(value, flat, create_graph=not once, allow_unused=True, materialize_grads=True)
        )
    tracked = {name: tuple(next(gradients) for _ in group) for name, group in variables.items()}
    detached = {name: tuple(gradient.detach() for gradient in group) for name, group in tracked.items()}
    groups = {name: tuple(group) for name, group in variables.items()}
    return Derivative(detached, groups, tracked, program.nodes)


def first_derivatives(
    program: Program,
    inputs: Inputs,
    loss: Callable[[Any], Tensor],
    layers: Sequence[str],
    see: Callable[[tuple[str, int], Tensor], None],
) -> dict[str, tuple[list[Tensor], dict[tuple[str, int], Tensor]]]:
    """First derivatives alone: of each layer's weights, and of its activation operands by their key.

    `see` is shown every such operand.
    """
    variables: dict[str, list[Tensor]] = {name: [] for name in layers}
    operands: dict[str, dict[tuple[str, int], Tensor]] = {name: {} for name in layers}

    def follow(multiply: Multiply, operand: Operand, value: Tensor) -> Tensor:
        if multiply.layer not in operands or operand.layout is not None:
            return value
        key = (multiply.node.name, multiply.operands.index(operand))
        see(key, value.detach())
        zeros = operands[multiply.layer][key] = torch.zeros_like(value, requires_grad=True)
        return value + zeros

    value = _tracked_loss(program, inputs, loss, variables, follow)
    flat = [leaf for name in layers for leaf in (*variables[name], *operands[name].values())]
    with explained(program.nodes):
        gradients = iter(torch.autograd.grad(value, flat, allow_unused=True, materialize_grads=True))
    return {
        name: ([next(gradients) for _ in variables[name]], {key: next(gradients) for key in operands[name]})
        for name in layers
    }


def _tracked_loss(
    program: Program,
    inputs: Inputs,
    loss: Callable[[Any], Tensor],
    variables: dict[str, list[Tensor]],
    operand: Callable[[Multiply, Operand, Tensor], Tensor],
) -> Tensor:
    """The loss, as a function of the weights of the layers in `variables`, where they are noted."""
    leaves: dict[Node, Tensor] = {}
    for multiply in program.multiplies:
        weight = multiply.weight
        if multiply.layer in variables and weight is not None and weight.root not in leaves:
            assert weight.root is not None
            leaf = program.constant(weight.root).clone().requires_grad_()
            leaves[weight.root] = leaf
            variables[multiply.layer].append(leaf)
    with torch.enable_grad():
        with explained(program.nodes):
            outputs = program.run_tracked(inputs, leaves, operand)
        return loss(outputs)


@contextmanager
def explained(steps: Sequence[Node]) -> Iterator[None]:
    """Turns what torch cannot differentiate into an error that names the operator and where it is called."""
    try:
        yield
    except (RuntimeError, NotImplementedError) as error:
        text = (str(error).strip().splitlines() or [""])[0]
        if not re.search(r"derivative|differentia|autograd", text):
            raise
        found = re.search(r"(?:derivative for|backward through) (?:\w+(?:::|\.))?(\w+)", text)
        name = found[1].removesuffix("_backward") if found else ""
        path = next((module_path(step) for step in steps if operator_name(step.target) == name), "")
        what = f"operator '{name}'" if name else "an operator"
        where = f" in '{path}'" if path else ""
        raise BitsectError(
            f"{what}{where} cannot be differentiated as often as this metric asks ({text}): "
            "take a metric without derivatives, single or sqnr"
        ) from error
