"""What a configuration claims of its network, held against what its weight files hold."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from torch import nn

from ...errors import BitsectError
from ...files import read_json

# Beyond what any network has: for numbers of which no file says how large they may be.
MOST_NUMBERS, MOST_TENSORS = 10_000_000, 10_000
ANY_NUMBER, ANY_LAYERS = 100_000, 512  # small enough for every network, however few weights it has
PER_STORED = 8  # parameters for each number of a file: codes are packed, and weights may be shared
# Of these every one is a module, which is made before a weight is looked at.
MODULES = re.compile(r"layers?$|depths?$|blocks$|stages$|experts$")
# Limits and names of tokens, by which nothing is made.
HARMLESS = re.compile(
    r"position|length|token_id|token_index|theta|seed|id2label|label2id|eps|_ids?$|window|ctx"
)


@dataclass(frozen=True)
class Held:
    """How many numbers and tensors the weight files of a network hold."""

    numbers: int
    tensors: int

    @classmethod
    def by(cls, folder: Path) -> Held | None:
        """What the files in `folder` hold; None where there are none."""
        from safetensors import safe_open

        for index in sorted(folder.glob("*.index.json")):
            named = read_json(index, what="list of weight files").get("weight_map", {}).values()
            outside = [name for name in map(str, named) if not re.fullmatch(r"[\w.-]+", name) or ".." in name]
            if outside:
                raise BitsectError(
                    f"{index}: '{outside[0][:80]}' is no file of its folder: save the network again"
                )
        numbers = tensors = 0
        for path in sorted(folder.glob("*.safetensors")):
            if not path.is_file():
                raise BitsectError(
                    f"{path}: no file, and weights are read from files: save the network again"
                )
            with safe_open(path, "pt") as file:
                shapes = [file.get_slice(name).get_shape() for name in file.keys()]  # noqa: SIM118
            numbers, tensors = numbers + sum(map(prod, shapes)), tensors + len(shapes)
        return cls(numbers, tensors) if tensors else None


def check_claims(spec: str, config: Mapping[str, Any], held: Held | None) -> None:
    """Refuse a configuration by which more would be made than the files of its network can fill."""
    for name, value in _numbers(config):
        most, what = (held.numbers, "numbers") if held else (MOST_NUMBERS, "")
        most = max(most, ANY_NUMBER)
        if MODULES.search(name):
            most, what = (held.tensors, "tensors") if held else (MOST_TENSORS, "")
            most = max(most, ANY_LAYERS)
        if value > most:
            holds = f"its weight files hold {most:,} {what}" if held else f"no network has more than {most:,}"
            raise BitsectError(
                f"{spec}: config.json says {name[:80]} {value:.15g}, and {holds}: save the network again "
                "with save_pretrained"
            )


def check_size(spec: str, empty: nn.Module, held: Held | None) -> None:
    """Refuse a network, made without its weights, that is far larger than what its files hold."""
    if held is None:
        return
    count = sum(each.numel() for each in empty.parameters())
    if count > PER_STORED * held.numbers + MOST_NUMBERS:
        raise BitsectError(
            f"{spec}: the network of config.json has {count:,} weights, and its files hold {held.numbers:,} "
            "numbers: save the network again with save_pretrained"
        )


def _numbers(config: Any, name: str = "") -> Iterator[tuple[str, int | float]]:
    """Every number of a configuration by which something may be made, with its name."""
    if isinstance(config, bool) or HARMLESS.search(name):
        return
    if isinstance(config, int | float):
        yield name, config
    elif isinstance(config, Mapping):
        for key, value in config.items():
            yield from _numbers(value, str(key))
    elif isinstance(config, list):
        for value in config:
            yield from _numbers(value, name)
