"""Files of a run: written whole, read within bounds, and never through a link."""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

from .. import files
from ..errors import BitsectError, RunError

WHAT = "file of a run"
OWN_FILES = "a run keeps its files in its own folder: remove it, or copy the run to where you can write"
LARGEST_LINES = 2**30  # bytes of all plans that were ever evaluated, a line each
START_ANEW = "pass [fresh=True] to start the run anew"


def write_text(path: Path, text: str) -> None:
    """`text` in `path`, whole or not at all."""
    write_bytes(path, text.encode())


def write_bytes(path: Path, data: bytes) -> None:
    """`data` in `path`, whole or not at all; a link at that place is replaced, not followed."""
    beside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        beside.unlink(missing_ok=True)
        with beside.open("xb") as file:
            file.write(data)
        beside.replace(path)
    except OSError as error:  # which names no file where the disk is full
        raise BitsectError(f"{path} cannot be written: {error.strerror or error}") from None
    finally:
        with suppress(OSError):  # the first error is the one to tell
            beside.unlink(missing_ok=True)


def json_text(data: Any) -> str:
    return json.dumps(data, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def open_file(path: Path, mode: str) -> BinaryIO:
    """The run's own ordinary file `path`, open in `mode`; links, pipes and devices are refused."""
    try:
        return files.open_file(path, mode, links=False)
    except OSError as error:
        raise RunError(f"{path} cannot be opened ({error.strerror}): {OWN_FILES}") from None


def lock(file: BinaryIO) -> bool:
    """Whether `file` is locked for this process alone, until it is closed or the process ends."""
    try:
        if sys.platform == "win32":
            import msvcrt

            file.seek(0)
            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
        else:
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


@contextmanager
def reading(path: Path, way_out: str) -> Iterator[None]:
    """Whatever goes wrong in reading a run's file becomes one line that names it and the `way_out`."""
    try:
        with files.reading(path, RunError, what=WHAT, way_out=way_out):
            yield
    except RunError:
        raise
    except BitsectError as error:
        raise RunError(f"{path}: {files.first_line(error)}; {way_out}") from None


def read_json_object(path: Path, way_out: str) -> dict[str, Any] | None:
    """The JSON object in a run's file `path`; None if there is no such file."""
    if not os.path.lexists(path):
        return None
    data = files.read_json(path, RunError, what=WHAT, way_out=way_out, links=False)
    if not isinstance(data, dict):
        raise RunError(f"{path}: expected an object, not a {type(data).__name__}: {way_out}")
    return data


def append_line(path: Path, text: str) -> None:
    """`text` as the last line of `path`."""
    try:
        with open_file(path, "ab") as file:
            file.write(text.encode() + b"\n")
    except OSError as error:
        raise RunError(f"{path} cannot be written: {error.strerror or error}") from None


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The JSON objects of a file that lines are appended to; a line that a kill cut short is taken off."""
    found = []
    with open_file(path, "r+b") as file:
        if file.seek(0, os.SEEK_END) > LARGEST_LINES:
            raise RunError(f"{path}: larger than {LARGEST_LINES // 2**30} GB: not a {WHAT}: {START_ANEW}")
        file.seek(0)
        lines = [line for line in file if line.endswith(b"\n")]
        file.truncate(sum(map(len, lines)))
        for line in lines:
            with suppress(ValueError, RecursionError):
                data = json.loads(line)
                if isinstance(data, dict):
                    found.append(data)
    return found


def fingerprint_json(data: Any) -> str:
    """SHA-256 of what `data` says as JSON, whatever the order of its names."""
    plain = json.loads(json.dumps(data, allow_nan=False))
    return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()


def fingerprint_file(path: Path) -> str:
    """SHA-256 of the bytes in `path`."""
    digest = hashlib.sha256()
    with open_file(path, "rb") as file:
        while part := file.read(1 << 20):
            digest.update(part)
    return digest.hexdigest()
