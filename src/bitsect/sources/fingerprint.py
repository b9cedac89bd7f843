"""A fingerprint of what a user's own function does: another body is another function, whatever its name."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

Scalar = str | bytes | int | float | complex | None
Part = bytes | memoryview
MOST_OBJECTS = 10_000  # looked into; of what lies beyond, in some large library object, only the types count


def fingerprint(*objects: object) -> str:
    """SHA-256 of the bytecode of functions, their defaults, closures, and what they use of their own package.

    Arrays and networks count with their values, other objects with their attributes. A list, set or
    dictionary that holds objects, as a log of what was asked does, counts with its type alone.
    """
    digest = hashlib.sha256()
    for each in objects:
        for part in _Describer(_package(each)).read(each):
            digest.update(f"{len(part)}:".encode())
            digest.update(part)
    return digest.hexdigest()


class _Describer:
    """Describes objects; functions and classes of the package `home` with all that is in them."""

    def __init__(self, home: str) -> None:
        self.home = home
        self.seen: set[int] = set()  # functions, classes and instances, which may refer to each other

    def read(self, value: Any) -> Iterator[Part]:
        yield f"{type(value).__module__}.{type(value).__qualname__}".encode()
        match value:
            case Tensor():
                flat = value.detach().cpu().contiguous()
                yield f"{flat.dtype} {tuple(flat.shape)}".encode()
                yield flat.reshape(-1).view(torch.uint8).numpy().data
            case np.ndarray() if not value.dtype.hasobject:
                yield f"{value.dtype} {value.shape}".encode()
                yield value.tobytes()
            case CodeType():
                yield value.co_code
                yield " ".join((*value.co_names, *value.co_freevars)).encode()
                yield from self.read_all(value.co_consts)
            case tuple():
                yield from self.read_all(value)
            case list() | dict() | set() | frozenset():
                yield from self.container(value)
            case ModuleType():
                yield value.__name__.encode()
            case _ if isinstance(value, Scalar):
                yield repr(value).encode()
            case _ if id(value) not in self.seen and len(self.seen) < MOST_OBJECTS:
                self.seen.add(id(value))
                yield from self.object(value)

    def object(self, value: Any) -> Iterator[Part]:
        match value:
            case FunctionType():
                yield from self.function(value)
            case MethodType():
                yield from self.read_all((value.__func__, value.__self__))
            case partial():
                yield from self.read_all((value.func, value.args, value.keywords))
            case staticmethod() | classmethod():
                yield from self.read(value.__func__)
            case property():
                yield from self.read(value.fget)
            case type():
                yield f"{value.__module__}.{value.__qualname__}".encode()
                if _package(value) == self.home:
                    yield from self.read_all(value.__bases__)
                    yield from self.attributes(_written_in(value))
            case nn.Module():
                yield from self.read(type(value))
                yield from self.attributes(value.state_dict())
            case _ if hasattr(value, "__dict__"):
                yield from self.read(type(value))
                yield from self.attributes(vars(value))
            case _ if " at 0x" not in (shown := repr(value)):
                yield shown.encode()

    def function(self, function: FunctionType) -> Iterator[Part]:
        yield f"{function.__module__}.{function.__qualname__}".encode()
        if _package(function) != self.home:
            return
        yield from self.read_all((function.__code__, function.__defaults__, function.__kwdefaults__))
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            yield name.encode()
            try:
                contents = cell.cell_contents
            except ValueError:  # not filled yet
                continue
            yield from self.read(contents)
        known = function.__globals__
        yield from self.attributes({name: known[name] for name in _names(function.__code__) if name in known})

    def read_all(self, values: Iterable[Any]) -> Iterator[Part]:
        for value in values:
            yield from self.read(value)

    def attributes(self, values: Mapping[str, Any]) -> Iterator[Part]:
        for name in sorted(values):
            yield name.encode()
            yield from self.read(values[name])

    def container(self, values: Any) -> Iterator[Part]:
        items = list(values.items() if isinstance(values, dict) else values)
        if all(map(_is_plain, items)):
            # Sets have no order of their own, and dictionaries are equal in any.
            described = [b" ".join(self.read(item)) for item in items]
            yield from described if isinstance(values, list) else sorted(described)


def _package(value: Any) -> str:
    """The top of the package that a function, class or object comes from."""
    while isinstance(value, partial):
        value = value.func
    return str(getattr(value, "__module__", "")).partition(".")[0]


def _names(code: CodeType) -> set[str]:
    """The global names that a function and those inside it may read."""
    inner = (_names(constant) for constant in code.co_consts if isinstance(constant, CodeType))
    return set(code.co_names).union(*inner)


def _written_in(kind: type) -> dict[str, Any]:
    """The methods and constants of a class, without what Python and decorators add to it."""
    return {
        name: value
        for name, value in vars(kind).items()
        if isinstance(value, (FunctionType, staticmethod, classmethod, property))
        or (not name.startswith("__") and _is_plain(value))
    }


def _is_plain(value: Any) -> bool:
    if isinstance(value, dict):
        return all(map(_is_plain, value.items()))
    if isinstance(value, tuple | list | set | frozenset):
        return all(map(_is_plain, value))
    return isinstance(value, Scalar | Tensor | np.ndarray)
