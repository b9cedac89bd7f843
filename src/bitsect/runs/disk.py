"""Files of a run: written whole, read within bounds, and never through a link."""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from stat import S_ISREG
from typing import Any, BinaryIO

from ..errors import BitsectError, RunError

LARGEST_JSON_BYTES = 64_000_000  # far above what a run writes, far below what fills a memory
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
    """The ordinary file `path`, open in `mode`; links and devices are refused."""
    if path.is_symlink() or (path.exists() and not S_ISREG(path.stat().st_mode)):
        raise RunError(f"{path} is a link or no file: a run keeps its files in its own folder; remove it")
    no_follow = getattr(os, "O_NOFOLLOW", 0)  # Windows has no such flag
    try:
        file: Any = open(  # noqa: SIM115, for the caller closes it
            path, mode, opener=lambda name, flags: os.open(name, flags | no_follow, 0o666)
        )
    except OSError as error:
        raise RunError(
            f"{path} cannot be opened ({error.strerror}): a run works where it can write; copy it there"
        ) from None
    opened: BinaryIO = file
    return opened


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
        yield
    except BitsectError as error:
        raise RunError(f"{path}: {error}; {way_out}") from None
    except RecursionError:
        raise RunError(f"{path} cannot be read (it is nested too deep): {way_out}") from None
    except Exception as error:  # a damaged file breaks its reader in every way there is
        reason = (str(error).splitlines() or [""])[0] or type(error).__name__
        raise RunError(f"{path} cannot be read ({reason}): {way_out}") from None


def read_json_object(path: Path, way_out: str) -> dict[str, Any] | None:
    """The JSON object in `path`; None if there is no such file."""
    if not path.exists() and not path.is_symlink():
        return None
    with reading(path, way_out), open_file(path, "rb") as file:
        text = file.read(LARGEST_JSON_BYTES + 1)
        if len(text) > LARGEST_JSON_BYTES:
            raise ValueError(f"it is larger than {LARGEST_JSON_BYTES:,} bytes")
        data = json.loads(text)
        if not isinstance(data, dict):
            raise TypeError(f"expected an object, not a {type(data).__name__}")
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
