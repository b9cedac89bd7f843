"""Ties: float values that torch and ONNX Runtime round to neighbouring codes.

A float layer, a softmax, a mean differ between the two in their last bits. Once in ten thousand times that
decides between two codes, and rounding makes a network chaotic: soon a third of all codes differ, and some
predictions with them, though the file is right. So the runtime is asked for the codes that it made of
float values: each must be the judged one or its neighbour, and the program goes on from there.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from ..network.operators import through_pooling
from ..network.parts import Rounding
from ..network.program import Program
from ..rounding.placements.dynamic import DynamicProduct, OwnRange
from ..rounding.placements.integers import IntegerLayer, IntegerProduct
from ..sources.data import Inputs
from ..values.grid import Grid
from .runtimes.onnxruntime import OnnxModel

Key = str | tuple[str, int]  # a rounded result, or a rounded operand of a multiply


@dataclass(frozen=True)
class CodesOf:
    """The tensor of a file that holds the codes of a rounded value, but for zeros around it."""

    tensor: str
    padding: tuple[int, ...] = ()


MOST_TIES = 1e-3  # of all codes that are made of float values


@dataclass
class Ties:
    """How the codes that a runtime made of float values compare with the judged ones."""

    codes: int = 0
    ties: int = 0
    furthest: int = 0  # from the judged code

    def count(self, difference: Tensor) -> None:
        self.codes += difference.numel()
        self.ties += int(difference.count_nonzero())
        self.furthest = max(self.furthest, int(difference.abs().max()) if difference.numel() else 0)

    @property
    def explain(self) -> bool:
        """Whether these are ties indeed: few, and by one code."""
        return self.furthest <= 1 and self.ties <= MOST_TIES * self.codes


@dataclass(frozen=True)
class ObservedGrid(Grid):
    """A grid that returns the codes observed in the runtime instead of rounding itself.

    It counts where the two differ.
    """

    observed: Tensor
    ties: Ties

    def codes(self, x: Tensor) -> Tensor:
        self.ties.count(super().codes(x) - self.observed)
        return self.observed.clone()


@dataclass(frozen=True)
class ObservedRange(OwnRange):
    """The range that the runtime found of one sample, and the codes that it made within it."""

    observed: Tensor
    scale: Tensor
    ties: Ties

    def codes(self, samples: Tensor) -> tuple[Tensor, Tensor]:
        judged, _ = super().codes(samples)
        observed = self.observed.reshape(judged.shape)
        self.ties.count(judged - observed)
        return observed, self.scale.reshape(1, 1)


def _made_of_floats(program: Program, rounding: Rounding) -> Iterator[Key]:
    """The rounded values that no integer kernel hands on."""
    for name in rounding.results:
        if name not in rounding.kernels and name not in rounding.done:
            yield name
    for multiply in program.multiplies:
        for index, operand in enumerate(multiply.operands):
            key = (multiply.node.name, index)
            if key in rounding.inputs and through_pooling(operand.node).name not in rounding.results:
                yield key
        if isinstance(rounding.kernels.get(multiply.node.name), DynamicProduct):
            yield multiply.node.name, 0


class Observer:
    """The exported model with extra outputs: the codes that it computes where it quantises float values."""

    def __init__(
        self, path: Path, codes: Mapping[Key, CodesOf], program: Program, rounding: Rounding
    ) -> None:
        """`codes` says what holds the codes of the values that `rounding` rounds in `program`."""
        import onnx
        from onnx import helper, numpy_helper

        model = onnx.load(path)
        graph = model.graph
        makers = ("QuantizeLinear", "DynamicQuantizeLinear")
        made = {node.output[0]: node for node in graph.node if node.op_type in makers}
        self.codes = {key: codes[key] for key in _made_of_floats(program, rounding)}
        self.outputs = len(graph.output)
        self.observed = sorted({held.tensor for held in self.codes.values()})
        constants = {each.name: each for each in graph.initializer}
        self.zero_points: dict[str, int] = {}
        self.ranges: dict[str, list[str]] = {}  # scale and zero point, where they are found at run time
        for name in self.observed:
            kinds = [onnx.TensorProto.UINT8]
            if made[name].op_type == "DynamicQuantizeLinear":
                kinds += [onnx.TensorProto.FLOAT, onnx.TensorProto.UINT8]
                self.ranges[name] = list(made[name].output[1:])
            else:
                zero = numpy_helper.to_array(constants[made[name].input[2]])
                self.zero_points[name], kinds = int(zero), [helper.np_dtype_to_tensor_dtype(zero.dtype)]
            outputs = zip([name, *self.ranges.get(name, ())], kinds, strict=True)
            graph.output.extend(helper.make_tensor_value_info(*each, None) for each in outputs)
        with tempfile.TemporaryDirectory() as folder:
            onnx.save(model, Path(folder) / path.name)
            self.model = OnnxModel(Path(folder) / path.name, exact=True)

    def rounding(
        self, rounding: Rounding, inputs: Inputs, outputs: Sequence[Tensor], ties: Ties
    ) -> Rounding | None:
        """`rounding` with the codes observed for these inputs; None if extra outputs changed the model."""
        values = self.model.run_flat(inputs)
        same = zip(values[: self.outputs], outputs, strict=True)
        if not all(torch.equal(left, right) for left, right in same):
            return None
        names = [each for name in self.observed for each in (name, *self.ranges.get(name, ()))]
        found = dict(zip(names, values[self.outputs :], strict=True))
        zeros = self.zero_points | {name: found[zero].float() for name, (_, zero) in self.ranges.items()}
        codes = {name: found[name].float() - zeros[name] for name in self.observed}
        observed = {key: pad(codes[held.tensor], held.padding) for key, held in self.codes.items()}

        def grid(key: Key, grid: Grid) -> Grid:
            return (
                ObservedGrid(grid.scale, grid.low, grid.high, observed[key], ties)
                if key in observed
                else grid
            )

        def kernel(name: str, kernel: Any) -> Any:
            if isinstance(kernel, DynamicProduct):
                scale, _ = self.ranges[self.codes[name, 0].tensor]
                return replace(kernel, input=ObservedRange(observed[name, 0], found[scale], ties))
            if isinstance(kernel, IntegerLayer | IntegerProduct):
                return replace(kernel, input=operands[name, 0])
            return kernel

        operands = {key: grid(key, each) for key, each in rounding.inputs.items()}
        return replace(
            rounding,
            inputs=operands,
            results={name: grid(name, each) for name, each in rounding.results.items()},
            kernels={name: kernel(name, each) for name, each in rounding.kernels.items()},
        )
