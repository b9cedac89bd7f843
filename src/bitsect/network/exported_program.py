"""What an exported program holds: inputs, outputs, constants, and the size of its batch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch.utils._pytree as pytree
from torch import Tensor, nn
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, OutputKind
from torch.fx import Node

from ..errors import CaptureError
from .operators import operator_name


def constants_of(exported: ExportedProgram) -> tuple[dict[Node, Any], dict[Node, str]]:
    """The values of the lifted placeholders, and the module path of each."""
    by_name = {node.name: node for node in exported.graph.nodes if node.op == "placeholder"}
    values: dict[Node, Any] = {}
    targets: dict[Node, str] = {}
    mutated = set(exported.graph_signature.buffers_to_mutate.values())
    for spec in exported.graph_signature.input_specs:
        if spec.kind == InputKind.USER_INPUT or spec.target is None:
            continue
        node = by_name[spec.arg.name]
        found = exported.state_dict.get(spec.target, exported.constants.get(spec.target))
        if found is None:
            raise CaptureError(f"the exported program lacks the value of '{spec.target}'")
        # Buffers that forward() modifies are cloned: every run starts from the value at capture time,
        # even if the original module has changed since.
        values[node] = found.clone() if spec.target in mutated else found
        targets[node] = spec.target
    for node in exported.graph.nodes:
        if node.op == "get_attr":
            values[node] = getattr(exported.graph_module, str(node.target))
    return values, targets


def user_inputs(exported: ExportedProgram) -> list[Node]:
    lifted = {
        spec.arg.name for spec in exported.graph_signature.input_specs if spec.kind != InputKind.USER_INPUT
    }
    return [node for node in exported.graph.nodes if node.op == "placeholder" and node.name not in lifted]


def shapes_of(model: nn.Module | ExportedProgram, example: Any) -> dict[str, tuple[int, ...]]:
    """The shape of a sample of each input whose sizes are fixed, by its name; of a single one also by `x`."""
    if isinstance(model, ExportedProgram):
        inputs = {node.name: node.meta.get("val") for node in user_inputs(model)}
    else:
        inputs = dict(example) if isinstance(example, Mapping) else {"x": example}
    shapes = {
        name: tuple(value.shape[1:])
        for name, value in inputs.items()
        if isinstance(value, Tensor) and all(type(size) is int for size in value.shape[1:])
    }
    return shapes | ({"x": next(iter(shapes.values()))} if len(inputs) == len(shapes) == 1 else {})


def user_outputs(exported: ExportedProgram) -> list[Any]:
    output = next(node for node in exported.graph.nodes if node.op == "output")
    leaves = output.args[0]
    assert isinstance(leaves, list | tuple)
    specs = exported.graph_signature.output_specs
    return [leaf for leaf, spec in zip(leaves, specs, strict=True) if spec.kind == OutputKind.USER_OUTPUT]


def example_outputs(exported: ExportedProgram) -> Any:
    """What the network gives, in its own structure: tensors with a shape and a type, but no values."""
    leaves = [leaf.meta.get("val") if isinstance(leaf, Node) else leaf for leaf in user_outputs(exported)]
    assert exported.call_spec.out_spec is not None
    return pytree.tree_unflatten(leaves, exported.call_spec.out_spec)


def computes(node: Node) -> bool:
    """Assertions about shapes are left out: the program checks its inputs itself."""
    if node.op == "call_module":
        return False
    return node.op == "call_function" and not (not node.users and "assert" in operator_name(node.target))


def independent(nodes: Iterable[Node], constants: dict[Node, Any]) -> set[Node]:
    """The nodes whose values no input can change."""
    fixed = set(constants)
    for node in nodes:
        if node.op == "call_function" and all(source in fixed for source in node.all_input_nodes):
            fixed.add(node)
    return fixed


def batch_size(tensors: Iterable[Tensor]) -> int | None:
    """How many samples these inputs hold: the leading size that most of them have."""
    sizes = Counter(tensor.shape[0] for tensor in tensors if tensor.ndim)
    return sizes.most_common(1)[0][0] if sizes else None


def batch_of(inputs: Sequence[Node]) -> tuple[Callable[[Any], int], int | None]:
    """A function from a symbolic size to its value at batch one, and the batch if it is fixed."""
    examples = (node.meta.get("val") for node in inputs)
    tensors = [value for value in examples if isinstance(value, Tensor) and value.ndim]
    values: dict[Any, int] = {}
    for tensor in tensors:
        for axis, size in enumerate(tensor.shape):
            if not isinstance(size, int) and size.node.expr.is_Symbol:
                values[size.node.expr] = 1 if axis == 0 else size.node.hint

    def batch_one(size: Any) -> int:
        if isinstance(size, int):
            return int(size)
        expression = size.node.expr.subs(values)
        # How many rows a mask picks is known at run time only: counted for one.
        return int(expression.subs(dict.fromkeys(expression.free_symbols, 1)))

    is_open = any(not isinstance(tensor.shape[0], int) for tensor in tensors)
    return batch_one, None if is_open else batch_size(tensors)


def merge_aliases(exported: ExportedProgram) -> None:
    """Let every reader of a weight with several names read it under the first; `meta` keeps the others."""
    values, targets = constants_of(exported)
    first: dict[Any, Node] = {}
    for node, value in values.items():
        if node not in targets or not isinstance(value, Tensor):
            continue
        kept = first.setdefault(_memory(exported, targets[node], value), node)
        kept.meta.setdefault("aliases", []).append(targets[node])
        if kept is not node:
            node.replace_all_uses_with(kept)


def copy_constants(exported: ExportedProgram) -> None:
    """Give the program tensors of its own, whose values nobody else changes; names of one tensor keep one."""
    copies: dict[Any, Tensor] = {}

    def of_its_own(table: Mapping[str, Any]) -> dict[str, Any]:
        return {
            name: copies.setdefault(_memory(exported, name, value), copied(value))
            if isinstance(value, Tensor)
            else value
            for name, value in table.items()
        }

    exported._state_dict, exported._constants = map(of_its_own, (exported.state_dict, exported.constants))
    for node in exported.graph.nodes:
        value = getattr(exported.graph_module, str(node.target)) if node.op == "get_attr" else None
        if isinstance(value, Tensor):
            setattr(exported.graph_module, str(node.target), copied(value))


def copied(value: Tensor) -> Tensor:
    """A tensor of its own with the same values; a parameter stays one."""
    copy = value.detach().clone()
    return nn.Parameter(copy, requires_grad=value.requires_grad) if isinstance(value, nn.Parameter) else copy


def _memory(exported: ExportedProgram, target: str, value: Tensor) -> Any:
    """What two names of one tensor have in common; on the meta device, the object itself."""
    if value.is_meta or not value.numel():
        return id(exported.state_dict.get(target, exported.constants.get(target)))
    return value.data_ptr(), value.shape, value.stride(), value.dtype
