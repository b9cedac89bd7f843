"""Keyword arguments of the public functions, gathered into the option values that they belong to."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any, TypeVar

from ..errors import OptionError
from ..names import check_name, unknown
from ..values.method import default_words
from ..values.options import described, given, names_of

R = TypeVar("R")


def with_options(**groups: type[Any]) -> Callable[[Callable[..., R]], Callable[..., R]]:
    """A decorator: each option of `groups` becomes a keyword argument of the function.

    The function itself takes one value per group, under the group's name; a caller may pass that too.
    """

    def decorate(function: Callable[..., R]) -> Callable[..., R]:
        own = inspect.signature(function).parameters
        flat = {name: group for group, kind in groups.items() for name in names_of(kind)}

        @wraps(function)
        def call(*args: Any, **keywords: Any) -> R:
            gathered: dict[str, dict[str, Any]] = {name: {} for name in groups}
            for name in [name for name in keywords if name in flat]:
                gathered[flat[name]][name] = keywords.pop(name)
            for name in keywords:
                if name not in own:
                    raise unknown(f"argument of {function.__name__}()", name, [*own, *flat])
            for group, kind in groups.items():
                keywords[group] = _joined(kind, keywords.get(group), gathered[group])
            return function(*args, **keywords)

        vars(call)["__signature__"] = _signature(function, groups)
        vars(call)["option_groups"] = groups  # The stub of the package declares them.
        call.__doc__ = _documented(function, groups)
        return call

    return decorate


def _joined(kind: type[Any], value: Any, flat: dict[str, Any]) -> Any:
    """The value of a group: as it was passed, with the keyword arguments beside it."""
    if isinstance(value, Mapping):
        for name in value:
            check_name(f"option of {kind.__name__}", name, names_of(kind))
        flat, value = {**value, **flat}, None
    if value is None:
        return kind(**flat)
    if not isinstance(value, kind):
        raise OptionError(f"expected a {kind.__name__}, got a {type(value).__name__}")
    return kind(**{**given(value), **flat}) if flat else value


def _signature(function: Callable[..., Any], groups: dict[str, type[Any]]) -> inspect.Signature:
    signature = inspect.signature(function)
    kept = [each for each in signature.parameters.values() if each.name not in groups]
    added = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default)
        for kind in groups.values()
        for name, default, _ in described(kind)
    ]
    return signature.replace(parameters=[*kept, *added])


def _documented(function: Callable[..., Any], groups: dict[str, type[Any]]) -> str:
    """The docstring, with a line for each option."""
    lines = [inspect.getdoc(function) or ""]
    for group, kind in groups.items():
        lines += ["", f"Options of {kind.__name__} (or `{group}={kind.__name__}(…)`):"]
        for name, default, about in described(kind):
            lines.append(f"    {name}: {about.line(default_words(kind, name, default))}")
    return "\n".join(lines)
