"""The exporter of ONNX files."""

from __future__ import annotations

from ...network.program import Program
from ...values import Plan
from ..exporter import Exporter
from .prove import prove
from .write import check_precision, write_onnx


def check(program: Program, plan: Plan, source: str) -> None:
    check_precision(program, plan)


ONNX = Exporter(
    "ONNX, for a runtime",
    extra=None,
    packages=("onnx", "onnx_ir", "onnxscript", "onnxruntime"),
    check=check,
    write=write_onnx,
    prove=prove,
    for_runtimes=True,
)
