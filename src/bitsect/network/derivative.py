"""Gradients of a loss and products of its Hessian, or one line about what cannot be differentiated."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.fx import Node

from ..errors import BitsectError
from .operators import module_path, operator_name


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
