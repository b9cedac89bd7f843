"""Whether a network gains in float16 where it will run: said, since few processors compute in it."""

from __future__ import annotations

from pathlib import Path

from ..files import first_line

HALF = "float16"  # what its time is kept under, beside those of plans
GAIN = 0.98  # of the time of float32


def write_half(path: Path, to: Path) -> str | None:
    """Write the float model at `path` in float16; why not, where that cannot be done."""
    import onnx
    from onnxruntime.transformers.float16 import convert_float_to_float16

    try:
        onnx.save(convert_float_to_float16(onnx.load(path), keep_io_types=True), to)
    except Exception as error:  # of a converter for many kinds of graphs, each failing in its own way
        return first_line(error)
    return None


def about_half(ms: float | None, float_ms: float, why: str | None = None) -> str:
    """What came of it, in a sentence.

    >>> about_half(3.0, 2.0)
    'float16 is not offered: the network takes 1.50 times as long in it here'
    """
    if ms is None:
        return f"float16 is not offered: {why or 'the network does not run in it here'}"
    if ms < GAIN * float_ms:
        return (
            f"the network in float16 takes {ms / float_ms:.2f} of the time of float32 here, with other bits: "
            "bitsect judges and writes float32; convert the exported file if float16 is accurate enough"
        )
    return f"float16 is not offered: the network takes {ms / float_ms:.2f} times as long in it here"
