"""Ways in which a file gets damaged, or is made to do harm."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any


def damage(path: Path, others: list[Path], chance: random.Random) -> str:
    """Damage `path` in some way, told in words."""
    whole = path.read_bytes()
    kinds = ["truncated", "flipped", "foreign", "deleted", "swapped", "zeroed"]
    kind = chance.choice(kinds + ["retyped"] * 4 if path.suffix == ".json" else kinds)
    if kind == "deleted":
        path.unlink()
    elif kind == "truncated":
        path.write_bytes(whole[: chance.randrange(len(whole) + 1)])
    elif kind == "zeroed":
        start, length = chance.randrange(len(whole)), chance.randrange(1, 65)
        path.write_bytes((whole[:start] + bytes(length) + whole[start + length :])[: len(whole)])
    elif kind == "swapped":
        path.write_bytes(chance.choice(others).read_bytes())
    elif kind == "foreign":
        path.write_bytes(chance.choice(FOREIGN)(chance))
    elif kind == "retyped":
        path.write_text(json.dumps(_retyped(json.loads(whole), chance)))
    else:
        data = bytearray(whole)
        for _ in range(chance.choice((1, 1, 1, 2, 8))):
            data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
        path.write_bytes(data)
    return kind


FOREIGN: tuple[Callable[[random.Random], bytes], ...] = (
    lambda chance: b"",
    lambda chance: chance.randbytes(chance.choice((1, 16, 1000))),
    lambda chance: b"[" * 200_000,
    lambda chance: b'{"a":' * 100_000,
    lambda chance: b"null",
    lambda chance: b"[]",
    lambda chance: b"{}",
    lambda chance: b'{"bitsect": "run", "version": 1}',
    lambda chance: b"PK\x03\x04" + chance.randbytes(100),
    lambda chance: b"PK\x05\x06" + bytes(18),
    lambda chance: b"\x89PNG\r\n\x1a\n" + chance.randbytes(60),
    lambda chance: b"bsj1" + chance.randbytes(60),
    lambda chance: (2**40).to_bytes(8, "little") + b"{}",
    lambda chance: "ä\u0000\n".encode() * 50,
)
VALUES: tuple[Any, ...] = (None, True, -1, 0, 7, 1e300, -0.5, "", "x", "int8", [], [1], {}, {"a": 1})


def _retyped(data: Any, chance: random.Random) -> Any:
    """`data` with one thing in it replaced, removed or given another name."""
    places = list(_places(data))
    if not places:
        return chance.choice(VALUES)
    holder, key = chance.choice(places)
    action = chance.choice(("replace", "replace", "remove", "rename"))
    if action == "replace" or isinstance(holder, list):
        holder[key] = chance.choice(VALUES)
    else:
        value = holder.pop(key)
        if action == "rename":
            holder[f"{key}x"] = value
    return data


def _places(data: Any) -> Iterator[tuple[Any, Any]]:
    for key, value in data.items() if isinstance(data, dict) else enumerate(data):
        yield data, key
        if isinstance(value, dict | list):
            yield from _places(value)
