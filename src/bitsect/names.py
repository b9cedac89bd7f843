"""Names that users write: an entry of a table, or `package.module:attribute` of their own."""

from __future__ import annotations

import importlib
import os
import sys
import sysconfig
import traceback
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from difflib import get_close_matches
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from .errors import BitsectError, OptionError
from .files import first_line

OWN = "package.module:function"
_user_folders: list[str] = []  # in which users named modules; nothing else is ever imported from there


def choose(what: str, name: str, table: Mapping[str, Any], *, own: bool = False) -> Any:
    """The entry of `table` called `name`; with `own`, also what a user names as package.module:attribute.

    An entry may itself be a reference `module:attribute`, imported only now that it is asked for.

    >>> choose("constant", "tau", {"tau": "math:tau", "one": 1})
    6.283185307179586
    >>> choose("constant", "tua", {"tau": "math:tau", "one": 1})
    Traceback (most recent call last):
    bitsect.errors.OptionError: unknown constant 'tua': did you mean 'tau'?
    """
    if own and isinstance(name, str) and name not in table and ":" in name:
        return resolve(name, what)
    check_name(what, name, table, own=own)
    entry = table[name]
    if not isinstance(entry, str):
        return entry
    module, _, attribute = entry.partition(":")
    return getattr(importlib.import_module(module), attribute)


def check_name(what: str, name: object, names: Collection[str], *, own: bool = False) -> None:
    """Refuse a `name` that is not among `names`; with `own`, a reference to something else may be one."""
    if name not in names and not (own and isinstance(name, str) and ":" in name):
        raise unknown(what, name, names, own=own)


def unknown(what: str, name: object, names: Collection[str], *, own: bool = False) -> OptionError:
    """The one error for a name that is not known: with the nearest one, or with all of them."""
    close = get_close_matches(str(name), list(names), n=1)
    if close:
        return OptionError(f"unknown {what} '{name}': did you mean '{close[0]}'?")
    *most, last = (*names, *([OWN] if own else []))
    return OptionError(f"unknown {what} '{name}': use {', '.join(most)}{' or ' if most else ''}{last}")


def resolve(reference: str, what: str) -> object:
    """The object that a user names as `reference`; `what` it is for begins every message.

    What is installed comes before what lies in the current folder, which is looked in only for this.

    >>> resolve("math:tau", "constant")
    6.283185307179586
    """
    module_name, _, attributes = reference.partition(":")
    if not module_name or not attributes:
        raise BitsectError(f"{what} '{reference}': expected package.module:attribute")
    folder = current_folder()
    here = _lies_in(folder, module_name)
    if here and folder not in _user_folders and not _is_found(module_name):
        _user_folders.insert(0, folder)
    try:
        with user_folders():
            found: object = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise _broken(reference, what, module_name, error) from error
        hint = _hidden(module_name, folder) if here else ""
        raise BitsectError(
            f"{what} '{reference}': no module '{error.name}' in {folder} or among installed packages{hint}"
        ) from None
    except (Exception, SystemExit) as error:  # a user's module may raise anything
        raise _broken(reference, what, module_name, error) from error
    for attribute in attributes.split("."):
        if not hasattr(found, attribute):
            close = get_close_matches(attribute, dir(found), n=1)
            hint = f"; did you mean '{close[0]}'?" if close else _hidden(module_name, folder) if here else ""
            raise BitsectError(f"{what} '{reference}': '{module_name}' has no '{attribute}'{hint}")
        found = getattr(found, attribute)
    return found


def some(names: Collection[str], most: int = 5) -> str:
    """The first names of many, for a message.

    >>> some(["a", "b", "c"], 2)
    "'a', 'b' … (3 in all)"
    """
    shown = ", ".join(f"'{name}'" for name in list(names)[:most])
    return shown if len(names) <= most else f"{shown} … ({len(names)} in all)"


@contextmanager
def user_folders() -> Iterator[None]:
    """A block in which modules are also found, last of all, in the folders in which users named some."""
    added = [folder for folder in _user_folders if folder not in sys.path]
    sys.path.extend(added)
    try:
        yield
    finally:
        for folder in added:
            if folder in sys.path:
                sys.path.remove(folder)


def python_command(program: str) -> list[str]:
    """The command of a child that runs the text `program` and finds the modules that this process finds."""
    return [sys.executable, "-P", "-c", f"import sys; sys.path[:] = {child_path()!r}; {program}"]


def child_path() -> list[str]:
    """Where children look for modules.

    The current folder, where it is on the path or users named modules of it, comes last there: nothing that
    is installed is ever looked for in it first.
    """
    current, home = current_folder(), str(Path(__file__).parents[1])
    first: list[str] = []
    last = list(_user_folders)
    for entry in sys.path:
        folder = os.path.abspath(entry or current)  # noqa: PTH100, for links are left as they are
        (last if folder == current != home else first).append(folder)
    return list(dict.fromkeys([*first, *last]))


@contextmanager
def calling(what: str, name: str) -> Iterator[None]:
    """A block in which a user's function is called: what it raises becomes one line that names it.

    It may import more from where it lies. Errors of our own pass unchanged.
    """
    try:
        with user_folders():
            yield
    except BitsectError:
        raise
    except (Exception, SystemExit) as error:  # a user's function may raise anything
        kind, said = type(error).__name__, first_line(error)
        told = kind if said == kind else f"{kind}: {said}"
        raise BitsectError(f"{what} '{name}' raised {told}{_line_of(error)}") from error


def _line_of(error: BaseException) -> str:
    """In words, the last line that `error` came through outside this package, Python and its libraries."""
    libraries = [
        Path(__file__).parent,
        *map(Path, (sysconfig.get_path("stdlib"), sysconfig.get_path("platlib"))),
    ]
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        path = Path(frame.filename)
        if path.is_file() and not any(path.is_relative_to(folder) for folder in libraries):
            return f" ({path.name}, line {frame.lineno}: {frame.line})"
    return ""


def _broken(reference: str, what: str, module: str, error: BaseException) -> BitsectError:
    return BitsectError(
        f"{what} '{reference}': importing '{module}' raises {type(error).__name__}: {first_line(error)}"
    )


def current_folder() -> str:
    """The path of the current folder; an empty one where that was removed."""
    try:
        return str(Path.cwd())
    except OSError:
        return ""


def _lies_in(folder: str, module: str) -> bool:
    """Whether `folder` holds what `module` could be imported from."""
    first = Path(folder) / module.partition(".")[0]
    return first.is_dir() or first.with_name(f"{first.name}.py").exists()


def _is_found(module: str) -> bool:
    """Whether `module`, or the package that it is in, is found without the current folder."""
    first = module.partition(".")[0]
    return first in sys.modules or find_spec(first) is not None


def _hidden(module: str, folder: str) -> str:
    """Why a module of the current folder was not the one that was imported."""
    first = module.partition(".")[0]
    found = getattr(sys.modules.get(first), "__file__", None)
    if found is None or Path(found).is_relative_to(folder):
        return ""
    return f"; '{first}' in {folder} is hidden by an installed module of that name: rename it"


def listed(given: Any) -> list[Any]:
    """What was given as a list, alone, or as text with commas; None is nothing.

    >>> listed("98%, 99%"), listed(0.9), listed(None)
    (['98%', '99%'], [0.9], [])
    """
    if given is None:
        return []
    if isinstance(given, str):
        return [part.strip() for part in given.split(",") if part.strip()]
    return list(given) if isinstance(given, Iterable) else [given]
