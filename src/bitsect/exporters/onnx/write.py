"""ONNX in the standard form of QuantizeLinear and DequantizeLinear, for ONNX Runtime or for anyone.

Every rounded value x becomes DequantizeLinear(QuantizeLinear(x)) with the scale it was judged with, every
quantised weight DequantizeLinear(codes), batch norm is folded. For `onnxruntime` the form is the one that
its optimiser replaces by integer kernels: all values in uint8 (zero point 0, or 128 where they are
signed), rectifiers left to the rounding, biases of convolutions in int32. For `portable` every tensor
has the type of its codes, down to INT4 and UINT4.
"""

from __future__ import annotations

import hashlib
import json
import re
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.utils._pytree as pytree

from ... import __version__
from ...errors import ExportError
from ...network.program import Program
from ...network.remarks import float32_instead
from ...values import Plan
from ...values.destination import check_written
from ..exporter import Written, check_calibrated
from ..runtimes.onnxruntime import BATCH
from ..subject import Subject
from .edit import Edit
from .form import FORMS
from .fusions import MICROSOFT
from .marks import DOMAIN, OPSET, to_onnx

LARGEST_FILE_BYTES = (
    2_000_000_000  # protobuf ends at 2 GiB: what is larger keeps its weights in a file beside it
)
DIGITS = 16  # of the digest in the name of that file


def write_onnx(
    subject: Subject,
    path: str | Path,
    destination: str = "onnxruntime",
    metadata: Mapping[str, str] | None = None,
) -> Written:
    """The program under its plan, written to `path`: whole and checked, or not at all."""
    program, rounder, plan = subject.program, subject.rounder, subject.plan
    form = check_written(destination).form
    assert form is not None
    chosen = FORMS[form]
    if rounder.placement != chosen.placement:
        raise ExportError(
            f"a model for {destination} is judged under placement '{chosen.placement.name}', "
            f"not '{rounder.placement.name}': judge the plan under that placement first"
        )
    check_precision(program, plan)
    if not chosen.fuses:
        check_calibrated(plan, f"a file for {destination}")
    rounding = rounder(plan)
    marked = to_onnx(program)
    edit = Edit(program, rounder, plan, rounding, marked, chosen)
    notes = edit.run()
    _tidy(marked.model, program)
    if check_written(destination).runtime is not None:
        _forget_shapes_inside(marked.model.graph)
    marked.model.metadata_props.update(_metadata(program, plan, destination, metadata or {}))
    try:
        size = _write(marked.model, Path(path))
    except OSError as error:
        raise ExportError(f"{path} cannot be written: {error.strerror or error}") from error
    return Written(Path(path), destination, size, notes, edit.codes)


def check_precision(program: Program, plan: Plan) -> None:
    """Refuse quantised layers that do not compute in float32."""
    for multiply in program.multiplies:
        dtype = multiply.node.meta["val"].dtype
        if dtype != torch.float32 and not plan[multiply.layer].is_float:
            raise ExportError(
                f"layer '{multiply.layer}' computes in {dtype}: quantised layers are written for float32; "
                f"{float32_instead(program, multiply.layer)}, or leave the layer in float"
            )


def _metadata(program: Program, plan: Plan, destination: str, more: Mapping[str, str]) -> dict[str, str]:
    return {
        "bitsect.version": __version__,
        "bitsect.torch": torch.__version__,
        "bitsect.destination": destination,
        "bitsect.placement": check_written(destination).placement.name,
        "bitsect.program": program.fingerprint,
        "bitsect.plan": json.dumps(plan.to_json()),
        "bitsect.outputs": json.dumps(output_names(program)),
        **({BATCH: "1"} if any(format.dynamic for format in plan.values()) else {}),
        **more,
    }


def output_names(program: Program) -> list[str] | None:
    """The names that a network gives its outputs; None if it returns one tensor."""
    spec = program.exported.call_spec.out_spec
    assert spec is not None
    if spec.is_leaf():
        return None
    # Tensors, for a key-value cache gives away no other leaves.
    leaves = [torch.empty(0) for _ in range(spec.num_leaves)]
    paths, _ = pytree.tree_flatten_with_path(pytree.tree_unflatten(leaves, spec))
    return [".".join(str(_key(entry)) for entry in path) for path, _ in paths]


def _key(entry: Any) -> Any:
    return getattr(entry, "key", getattr(entry, "name", getattr(entry, "idx", entry)))


def _tidy(model: Any, program: Program) -> None:
    """Drop what is unused and what tells of the machine it was made on; name inputs' batch and outputs."""
    from onnx_ir.passes import common

    common.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(model)
    model.graph.sort()  # the pass goes from the end: who reads a value comes after it
    common.RemoveUnusedNodesPass()(model)
    common.ClearMetadataAndDocStringPass()(model)
    graph = model.graph
    if any(node.domain == DOMAIN for node in graph):
        raise ExportError("a mark is left in the exported graph: this is a fault of bitsect")
    model.opset_imports.pop(DOMAIN)
    if any(node.domain == MICROSOFT for node in graph):
        model.opset_imports[MICROSOFT] = 1
    assert model.opset_imports[""] == OPSET
    model.producer_name, model.producer_version = "bitsect", __version__
    graph.name = "bitsect"
    _name_outputs(graph, output_names(program) or ["output"])
    _name_batch(graph)


def _name_outputs(graph: Any, names: list[str]) -> None:
    """Give computed outputs the network's own names; a value inside that has one of them gives way."""
    given = {value.name for value in (*graph.inputs, *graph.initializers.values())}
    outputs = {
        name: value
        for name, value in zip(names, graph.outputs, strict=True)
        if value.producer() is not None and name not in given
    }
    for node in graph.all_nodes():
        for value in node.outputs:
            if value.name in outputs:
                value.name = f"{value.name}.inside"
    for name, value in outputs.items():
        value.name = name


def _name_batch(graph: Any) -> None:
    """Call the leading axis of the inputs `batch` wherever its size appears."""
    import onnx_ir as ir

    leading = {
        str(value.shape[0].value)
        for value in graph.inputs
        if value.shape and isinstance(value.shape[0], ir.SymbolicDim)
    }
    if len(leading) != 1:
        return
    pattern = re.compile(rf"\b{re.escape(leading.pop())}\b")
    values = [*graph.inputs, *(output for node in graph.all_nodes() for output in node.outputs)]
    for value in values:
        if value.shape is not None:
            sizes = [
                ir.SymbolicDim(pattern.sub("batch", size.value))
                if isinstance(size, ir.SymbolicDim) and size.value
                else size
                for size in value.shape
            ]
            value.shape = ir.Shape(sizes)


def _forget_shapes_inside(graph: Any) -> None:
    """Leave out types and shapes that a runtime finds by itself: in small models they weigh a twentieth."""
    kept = {*graph.inputs, *graph.outputs}
    inside = (output for node in graph.all_nodes() for output in node.outputs)
    for value in (*inside, *graph.initializers.values()):
        if value not in kept:
            value.type = value.shape = None


def _write(model: Any, path: Path) -> int:
    """Write the model beside its place, check it there, and only then put it in place; its size in bytes."""
    import onnx
    import onnx_ir as ir

    weights = sum(value.const_value.nbytes for value in model.graph.initializers.values())
    data = f"{path.name}.{_digest(model)}.data" if weights > LARGEST_FILE_BYTES else None
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=".bitsect-") as folder:
        draft = Path(folder) / path.name
        ir.save(model, draft, external_data=data)
        try:
            onnx.checker.check_model(str(draft), full_check=True)
        except Exception as error:  # the checker has several classes for one meaning
            raise ExportError(f"the ONNX checker refuses the model: {str(error).splitlines()[0]}") from error
        files = [name for name in (data, path.name) if name is not None]
        for name in files:  # the model last: it is whole once it is there
            (draft.parent / name).replace(path.parent / name)
    return sum((path.parent / name).stat().st_size for name in files)


def _digest(model: Any) -> str:
    """A name for the weights: another model's file of weights is never overwritten by them."""
    digest = hashlib.sha256()
    for name, value in model.graph.initializers.items():
        digest.update(name.encode())
        digest.update(value.const_value.tobytes())
    return digest.hexdigest()[:DIGITS]


def is_weights_of(model: Path, file: Path) -> bool:
    """Whether `file` is named like the weights beside the file of a large model."""
    return re.fullmatch(rf"{re.escape(model.name)}(\.[0-9a-f]{{{DIGITS}}})?\.data", file.name) is not None
