"""A latency table for any network, computed by a formula fitted to the paper's A100 totals.

The paper sums the best CUTLASS kernel's time over the layers, at batch one and without fusion, but
prints totals only. This is an interpolation of its ten totals with ten parameters, not physics and
not a measurement: it says so in the `source` of every table it makes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from ..values import FLOAT, INT4, INT8, LatencyTable, Layer, Place
from ..values.latency_table import gemm_shape, place_key

DEVICE = "A100"
SOURCE = "a formula fitted to the paper's totals, not measured"

CLASSES = (FLOAT, INT8, INT4)

LAUNCH_US = {"conv": {16: 70.39, 8: 53.59, 4: 46.98}, "gemm": {16: 5.708, 8: 3.494, 4: 8.670}}
STEP_US = {16: 0.322, 8: 0.439, 4: 0.151}
STEP_FACTOR = {"conv": 2.575, "gemm": 1.0}
BYTES_PER_US = 1.5e6
TILES = ((256, 128), (128, 256), (128, 128), (128, 64), (64, 128), (64, 64))
PROCESSORS = 108
ALIGNMENT_BITS = 128  # one vector load
STEP_BITS = 512  # depth of a tile that one step of the main loop consumes


def table(layers: Iterable[Layer]) -> LatencyTable:
    """Milliseconds of every multiply in `layers` at 16, 8 and 4 bits.

    A format runs in the class of its larger operand: w4a8 as int8, w4a16 as float.
    """
    places = {place_key(place): place for layer in layers for place in layer.places}
    rows = {
        key: {format: microseconds(place, format.compute_bits) / 1000 for format in CLASSES}
        for key, place in places.items()
    }
    return LatencyTable(DEVICE, SOURCE, CLASSES, rows, by_class=True)


def microseconds(place: Place, bits: int) -> float:
    """t = launch[b] + step[b] · factor · steps + bytes / 1.5e6, by kind (convolution or gemm).

    bytes = (input + operand elements) · b/8 + 2 · output elements
    steps: see `steps`. An embedding multiplies nothing: only the rows it fetches count, in bytes.
    """
    signature = place.signature
    read = math.prod(signature.input) + math.prod(signature.operand)
    written = math.prod(signature.output)
    if signature.kind == "embedding":
        return (written * bits / 8 + written * 2) / BYTES_PER_US
    kind = "conv" if signature.is_convolution else "gemm"
    moving = (read * bits / 8 + written * 2) / BYTES_PER_US
    return LAUNCH_US[kind][bits] + STEP_US[bits] * STEP_FACTOR[kind] * steps(place, bits) + moving


def steps(place: Place, bits: int) -> int:
    """Steps of the main loop, one after another, under the best of six tilings.

    steps = min over tiles (tm, tn) of ceil(ceil(M/tm) · ceil(N/tn) · batch / 108) · iterations
    iterations = ceil(ceil(c/al) · al · taps · b / 512),  al = 128/b

    For a convolution M is its output positions (of one or three dimensions as of two), N and c its
    output and input channels per group, and the groups are the batch. A depthwise one takes 64 × 64
    blocks of positions and channels. A transposed one is the data gradient of a convolution: each
    output meets 1/stride of the taps.
    """
    signature = place.signature
    if not signature.is_convolution:
        m, n, depth, batch = gemm_shape(place)
        return _waves(m, n, batch) * _iterations(depth, 1, bits)
    sizes = len(signature.operand) - 2
    positions = math.prod(signature.output[-sizes:])
    filters, depth = signature.output[-sizes - 1], signature.input[-sizes - 1] // signature.groups
    taps = math.prod(signature.operand[2:])
    if signature.kind == "conv_transpose":
        taps = math.ceil(taps / math.prod(signature.stride))
    if signature.groups > 1 and depth == 1:
        blocks = math.ceil(positions / 64) * math.ceil(filters / 64)
        return math.ceil(blocks / PROCESSORS) * _iterations(depth, taps, bits)
    waves = _waves(positions, filters // signature.groups, signature.groups)
    return waves * _iterations(depth, taps, bits)


def _waves(m: int, n: int, batch: int) -> int:
    """Rounds in which the processors take all tiles of an m × n result."""
    return min(math.ceil(math.ceil(m / tm) * math.ceil(n / tn) * batch / PROCESSORS) for tm, tn in TILES)


def _iterations(depth: int, taps: int, bits: int) -> int:
    aligned = ALIGNMENT_BITS // bits
    return math.ceil(math.ceil(depth / aligned) * aligned * taps * bits / STEP_BITS)
