"""How inputs and outputs of a saved program are nested; made here, where torch imports what is named."""

from __future__ import annotations

import re
from collections import OrderedDict, deque
from collections.abc import Mapping
from typing import Any

import torch.utils._pytree as pytree

from ...files import parse_json
from .archive import DEEPEST, SAVE, DamagedError, UnsafeError, shown, whole

LARGEST = 2**63
PLAIN = re.compile(r"[\w .:/+@#<>()\[\]-]{0,1000}")  # texts that are shown, and mean nothing to any parser
STRUCTURES: dict[str, Any] = {
    "builtins.tuple": tuple,
    "builtins.list": list,
    "builtins.dict": dict,
    "collections.OrderedDict": OrderedDict,
    "collections.deque": deque,
}


def plain(value: Any) -> str:
    """A text that is only shown or compared."""
    if not isinstance(value, str) or not PLAIN.fullmatch(value):
        raise UnsafeError(f"a value, weight or module is called {shown(str(value))}")
    return value


def structure(said: str) -> pytree.TreeSpec:
    """How inputs or outputs are nested; made here, where torch would import what a file names."""
    version, top = parse_json(said)
    if version != 1:
        raise UnsafeError(f"its inputs or outputs are described in version {shown(str(version))}")
    return _spec(top, 0)


def _spec(data: Mapping[str, Any], depth: int) -> pytree.TreeSpec:
    if depth > DEEPEST:
        raise DamagedError(f"its inputs or outputs are nested without end: {SAVE}")
    kind, context = data["type"], data["context"]
    if kind is None:
        return pytree.TreeSpec(None, None, [])
    children = [_spec(child, depth + 1) for child in data["children_spec"]]
    made, keys = STRUCTURES.get(kind), None
    if made in (dict, OrderedDict) or kind.startswith("transformers."):
        keys = parse_json(context)
        if not isinstance(keys, list) or len(set(map(_key, keys))) != len(children):
            raise UnsafeError(f"its inputs or outputs are held by {shown(kind)}")
        # An output of transformers is a dictionary, unless its class is there already.
        known = pytree.SERIALIZED_TYPE_TO_PYTHON_TYPE.get(kind)
        made = made or known or dict
    elif made is deque:
        keys = parse_json(context)
        keys = None if keys is None else whole(keys)
    elif made is None:
        raise UnsafeError(f"its inputs or outputs are held by {shown(kind)}")
    return pytree.TreeSpec(made, keys, children)


def _key(key: Any) -> Any:
    return key if type(key) is int and abs(key) < LARGEST else plain(key)
