"""How honest the time left is: what was forecast of the whole at some moments on the way.

    python studies/progress.py zoo:fashion-resnet zoo:fashion-transformer [--method paper] [--stages]

A ratio of 1.00 means that elapsed and left add up to what the whole took in the end. With --stages, the
seconds of each stage in float passes, beside what was expected.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import bitsect

MOMENTS = (0.1, 0.25, 0.5, 0.75)


class Watch(bitsect.Progress):
    """Keeps what was forecast whenever a piece of work was done."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[float, float | None]] = []
        self.expected: dict[str, float] = {}

    def expect(self, passes: Any) -> None:
        self.expected = dict(passes)
        super().expect(passes)

    @contextmanager
    def shown(self, name: str, total: int | None) -> Iterator[Any]:
        def note(count: int) -> None:
            self.seen.append((self.forecast.elapsed, self.forecast.left()))

        note(0)
        yield note

    def ratios(self) -> list[str]:
        whole = self.forecast.elapsed
        found = []
        for moment in MOMENTS:
            known = [(at, left) for at, left in self.seen if at <= moment * whole and left is not None]
            found.append(f"{sum(known[-1]) / whole:.2f}" if known else "–")
        return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("networks", nargs="+")
    parser.add_argument("--data")
    parser.add_argument("--draw", type=int)
    parser.add_argument("--method", default="bitsect")
    parser.add_argument("--target", default="99%")
    parser.add_argument("--stages", action="store_true")
    asked = parser.parse_args()
    print("network", "seconds", *(f"at {moment:.0%}" for moment in MOMENTS), sep="\t")
    for network in asked.networks:
        watch = Watch()
        options = {"draw": asked.draw, "method": asked.method, "target": asked.target, "threads": 1}
        bitsect.quantize(network, asked.data, progress=watch, **options)
        print(network, f"{watch.forecast.elapsed:.1f}", *watch.ratios(), sep="\t", flush=True)
        if asked.stages:
            one = watch.seconds["float"] / watch.expected["float"]
            for name, seconds in watch.seconds.items():
                expected = watch.expected.get(name, 0.0)
                print(f"    {name}: {seconds:.2f} s, {seconds / one:,.0f} passes, expected {expected:,.0f}")


if __name__ == "__main__":
    main()
