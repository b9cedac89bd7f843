"""The exporter of ONNX files."""

from __future__ import annotations

from ..exporter import Exporter
from ..proof import prove
from .write import check_precision, write_onnx

ONNX = Exporter(
    extra="onnx",
    packages=("onnx", "onnx_ir", "onnxscript", "onnxruntime"),
    check=check_precision,
    write=write_onnx,
    prove=prove,
)
