"""Where samples lie in what a network gives: mostly along the first axis, but not always."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.fx import Node

from ..sources.tasks.outputs import Axis, named_tensors, rows_of
from .binding import Inputs
from .comparison import compared, noise_of, values_of
from .exported_program import example_outputs, user_inputs, user_outputs
from .program import Program


def output_axes(program: Program) -> dict[str, Axis]:
    """The outputs that layers decide, by name, with the axis along which their samples lie.

    Left out are outputs that no layer reaches, such as an input handed on, and those without an entry for
    every sample: a loss of the batch, or as many boxes as the data make it.
    """
    reached: set[Node] = set()
    multiplies = {multiply.node for multiply in program.multiplies}
    for node in program.exported.graph.nodes:
        if node in multiplies or any(source in reached for source in node.all_input_nodes):
            reached.add(node)
    made_by = {
        id(leaf.meta.get("val")): leaf for leaf in user_outputs(program.exported) if isinstance(leaf, Node)
    }
    batch = program.fixed_batch or _open_batch(program)
    found = {
        name: _axis(tensor, batch)
        for name, tensor in named_tensors(example_outputs(program.exported)).items()
        if made_by.get(id(tensor)) in reached
    }
    return {name: axis for name, axis in found.items() if axis is not None}


def mixes_samples(program: Program, inputs: Inputs, others: Inputs) -> bool:
    """Whether the answers to `inputs` are others where more samples run with them: `others` begin with them.

    So it is where a network takes statistics of its batch, or compares its samples with each other.
    """
    alone, among = (_parts(program, program.run(each)) for each in (inputs, others))
    cut = [other[: len(one)] for one, other in zip(alone, among, strict=True)]
    return not compared(alone, cut, noise_of(values_of(program))).is_noise


def input_type(program: Program) -> torch.dtype | None:
    """The floating-point type that the network takes its inputs in; None where it takes none, or several."""
    inputs = (node.meta.get("val") for node in user_inputs(program.exported))
    found = {value.dtype for value in inputs if isinstance(value, Tensor) and value.is_floating_point()}
    return next(iter(found)) if len(found) == 1 else None


def _parts(program: Program, outputs: Any) -> list[Tensor]:
    tensors = named_tensors(outputs)
    return [rows_of(tensors[name], axis) for name, axis in output_axes(program).items()]


def _open_batch(program: Program) -> Any:
    """The symbol that stands for the number of samples."""
    inputs = (node.meta.get("val") for node in user_inputs(program.exported))
    sizes = (value.shape[0] for value in inputs if isinstance(value, Tensor) and value.ndim)
    return next((_symbol(size) for size in sizes if not isinstance(size, int)), None)


def _symbol(size: Any) -> Any:
    return size.node.expr


def _axis(output: Tensor, batch: Any) -> Axis | None:
    """The axis as long as the batch, or a first one of so many entries for each sample."""
    sizes: list[Any] = [size if isinstance(size, int) else _symbol(size) for size in output.shape]
    if batch is None or not sizes:
        return None
    first = _multiple(sizes[0], batch)
    if isinstance(batch, int) and first:  # a fixed batch may be as long as another axis by chance
        return 0, first
    among = [axis for axis, size in enumerate(sizes) if size == batch]
    if among:
        return among[0], 1
    return (0, first) if first else None


def _multiple(size: Any, batch: Any) -> int:
    """How many times as long as the batch a size is, if it is so for every batch; else 0."""
    if isinstance(size, int) and isinstance(batch, int):
        return 0 if size % batch else size // batch
    times = size / batch
    return int(times) if times.is_Integer else 0
