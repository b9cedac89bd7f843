"""Option values: frozen dataclasses whose fields are the options of the command line and of Python.

An option is declared once, as a field with its default, one line of help and its choices. Options of
the commands, keyword arguments of the public functions, their documentation, and the JSON that a run
records are all made from these fields.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar, dataclass_transform

from ..errors import OptionError
from ..names import OWN, check_name

T = TypeVar("T")


@dataclass(frozen=True)
class Help:
    """What is known of an option besides its name and default."""

    text: str
    panel: str  # the heading under which `--help` shows it
    type: Any = str  # of its value on the command line, where list[…] may be repeated
    choices: Collection[str] | str | None = None  # the names, or where their table is: "module:TABLE"
    own: bool = False  # whether package.module:function may be named instead
    least: float | None = None  # the smallest number allowed
    aside: str = ""  # what is said after the choices
    # What Python takes beside text, as a type: objects, functions. The stub of the package declares it.
    python: str | None = None

    def names(self) -> tuple[str, ...]:
        """The names to choose from; their table is imported only when somebody asks."""
        table = self.choices or ()
        if isinstance(table, str):
            module, _, attribute = table.partition(":")
            table = getattr(import_module(module), attribute)
        return tuple(table)

    def line(self, default: str) -> str:
        """What the option does, what it may be, and what it is where nobody says otherwise."""
        text = self.text.removesuffix(".")
        if self.choices:
            *most, last = (*self.names(), *([OWN] if self.own else []))
            text += f": {', '.join(most)} or {last}"
        text += f"; {self.aside}" if self.aside else ""
        return f"{text}; default: {default}." if default else f"{text}."


def option(text: str, panel: str, *, default: Any, **more: Any) -> Any:
    """A field of an option value."""
    return field(default=default, metadata={"help": Help(text, panel, **more)})


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(option,))
def options(cls: type[T]) -> type[T]:
    """Make `cls` a frozen dataclass of options that remembers which of them were given.

    So an option that was asked for is told from one that only has its default: where a run is
    continued, its own settings replace the defaults and nothing else.
    """
    made = dataclass(frozen=True, kw_only=True)(cls)

    def new(kind: type[Any], **given: Any) -> Any:
        value = object.__new__(kind)
        object.__setattr__(value, "_given", frozenset(given))
        return value

    made.__new__ = new  # type: ignore[method-assign,assignment]
    return made


def given(value: Any) -> dict[str, Any]:
    """The options of `value` that were asked for, not only left at their default."""
    return {name: getattr(value, name) for name in names_of(type(value)) if name in value._given}


def on_top_of(base: T, asked: Any) -> T:
    """`base` with the options that `asked` was given."""
    known = {name: getattr(base, name) for name in names_of(type(base))}
    return type(base)(**{**known, **given(asked)})


def changed(value: T, **options: Any) -> T:
    """`value` with other `options`; what else was given stays so."""
    return type(value)(**{**given(value), **options})


def names_of(kind: type[Any]) -> tuple[str, ...]:
    return tuple(each.name for each in dataclasses.fields(kind))


def described(kind: type[Any]) -> Iterator[tuple[str, Any, Help]]:
    """Name, default and help of every option of `kind`."""
    for each in dataclasses.fields(kind):
        yield each.name, each.default, each.metadata["help"]


def check_options(value: Any) -> None:
    """Refuse an option of `value` that is of another type than it should be, or none of its choices."""
    for name, default, about in described(type(value)):
        chosen, what = getattr(value, name), name.replace("_", " ")
        if chosen is None and default is None:
            continue
        if about.choices is not None and not (about.python and not isinstance(chosen, str)):
            check_name(what, chosen, about.names(), own=about.own)
        elif about.type in (int, float, bool):
            _check_number(what, chosen, about)
        elif about.type is str and not about.python and not isinstance(chosen, str):
            raise OptionError(f"{what} {chosen!r} is a {type(chosen).__name__}: expected text")


def _check_number(what: str, chosen: Any, about: Help) -> None:
    if about.type is bool:
        if not isinstance(chosen, bool):
            raise OptionError(f"{what} {chosen} is neither true nor false")
        return
    kind = "whole number" if about.type is int else "number"
    least = "" if about.least is None else f" of at least {about.least:g}"
    right = isinstance(chosen, int if about.type is int else int | float) and not isinstance(chosen, bool)
    # Said so that NaN is refused too.
    if not right or not (chosen == chosen if about.least is None else chosen >= about.least):
        raise OptionError(f"{what} {chosen} is not a {kind}{least}")


def refuse_code(path: Path | str, whole: T, asked: T) -> T:
    """The options `whole`, unless the file at `path` names code in one that was not `asked` for besides."""
    for name, _, about in described(type(whole)):
        value = getattr(whole, name)
        if about.own and isinstance(value, str) and ":" in value and value != given(asked).get(name):
            raise OptionError(
                f"{path}: its {name} '{value[:100]}' is code to import: pass [{name}={value[:100]}] if it is "
                "yours, or [trust=True]"
            )
    return whole


def to_json(value: Any) -> dict[str, Any]:
    """All options of `value`, as JSON holds them."""
    return {name: _plain(getattr(value, name)) for name in names_of(type(value))}


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, str | int | float | bool):
        return value
    if isinstance(value, tuple | list):
        return [_plain(each) for each in value]
    return str(getattr(value, "name", None) or getattr(value, "__qualname__", None) or value)
