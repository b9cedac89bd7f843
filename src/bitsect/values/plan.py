"""Which format each layer takes: the file a person reads, edits and commits."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from ..errors import PlanError
from ..files import read_json
from .format import FLOAT, Format
from .layer import Layer

VERSION = 1


@dataclass(frozen=True)
class Plan(Mapping[str, Format]):
    """Layer name → format, in graph order."""

    formats: Mapping[str, Format]

    @classmethod
    def uniform(cls, layers: Iterable[Layer], format: Format = FLOAT) -> Plan:
        return cls({layer.name: format for layer in layers})

    def replace(self, names: Iterable[str], format: Format) -> Plan:
        """This plan with the layers `names` in `format`."""
        chosen = dict.fromkeys(names, format)
        unknown = chosen.keys() - self.formats.keys()
        if unknown:
            raise PlanError(_unknown(sorted(unknown)[0], self.formats))
        return Plan({name: chosen.get(name, old) for name, old in self.formats.items()})

    def __getitem__(self, name: str) -> Format:
        return self.formats[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.formats)

    def __len__(self) -> int:
        return len(self.formats)

    def __repr__(self) -> str:
        return f"Plan: {self.counted} layers"

    def __hash__(self) -> int:
        return hash(frozenset(self.formats.items()))

    @property
    def counts(self) -> dict[str, int]:
        """Layers in each format, float always included."""
        return {"float": 0, **Counter(format.name for format in self.formats.values())}

    @property
    def counted(self) -> str:
        """The counts in words, as `1 float, 2 int8`."""
        return ", ".join(f"{count} {name}" for name, count in self.counts.items() if count)

    @property
    def key(self) -> str:
        """A short name that equal plans share: what evaluated plans are remembered by."""
        text = "\n".join(f"{name}\t{format.name}" for name, format in self.formats.items())
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def macs(self, layers: Iterable[Layer]) -> dict[str, int]:
        """Multiply-adds per sample in each format."""
        total: dict[str, int] = {}
        for layer in layers:
            name = self[layer.name].name
            total[name] = total.get(name, 0) + layer.macs
        return total

    def size_bytes(self, layers: Iterable[Layer]) -> float:
        """Weights of the layers, with scales of groups and rows; no biases, norms or scales of channels."""
        return sum(self[layer.name].size_bytes(layer) for layer in layers)

    def to_json(self) -> dict[str, Any]:
        layers = {name: format.name for name, format in self.formats.items()}
        return {"bitsect": "plan", "version": VERSION, "layers": layers}

    @classmethod
    def from_json(cls, data: Any, layers: Sequence[Layer], source: str = "plan") -> Plan:
        """The plan in `data`, checked against the network; layers it does not name stay in float."""
        if (
            not isinstance(data, dict)
            or data.get("bitsect") != "plan"
            or not isinstance(data.get("layers"), dict)
        ):
            raise PlanError(
                f'{source}: not a plan; expected {{"bitsect": "plan", "version": 1, "layers": {{…}}}}'
            )
        if data.get("version") != VERSION:
            raise PlanError(
                f"{source}: plan version {data.get('version')} is not {VERSION}: write it with this bitsect"
            )
        known = {layer.name for layer in layers}
        chosen: dict[str, Format] = {}
        for name, format_name in data["layers"].items():
            if name not in known:
                raise PlanError(f"{source}: {_unknown(name, known)}")
            if not isinstance(format_name, str):
                raise PlanError(f"{source}: layer '{name}': the format must be a name such as \"int8\"")
            try:
                chosen[name] = Format.parse(format_name)
            except PlanError as error:
                raise PlanError(f"{source}: layer '{name}': {error}") from None
        return cls({layer.name: chosen.get(layer.name, FLOAT) for layer in layers})

    @classmethod
    def read(cls, path: Path, layers: Sequence[Layer]) -> Plan:
        missing = "no such plan: `bitsect quantize` writes one"
        return cls.from_json(read_json(path, PlanError, what="plan", missing=missing), layers, str(path))


def _unknown(name: str, known: Iterable[str]) -> str:
    close = get_close_matches(name, list(known), n=1)
    return f"unknown layer '{name}'" + (
        f"; did you mean '{close[0]}'?" if close else "; `bitsect layers` lists them"
    )
