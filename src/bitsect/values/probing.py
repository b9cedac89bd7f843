"""How the traces of the loss Hessian were estimated, and how well they are known."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

ESTIMATORS = ("gauss-newton", "hutchinson")


@dataclass(frozen=True)
class Probing:
    """Which estimator gave the traces, and how far that can be relied on."""

    estimator: str
    relative_error: float | None  # standard error over trace, of the median layer; None after one probe
    tolerance: float  # that it was to come down to
    gauss_newton_part: tuple[str, ...] = ()  # layers of which it is not the whole trace
    instead: str | None = None  # why it is not the estimator that was asked for

    @property
    def reached(self) -> bool:
        return self.relative_error is not None and self.relative_error <= self.tolerance

    def doubts(self) -> Iterator[str]:
        """What a reader of the scores must know of their noise, a sentence each.

        >>> list(Probing("hutchinson", 0.2, 0.05).doubts())
        ['The traces are known to 20 % (standard error, median layer), not to 5 %: raise [probes=].']
        """
        if self.instead is not None:
            yield f"The traces are Hutchinson's: gauss-newton cannot be had, as {self.instead}."
        if self.relative_error is None:
            yield "How well the traces are known takes two probes to tell: raise [probes=]."
        elif not self.reached:
            yield (
                f"The traces are known to {_percent(self.relative_error)} (standard error, median layer), "
                f"not to {_percent(self.tolerance)}: raise [probes=]."
            )

    def meaning(self) -> Iterator[str]:
        """What the traces are, where that is not the Hessian's in every layer."""
        if self.gauss_newton_part:
            named = ", ".join(self.gauss_newton_part[:3]) + (", …" if len(self.gauss_newton_part) > 3 else "")
            yield (
                f"The outputs are curved in {len(self.gauss_newton_part)} layers ({named}): their traces are "
                "those of the Gauss–Newton matrix; [estimator=hutchinson] adds the network's own curvature."
            )

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"gauss_newton_part": list(self.gauss_newton_part)}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Probing:
        return cls(**data | {"gauss_newton_part": tuple(data["gauss_newton_part"])})


def _percent(share: float) -> str:
    return f"{100 * share:.2g} %"
