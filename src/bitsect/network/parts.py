"""The parts of a captured network: its multiplies and sums, what rounds them, and states between them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch.utils._pytree as pytree
from torch import Tensor
from torch.export import ExportedProgram
from torch.fx import Node

from ..values import Layer, Place, Skipped
from ..values.grid import Grid
from .binding import Inputs
from .layout import Layout


@dataclass(frozen=True)
class Operand:
    """One factor of a multiply: a weight with its layout, or an activation with the tensor it reads."""

    position: int
    node: Node
    layout: Layout | None = None  # of a weight
    root: Node | None = None  # what a weight is a view of: the value that is differentiated
    tensor: str | None = None  # of an activation: the name its range is kept under


@dataclass(frozen=True)
class Multiply:
    """A place of a layer in the graph."""

    layer: str
    place: Place
    node: Node
    operands: tuple[Operand, ...]
    output: str  # the name of the tensor after batch norm and a following rectifier

    @property
    def weight(self) -> Operand | None:
        return next((operand for operand in self.operands if operand.layout is not None), None)

    @property
    def activations(self) -> tuple[Operand, ...]:
        return tuple(operand for operand in self.operands if operand.layout is None)


@dataclass(frozen=True)
class Sum:
    """A residual sum: two activations of one shape added, with a following rectifier."""

    node: Node
    tensor: str
    addends: tuple[Node, Node]


@dataclass(frozen=True)
class Rounding:
    """What a plan does to a program: operands replaced, operands rounded, biases added, results rounded.

    `kernels[name]` replaces the computation of step `name`, for example by integer arithmetic; it is called
    with the operator, its arguments, and how many samples these are of. A kernel may also cover later steps
    (batch norm, ReLU); these are listed in `done` and return their input unchanged.
    """

    weights: Mapping[tuple[str, int], Tensor] = field(default_factory=dict)
    inputs: Mapping[tuple[str, int], Grid] = field(default_factory=dict)
    biases: Mapping[str, Tensor] = field(default_factory=dict)  # shaped to be added to a multiply's result
    results: Mapping[str, Grid] = field(default_factory=dict)
    kernels: Mapping[str, Callable[..., Tensor]] = field(default_factory=dict)
    done: Collection[str] = ()


FLOAT_ROUNDING = Rounding()


@dataclass(frozen=True)
class State:
    """The values alive before a layer."""

    values: Mapping[Node, Any]
    rows: int  # samples in the batch, without padding


@dataclass(frozen=True)
class Contents:
    """What was read from an exported graph."""

    nodes: Sequence[Node]  # those that compute something, each after those it reads
    constants: Mapping[Node, Any]  # parameters, buffers and literal constants
    inputs: Sequence[Node]
    outputs: Any
    in_spec: pytree.TreeSpec
    out_spec: pytree.TreeSpec
    layers: tuple[Layer, ...]
    multiplies: tuple[Multiply, ...]
    sums: tuple[Sum, ...]
    tensors: Mapping[str, Sequence[Node]]
    skipped: tuple[Skipped, ...]
    example: Inputs
    fixed_batch: int | None
    exported: ExportedProgram
