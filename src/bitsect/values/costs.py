"""What every layer costs in every format, as a table that a search can add up by itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ..errors import BitsectError
from .format import Format

Change = Mapping[tuple[Format, Format], float]


@dataclass(frozen=True)
class Costs:
    """The cost of every plan: rest + Σ layers each[layer][format] + Σ neighbours change[format, next format].

    A change between neighbours may have a price of its own, where `changes` name one for each pair of them.

    >>> int8, float_ = Format(8, 8), Format()
    >>> each = {"a": {float_: 4.0, int8: 2.0}, "b": {float_: 4.0, int8: 1.0}}
    >>> costs = Costs(each, {(float_, int8): 0.5}, (("a", "b"),))
    >>> costs({"a": float_, "b": int8}), costs({"a": int8, "b": int8})
    (5.5, 3.0)
    """

    each: Mapping[str, Mapping[Format, float]]
    change: Change = field(default_factory=dict)  # 0 where not named
    neighbours: tuple[tuple[str, str], ...] = ()  # layers between which a change of format costs
    changes: tuple[Change, ...] = ()  # for each two neighbours, where one price does not hold for all
    rest: float = 0.0  # what every plan costs

    def of(self, layer: str, format: Format) -> float:
        if format not in self.each.get(layer, {}):
            raise BitsectError(f"the cost of layer '{layer}' at {format} is not known")
        return self.each[layer][format]

    def __call__(self, plan: Mapping[str, Format]) -> float:
        layers = sum(self.of(layer, format) for layer, format in plan.items())
        between = zip(self.neighbours, self.prices, strict=True)
        return self.rest + layers + sum(price.get((plan[a], plan[b]), 0.0) for (a, b), price in between)

    @property
    def prices(self) -> tuple[Change, ...]:
        """For each two neighbours, what a change of format costs."""
        return self.changes or (self.change,) * len(self.neighbours)

    @classmethod
    def bits(cls, ladders: Mapping[str, tuple[Format, ...]]) -> Costs:
        """Bits of weights and activations, each layer counting alike: for want of anything better."""
        return cls(
            {name: {f: float(f.stored_bits + f.compute_bits) for f in ladders[name]} for name in ladders}
        )
