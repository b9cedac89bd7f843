"""Where values pass from one layer to the next, which costs time if only one of the two works on codes."""

from __future__ import annotations

from dataclasses import dataclass

from .format import Format


@dataclass(frozen=True)
class Boundary:
    """Values between two layers: rounded if only `after` takes codes, un-rounded if only `before` makes them.

    >>> int8, float_ = Format(8, 8), Format()
    >>> Boundary("a", "b", 4096).step(float_, int8), Boundary("a", "b", 4096).step(int8, float_)
    ('quantize', 'dequantize')
    >>> Boundary("a", "b", 4096).step(int8, int8) is None
    True
    """

    before: str | None  # None: what always hands on values, such as a softmax
    after: str | None
    elements: int  # of one sample
    back: bool = True  # un-rounding costs; not so between two layers that read one rounded tensor

    def step(self, before: Format, after: Format) -> str | None:
        """What a runtime has to do between layers in these formats: nothing, quantize or dequantize."""
        made, taken = before.has_ranges, after.has_ranges  # a dynamic layer takes and makes values
        if made == taken or (made and not self.back):
            return None
        return "quantize" if taken else "dequantize"


def step_key(step: str, elements: int) -> str:
    """The row of a latency table that holds the time of a step."""
    return f"{step} n{elements}"
