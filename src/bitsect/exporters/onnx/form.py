"""How codes are held in a file, and what of a plan cannot be had there."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ...values import ONNXRUNTIME, PAPER, Format, Placement
from ...values.grid import Grid
from .weights import Array


@dataclass(frozen=True)
class Form:
    """How codes are held, and the placement under which a model must have been judged."""

    name: str
    placement: Placement
    packs: bool  # every tensor in the type of its codes; otherwise values in uint8 and weights in int8
    fuses: bool = False  # kernels that only ONNX Runtime has are written where it does not find them itself
    # The zero points of weights, all 0; of layers that share one OpenVINO makes float ones for fixed shapes.
    writes_zeros: bool = True

    def zero_point(self, grid: Grid) -> Array:
        """Zero on `grid`, in the type of a tensor that holds its codes."""
        if self.packs:
            return np.zeros((), code_type(bits_of(grid), signed=grid.low < 0))
        return np.array(128 if grid.low < 0 else 0, np.uint8)

    def held(self, grid: Grid) -> Grid:
        """All that the tensor of `grid` can hold."""
        zero = self.zero_point(grid)
        low, high = (limit - int(zero) for limit in code_limits(zero.dtype))
        return Grid(grid.scale, low, high)

    def weight_type(self, format: Format) -> Any:
        """The type of a weight's codes; weight-only kernels take 4-bit tensors in ONNX Runtime too."""
        assert format.weight_bits is not None
        packs = self.packs or format.activation_bits is None
        return code_type(format.weight_bits if packs else 8, signed=True)


FORMS = {
    "onnxruntime": Form("onnxruntime", ONNXRUNTIME, packs=False, fuses=True),
    "openvino": Form("openvino", ONNXRUNTIME, packs=False, writes_zeros=False),
    "portable": Form("portable", PAPER, packs=True),
}


@dataclass(frozen=True)
class Note:
    """Where a model is not as planned: what is done instead, and what that changes."""

    layers: tuple[str, ...]
    instead: str
    change: str

    def __str__(self) -> str:
        return f"{', '.join(self.layers)}: {self.instead}; {self.change}"

    def shortened(self, most: int = 4) -> str:
        """The same with the first few of many layers."""
        if len(self.layers) <= most + 1:
            return str(self)
        few = (*self.layers[:most], f"… ({len(self.layers)} layers)")
        return str(replace(self, layers=few))


def deviations(
    form: Form, format: Format, op_type: str, *, has_weight: bool = True
) -> Iterator[tuple[str, str]]:
    """What is done instead of `format` for an ONNX operator, and what that changes."""
    weight_bits, value_bits = format.weight_bits, format.activation_bits
    kernel = op_type or "this product"
    if value_bits is None and not has_weight:
        return  # two activations, which a weight-only format leaves in float
    if form.packs:
        for bits in sorted({bits for bits in (weight_bits, value_bits) if bits not in (None, 4, 8)}):
            yield f"{bits}-bit codes are held in {4 if bits < 4 else 8}-bit tensors", "same values"
    elif op_type == "Gather":
        if weight_bits is not None and weight_bits < 8:
            yield f"{weight_bits}-bit codes of an embedding are held in 8-bit tensors", "same values"
    elif format.dynamic:
        yield (
            "the range of their inputs is found as the file runs, over all that is in a batch",
            "as judged in batches of one; in larger ones outputs differ slightly",
        )
    elif value_bits is not None:
        if op_type not in ("Conv", "Gemm", "MatMul") or format.group_size is not None:
            groups = " with scales per group" if format.group_size else ""
            yield (
                f"{kernel}{groups} has no integer kernel: the rounded values are multiplied in float",
                "same values, no gain in speed",
            )
        if min(weight_bits or 8, value_bits) < 8:
            yield (
                f"{format} codes are held in 8-bit tensors and clipped at their own limits",
                "same values, with the size of int8 and a little less than its speed",
            )
    elif op_type == "MatMul":
        yield (
            "ONNX Runtime also rounds the inputs of weight-only layers, to 8 bits in blocks",
            "outputs differ slightly; session.qdq_matmulnbits_accuracy_level=1 keeps them in float, as the "
            "proof does",
        )
    else:
        yield (
            f"{kernel} has no weight-only kernel: its weights are dequantised in every run",
            "same values and a smaller file, slower than float",
        )


def bits_of(grid: Grid) -> int:
    return (grid.high - grid.low).bit_length()


def code_type(bits: int, *, signed: bool) -> Any:
    import ml_dtypes

    if bits <= 4:
        return np.dtype(ml_dtypes.int4 if signed else ml_dtypes.uint4)
    return np.dtype(np.int8 if signed else np.uint8)


def code_limits(dtype: Any) -> tuple[int, int]:
    import ml_dtypes

    info: Any = ml_dtypes.iinfo(dtype)  # type: ignore[no-untyped-call]
    return int(info.min), int(info.max)
