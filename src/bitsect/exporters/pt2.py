"""Saved programs of quantised networks: `torch.export.load` alone loads them, and they give the same bits."""

from __future__ import annotations

import copy
import inspect
import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram
from torch.fx import Node

from .. import __version__
from ..errors import ExportError
from ..files import first_line
from ..network.binding import call_arguments
from ..network.grouped import GROUPED
from ..network.program import Program
from ..network.quiet import quiet
from ..network.structures import plain
from ..rounding.placements.integers import IntegerLayer, IntegerProduct
from ..sources.data import Samples
from ..values import Plan
from .constants import needed_constants, rounded_weights
from .exporter import Exporter, Written, check_calibrated
from .packed.codes import HeldCodes, pack, unpack
from .proof import Proof, prove_exactly
from .subject import Subject

ABOUT = "bitsect.json"  # what the file says of itself, beside the program


class Unfolded(nn.Module):
    """A program under a rounding as torch.export can trace it: weights are held in codes."""

    def __init__(self, subject: Subject) -> None:
        super().__init__()
        self.program, self.rounding = subject.program, subject.rounder(subject.plan)
        program, rounding = self.program, self.rounding
        self.needed: dict[Node, str] = {}
        for node, value in needed_constants(program, subject.plan).values():
            self.needed[node] = self._hold(f"constant_{len(self.needed)}", value)
        # What is not needed is still read on the way to where its codes take its place.
        self.unread = {
            node: torch.zeros((), dtype=value.dtype).expand(value.shape)
            for node, value in program.contents.constants.items()
            if isinstance(value, Tensor) and node not in self.needed
        }
        self.weights: dict[tuple[str, int], tuple[str, str, HeldCodes]] = {}
        for multiply, operand in rounded_weights(program, subject.plan):
            if multiply.node.name in rounding.kernels:
                continue  # it multiplies by codes of its own
            value, format = program.constant(operand.node), subject.plan[multiply.layer]
            assert operand.layout is not None
            held = HeldCodes(value.shape, value.dtype, operand.layout, format)
            codes, scales = held.pack(subject.rounder.codes(multiply.layer, operand, format))
            name = f"weight_{len(self.weights)}"
            names = self._hold(f"{name}_codes", codes), self._hold(f"{name}_scales", scales)
            self.weights[multiply.node.name, multiply.operands.index(operand)] = *names, held
        self.kernels: dict[str, tuple[str, int]] = {}
        for step, kernel in rounding.kernels.items():
            if isinstance(kernel, IntegerLayer | IntegerProduct):
                bits = 4 if kernel.codes.abs().max() < 8 else 8
                self.kernels[step] = self._hold(f"kernel_{len(self.kernels)}", pack(kernel.codes, bits)), bits

    def _hold(self, name: str, value: Tensor) -> str:
        self.register_buffer(name, value.detach().clone())
        return name

    def taking(self, *names: str) -> Unfolded:
        """Itself, with inputs of these names: torch.export asks the signature of what it traces for them."""
        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD

        def forward(*args: Any, **kwargs: Any) -> Any:
            return Unfolded.forward(self, *args, **kwargs)

        forward.__signature__ = inspect.Signature([inspect.Parameter(name, kind) for name in names])  # type: ignore[attr-defined]
        self.forward = forward  # type: ignore[method-assign]
        return self

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        given = {node: getattr(self, name) for node, name in self.needed.items()}
        program = self.program.with_constants({**self.unread, **given})
        weights = {
            key: held.unpack(getattr(self, codes), getattr(self, scales)).weight
            for key, (codes, scales, held) in self.weights.items()
        }
        kernels = dict(self.rounding.kernels)
        for step, (name, bits) in self.kernels.items():
            kernel = copy.copy(kernels[step])
            codes = kernel.codes  # type: ignore[attr-defined]
            made = unpack(getattr(self, name), codes.numel(), bits).to(codes.dtype).reshape(codes.shape)
            object.__setattr__(kernel, "codes", made)
            kernels[step] = kernel
        made = program.run_as_given(
            pytree.tree_leaves((args, kwargs)),
            replace(self.rounding, weights={**self.rounding.weights, **weights}, kernels=kernels),
        )
        # Classes of other packages would have to be imported before the file can be loaded.
        return plain(made)


def write_pt2(
    subject: Subject, path: Path, destination: str | None = None, metadata: Mapping[str, str] | None = None
) -> Written:
    """The program under its plan, saved at `path`."""
    program, about = subject.program, dict(metadata or {})
    about |= {
        "bitsect.version": __version__,
        "bitsect.placement": subject.rounder.placement.name,
        "bitsect.program": program.fingerprint,
        "bitsect.plan": json.dumps(subject.plan.to_json()),
    }
    args, kwargs = call_arguments(program.example)
    program.run(program.example, subject.rounder(subject.plan))  # what kernels find out once is known then
    try:
        with quiet(), torch.no_grad():
            unfolded = Unfolded(subject).eval()
            unfolded = unfolded.taking(*kwargs) if kwargs else unfolded
            shapes = _shapes(program, args, kwargs)
            exported = torch.export.export(unfolded, args, kwargs, dynamic_shapes=shapes)
            exported = exported.run_decompositions({})
            _forget_where(exported)
            torch.export.save(exported, path, extra_files={ABOUT: json.dumps(about, sort_keys=True)})
    except Exception as error:  # torch.export has many classes for one meaning
        raise ExportError(f"torch.export cannot write this network: {first_line(error)}") from error
    return Written(path, None, path.stat().st_size)


def _shapes(program: Program, args: Any, kwargs: Any) -> dict[str, Any]:
    """Which sizes are open: those that are in the network itself."""

    def open_sizes(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return None
        return {axis: Dim.DYNAMIC for axis, size in enumerate(value.shape) if not isinstance(size, int)}

    spec = pytree.tree_structure((args, kwargs))
    sizes = [open_sizes(node.meta.get("val")) for node in program.contents.inputs]
    by_place, by_name = pytree.tree_unflatten(sizes, spec)
    return by_name or {"args": by_place}


def _forget_where(exported: ExportedProgram) -> None:
    """Paths of the machine that it was made on, which differ between callers."""
    for node in exported.graph.nodes:
        for name in ("stack_trace", "from_node", "nn_module_stack", "source_fn_stack"):
            node.meta.pop(name, None)


class Loaded:
    """A saved program that takes what the network takes, in batches of any size."""

    def __init__(self, path: Path, fixed_batch: int | None) -> None:
        with quiet():
            self.module, self.batch = torch.export.load(path).module(), fixed_batch

    def run(self, inputs: Any) -> Any:
        rows = next(len(leaf) for leaf in pytree.tree_leaves(inputs) if isinstance(leaf, Tensor))
        missing = 0 if self.batch is None else self.batch - rows

        def fill(value: Any) -> Any:
            if not isinstance(value, Tensor) or not missing or len(value) != rows:
                return value
            return torch.cat([value, value[-1:].expand(missing, *value.shape[1:])])

        args, kwargs = call_arguments(pytree.tree_map(fill, inputs))
        with torch.no_grad():
            made = self.module(*args, **kwargs)
        return pytree.tree_map(lambda value: value[:rows], made) if missing else made


def prove_pt2(
    written: Written,
    subject: Subject,
    samples: Samples,
    *,
    batch_size: int = 64,
    progress: Callable[[int], None] = lambda count: None,
    timed_on: Any = None,
) -> Proof:
    """The saved program, loaded with torch.export.load alone, gives the judged outputs bit for bit."""
    buffer = BytesIO()
    with quiet():
        torch.export.save(subject.program.exported, buffer)
    sizes = written.size_bytes, len(buffer.getvalue())
    model = Loaded(written.path, subject.program.fixed_batch)
    runtime = f"torch {torch.__version__} by torch.export.load"
    return prove_exactly(model, runtime, subject, samples, sizes, batch_size=batch_size, progress=progress)


def check(program: Program, plan: Plan, source: str) -> None:
    """Refuse operators that only bitsect has, without which the file would not load, and a runtime's own."""
    check_calibrated(plan, "a .pt2 file")
    grouped = [multiply.layer for multiply in program.multiplies if multiply.node.target == GROUPED]
    if grouped:
        raise ExportError(
            f"layer '{grouped[0]}' multiplies by groups of rows, for which torch has no operator that a .pt2 "
            "file could hold: .onnx and .safetensors files hold it"
        )


PT2 = Exporter(
    "a program that torch.export.load loads", None, (), check=check, write=write_pt2, prove=prove_pt2
)
