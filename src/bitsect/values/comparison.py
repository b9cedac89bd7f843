"""How a captured program compares with the network it was captured from."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Comparison:
    """How far the outputs of a program are from those of its network on the example."""

    difference: float = 0.0  # the largest between two numbers
    relative: float = 0.0  # the largest as a share of the largest number in the same output
    noise: float = 0.0  # the relative difference that rounding alone may make
    changed: int = 0  # predictions that are not the same
    predictions: int = 0
    why: str | None = None  # where the cause is known
    error: str | None = None  # what the network raised, so that nothing could be compared

    @property
    def is_noise(self) -> bool:
        return self.error is None and self.relative <= self.noise

    def __str__(self) -> str:
        if self.error is not None:
            return f"what was captured was not compared with the network, which raised {self.error}"
        if math.isinf(self.difference):
            text = "what was captured gives outputs of other shapes, or infinite ones, than the network"
            return text if self.why is None else f"{text}: {self.why}"
        text = (
            f"what was captured differs from the network by up to {self.difference:.2g} "
            f"({self.relative:.1%} of the largest output) on the example"
        )
        if self.changed:
            text += f", {self.changed} of {self.predictions} predictions change"
        return text if self.why is None else f"{text}: {self.why}"

    def to_json(self) -> dict[str, Any]:
        """JSON has no infinity, which stands for outputs of another shape: it is null."""
        finite = {name: getattr(self, name) for name in ("difference", "relative")}
        return vars(self) | {name: None if math.isinf(value) else value for name, value in finite.items()}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Comparison:
        infinite = {name: math.inf for name in ("difference", "relative") if data[name] is None}
        return cls(**(data | infinite))
