"""Names that users write: an entry of a table, or `package.module:attribute` of their own."""

from __future__ import annotations

import importlib
import sys
import sysconfig
import traceback
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from .errors import BitsectError, OptionError
from .files import first_line

OWN = "package.module:function"


def choose(what: str, name: str, table: Mapping[str, Any]) -> Any:
    """The entry of `table` called `name`, or what a user names as package.module:attribute.

    An entry may itself be a reference `module:attribute`, imported only now that it is asked for.

    >>> choose("constant", "tau", {"tau": "math:tau", "one": 1})
    6.283185307179586
    >>> choose("constant", "tua", {"tau": "math:tau", "one": 1})
    Traceback (most recent call last):
    bitsect.errors.OptionError: unknown constant 'tua': did you mean 'tau'?
    """
    if isinstance(name, str) and name not in table and ":" in name:
        return resolve(name, what)
    check_name(what, name, table, own=True)
    entry = table[name]
    return resolve(entry, what) if isinstance(entry, str) else entry


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
    """The object that `reference` names; `what` it is for begins every message.

    >>> resolve("math:tau", "constant")
    6.283185307179586
    """
    module_name, _, attributes = reference.partition(":")
    if not module_name or not attributes:
        raise BitsectError(f"{what} '{reference}': expected package.module:attribute")
    # As `python -m` does: what lies in the current folder can be named.
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        found: object = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise _broken(reference, what, module_name, error) from error
        raise BitsectError(
            f"{what} '{reference}': no module '{error.name}' in {Path.cwd()} or among the installed packages"
        ) from None
    except (Exception, SystemExit) as error:  # a user's module may raise anything
        raise _broken(reference, what, module_name, error) from error
    for attribute in attributes.split("."):
        if not hasattr(found, attribute):
            close = get_close_matches(attribute, dir(found), n=1)
            hint = f"; did you mean '{close[0]}'?" if close else ""
            raise BitsectError(f"{what} '{reference}': '{module_name}' has no '{attribute}'{hint}")
        found = getattr(found, attribute)
    return found


@contextmanager
def calling(what: str, name: str) -> Iterator[None]:
    """A block in which a user's function is called: what it raises becomes one line that names it.

    Errors of our own pass unchanged.
    """
    try:
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
