"""What is drawn: the rows of one figure or table, of one network or of several."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

HESSIAN, GAUSS_NEWTON = "Hessian", "Gauss–Newton"
Rows = tuple[dict[str, Any], ...]


@dataclass(frozen=True)
class Network:
    """A network that rows are of."""

    name: str
    beside: str  # the paper's network that it is most like, whose printed figures stand beside its own
    layers: int
    samples: str | None = None  # that were searched on, in words
    test: str | None = None  # the samples that no search saw, in words
    device: str | None = None  # whose latency
    curvature: str | None = None  # whose traces the metrics `hessian` and `aughessian` go by, if any do

    def label(self, metric: str) -> str:
        """What the paper calls a metric, with the name of the matrix whose traces it goes by.

        >>> Network("n", "bert-large", 2, curvature="Gauss–Newton").label("aughessian")
        'AugGauss–Newton'
        """
        matrix = self.curvature or HESSIAN
        names = {"hessian": matrix, "aughessian": f"Aug{matrix}", "interlayer": "inter-layer"}
        return names.get(metric, metric)


@dataclass(frozen=True)
class Data:
    """The rows of a figure or table; each says in `network` which network it is of."""

    name: str
    words: str
    rows: Rows

    def of(self, network: str) -> Rows:
        return tuple(row for row in self.rows if row["network"] == network)

    def to_json(self) -> dict[str, Any]:
        return {"name": self.name, "words": self.words, "rows": list(self.rows)}
