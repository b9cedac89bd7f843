"""What is drawn: the rows of one figure or table, of one network or of several."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

Rows = tuple[dict[str, Any], ...]


@dataclass(frozen=True)
class Subject:
    """A network that rows are of."""

    name: str
    beside: str  # the paper's network that it is most like, whose printed figures stand beside its own
    layers: int
    samples: int  # that were searched on
    source: str  # of these samples
    test: str | None  # the samples that no search saw, in words
    device: str | None  # whose latency


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
