"""The paper's placement: the inputs of every layer are rounded, and nothing else."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from torch import Tensor

from ...errors import PlanError
from ...network.parts import Multiply, Operand
from ...values import Format
from ...values.grid import Grid

if TYPE_CHECKING:
    from ..rounder import Rounder


class Paper:
    """Every operand on the grid of its own tensor."""

    def __init__(self, rounder: Rounder) -> None:
        self.rounder = rounder

    def results(self, chosen: Sequence[tuple[Multiply, Format]]) -> dict[str, Grid]:
        return {}

    def input(self, operand: Operand, bits: int, results: Mapping[str, Grid]) -> Grid:
        assert operand.tensor is not None
        return self.rounder.grid(operand.tensor, bits)

    def kernels(
        self,
        chosen: Sequence[tuple[Multiply, Format]],
        inputs: Mapping[tuple[str, int], Grid],
        results: Mapping[str, Grid],
    ) -> tuple[dict[str, Callable[..., Tensor]], set[str]]:
        for multiply, format in chosen:
            if format.dynamic and multiply.activations:
                raise PlanError(
                    f"layer '{multiply.layer}': {format} is the arithmetic of a runtime: judge it under "
                    "[placement=onnxruntime], or choose int8 here"
                )
        return {}, set()
