"""Files that others wrote: read within bounds, and whatever is wrong with one becomes one clear error."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

from .errors import BitsectError

LARGEST_JSON = 64 * 2**20  # bytes; the latency table of a network with ten thousand layers has about a tenth
LONGEST_REASON = 200  # characters of a library's own words that a message repeats


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
    `missing` is the whole of what is said of a file that is not there.

    >>> with reading("plan.json", what="plan"):
    ...     {}["layers"]
    Traceback (most recent call last):
    bitsect.errors.BitsectError: plan.json: not a plan, or a damaged one (KeyError: 'layers'): write it again
    """
    try:
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
    path: Path, error: type[BitsectError] = BitsectError, *, what: str, missing: str | None = None
) -> Any:
    """What the JSON file `path` holds.

    Refused are files above 64 MB, a name that stands twice in an object (JSON takes the last, the writer
    may have meant the first), and NaN and Infinity, which JSON does not have.
    """
    with reading(path, error, what=what, missing=missing):
        with path.open("rb") as file:
            data = file.read(LARGEST_JSON + 1)
        if len(data) > LARGEST_JSON:
            raise error(f"{path}: larger than {LARGEST_JSON // 2**20} MB: not a {what}")
        try:
            return parse_json(data.decode("utf-8-sig"))
        except json.JSONDecodeError as cause:
            raise error(f"{path}: line {cause.lineno}: not JSON: {cause.msg}") from None
        except ValueError as cause:
            if isinstance(cause, UnicodeDecodeError):
                raise
            raise error(f"{path}: {first_line(cause)}") from None


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
