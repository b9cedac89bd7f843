"""A captured network as a list of steps, with its verbs: run, run_from, observe, differentiate.

The graph is functional: no step changes a value that another one made, so the values alive before
any layer are a state from which the rest can be run again, as often as wanted, to the same bits.
"""

from __future__ import annotations

import hashlib
from collections import ChainMap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, cast

import torch
import torch.utils._pytree as pytree
from torch import Tensor
from torch.fx import Node
from torch.fx.node import map_arg

from ..errors import BitsectError, DataError
from ..values import Comparison
from .binding import Binding, Inputs
from .derivative import Derivative, differentiate, first_derivatives
from .parts import FLOAT_ROUNDING, Contents, Multiply, Operand, Rounding, State


class Program:
    """A network as steps that can be run under a rounding, from any layer."""

    comparison: Comparison | None = None  # with the network, where it was captured from one
    given_in = ""  # the precision of the network's weights, where they were captured in float32

    def __init__(self, contents: Contents) -> None:
        self.layers, self.multiplies, self.sums = contents.layers, contents.multiplies, contents.sums
        self.tensors = {name: nodes[0] for name, nodes in contents.tensors.items()}
        self._tensor_nodes, self.skipped = dict(contents.tensors), contents.skipped
        self.contents, self.example = contents, contents.example
        self.fixed_batch, self.exported = contents.fixed_batch, contents.exported
        self._inputs, self._outputs = list(contents.inputs), contents.outputs
        self._binding = Binding(contents.inputs, contents.in_spec, contents.fixed_batch)
        self._out_spec = contents.out_spec
        self._given = dict(contents.constants)
        self._split(contents.nodes)
        self._multiply_at = {multiply.node: multiply for multiply in self.multiplies}
        self._start: dict[str, int] = {}
        for index, node in enumerate(self._steps):
            if node in self._multiply_at:
                self._start.setdefault(self._multiply_at[node].layer, index)

    def _split(self, nodes: Sequence[Node]) -> None:
        """Separate the steps that need no input, which are computed once, from those of every run."""
        fixed: set[Node] = set(self._given)
        self.prologue: list[Node] = []  # what is computed once
        self._steps: list[Node] = []
        for node in nodes:
            independent = all(source in fixed for source in node.all_input_nodes)
            if independent:
                fixed.add(node)
            (self.prologue if independent else self._steps).append(node)
        self._constants = dict(self._given)
        with torch.no_grad():
            for node in self.prologue:
                self._constants[node] = _call(node, self._constants)
        last: dict[Node, int] = {}
        for index, node in enumerate(self._steps):
            for source in node.all_input_nodes:
                last[source] = index
        kept = {leaf for leaf in pytree.tree_leaves(self._outputs) if isinstance(leaf, Node)}
        self._dying: list[list[Node]] = [[] for _ in self._steps]
        for node, index in last.items():
            if node not in self._constants and node not in kept:
                self._dying[index].append(node)
        for index, node in enumerate(self._steps):
            if node not in last and node not in kept:
                self._dying[index].append(node)

    def __repr__(self) -> str:
        return f"Program: {len(self.layers)} layers, {sum(each.weights for each in self.layers):,} weights"

    # The verbs.

    def run(self, inputs: Inputs, rounding: Rounding = FLOAT_ROUNDING) -> Any:
        """The network's outputs, in the structure the network gives them."""
        return self.run_keeping(inputs, (), rounding)[0]

    def run_as_given(self, inputs: Sequence[Any], rounding: Rounding) -> Any:
        """The outputs for a whole batch of inputs in the graph's order, which nothing checks or fills up."""
        values = dict(zip(self._inputs, inputs, strict=True))
        return self._run(values, self.fixed_batch or -1, 0, (), rounding)[0]

    def with_constants(self, values: Mapping[Node, Any]) -> Program:
        """The same program with other values for some of its parameters, buffers and constants."""
        return Program(replace(self.contents, constants={**self.contents.constants, **values}))

    def run_keeping(
        self, inputs: Inputs, keep: Iterable[str], rounding: Rounding = FLOAT_ROUNDING
    ) -> tuple[Any, dict[str, State]]:
        """The outputs, and the states before the layers `keep`."""
        values, rows = self._binding.bind(inputs, self.device)
        with torch.no_grad():
            return self._run(values, rows, 0, keep, rounding)

    def run_from(
        self, layer: str, state: State, rounding: Rounding = FLOAT_ROUNDING, keep: Iterable[str] = ()
    ) -> tuple[Any, dict[str, State]]:
        """The outputs of the steps from `layer` on, and the states before the later layers `keep`."""
        with torch.no_grad():
            return self._run(dict(state.values), state.rows, self.start(layer), keep, rounding)

    def observe(
        self, inputs: Inputs, see: Mapping[str, Callable[[Tensor], None]], rounding: Rounding = FLOAT_ROUNDING
    ) -> Any:
        """The outputs, having shown each tensor named in `see` to its function."""
        by_node: dict[Node, list[Callable[[Tensor], None]]] = {}
        for name, function in see.items():
            if name not in self.tensors:
                raise BitsectError(f"unknown tensor '{name}'; Program.tensors lists them")
            for node in self.nodes_of(name):
                by_node.setdefault(node, []).append(function)
        values, rows = self._binding.bind(inputs, self.device)

        def show(node: Node, value: Any) -> None:
            for function in by_node.get(node, ()):
                function(self._binding.without_padding(_detached(value), rows))

        with torch.no_grad():
            for node, value in [*self._constants.items(), *values.items()]:
                show(node, value)
            self._walk(values, rows, 0, len(self._steps), rounding, made=show)
        return self._collect(values, rows)

    def observe_operands(
        self, inputs: Inputs, see: Mapping[tuple[str, int], Callable[[Tensor], None]]
    ) -> None:
        """Show operands of the float network, as their multiply gets them, to their functions in `see`.

        Each is known by the name of its multiply's node and its index there. Later steps are left out.
        """
        names = {name for name, _ in see}
        values, rows = self._binding.bind(inputs, self.device)

        def show(multiply: Multiply, operand: Operand, value: Tensor) -> Tensor:
            key = (multiply.node.name, multiply.operands.index(operand))
            if key in see:
                see[key](self._binding.without_padding(value.detach(), rows))
            return value

        stop = 1 + max((i for i, node in enumerate(self._steps) if node.name in names), default=-1)
        with torch.no_grad():
            self._walk(values, rows, 0, stop, FLOAT_ROUNDING, operand=show)

    def differentiate(
        self, inputs: Inputs, loss: Callable[[Any], Tensor], layers: Iterable[str], *, once: bool = False
    ) -> Derivative:
        """Derivatives of `loss(outputs)` with respect to each layer's weight: see `derivative`."""
        return differentiate(self, inputs, loss, self._known(layers), once=once)

    def gradients(
        self,
        inputs: Inputs,
        loss: Callable[[Any], Tensor],
        layers: Iterable[str],
        see: Callable[[tuple[str, int], Tensor], None] = lambda key, value: None,
    ) -> dict[str, tuple[list[Tensor], dict[tuple[str, int], Tensor]]]:
        """First derivatives of each layer's weights and of its activation operands: see `derivative`."""
        return first_derivatives(self, inputs, loss, self._known(layers), see)

    def run_tracked(
        self,
        inputs: Inputs,
        leaves: dict[Node, Tensor],
        operand: Callable[[Multiply, Operand, Tensor], Tensor],
    ) -> Any:
        """The outputs of the float network as autograd follows them from `leaves`."""
        values, rows = self._binding.bind(inputs, self.device)
        values |= {node: _detached(value) for node, value in self._constants.items()}
        values |= self._prologue_with(leaves)
        self._walk(values, rows, 0, len(self._steps), FLOAT_ROUNDING, operand=operand)
        return self._collect(values, rows)

    # What the verbs stand on.

    def start(self, layer: str) -> int:
        """The step at which `layer` first multiplies."""
        if layer in self._start:
            return self._start[layer]
        raise BitsectError(f"unknown layer '{layer}'; `bitsect layers` lists them")

    def _known(self, layers: Iterable[str]) -> list[str]:
        """`layers` in their order in the network, whatever order they are given in."""
        return sorted(set(layers), key=self.start)

    def constant(self, node: Node) -> Tensor:
        value = self._constants[node]
        assert isinstance(value, Tensor)
        return value.detach()

    @property
    def steps(self) -> int:
        return len(self._steps)

    @property
    def step_nodes(self) -> tuple[Node, ...]:
        """The nodes of every run, each after those it reads."""
        return tuple(self._steps)

    def nodes_of(self, tensor: str) -> Sequence[Node]:
        """The nodes that make the values of `tensor`: one, or one for each step of a recurrence."""
        return self._tensor_nodes[tensor]

    @property
    def nodes(self) -> tuple[Node, ...]:
        """Every node that computes something, each after those it reads."""
        return (*self.prologue, *self._steps)

    @property
    def output_nodes(self) -> tuple[Node, ...]:
        return tuple(leaf for leaf in pytree.tree_leaves(self._outputs) if isinstance(leaf, Node))

    @cached_property
    def layer_tensors(self) -> frozenset[str]:
        """The tensors that layers take and give; the others are sums on their way."""
        taken = {operand.tensor for multiply in self.multiplies for operand in multiply.activations}
        return frozenset({each.output for each in self.multiplies} | {*filter(None, taken)})

    @cached_property
    def device(self) -> torch.device:
        """Where the network expects its inputs."""
        examples = (*(node.meta.get("val") for node in self._inputs), *self._given.values())
        devices = (value.device for value in examples if isinstance(value, Tensor))
        return next(devices, torch.get_default_device())

    @property
    def length(self) -> int:
        """How long the sequences of its example are: the size of the second axis."""
        return _length(self.example) or 0

    def length_of(self, inputs: Inputs) -> int | None:
        """How long the sequences of `inputs` are, where the network takes any length."""
        return _length(inputs) if self.any_length else None

    @property
    def any_length(self) -> bool:
        """Whether it takes sequences of any length."""
        values = (node.meta.get("val") for node in self._inputs)
        return any(type(size) is not int for v in values if isinstance(v, Tensor) for size in v.shape[1:])

    @cached_property
    def bytes_per_sample(self) -> int:
        """What the values of one sample take in memory, counted on the example."""
        made: list[int] = []

        def count(node: Node, value: Any) -> None:
            leaves = (leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, Tensor))
            if node.op != "placeholder":
                made.append(sum(leaf.numel() * leaf.element_size() for leaf in leaves))

        rows = self.watch(count)
        return sum(made) // rows

    def watch(self, made: Callable[[Node, Any], None]) -> int:
        """Run the example in float, show `made` every value with its node, inputs first; returns its rows."""
        values, rows = self._binding.bind(self.example, self.device)
        with torch.no_grad():
            for node, value in values.items():
                made(node, value)
            self._walk(values, rows, 0, len(self._steps), FLOAT_ROUNDING, made=made)
        return max(1, rows)

    @cached_property
    def fingerprint(self) -> str:
        """A hash of the graph and of every parameter, buffer and constant."""
        graph = self.exported.graph
        digest = hashlib.sha256("\n".join(node.format_node() or "" for node in graph.nodes).encode())
        # The graph alone does not tell an image of 32² from one of 64².
        digest.update(repr(self.layers).encode())
        for node, value in self._given.items():
            digest.update(node.name.encode())
            if isinstance(value, Tensor) and value.device.type != "meta":
                flat = value.detach().cpu().contiguous()
                digest.update(f"{flat.dtype}{tuple(flat.shape)}".encode())
                digest.update(flat.reshape(-1).view(torch.uint8).numpy().tobytes())
        return digest.hexdigest()

    def _run(
        self, values: dict[Node, Any], rows: int, start: int, keep: Iterable[str], rounding: Rounding
    ) -> tuple[Any, dict[str, State]]:
        states: dict[str, State] = {}
        for position, name in sorted((self.start(name), name) for name in set(keep)):
            if position >= start:
                self._walk(values, rows, start, position, rounding)
                states[name], start = State(dict(values), rows), position
        self._walk(values, rows, start, len(self._steps), rounding)
        return self._collect(values, rows), states

    def _walk(
        self,
        values: dict[Node, Any],
        rows: int,
        start: int,
        stop: int,
        rounding: Rounding,
        operand: Callable[[Multiply, Operand, Tensor], Tensor] | None = None,
        made: Callable[[Node, Any], None] | None = None,
    ) -> None:
        constants = self._constants

        def read(node: Node) -> Any:
            return values[node] if node in values else constants[node]

        for index in range(start, stop):
            node = self._steps[index]
            args, kwargs = map_arg(node.args, read), map_arg(node.kwargs, read)
            result: Any
            grid = None
            if node.name in rounding.done:
                result = args[0]
            elif node.name in rounding.kernels:
                result = rounding.kernels[node.name](node.target, args, kwargs, rows)
            else:
                multiply = self._multiply_at.get(node)
                if multiply is not None:
                    args = _with_operands(multiply, args, rounding, operand)
                result = node.target(*args, **kwargs)  # type: ignore[operator]
                if node.name in rounding.biases:
                    result = result + rounding.biases[node.name]
                grid = rounding.results.get(node.name)
            if made is not None:
                made(node, result)
            values[node] = result if grid is None else grid.round(result)
            for dead in self._dying[index]:
                values.pop(dead, None)

    def _prologue_with(self, leaves: dict[Node, Tensor]) -> dict[Node, Any]:
        """The constants that follow from `leaves`, computed again so that derivatives reach them."""
        values: dict[Node, Any] = dict(leaves)
        known = ChainMap(values, self._constants)
        for node in self.prologue:
            if node not in values and any(source in values for source in node.all_input_nodes):
                values[node] = _call(node, known)
        return values

    def _collect(self, values: Mapping[Node, Any], rows: int) -> Any:
        def read(leaf: Any) -> Any:
            if not isinstance(leaf, Node):
                return leaf
            if leaf in self._constants:
                return self._constants[leaf]
            if not self._binding.can_cut(values[leaf], rows):
                raise DataError(
                    f"the output of this network has no batch axis to cut padding from: "
                    f"give it whole batches of {self.fixed_batch}, not {rows}"
                )
            return self._binding.without_padding(values[leaf], rows)

        leaves = [read(leaf) for leaf in self._outputs]
        return pytree.tree_unflatten(leaves, self._out_spec)


def _length(inputs: Inputs) -> int | None:
    leaves = (leaf for leaf in pytree.tree_leaves(inputs) if isinstance(leaf, Tensor) and leaf.ndim > 1)
    return next((int(leaf.shape[1]) for leaf in leaves), None)


def _detached(value: Any) -> Any:
    return value.detach() if isinstance(value, Tensor) else value


def _call(node: Node, values: Mapping[Node, Any]) -> Any:
    return node.target(*map_arg(node.args, values.__getitem__), **map_arg(node.kwargs, values.__getitem__))  # type: ignore[operator]


def _with_operands(
    multiply: Multiply,
    args: tuple[Any, ...],
    rounding: Rounding,
    change: Callable[[Multiply, Operand, Tensor], Tensor] | None,
) -> tuple[Any, ...]:
    """The arguments of a multiply with its operands rounded."""
    replaced: dict[int, Tensor] = {}
    for position, operand in enumerate(multiply.operands):
        key = (multiply.node.name, position)
        value = _operand_of(multiply, args, operand)
        if key in rounding.weights:
            value = rounding.weights[key].expand_as(value)  # bmm takes a weight repeated along the batch
        elif key in rounding.inputs:
            value = rounding.inputs[key].round(value)
        if change is not None:
            value = change(multiply, operand, value)
        replaced[operand.position] = value
    if isinstance(args[1], list | tuple) and isinstance(args[0], str):  # einsum: an equation and a list
        return (args[0], [replaced.get(i, arg) for i, arg in enumerate(args[1])], *args[2:])
    return tuple(replaced.get(i, arg) for i, arg in enumerate(args))


def _operand_of(multiply: Multiply, args: tuple[Any, ...], operand: Operand) -> Tensor:
    source = args[1] if isinstance(args[0], str) else args
    return cast(Tensor, source[operand.position])
