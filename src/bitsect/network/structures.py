"""What a network's outputs are made of: dataclasses and named tuples of its own among other containers."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import fields, is_dataclass, replace
from typing import Any

import torch.utils._pytree as pytree
from torch.export import ExportedProgram, register_dataclass


def register_outputs(outputs: Any) -> bool:
    """Make known to torch.export what dataclasses `outputs` are made of; whether one was not known."""
    found = False
    if _is_dataclass(outputs):
        if type(outputs) not in pytree.SUPPORTED_NODES:
            with suppress(ValueError):  # fields that are not given to its constructor
                register_dataclass(type(outputs))
                found = True
        parts = [getattr(outputs, each.name, None) for each in fields(outputs)]
    elif isinstance(outputs, Mapping):
        parts = list(outputs.values())
    else:
        parts = list(outputs) if isinstance(outputs, tuple | list) else []
    for part in parts:
        found |= register_outputs(part)
    return found


def plain(outputs: Any) -> Any:
    """`outputs` with dictionaries in place of classes that a file could not name."""
    if isinstance(outputs, Mapping):
        return {name: plain(part) for name, part in outputs.items()}
    if _is_dataclass(outputs):
        return {each.name: plain(getattr(outputs, each.name)) for each in fields(outputs)}
    if isinstance(outputs, tuple) and hasattr(outputs, "_fields"):
        return {name: plain(part) for name, part in zip(outputs._fields, outputs, strict=True)}
    return type(outputs)(map(plain, outputs)) if type(outputs) in (tuple, list) else outputs


def make_plain(exported: ExportedProgram) -> None:
    """Let `exported` give plain containers, so that it can be saved, and loaded anywhere."""
    first, *others = exported.module_call_graph
    if first.signature is not None and first.signature.out_spec is not None:
        signature = replace(first.signature, out_spec=_plain_spec(first.signature.out_spec))
        exported._module_call_graph = [replace(first, signature=signature), *others]


def _is_dataclass(outputs: Any) -> bool:
    """Whether these are the fields of a dataclass, and not a dictionary too, as transformers' are."""
    return is_dataclass(outputs) and not isinstance(outputs, type | Mapping)


def _plain_spec(spec: pytree.TreeSpec) -> pytree.TreeSpec:
    parts = [_plain_spec(part) for part in spec.children()]
    if spec.type is namedtuple:
        return pytree.TreeSpec(dict, list(spec.context._fields), parts)
    if isinstance(spec.type, type) and is_dataclass(spec.type) and not issubclass(spec.type, Mapping):
        return pytree.TreeSpec(dict, list(spec.context[0]), parts)
    return pytree.TreeSpec(spec.type, spec.context, parts) if parts else spec
