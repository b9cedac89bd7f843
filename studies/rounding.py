"""Seconds to round all 54 layers of ResNet-50 (random weights): `python studies/rounding.py [--json]`.

On a machine with other work OpenMP threads that spin can take many times longer: set OMP_WAIT_POLICY=passive.
"""

import argparse
import json
import time
from collections.abc import Iterator

import torch
from torch import Tensor

from bitsect.rounding.squant import nearest, squant


def resnet50() -> Iterator[tuple[int, int, int]]:
    """(outputs, inputs, taps) of the 53 convolutions and the classifier."""
    yield 64, 3, 49
    inputs = 64
    for width, blocks in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for block in range(blocks):
            if block == 0:
                yield 4 * width, inputs, 1
            yield width, inputs, 1
            yield width, width, 9
            yield 4 * width, width, 1
            inputs = 4 * width
    yield 1000, inputs, 1


def scaled(w: Tensor, qmax: int) -> Tensor:
    return w / (w.abs().amax((1, 2), keepdim=True) / qmax)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    arguments = parser.parse_args()

    generator = torch.Generator().manual_seed(0)
    weights = [torch.randn(shape, generator=generator) for shape in resnet50()]
    size = sum(w.numel() for w in weights)
    assert (len(weights), size) == (54, 25_502_912)

    seconds: dict[str, dict[str, float]] = {}
    for name, rounding in {"squant": squant, "nearest": nearest}.items():
        for bits in (4, 8):
            qmax = 2 ** (bits - 1) - 1
            layers = [scaled(w, qmax) for w in weights]
            start = time.perf_counter()
            for y in layers:
                rounding(y, qmax)
            seconds.setdefault(name, {})[str(bits)] = round(time.perf_counter() - start, 3)

    threads = torch.get_num_threads()
    if arguments.json:
        print(json.dumps({"layers": len(weights), "weights": size, "threads": threads, "seconds": seconds}))
        return
    print(f"ResNet-50: {len(weights)} layers, {size:,} weights, {threads} threads")
    for name, by_bits in seconds.items():
        print(f"{name:8}", *(f"  {bits} bits {value:6.2f} s" for bits, value in by_bits.items()))


if __name__ == "__main__":
    main()
