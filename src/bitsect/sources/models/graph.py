"""The program of a saved file, built anew from its JSON: only what is known here can be in it.

Values have names of ours, operators come from a list, constants are numbers and members of torch's own
kinds, sizes are read by a grammar of ours. What else a file says of its graph (guards, traces of stacks,
sources of nodes, custom metadata) is not read.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Mapping
from keyword import iskeyword
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import Tensor
from torch.export.graph_signature import (
    ConstantArgument,
    InputKind,
    InputSpec,
    OutputKind,
    OutputSpec,
    SymIntArgument,
    TensorArgument,
)
from torch.fx import Graph, GraphModule, Node

from .archive import DEEPEST, DTYPES, SAVE, DamagedError, UnsafeError, device_of, shown
from .bounded import bounded
from .checked import CHECKED
from .operators import DEVICES, TEXTS, operators
from .sizes import Sizes
from .structures import LARGEST, plain, structure

VERSION = 8  # of torch's schema
MOST_NODES = 100_000
MOST_FACTORS = 16  # sizes multiplied together, one node after another
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,199}")
EQUATION = re.compile(r"[A-Za-z,.> -]{1,200}")
MEMORY_FORMATS = {
    1: torch.contiguous_format,
    2: torch.channels_last,
    3: torch.channels_last_3d,
    4: torch.preserve_format,
}
SCALES = ("scales", "scales_h", "scales_w")
INPUTS = {
    "parameter": (InputKind.PARAMETER, "parameter_name"),
    "buffer": (InputKind.BUFFER, "buffer_name"),
    "tensor_constant": (InputKind.CONSTANT_TENSOR, "tensor_constant_name"),
}
MUTATIONS = {
    "buffer_mutation": (OutputKind.BUFFER_MUTATION, "buffer_name"),
    "parameter_mutation": (OutputKind.PARAMETER_MUTATION, "parameter_name"),
    "user_input_mutation": (OutputKind.USER_INPUT_MUTATION, "user_input_name"),
}


class SavedGraph:
    """A graph, its inputs and outputs under names of ours, and the file's names beside them."""

    def __init__(self, program: Mapping[str, Any]) -> None:
        if program["schema_version"]["major"] != VERSION:
            raise DamagedError(f"it was written by another torch than {torch.__version__}: {SAVE}")
        module = program["graph_module"]
        self.sizes = Sizes(program["range_constraints"])
        self.fake = bounded(self.sizes.env)
        self.inputs: list[InputSpec] = []
        self.names: list[str] = []  # of the inputs in the file
        self.paths: dict[str, str] = {}  # of weights: ours → those in the file
        self.constants: dict[str, Any] = {}  # inputs that are no tensors, by their names in the file
        signature, call = module["signature"], module["module_call_graph"][0]["signature"]
        part = _Part()
        self.graph = part.graph
        for argument, (kind, spec) in zip(
            module["graph"]["inputs"], map(_single, signature["input_specs"]), strict=True
        ):
            self._add_input(part, module["graph"]["tensor_values"], _single(argument), kind, spec)
        part.read(module["graph"])
        self.root = part.root
        self.outputs = [self._output(part, *_single(spec)) for spec in signature["output_specs"]]
        self.in_spec, self.out_spec = structure(call["in_spec"]), structure(call["out_spec"])
        if [each.type for each in (self.in_spec, *self.in_spec.children())] != [tuple, tuple, dict]:
            raise DamagedError(f"its inputs are not given by place and by name: {SAVE}")
        named = self.in_spec.children()[1].context
        self.arguments = list(call.get("forward_arg_names") or ())
        every = (*self.names, *self.arguments, *named)
        twice = len(set(self.arguments)) < len(self.arguments)
        if twice or not all(NAME.fullmatch(each) and not iskeyword(each) for each in every):
            raise UnsafeError("its inputs have names that no function could give them")
        pairs = zip(self.names, self.inputs, strict=True)
        self.users = [name for name, spec in pairs if spec.kind == InputKind.USER_INPUT]
        given = [spec.kind == OutputKind.USER_OUTPUT for spec in self.outputs].count(True)
        if (self.in_spec.num_leaves, self.out_spec.num_leaves) != (len(self.users), given):
            raise DamagedError(f"its inputs or outputs are not those of its graph: {SAVE}")
        if len(self.names) != len(set(self.names)):
            raise DamagedError(f"two of its inputs have one name: {SAVE}")

    def _add_input(
        self, part: _Part, metas: Mapping[str, Any], argument: tuple[str, Any], kind: str, spec: Any
    ) -> None:
        number = len(self.inputs)
        shape, value = argument
        if kind == "constant_input":
            name = spec["name"] or f"constant_{number}"
            node = part.graph.placeholder(f"x{number}")
            node.meta["val"] = None  # its value is only compared with what a user gives
            self.constants[name] = constant(spec["value"])
            self.inputs.append(InputSpec(InputKind.USER_INPUT, ConstantArgument(node.name, None), None))
        elif shape == "as_tensor" and (kind == "user_input" or kind in INPUTS):
            name = value["name"]
            node = part.add(name, part.graph.placeholder(f"{'x' if kind == 'user_input' else 'w'}{number}"))
            node.meta["val"] = self._tensor(metas[name])
            if kind == "user_input":
                self.inputs.append(InputSpec(InputKind.USER_INPUT, TensorArgument(node.name), None))
            else:
                role, key = INPUTS[kind]
                self.paths[node.name] = plain(spec[key])
                lasting = (spec["persistent"] is True) if kind == "buffer" else None
                self.inputs.append(InputSpec(role, TensorArgument(node.name), node.name, lasting))
        else:
            raise UnsafeError(f"an input is of the kind {shown(kind)}")
        self.names.append(name)

    def _tensor(self, meta: Mapping[str, Any]) -> Tensor:
        if meta["layout"] != 7 or not len(meta["sizes"]) == len(meta["strides"]) <= DEEPEST:
            raise UnsafeError("an input is no dense tensor")
        sizes, strides = ([self.sizes.size(size) for size in meta[key]] for key in ("sizes", "strides"))
        with self.fake:
            made: Tensor = torch.empty_strided(
                sizes,
                strides,
                dtype=DTYPES[meta["dtype"]],
                device=device_of(meta["device"]),
                requires_grad=meta["requires_grad"] is True,
            )
        return made

    def _output(self, part: _Part, kind: str, spec: Mapping[str, Any]) -> OutputSpec:
        value = part.argument(spec["arg"]) if "as_none" not in spec["arg"] and kind == "user_output" else None
        if kind in MUTATIONS:
            role, key = MUTATIONS[kind]
            value = part.value(spec["arg"]["name"])
            if role == OutputKind.USER_INPUT_MUTATION:
                target = part.value(spec[key]).name
            else:
                target = next(name for name, path in self.paths.items() if path == spec[key])
            return OutputSpec(role, TensorArgument(value.name), target)
        if kind != "user_output":
            raise UnsafeError(f"an output is of the kind {shown(kind)}")
        if not isinstance(value, Node):
            return OutputSpec(OutputKind.USER_OUTPUT, ConstantArgument("", value), None)
        holder = TensorArgument if "as_tensor" in spec["arg"] else SymIntArgument
        return OutputSpec(OutputKind.USER_OUTPUT, holder(value.name), None)


class _Part:
    """A graph that is being built: the whole one, or one that an operator such as `cond` runs."""

    def __init__(self, depth: int = 0) -> None:
        self.depth = depth
        self.graph, self.root = Graph(), torch.nn.Module()
        self.values: dict[str, Node] = {}  # by their names in the file
        self.factors: dict[Node, int] = {}
        self.operators = operators()
        if depth > 8:
            raise DamagedError(f"its graphs are nested without end: {SAVE}")

    def add(self, name: str, node: Node) -> Node:
        if name in self.values:
            raise DamagedError(f"two values are called {shown(name)}: {SAVE}")
        self.values[name] = node
        return node

    def value(self, name: str) -> Node:
        if name not in self.values:
            raise DamagedError(f"nothing makes the value {shown(name)}: {SAVE}")
        return self.values[name]

    def read(self, data: Mapping[str, Any]) -> None:
        """Add every node and the output."""
        if len(data["nodes"]) > MOST_NODES:
            raise DamagedError(f"it has more than {MOST_NODES:,} operators: {SAVE}")
        for node in data["nodes"]:
            self._node(node)
        outputs = [self.argument(output) for output in data["outputs"]]
        self.graph.output(outputs[0] if data["is_single_tensor_return"] is True else tuple(outputs))

    def _node(self, data: Mapping[str, Any]) -> None:
        target = self.operators.get(data["target"])
        if target is None:
            raise UnsafeError(
                f"it calls {shown(data['target'])}, which is no operator of a network's forward"
            )
        schema = getattr(target, "_schema", None)
        args: list[Any] = []
        kwargs: dict[str, Any] = {}
        if schema is None:
            args = [self.argument(given["arg"], given["name"]) for given in data["inputs"]]
        else:
            given = {each["name"]: each for each in data["inputs"]}
            for argument in schema.arguments:
                each = given.pop(argument.name, None)
                if each is None:
                    continue
                value = self.argument(each["arg"], argument.name)
                by_place = each.get("kind") == 1 or not (
                    each.get("kind") or argument.has_default_value() or argument.kwarg_only
                )
                if by_place and not kwargs and not argument.kwarg_only:
                    args.append(value)
                else:
                    kwargs[argument.name] = value
            if given:
                raise DamagedError(
                    f"{shown(data['target'])} has no argument {shown(next(iter(given)))}: {SAVE}"
                )
        node = self.graph.call_function(CHECKED.get(target, target), tuple(args), kwargs)
        if schema is None:
            self._bound(node, args)
        node.meta["nn_module_stack"] = module_stack(data["metadata"].get("nn_module_stack"))
        single = data.get("is_hop_single_tensor_return") is not False
        self._outputs(node, data["outputs"], single)

    def _outputs(self, node: Node, outputs: list[Any], single: bool) -> None:
        """Name what `node` gives as the file does: itself, or parts of it."""
        kinds = [_single(output) for output in outputs]
        if len(kinds) == 1 and single and kinds[0][0] != "as_tensors":
            self._name(node, *kinds[0])
        elif len(kinds) == 1 and kinds[0][0] == "as_tensors":
            for index, each in enumerate(kinds[0][1]):
                self._name(self._item(node, index), "as_tensor", each)
        else:
            for index, (kind, value) in enumerate(kinds):
                item = self._item(node, index)
                if kind == "as_tensors":
                    for place, each in enumerate(value):
                        self._name(self._item(item, place), "as_tensor", each)
                else:
                    self._name(item, kind, value)

    def _item(self, node: Node, index: int) -> Node:
        item = self.graph.call_function(operator.getitem, (node, index))
        item.meta["nn_module_stack"] = node.meta["nn_module_stack"]
        return item

    def _name(self, node: Node, kind: str, value: Any) -> None:
        if kind in ("as_tensor", "as_sym_int", "as_sym_bool", "as_sym_float"):
            self.add(value["name" if kind == "as_tensor" else "as_name"], node)
        elif kind != "as_none":
            raise UnsafeError(f"an operator gives a value of the kind {shown(kind)}")

    def _bound(self, node: Node, args: list[Any]) -> None:
        """Refuse sizes that are multiplied over and over: each node may double the digits of the last."""
        counts = [self.factors.get(arg, 1) for arg in pytree.tree_leaves(args) if isinstance(arg, Node)] or [
            1
        ]
        self.factors[node] = sum(counts) if node.target is operator.mul else max(counts)
        if self.factors[node] > MOST_FACTORS:
            raise UnsafeError("a size is multiplied with itself over and over")

    def argument(self, data: Mapping[str, Any], name: str = "") -> Any:
        """What an operator is given: a value of the graph, or a constant."""
        kind, value = _single(data)
        match kind:
            case "as_tensor":
                return self.value(value["name"])
            case "as_tensors":
                return [self.value(each["name"]) for each in value]
            case "as_optional_tensors":
                return [
                    None if "as_none" in each else self.value(each["as_tensor"]["name"]) for each in value
                ]
            case "as_sym_int" | "as_sym_bool" | "as_sym_float":
                inner, held = _single(value)
                return self.value(held) if inner == "as_name" else number(held)
            case "as_sym_ints" | "as_sym_bools" | "as_sym_floats":
                return [self.argument({kind[:-1]: each}) for each in value]
            case "as_ints" | "as_floats" | "as_bools":
                return [scale(each) if name.startswith("scale_factors") else number(each) for each in value]
            case "as_float" if name in SCALES:
                return scale(value)
            case "as_scalar_type":
                return DTYPES[value]
            case "as_memory_format":
                return MEMORY_FORMATS[value]
            case "as_layout" if value == 7:
                return torch.strided
            case "as_device":
                return device_of(value)
            case "as_complex":
                return complex(number(value["real"]), number(value["imag"]))
            case "as_string":
                return text(value, name)
            case "as_graph":
                return self._inner(value["graph"])
        return constant(data)

    def _inner(self, data: Mapping[str, Any]) -> Node:
        part = _Part(self.depth + 1)
        for number, (kind, value) in enumerate(map(_single, data["inputs"])):
            part._name(part.graph.placeholder(f"x{number}"), kind, value)
        part.read(data)
        name = f"graph_{len(self.root._modules)}"
        setattr(self.root, name, GraphModule(part.root, part.graph))
        node = self.graph.get_attr(name)
        node.meta["nn_module_stack"] = {}
        return node


def _single(union: Mapping[str, Any]) -> tuple[str, Any]:
    """The only entry of an object that is one of several kinds."""
    (entry,) = union.items()
    return entry


def number(value: Any) -> Any:
    """A number of the file: bounded, and of a class whose text torch writes itself."""
    if isinstance(value, str):  # as JSON cannot say them
        return {"Infinity": math.inf, "-Infinity": -math.inf, "NaN": math.nan}[value]
    if type(value) not in (int, float, bool) or (type(value) is int and abs(value) >= LARGEST):
        raise DamagedError(f"{shown(str(value)[:100])} is no number: {SAVE}")
    return value


def scale(value: Any) -> float:
    """By how much an image is resized; kernels read at places that they divide by it."""
    if not 2**-10 <= number(value) <= 2**10:
        raise UnsafeError(f"an image is resized by {value}")
    return float(value)


def constant(data: Mapping[str, Any]) -> Any:
    """None, a number, or for an input a plain text."""
    kind, value = _single(data)
    if kind == "as_none":
        return None
    if kind == "as_string":
        return plain(value)
    if kind not in ("as_int", "as_float", "as_bool"):
        raise UnsafeError(f"it holds a value of the kind {shown(kind)}")
    return number(value)


def text(value: Any, name: str) -> str:
    """A text that an operator takes, if it is one of those that mean something to it."""
    if name == "assert_msg":
        return "an assertion of the network does not hold"
    if value in (TEXTS.get(name, "") if name else DEVICES).split():
        return str(value)
    if name == "equation" and EQUATION.fullmatch(value):
        return str(value)
    raise UnsafeError(f"an operator is given the text {shown(str(value))}")


def module_stack(said: str | None) -> dict[str, tuple[str, str]]:
    """In which modules a node is: their paths and classes, which name layers."""
    stack = {}
    for index, entry in enumerate(said.split(";") if said else ()):
        _, path, kind = re.split(r",(?![^(\[]*[)\]])", entry)
        stack[f"m{index}"] = plain(path), plain(kind)
    return stack
