"""Saved torch.export programs, opened only after a look at what loading would unpickle or evaluate."""

from __future__ import annotations

import ast
import io
import json
import logging
import pickle
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.export.pt2_archive import PT2ArchiveReader

from ..errors import BitsectError


def load_pt2(path: Path, *, trust: bool = False) -> ExportedProgram:
    """The program in `path`; entries that could run their author's code are refused unless `trust`."""
    if not path.is_file():
        raise BitsectError(f"{path}: no such file")
    if not trust:
        try:
            unsafe = _unsafe_entry(PT2ArchiveReader(str(path)))
        except (RuntimeError, AssertionError):
            raise BitsectError(
                f"{path}: not a .pt2 archive, an old one, or cut short; write it with torch.export.save"
            ) from None
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise BitsectError(
                f"{path}: its archive config cannot be read ({error}); save it again"
            ) from None
        if unsafe is not None:
            raise BitsectError(
                f"{path}: {unsafe}; loading it can run its author's code: pass --trust if you know them"
            )
    log = logging.getLogger("torch.export")
    level, log.level = log.level, logging.CRITICAL
    try:
        return torch.export.load(path) if trust else _load(path)
    except Exception as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise BitsectError(
            f"{path}: torch.export cannot load it: {reason}; save it again with this torch"
        ) from error
    finally:
        log.level = level


def _load(path: Path) -> ExportedProgram:
    # Not torch.export.load: where this fails, that one goes on to a format that is all pickle.
    from torch.export.pt2_archive._package import load_pt2 as load_archive

    programs = load_archive(str(path)).exported_programs
    if len(programs) != 1:
        raise ValueError(f"it holds {len(programs)} programs, not one")
    return next(iter(programs.values()))


def _unsafe_entry(archive: PT2ArchiveReader) -> str | None:
    """What in the archive would be unpickled or executed, in words; None if nothing."""
    for name in archive.get_file_names():
        if name.startswith("data/aotinductor/"):
            return f"compiled code in {name}"
        if name.startswith("models/"):
            for expression in _expressions(json.loads(archive.read_string(name))):
                if not _is_arithmetic(expression):
                    return f"a size is given as the code `{expression}`"
        elif name.startswith(("data/weights/", "data/constants/")) and name.endswith("_config.json"):
            for entry, payload in json.loads(archive.read_string(name))["config"].items():
                # A path that names neither a weight nor a tensor is unpickled whatever the flag says.
                if payload["use_pickle"] or not payload["path_name"].startswith(("weight_", "tensor_")):
                    return f"'{entry}' is pickled"
        elif name.startswith("data/") and name.endswith(".pt"):
            try:
                torch.load(io.BytesIO(archive.read_bytes(name)), weights_only=True)
            except (pickle.UnpicklingError, RuntimeError, EOFError):
                return f"{name} holds pickled objects"
    return None


def _expressions(data: Any) -> Iterator[str]:
    """Every text in a saved graph that torch evaluates: symbolic sizes and guards on them."""
    if isinstance(data, list):
        for item in data:
            yield from _expressions(item)
    elif isinstance(data, dict):
        yield from data.get("guards_code", ())
        if "expr_str" in data:
            yield data["expr_str"]
        for item in data.values():
            yield from _expressions(item)


HARMLESS = (
    ast.Expression,
    ast.BinOp,
    ast.UnaryOp,
    ast.BoolOp,
    ast.Compare,
    ast.Subscript,
    ast.keyword,
    ast.expr_context,
    ast.operator,
    ast.unaryop,
    ast.boolop,
    ast.cmpop,
)


def _is_arithmetic(text: str) -> bool:
    """Whether `text` is made of numbers, symbols and classes of sympy: `Mod(Symbol('s0', integer=True), 2)`.

    sympy calls what it finds among Python's built-in functions too, but those have lower-case names.
    """

    def is_harmless(node: ast.AST) -> bool:
        match node:
            case ast.Constant(value=str(value)):
                return re.fullmatch(r"[\w.+-]*", value) is not None
            case ast.Constant(value=value):
                return isinstance(value, int | float)
            case ast.Name(id=name):
                return "__" not in name
            case ast.Attribute(attr=name):
                return name in ("size", "shape", "stride", "storage_offset")
            case ast.Call(func=ast.Name(id=name)):
                return name[0].isupper() or name in ("floor", "ceiling")
            case ast.Call(func=function):
                return isinstance(function, ast.Attribute)
            case _:
                return isinstance(node, HARMLESS)

    try:
        return all(is_harmless(node) for node in ast.walk(ast.parse(text, mode="eval")))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
