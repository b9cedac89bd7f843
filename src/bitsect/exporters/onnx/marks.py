"""The captured graph as an ONNX model in which every operand and every result can still be found.

torch.onnx traces a graph anew and renames what it finds. So that nothing has to be guessed from names,
an operator that does nothing is put into a copy of the graph wherever a value may be rounded, and
comes out at the same place of the ONNX model.
"""

from __future__ import annotations

import copy
import operator
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.export import ExportedProgram
from torch.export.graph_signature import ExportGraphSignature, InputKind, InputSpec, TensorArgument
from torch.fx import Graph, Node

from ...errors import ExportError, MissingExtraError
from ...network.grouped import GROUPED as GROUPED_MM
from ...network.operators import is_tensor, origins, through_reshapes
from ...network.parts import Multiply
from ...network.program import Program
from ...network.quiet import quiet
from ...rounding.placements.integers import INTEGER_CONVOLUTIONS
from .grouped import GROUPED

DOMAIN = "bitsect"  # of the marks; none is left in a written model
OPSET = 21  # the first with 4-bit types and scales per block

OperandKey = tuple[str, int]  # the name of a multiply's node, and which of its operands


@torch.library.custom_op("bitsect::mark", mutates_args=())
def mark(x: Tensor, index: int) -> Tensor:
    return x.clone()


@mark.register_fake
def _(x: Tensor, index: int) -> Tensor:
    return torch.empty_like(x)


@dataclass(frozen=True)
class Marked:
    """An ONNX model (onnx-ir) and the marks in it: each is a node with one input and one output."""

    model: Any
    operands: dict[OperandKey, Any]
    results: dict[str, Any]  # by the name of the node in the captured graph


_MADE: WeakKeyDictionary[Program, tuple[Any, list[OperandKey | str]]] = WeakKeyDictionary()


def to_onnx(program: Program) -> Marked:
    """The program as an ONNX model, with marks wherever some plan under some placement rounds a value.

    Made once for each program, for torch.onnx takes seconds; everyone gets a copy to edit, weights shared.
    """
    if program not in _MADE:
        _MADE[program] = _made(program)
    made, keys = _MADE[program]
    model = made.clone()
    found = {
        keys[int(node.metadata_props[DOMAIN])]: node
        for node in model.graph
        if node.domain == DOMAIN and node.op_type == "Mark"
    }
    return Marked(
        model,
        {key: node for key, node in found.items() if isinstance(key, tuple)},
        {key: node for key, node in found.items() if isinstance(key, str)},
    )


def _results(program: Program) -> Iterator[str]:
    """The nodes whose results may be rounded: of convolutions, and sums."""
    for multiply in program.multiplies:
        if multiply.place.signature.kind in INTEGER_CONVOLUTIONS:
            yield program.tensors[multiply.output].name
    for total in program.sums:
        yield program.tensors[total.tensor].name


def _made(program: Program) -> tuple[Any, list[OperandKey | str]]:
    """The marked model, and what each mark stands for."""
    try:
        import onnxscript.optimizer
        from onnx_ir.passes import common
    except ImportError as error:
        raise MissingExtraError(error.name or "onnx", None, "export to ONNX") from None

    keys: list[OperandKey | str] = []
    marked = _with_marks(program, dict.fromkeys(_results(program)), keys)
    try:
        with quiet(), _without_guards(program):
            made = torch.onnx.export(
                marked,
                dynamo=True,
                optimize=False,
                verbose=False,
                opset_version=OPSET,
                custom_translation_table=_translations(),
            )
    except Exception as error:  # torch.onnx raises whatever its translations do
        raise ExportError(f"torch.onnx cannot write this network: {_root(error)}") from error
    assert made is not None
    model = made.model
    model.opset_imports[DOMAIN] = 1
    for node in model.graph:
        kind = node.metadata_props.get(DOMAIN)
        if kind is not None:  # an identity no longer, so that it is left alone
            node.domain, node.op_type = DOMAIN, GROUPED if kind == GROUPED else "Mark"
    with quiet():  # it warns of what it leaves as it is
        onnxscript.optimizer.fold_constants(model)
    common.RemoveUnusedNodesPass()(model)
    return model, keys


def _translations() -> dict[Any, Callable[..., Any]]:
    """What torch.onnx cannot write, as what it is in a marked model."""
    from onnxscript import opset18

    def mark_at(x: Any, index: int) -> Any:
        y = opset18.Identity(x)
        y.producer().metadata_props[DOMAIN] = str(index)
        return y

    def grouped(x: Any, weight: Any, ends: Any) -> Any:
        y = opset18.Identity(x)
        product = y.producer()
        product.resize_inputs(3)
        product.replace_input_with(1, weight)
        product.replace_input_with(2, ends)
        product.metadata_props[DOMAIN] = GROUPED
        return y

    def sort(x: Any, *, stable: bool, dim: int = -1, descending: bool = False) -> Any:
        size = opset18.Gather(opset18.Shape(x), opset18.Constant(value_ints=[dim]))
        return opset18.TopK(x, size, axis=dim, largest=descending, sorted=True)  # of equals the first first

    return {
        torch.ops.bitsect.mark.default: mark_at,
        GROUPED_MM: grouped,
        torch.ops.aten.sort.stable: sort,
    }


@contextmanager
def _without_guards(program: Program) -> Iterator[None]:
    """While torch.onnx traces the graph anew: what it learns of sizes must not bind the program's own."""
    values = (node.meta.get("val") for node in program.exported.graph.nodes)
    modes = (value.fake_mode for value in values if isinstance(value, FakeTensor))
    env = next((mode.shape_env for mode in modes if mode.shape_env is not None), None)
    if env is None:
        yield
        return
    try:
        with env.suppress_guards():
            yield
    finally:
        # Sizes that depend on values, as of an expert's rows, are left behind and refused the next time.
        env.pending_fresh_unbacked_symbols.clear()


def _with_marks(program: Program, results: Iterable[str], keys: list[OperandKey | str]) -> ExportedProgram:
    """A copy of the exported program with mark i at what `keys[i]`, filled here, stands for."""
    exported = program.exported
    module = copy.deepcopy(exported.graph_module)
    graph: Graph = module.graph
    copied: dict[Node, Node] = {}
    for old, new in zip(exported.graph.nodes, graph.nodes, strict=True):
        new.name = old.name  # copying changes names that Python uses, such as `input`
        copied[old] = new
    for multiply in program.multiplies:
        _mark_operands(graph, multiply, copied, keys)
    by_name = {node.name: node for node in copied.values()}
    renamed: dict[str, str] = {}
    for name in results:
        source = by_name[name]
        with graph.inserting_after(source):
            after = _insert(graph, source, len(keys))
        keys.append(name)
        source.replace_all_uses_with(after, delete_user_cb=partial(operator.is_not, after))
        renamed[name] = after.name
    signature = _renamed_outputs(exported.graph_signature, renamed)
    made = _with_made_weights(program, graph, copied)
    specs = [InputSpec(InputKind.CONSTANT_TENSOR, TensorArgument(name), name, None) for name in made]
    signature.input_specs[:0] = specs
    module.recompile()
    return ExportedProgram(
        root=module,
        graph=graph,
        graph_signature=signature,
        state_dict=exported.state_dict,
        range_constraints=exported.range_constraints,
        module_call_graph=exported.module_call_graph,
        example_inputs=exported.example_inputs,
        constants={**exported.constants, **made},
        verifiers=exported.verifiers,
    )


def _with_made_weights(program: Program, graph: Graph, copied: dict[Node, Node]) -> dict[str, Tensor]:
    """Puts the values of weights that are computed, as parametrised ones are, in place of their computation.

    ONNX need not know the operators that make them. Returns the new constants by name, the first one first.
    """
    made: dict[str, Tensor] = {}
    once = set(program.prologue)
    for old in program.prologue:
        is_weight = any(origin.op == "placeholder" for origin in origins(old))
        if not is_weight or not is_tensor(old) or through_reshapes(old).op == "placeholder":
            continue
        if once.issuperset(old.users) or any(user.op == "output" for user in old.users):
            continue
        new = copied[old]
        with graph.inserting_before(next(iter(graph.nodes))):
            constant = graph.placeholder(f"made_{new.name}")
        constant.meta = {"val": new.meta["val"]}
        new.replace_all_uses_with(constant)
        made = {constant.name: program.constant(old), **made}
    for old in reversed(program.prologue):
        if not copied[old].users:
            graph.erase_node(copied[old])
    return made


def _mark_operands(
    graph: Graph, multiply: Multiply, copied: dict[Node, Node], keys: list[OperandKey | str]
) -> None:
    node = copied[multiply.node]
    is_einsum = isinstance(node.args[0], str)  # an equation and a list
    args: list[Any] = list(node.args[1] if is_einsum else node.args)  # type: ignore[arg-type]
    for index, operand in enumerate(multiply.operands):
        read, source = args[operand.position], copied[operand.node]
        with graph.inserting_before(node):
            marked = _insert(graph, source, len(keys))
            if read is not source:  # bmm reads a weight that is repeated along the batch
                repeated = graph.node_copy(read)
                repeated.replace_input_with(source, marked)
                marked = repeated
            args[operand.position] = marked
        keys.append((multiply.node.name, index))
    node.args = (node.args[0], args, *node.args[2:]) if is_einsum else tuple(args)


def _insert(graph: Graph, source: Node, index: int) -> Node:
    node = graph.call_function(torch.ops.bitsect.mark.default, (source, index))
    node.meta = {"val": source.meta["val"]}
    return node


def _renamed_outputs(signature: ExportGraphSignature, renamed: dict[str, str]) -> ExportGraphSignature:
    signature = copy.deepcopy(signature)
    for spec in signature.output_specs:
        if isinstance(spec.arg, TensorArgument):
            spec.arg.name = renamed.get(spec.arg.name, spec.arg.name)
    return signature


def _root(error: BaseException) -> str:
    """What went wrong first, in one line."""
    while error.__cause__ is not None:
        error = error.__cause__
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
