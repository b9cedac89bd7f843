"""Reading an exported graph: its layers, their names, places, shapes, sums, and what stays in float."""

from __future__ import annotations

import math
import operator
from collections import Counter
from collections.abc import Sequence
from typing import Any

from torch.export import ExportedProgram
from torch.fx import Node

from ..values import Layer, Place, Signature, Skipped
from .binding import Inputs
from .exported_program import batch_of, computes, constants_of, independent, user_inputs, user_outputs
from .grouped import GROUPED
from .layout import Layout
from .made import check_made
from .naming import is_recurrent, join, made_name, parameter_name, role
from .operators import (
    CONVOLUTIONS,
    EINSUM,
    EMBEDDING,
    LINEAR,
    MATMULS,
    TRANSPOSED_CONVOLUTIONS,
    aten,
    is_float,
    is_rectifier,
    module_path,
    operator_name,
    through_reshapes,
)
from .parts import Contents, Multiply, Operand, Sum
from .program import Program
from .skipped import reason_for
from .structures import make_plain


def read_graph(exported: ExportedProgram, example: Inputs, *, embeddings: bool) -> Program:
    """The program of a functional exported graph."""
    return _Reader(exported, example, embeddings).program()


class _Reader:
    """Walks the graph once and collects what a Program needs."""

    def __init__(self, exported: ExportedProgram, example: Inputs, embeddings: bool) -> None:
        self.exported, self.example, self.embeddings = exported, example, embeddings
        self.out_spec = exported.call_spec.out_spec  # as the network itself has it
        make_plain(exported)
        self.constants, self.targets = constants_of(exported)
        self.inputs = user_inputs(exported)
        self.batch_one, self.fixed_batch = batch_of(self.inputs)
        self.fixed = independent(exported.graph.nodes, self.constants)
        check_made(self.fixed, self.constants)
        # A view that fits the example may not fit an input in another memory format.
        for view in exported.graph.find_nodes(op="call_function", target=aten.view.default):
            view.target = aten.reshape.default
        self.nodes = [node for node in exported.graph.nodes if computes(node)]
        self.tensors: dict[str, list[Node]] = {}
        self.name_of: dict[Node, str] = {}

    def program(self) -> Program:
        found = [(node, *pair) for node in self.nodes if (pair := self._operands(node)) is not None]
        layer_of = self._name_layers([(node, operands) for node, operands, _ in found])
        places: dict[str, list[Place]] = {}
        multiplies: list[Multiply] = []
        shapes: dict[str, tuple[int, ...] | None] = {}
        kinds: dict[str, str] = {}
        counts = Counter(layer_of.values())
        for node, operands, signature in found:
            layer = layer_of[node]
            place_name = layer if counts[layer] == 1 else f"{layer}@{len(places.get(layer, ())) + 1}"
            place = Place(place_name, signature, self._macs(node, operands))
            places.setdefault(layer, []).append(place)
            # The states of a recurrence are one tensor at many times: they share one range.
            known = layer if is_recurrent(node) else place_name
            named = tuple(self._with_tensor(operand, known, index) for index, operand in enumerate(operands))
            output = self._tensor(_rectified(node), f"{known}.output")
            multiplies.append(Multiply(layer, place, node, named, output))
            weight = multiplies[-1].weight
            shapes.setdefault(
                layer, _shape(weight.root) if weight is not None and weight.root is not None else None
            )
            kinds.setdefault(layer, signature.kind)
        layers = tuple(Layer(name, kinds[name], shapes[name], tuple(places[name])) for name in places)
        layers_at = {multiply.node for multiply in multiplies}
        skipped = [each for node in self.nodes if (each := self._skipped(node, layers_at)) is not None]
        outputs = user_outputs(self.exported)
        return Program(
            Contents(
                nodes=self.nodes,
                constants=self.constants,
                inputs=self.inputs,
                outputs=outputs,
                in_spec=self.exported.call_spec.in_spec,
                out_spec=self.out_spec,
                layers=layers,
                multiplies=tuple(multiplies),
                sums=self._sums(),
                tensors=self.tensors,
                skipped=tuple(skipped),
                example=self.example,
                fixed_batch=self.fixed_batch,
                exported=self.exported,
            )
        )

    # Layers

    def _operands(self, node: Node) -> tuple[tuple[Operand, ...], Signature] | None:
        """The operands of `node` and its shapes, if it is a multiply that can be quantised."""
        if node in self.fixed or node.op != "call_function":
            return None
        target = node.target
        if target in LINEAR:
            return self._pair(node, node.args[0], node.args[1], (0, 1), Layout((0,), (1,)), "linear")
        if target in CONVOLUTIONS or target in TRANSPOSED_CONVOLUTIONS:
            return self._convolution(node)
        if target in MATMULS:
            return self._matmul(node, MATMULS[target])
        if target == GROUPED and _node(node.args[1]) in self.fixed:
            return self._pair(node, node.args[0], node.args[1], (0, 1), Layout((0, 2), (1,)), "grouped")
        if target == EINSUM:
            return self._einsum(node)
        if target == EMBEDDING and self.embeddings and _node(node.args[0]) in self.fixed:
            return self._embedding(node)
        return None

    def _pair(
        self,
        node: Node,
        first: Any,
        second: Any,
        positions: tuple[int, int],
        layout: Layout,
        kind: str,
        **more: Any,
    ) -> tuple[tuple[Operand, ...], Signature] | None:
        """A multiply of an activation by a weight of `layout`, or of two activations."""
        left, right = _node(first), _node(second)
        if not (is_float(left) and is_float(right)):
            return None
        weight = right in self.fixed
        operands = (
            Operand(positions[0], left),
            Operand(positions[1], right, layout, through_reshapes(right))
            if weight
            else Operand(positions[1], right),
        )
        if not weight and kind == "linear":
            kind = "matmul"
        return operands, self._signature(kind, left, right, node, **more)

    def _convolution(self, node: Node) -> tuple[tuple[Operand, ...], Signature] | None:
        given = _named_arguments(node)
        dimensions = len(_shape(_node(given["weight"]))) - 2
        transposed = node.target in TRANSPOSED_CONVOLUTIONS or bool(given.get("transposed"))
        groups = given.get("groups", 1)
        taps = tuple(range(2, 2 + dimensions))
        layout = Layout((1,), (0,), taps, groups) if transposed else Layout((0,), (1,), taps)
        channels = self._sizes(_node(given["input"]))[-dimensions - 1]
        kind = "conv_transpose" if transposed else f"conv{dimensions}d"
        if not transposed and groups == channels and channels > 1 and _shape(_node(given["weight"]))[1] == 1:
            kind = "depthwise"
        dilation = _tuple(given.get("dilation", 1), dimensions)
        padding = given.get("padding", 0)
        if padding == "same":
            kernel = _shape(_node(given["weight"]))[2:]
            padding = [step * (size - 1) // 2 for step, size in zip(dilation, kernel, strict=True)]
        return self._pair(
            node,
            given["input"],
            given["weight"],
            (0, 1),
            layout,
            kind,
            stride=_tuple(given.get("stride", 1), dimensions),
            padding=_tuple(0 if padding == "valid" else padding, dimensions),
            dilation=dilation,
            groups=groups,
        )

    def _matmul(self, node: Node, positions: tuple[int, int]) -> tuple[tuple[Operand, ...], Signature] | None:
        left, right = (self._unrepeated(_node(node.args[position])) for position in positions)
        rank = len(_shape(right))
        if self._full_sizes(left)[-1] == 1:  # an outer product, as of steps and frequencies, sums nothing
            return None
        if left in self.fixed and right not in self.fixed:  # weight · activation: its rows are channels
            rank = len(_shape(left))
            layout = Layout(tuple(range(rank - 1)), (rank - 1,))
            pair = self._pair(node, right, left, (positions[1], positions[0]), layout, "linear")
            if pair is None:
                return None
            (activation, weight), signature = pair
            return (weight, activation), signature
        layout = Layout((), (0,)) if rank == 1 else Layout((*range(rank - 2), rank - 1), (rank - 2,))
        return self._pair(node, left, right, positions, layout, "linear")

    def _unrepeated(self, node: Node) -> Node:
        """What `node` repeats along the batch, if that is a weight: bmm wants it so."""
        if node not in self.fixed and node.target == aten.expand.default:
            source = _node(node.args[0])
            return source if source in self.fixed else node
        return node

    def _einsum(self, node: Node) -> tuple[tuple[Operand, ...], Signature] | None:
        labels, result = self._labels(node)
        if len(labels) != 2 or not set("".join(labels)) - set(result):
            return None
        left, right = (_node(factor) for factor in node.args[1])  # type: ignore[union-attr]
        positions = (0, 1)
        if left in self.fixed and right not in self.fixed:
            left, right, positions, labels = right, left, (1, 0), labels[::-1]
        if len(set(labels[1])) != len(labels[1]):
            return None
        inputs = tuple(axis for axis, label in enumerate(labels[1]) if label not in result)
        channels = tuple(axis for axis, label in enumerate(labels[1]) if label in result)
        pair = self._pair(node, left, right, positions, Layout(channels, inputs), "linear")
        if pair is None or positions == (0, 1):
            return pair
        (activation, weight), signature = pair
        return (weight, activation), signature

    def _labels(self, node: Node) -> tuple[list[str], str]:
        """A label for every axis of the factors of an einsum, and those of its result."""
        equation, factors = node.args[:2]
        assert isinstance(equation, str)
        assert isinstance(factors, list | tuple)
        terms, arrow, result = equation.replace(" ", "").partition("->")
        spare = "0123456789"  # labels for the axes that an ellipsis stands for, the last of them aligned

        def spelled(term: str, rank: int) -> str:
            return term.replace("...", spare[len(spare) - (rank - len(term) + 3) :] if "..." in term else "")

        labels = [spelled(t, len(_shape(_node(f)))) for t, f in zip(terms.split(","), factors, strict=True)]
        if not arrow:
            every = "".join(labels)
            return labels, "".join(label for label in every if every.count(label) == 1 or label in spare)
        return labels, spelled(result, len(_shape(node)))

    def _embedding(self, node: Node) -> tuple[tuple[Operand, ...], Signature]:
        weight = _node(node.args[0])
        operand = Operand(0, weight, Layout((0,), (1,)), through_reshapes(weight))
        return (operand,), self._signature("embedding", _node(node.args[1]), weight, node)

    def _signature(self, kind: str, left: Node, right: Node, output: Node, **more: Any) -> Signature:
        operand = self._sizes(right) if right not in self.fixed else _shape(right)
        return Signature(kind, self._sizes(left), operand, self._sizes(output), **more)

    def _macs(self, node: Node, operands: tuple[Operand, ...]) -> int:
        """Multiply-adds per sample."""
        if node.target == EMBEDDING:
            return 0
        first, second = (self._full_sizes(operand.node) for operand in operands)
        output = math.prod(self._full_sizes(node))
        if node.target == EINSUM:
            labels, _ = self._labels(node)
            sizes: dict[str, int] = {}
            for label, size in zip("".join(labels), first + second, strict=True):
                sizes[label] = max(size, sizes.get(label, 1))
            total = math.prod(sizes.values())
        elif node.target in TRANSPOSED_CONVOLUTIONS or _named_arguments(node).get("transposed"):
            total = math.prod(first) * math.prod(second[1:])
        elif node.target in CONVOLUTIONS:
            total = output * math.prod(second[1:])
        else:
            total = output * first[-1]
        return total // (self.fixed_batch or 1)

    def _name_layers(self, found: Sequence[tuple[Node, tuple[Operand, ...]]]) -> dict[Node, str]:
        """A layer per distinct weight, named by its parameter; matmuls by the module around them."""
        names: dict[Node, str] = {}
        by_root: dict[Node, str] = {}
        taken: set[str] = set()
        for node, operands in found:
            root = next((operand.root for operand in operands if operand.layout is not None), None)
            if root is not None and root in by_root:
                names[node] = by_root[root]
                continue
            path = module_path(node)
            if root in self.targets:
                wanted = parameter_name(root.meta["aliases"], path)
            else:
                made = made_name(root, path, self.targets) if root is not None else None
                wanted = made or join(path, role(node, operands))
            name, count = wanted, 1
            while name in taken:
                count += 1
                name = f"{wanted}_{count}"
            taken.add(name)
            names[node] = name
            if root is not None:
                by_root[root] = name
        return names

    # Tensors and sums

    def _with_tensor(self, operand: Operand, place: str, index: int) -> Operand:
        if operand.layout is not None:
            return operand
        suffix = "input" if index == 0 else f"input{index + 1}"
        tensor = self._tensor(through_reshapes(operand.node), f"{place}.{suffix}")
        return Operand(operand.position, operand.node, tensor=tensor)

    def _tensor(self, node: Node, wanted: str) -> str:
        """The name that the values of `node` are known by: the first one given."""
        if node not in self.name_of:
            self.name_of[node] = wanted
            self.tensors.setdefault(wanted, []).append(node)
        return self.name_of[node]

    def _sums(self) -> tuple[Sum, ...]:
        found = []
        # Counted within their module: a graph that is written and read again has other names of its own.
        counts: Counter[str] = Counter()
        for node in self.nodes:
            if node in self.fixed or node.op != "call_function" or operator_name(node.target) != "add":
                continue
            if is_recurrent(node):  # its sums are of float values, which no integer kernel adds
                continue
            addends = [
                arg
                for arg in node.args[:2]
                if isinstance(arg, Node) and is_float(arg) and arg not in self.fixed
            ]
            if len(addends) == 2 and addends[0].meta["val"].shape == addends[1].meta["val"].shape:
                path = join(module_path(node), "sum")
                counts[path] += 1
                name = path if counts[path] == 1 else f"{path}{counts[path]}"
                tensor = self._tensor(_rectified(node), name)
                found.append(Sum(node, tensor, (addends[0], addends[1])))
        return tuple(found)

    def _skipped(self, node: Node, layers_at: set[Node]) -> Skipped | None:
        """`node` with the reason why it stays in float, if it multiplies or may do so and is no layer."""
        if node in layers_at:
            return None
        reason = reason_for(node, is_fixed=node in self.fixed, embeddings=self.embeddings)
        if reason is None:
            return None
        return Skipped(join(module_path(node), operator_name(node.target)), str(node.target), reason)

    def _full_sizes(self, node: Node) -> tuple[int, ...]:
        """The shape of `node` at batch one, or at the batch that the network fixes."""
        return tuple(self.batch_one(size) for size in node.meta["val"].shape)

    def _sizes(self, node: Node) -> tuple[int, ...]:
        """The shape of `node` at batch one."""
        sizes, batch = self._full_sizes(node), self.fixed_batch
        if batch is not None and node not in self.fixed and sizes and sizes[0] % batch == 0:
            return (sizes[0] // batch, *sizes[1:])
        return sizes


def _rectified(node: Node) -> Node:
    """`node`, or what batch norm and a rectifier make of it where nothing else reads it in between."""
    while len(node.users) == 1:
        user = next(iter(node.users))
        if user.op != "call_function":
            break
        if "batch_norm" in operator_name(user.target):
            outputs = [
                reader for reader in user.users if reader.target is operator.getitem and reader.args[1] == 0
            ]
            if user.args[0] is not node or (
                len(user.users) != 1 if not outputs else len(outputs) != len(user.users)
            ):
                break
            node = outputs[0] if outputs else user
        elif is_rectifier(user):
            return user
        else:
            break
    return node


def _shape(node: Node) -> tuple[int, ...]:
    return tuple(node.meta["val"].shape)


def _node(arg: Any) -> Node:
    assert isinstance(arg, Node)
    return arg


def _named_arguments(node: Node) -> dict[str, Any]:
    schema = node.target._schema.arguments  # type: ignore[union-attr]
    return {**{arg.name: value for arg, value in zip(schema, node.args, strict=False)}, **node.kwargs}


def _tuple(value: Any, length: int) -> tuple[int, ...]:
    values = tuple(value) if isinstance(value, list | tuple) else (value,)
    return values * length if len(values) == 1 else values
