"""Files that others wrote: read within bounds, and whatever is wrong with one becomes one clear error."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from errno import ELOOP
from pathlib import Path
from stat import S_ISDIR, S_ISREG
from typing import Any, BinaryIO, NoReturn

from .errors import BitsectError

LARGEST_JSON = 64 * 2**20  # bytes; the latency table of a network with ten thousand layers has about a tenth
LONGEST_REASON = 200  # characters of a library's own words that a message repeats
NO_FILE = "not a file, but a pipe or a device"
# An open pipe does not wait for who writes into it; Windows has neither flag.
NO_WAIT, NO_LINK = getattr(os, "O_NONBLOCK", 0), getattr(os, "O_NOFOLLOW", 0)


@contextmanager
def reading(
    path: Path | str,
    error: type[BitsectError] = BitsectError,
    *,
    what: str = "file",
    missing: str | None = None,
    way_out: str = "write it again",
) -> Iterator[None]:
    """A block in which `path` is read: whatever fails there is raised as one `error` that names the file.

    Errors of our own pass unchanged. `what` the file should be and the `way_out` are for the message;
    `missing` is the whole of what is said of a file that is not there. Pipes and devices, which might keep
    their reader waiting for ever, are refused before they are opened.

    >>> with reading("plan.json", what="plan"):
    ...     {}["layers"]
    Traceback (most recent call last):
    bitsect.errors.BitsectError: plan.json: not a plan, or a damaged one (KeyError: 'layers'): write it again
    """
    place = Path(path)
    try:
        if not (place.is_file() or place.is_dir()) and place.exists():
            raise error(f"{path}: {NO_FILE}: {way_out}")
        yield
    except BitsectError:
        raise
    except FileNotFoundError:
        raise error(f"{path}: {missing or f'no such {what}'}") from None
    except UnicodeDecodeError as cause:
        raise error(f"{path}: cannot be read as {what}: byte {cause.start} is no text: {way_out}") from None
    except MemoryError:
        raise error(f"{path}: claims to hold more than there is memory for: {way_out}") from None
    except RecursionError:
        raise error(f"{path}: nested too deeply to be a {what}: {way_out}") from None
    except Exception as cause:  # what libraries raise for damaged files has no common parent
        if isinstance(cause, OSError) and cause.strerror:  # of the system, not of a library
            raise error(f"{path}: cannot be read: {cause.strerror}") from None
        raise error(f"{path}: not a {what}, or a damaged one ({_reason(cause)}): {way_out}") from cause


def read_json(
    path: Path,
    error: type[BitsectError] = BitsectError,
    *,
    what: str,
    missing: str | None = None,
    way_out: str = "write it again",
    links: bool = True,
) -> Any:
    """What the JSON file `path` holds, with a byte-order mark or without.

    Refused are files above 64 MB, a name that stands twice in an object (JSON takes the last, the writer
    may have meant the first), and NaN and Infinity, which JSON does not have.
    """
    with reading(path, error, what=what, missing=missing, way_out=way_out):
        with open_file(path, links=links) as file:
            data = file.read(LARGEST_JSON + 1)
        if len(data) > LARGEST_JSON:
            raise error(f"{path}: larger than {LARGEST_JSON // 2**20} MB: not a {what}: {way_out}")
        try:
            return parse_json(data.decode("utf-8-sig"))
        except json.JSONDecodeError as cause:
            raise error(f"{path}: line {cause.lineno}: not JSON: {cause.msg}: {way_out}") from None
        except ValueError as cause:
            if isinstance(cause, UnicodeDecodeError):
                raise
            raise error(f"{path}: {first_line(cause)}: {way_out}") from None


def open_file(path: Path, mode: str = "rb", *, links: bool = True) -> BinaryIO:
    """The ordinary file `path`, open in `mode`; an OSError says what it is instead.

    Without `links` it must be the only name of what it holds if it is written, and no symbolic link at all.
    """
    if not links and path.is_symlink():
        raise OSError(ELOOP, "a link")

    def opener(name: str, flags: int) -> int:
        opened = os.open(name, flags | NO_WAIT | (0 if links else NO_LINK), 0o666)
        found = os.fstat(opened)
        shared = not links and mode != "rb" and found.st_nlink > 1
        if shared or not (S_ISREG(found.st_mode) or S_ISDIR(found.st_mode)):
            os.close(opened)
            raise OSError(0, "a hard link, another name of the same file" if shared else NO_FILE)
        return opened

    file: Any = open(path, mode, opener=opener)  # noqa: SIM115, for the caller closes it
    checked: BinaryIO = file
    return checked


def parse_json(text: str | bytes) -> Any:
    """`text` as strict JSON; a ValueError says what is wrong, a RecursionError means nested too deeply."""
    return json.loads(text, object_pairs_hook=_unique, parse_constant=_no_constant)


def first_line(error: BaseException) -> str:
    """The first line of what an error says, or its class if it says nothing; never longer than a line."""
    lines = str(error).strip().splitlines()
    return lines[0][:LONGEST_REASON] if lines else type(error).__name__


def _reason(error: BaseException) -> str:
    text, kind = first_line(error), type(error).__name__
    return text if text == kind else f"{kind}: {text}"


def _unique(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"'{key}' stands there twice: leave one")
        found[key] = value
    return found


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number in JSON: leave it out, or write null")
