"""The run folder: what a run is of, and every finished piece of its work.

A journal is a file of records that is only ever appended to; a record that a kill cut short is
dropped on opening. All other files are written beside their name and moved into place.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import struct
import zlib
from collections.abc import Iterator, Mapping, MutableMapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from safetensors.numpy import load, save

from .errors import RunError

Arrays = dict[str, np.ndarray[Any, Any]]
VERSION = 1
LOCK = ".bitsect.lock"  # there from the first moment: it also says whose folder this is
_HEAD = struct.Struct("<4sIQ")  # magic, checksum and length of what follows
_MAGIC = b"bsj1"


class Journal(MutableMapping[str, Arrays]):
    """Named arrays in an append-only file: `journal[key] = arrays` is kept from the moment it returns."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._places: dict[str, tuple[int, int]] = {}
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        self._file: BinaryIO = path.open("r+b")
        self._end = 0  # of the last whole record
        self._scan()
        self._file.truncate(self._end)

    def _scan(self) -> None:
        """Read where the records are, up to the first that is not whole."""
        size = self._file.seek(0, os.SEEK_END)
        self._file.seek(0)
        while len(head := self._file.read(_HEAD.size)) == _HEAD.size:
            magic, checksum, length = _HEAD.unpack(head)
            if magic != _MAGIC or length > size - self._end - _HEAD.size:
                break
            body = self._file.read(length)
            if zlib.crc32(body) != checksum:
                break
            self._note(body)

    def _note(self, body: bytes) -> None:
        """Remember the place of the record with `body`, which begins where the last one ends."""
        (size,) = struct.unpack_from("<H", body)
        key = body[2 : 2 + size].decode()
        self._places[key] = (self._end + _HEAD.size + 2 + size, len(body) - 2 - size)
        self._end += _HEAD.size + len(body)

    def __setitem__(self, key: str, arrays: Arrays) -> None:
        name = key.encode()
        contiguous = {label: np.asarray(array, order="C") for label, array in arrays.items()}
        body = struct.pack("<H", len(name)) + name + save(contiguous)
        try:
            # Not at the end of the file, where a write that failed may have left a part of itself.
            self._file.seek(self._end)
            self._file.write(_HEAD.pack(_MAGIC, zlib.crc32(body), len(body)) + body)
            self._file.flush()
        except OSError as error:
            raise RunError(f"{self.path} cannot be written ({error}): what was finished is kept") from None
        self._note(body)

    def __getitem__(self, key: str) -> Arrays:
        start, length = self._places[key]
        self._file.seek(start)
        arrays: Arrays = load(self._file.read(length))
        return arrays

    def __delitem__(self, key: str) -> None:
        raise TypeError("a journal forgets nothing")

    def __contains__(self, key: object) -> bool:
        return key in self._places

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)

    def close(self) -> None:
        self._file.close()


class Folder:
    """A run on disk; one process at a time works in it."""

    def __init__(self, path: Path, *, fresh: bool = False) -> None:
        self.path = path
        if path.exists() and not path.is_dir():
            raise RunError(f"{path} is a file: a run needs a folder")
        if path.is_dir() and any(path.iterdir()) and not self._is_ours():
            raise RunError(f"{path} holds something else than a run: choose an empty or new folder")
        path.mkdir(parents=True, exist_ok=True)
        self._lock = (path / LOCK).open("a")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise RunError(
                f"{path}: another bitsect is working in this run; wait for it, or use another folder"
            ) from None
        for item in list(path.iterdir()):
            left_over = item.name.startswith(".") and item.name.endswith(".tmp")
            if (fresh and item.name != LOCK) or left_over:
                shutil.rmtree(item) if item.is_dir() and not item.is_symlink() else item.unlink()
        self._journals: dict[str, Journal] = {}

    def close(self) -> None:
        """Let other processes work here."""
        for journal in self._journals.values():
            journal.close()
        self._lock.close()

    def _is_ours(self) -> bool:
        """Whether a run was begun here; another program may have a run.json of its own."""
        if (self.path / LOCK).exists():
            return True
        try:
            return bool(json.loads((self.path / "run.json").read_text())["bitsect"] == "run")
        except (OSError, ValueError, KeyError, TypeError):
            return False

    @staticmethod
    def is_run(path: Path) -> bool:
        return (path / "run.json").is_file()

    def claim(self, identity: Mapping[str, Any]) -> None:
        """Make this the run of `identity`, or check that it is: what changed is named."""
        known = self.read_json("run.json")
        if known is None:
            self.write_json("run.json", {"bitsect": "run", "version": VERSION, **identity})
            return
        for name, value in identity.items():
            if known.get(name) != json.loads(json.dumps(value)):
                shown = name.replace("_", " ")
                old, new = (_short(item) for item in (known.get(name), value))
                raise RunError(
                    f"{self.path} was made with {shown} {old}, not {new}: pass --fresh to start it anew, "
                    "or choose another folder with --out"
                )

    def journal(self, name: str) -> Journal:
        if name not in self._journals:
            self._journals[name] = Journal(self.path / "journals" / f"{name}.journal")
        return self._journals[name]

    def read_json(self, name: str) -> dict[str, Any] | None:
        path = self.path / name
        try:
            data = json.loads(path.read_text())
        except FileNotFoundError:
            return None
        except (json.JSONDecodeError, UnicodeDecodeError) as error:
            raise RunError(f"{path} cannot be read ({error}): pass --fresh to start the run anew") from None
        if name == "run.json" and (not isinstance(data, dict) or data.get("version") != VERSION):
            raise RunError(f"{path} is of another version of bitsect: pass --fresh to start the run anew")
        return dict(data)

    def write_json(self, name: str, data: Mapping[str, Any]) -> None:
        write_text(self.path / name, json.dumps(data, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def write_text(path: Path, text: str) -> None:
    """`text` in `path`, whole or not at all."""
    write_bytes(path, text.encode())


def write_bytes(path: Path, data: bytes) -> None:
    """`data` in `path`, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        beside.write_bytes(data)
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return f"{text[:12]}…" if len(text) > 40 and " " not in text and "/" not in text else text
