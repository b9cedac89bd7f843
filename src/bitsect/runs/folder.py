"""The run folder: what a run is of, and every finished piece of its work.

A journal is a file of records that is only ever appended to; a record that a kill cut short is
dropped on opening. All other files are written beside their name and moved into place. Each record and
each file has a check of what it holds, of its own name and of the run that it belongs to, so that nothing
foreign, exchanged or damaged is used. Plans alone are plain: they are for people to edit.
"""

from __future__ import annotations

import json
import os
import re
import struct
import zlib
from collections.abc import Iterator, Mapping, MutableMapping
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO

import numpy as np
from safetensors.numpy import load, save

from ..errors import RunError
from ..values import Plan
from .disk import (
    START_ANEW,
    append_line,
    fingerprint_json,
    json_text,
    lock,
    open_file,
    read_json_object,
    read_lines,
    reading,
    write_text,
)

Arrays = dict[str, np.ndarray[Any, Any]]
VERSION = 3
LOCK = ".bitsect.lock"  # there from the first moment: it also says whose folder this is
# Objects that were given in Python, which no spec can load again.
MODEL_FILE, SAMPLES_FILE = "model.pt2", "samples.safetensors"
# All that a run writes, in the order in which it is safe to lose: journals first, run.json last.
OWNED = (
    "journals/*.journal",
    "under-*",
    "draw-*",
    "plans/*.json",
    "results/*.json",
    "scores-*.json",
    "pairs-*.json",
    "latency-*.json",
    "measured-*.json",
    "model.onnx*",
    "plans.jsonl",
    *(f"{name}.json" for name in ["plan", "result", "asked", "effort", "export", "trials", "ranges"]),
    *(f"{name}.json" for name in ["capture", "layers", "choices", "curve", "values", "blame"]),
    *(
        "report.html",
        MODEL_FILE,
        SAMPLES_FILE,
        "run.json",
    ),
)
# What a changed fingerprint means, in words.
OTHERS = {
    "model_fingerprint": "another network, or other weights of it",
    "data_fingerprint": "other samples",
}
AGAIN = "remove it, and the same command makes it again"
INNER = ("under-*", "draw-*")  # folders inside, each like a run of its own
SUBFOLDERS = ("journals", "plans", "results")
_HEAD = struct.Struct("<4sIQ")  # magic, checksum and length of what follows
_MAGIC, _HEADER_MAGIC = b"bsj3", b"bsh3"


class Journal(MutableMapping[str, Arrays]):
    """Named arrays in an append-only file: `journal[key] = arrays` is kept from the moment it returns.

    It begins with a header that says what it is `of`. A file that begins otherwise is refused, and left
    as it is. The check of a record covers that header, its key and its arrays.
    """

    def __init__(self, path: Path, of: Mapping[str, Any] | None = None) -> None:
        self.path = path
        self._places: dict[str, tuple[int, int]] = {}
        path.parent.mkdir(parents=True, exist_ok=True)
        open_file(path, "ab").close()  # so that it is there
        self._file = open_file(path, "r+b")
        try:
            header = _record(_HEADER_MAGIC, json.dumps(of or {}, sort_keys=True).encode())
            self._seed = zlib.crc32(header)
            self._end = self._begin(header)
            self._scan()
            self._file.truncate(self._end)
        except BaseException:
            self._file.close()
            raise

    def _begin(self, header: bytes) -> int:
        """Where the records begin, after `header`, which is written where a new file has none yet."""
        start = self._file.read(len(header))
        if not header.startswith(start):
            raise RunError(f"{self.path} is of another run, or damaged: move it away, or {START_ANEW}")
        if start != header:  # new, or killed in the middle of its first write
            self._write(0, header)
        return len(header)

    def _scan(self) -> None:
        """Read where the records are, up to the first that is not whole."""
        size = self._file.seek(0, os.SEEK_END)
        self._file.seek(self._end)
        while len(head := self._file.read(_HEAD.size)) == _HEAD.size:
            magic, checksum, length = _HEAD.unpack(head)
            if magic != _MAGIC or length > size - self._end - _HEAD.size:
                break
            body = self._file.read(length)
            if zlib.crc32(body, self._seed) != checksum:
                break
            with reading(self.path, START_ANEW):
                self._note(body)

    def _note(self, body: bytes) -> None:
        """Remember the place of the record with `body`, which begins where the last one ends."""
        (size,) = struct.unpack_from("<H", body)
        key = body[2 : 2 + size].decode()
        self._places[key] = (self._end + _HEAD.size + 2 + size, len(body) - 2 - size)
        self._end += _HEAD.size + len(body)

    def _write(self, place: int, data: bytes) -> None:
        try:
            self._file.seek(place)
            self._file.write(data)
            self._file.flush()
        except OSError as error:
            raise RunError(f"{self.path} cannot be written ({error}): what was finished is kept") from None

    def __setitem__(self, key: str, arrays: Arrays) -> None:
        name = key.encode()
        contiguous = {label: np.asarray(array, order="C") for label, array in arrays.items()}
        if _has_nan(contiguous):
            raise RunError(f"what was measured for '{key}' is no number (NaN): look at samples and task")
        body = struct.pack("<H", len(name)) + name + save(contiguous)
        # Not at the end of the file, where a write that failed may have left a part of itself.
        self._write(self._end, _record(_MAGIC, body, self._seed))
        self._note(body)

    def __getitem__(self, key: str) -> Arrays:
        start, length = self._places[key]
        self._file.seek(start)
        with reading(self.path, START_ANEW):
            arrays: Arrays = load(self._file.read(length))
            if _has_nan(arrays):
                raise ValueError(f"'{key}' holds NaN, which no run keeps")
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


def _record(magic: bytes, body: bytes, seed: int = 0) -> bytes:
    return _HEAD.pack(magic, zlib.crc32(body, seed), len(body)) + body


def _has_nan(arrays: Arrays) -> bool:
    return any(array.dtype.kind == "f" and bool(np.isnan(array).any()) for array in arrays.values())


class RunFolder:
    """A run on disk; one process at a time works in it, others may `only_read` its JSON meanwhile.

    `run` is the fingerprint of everything that the run is of, which each of its files carries; it is
    given where it is known already, else `claim` makes it.
    """

    def __init__(self, path: Path, run: str | None = None, *, only_read: bool = False) -> None:
        self.path, self.run = path, run
        self._journals: dict[str, Journal] = {}
        self._plans: set[str] | None = None  # the keys of the plans that were noted
        self._lock = None if only_read else self._claim_alone()

    def _claim_alone(self) -> BinaryIO:
        """Keep other processes out, and clear away what one that was killed left behind."""
        path = self.path
        try:
            if path.exists() and not path.is_dir():
                raise RunError(f"{path} is a file: a run needs a folder")
            if path.is_dir() and any(path.iterdir()) and not self._is_ours():
                raise RunError(f"{path} holds something else than a run: choose an empty or new folder")
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RunError(f"{path} cannot be a run's folder: {error.strerror}; choose another") from None
        held = open_file(path / LOCK, "ab")
        try:
            if not lock(held):
                raise RunError(
                    f"{path}: another bitsect is working in this run; wait for it, or use another folder"
                )
            self._sweep()
            if self.run is not None:
                self._read("run.json")  # so that a folder that has become another run is refused
        except BaseException:
            held.close()
            raise
        return held

    def _sweep(self) -> None:
        """Remove what a kill left of files that were being written."""
        for folder in (self.path, *(self.path / name for name in SUBFOLDERS)):
            for item in folder.iterdir() if folder.is_dir() and not folder.is_symlink() else ():
                if re.fullmatch(r"\..+\.\d+\.tmp", item.name) and not item.is_dir():
                    item.unlink()

    def close(self) -> None:
        """Let other processes work here."""
        for journal in self._journals.values():
            journal.close()
        if self._lock is not None:
            self._lock.close()

    def _is_ours(self) -> bool:
        """Whether a run was begun here; another program may have a run.json of its own."""
        if (self.path / LOCK).exists():
            return True
        try:
            return (read_json_object(self.path / "run.json", "") or {}).get("bitsect") == "run"
        except RunError:
            return False

    @staticmethod
    def is_run(path: Path) -> bool:
        return (path / "run.json").is_file()

    def clear(self) -> None:
        """Remove the run, and nothing that is not its own; links are removed, never followed."""
        for journal in self._journals.values():
            journal.close()
        self._journals = {}
        _remove_run(self.path)

    def check(self, facts: Mapping[str, Any]) -> None:
        """Refuse `facts` where this is the run of something else: what changed is named."""
        self.run = None
        known = self._read("run.json")
        run = fingerprint_json(facts)
        if known is None:
            self._refuse_journals_of_others(run)
        for name, value in facts.items() if known is not None else ():
            assert known is not None
            if known.get(name) != json.loads(json.dumps(value)):
                old, new = (_short(item) for item in (known.get(name), value))
                what = OTHERS.get(name, f"{name.replace('_', ' ')} {old}, not {new}")
                raise RunError(
                    f"{self.path} was made with {what}: quantize starts it anew with [fresh=True], or makes "
                    "another with [out=FOLDER]"
                )
        self.run = run

    def claim(self, facts: Mapping[str, Any], **besides: Any) -> None:
        """Make this the run of `facts`, or check that it is; what is noted `besides` may change."""
        self.check(facts)
        known = self.read_json("run.json")
        entries = {"bitsect": "run", "version": VERSION, **facts, **(known or {}), **besides}
        if entries != known:
            self.write_json("run.json", entries)

    def note(self, **besides: str) -> None:
        """Note once in run.json what is not part of what the run is, such as the method it was made with."""
        known = self.read_json("run.json") or {}
        if not known.keys() >= besides.keys():
            self.write_json("run.json", {**besides, **known})

    def recognise(self) -> None:
        """Take the run that is here for what it says it is: all its files must be of it."""
        known = self._read("run.json")
        self.run = None if known is None else str(known.get("run"))

    def _refuse_journals_of_others(self, run: str) -> None:
        """Without a run.json, journals could be anyone's: they must name this run in their first bytes."""
        for path in sorted(self.path.glob("journals/*.journal")):
            with open_file(path, "rb") as file:
                if f'"run": "{run}"'.encode() not in file.read(4096):
                    raise RunError(
                        f"{path} is of another run, whose run.json is gone: choose another folder with "
                        f"[out=FOLDER], or {START_ANEW}"
                    )

    def inside(self, name: str) -> Path:
        """The path of this run's file `name`; a link on the way would lead outside, and is refused."""
        path = self.path
        for part in PurePosixPath(name).parts:
            path = path / part
            if part == ".." or path.is_symlink():
                raise RunError(f"{path} is a link: a run keeps its files in its own folder; remove it")
        return path

    def journal(self, name: str, **of: str) -> Journal:
        """The journal `name` of this run; `of` says what else it belongs to."""
        if name not in self._journals:
            path = self.inside(f"journals/{name}.journal")
            self._journals[name] = Journal(path, {"run": self.run, "journal": name, **of})
        return self._journals[name]

    def read_json(self, name: str) -> dict[str, Any] | None:
        """What `write_json` wrote under `name`; None where there is no such file."""
        data = self._read(name)
        return data and {key: value for key, value in data.items() if key != "run"}

    def _read(self, name: str) -> dict[str, Any] | None:
        path = self.inside(name)
        way_out = START_ANEW if name == "run.json" else AGAIN
        data = read_json_object(path, way_out)
        if data is None:
            return None
        if name == "run.json" and data.get("version") != VERSION:
            raise RunError(f"{path} is of another version of bitsect, which is not read: {START_ANEW}")
        checksum = data.pop("checksum", None)
        if checksum != fingerprint_json({name: data}):
            raise RunError(f"{path} is damaged, or was edited: {way_out}")
        if self.run is not None and data.get("run") != self.run:
            raise RunError(f"{path} is of another run: {way_out}")
        return data

    def write_json(self, name: str, data: Mapping[str, Any]) -> None:
        """Keep `data` under `name`, with the run that it belongs to and a checksum of all three."""
        entries = {**data, "run": self.run}
        write_text(self.inside(name), json_text({**entries, "checksum": fingerprint_json({name: entries})}))

    def read_plan(self, name: str) -> Any | None:
        """What the file of a plan holds, which people may edit; None where there is no such file."""
        return read_json_object(self.inside(name), "mend it, or the same command makes it again")

    def note_plan(self, plan: Plan) -> None:
        """Keep an evaluated plan as a plan: journals know it by its key alone."""
        if self._plans is None:
            path = self.inside("plans.jsonl")
            kept = read_lines(path) if path.exists() else []
            self._plans = {str(line.get("key")) for line in kept}
        if plan.key not in self._plans:
            line = {"key": plan.key, "layers": plan.to_json()["layers"]}
            append_line(self.inside("plans.jsonl"), json.dumps(line, ensure_ascii=False))
            self._plans.add(plan.key)

    def noted_plans(self) -> list[dict[str, Any]]:
        """The layers of every plan that was evaluated, as JSON; lines that are damaged are left out."""
        path = self.inside("plans.jsonl")
        lines = read_lines(path) if path.exists() else []
        return [line["layers"] for line in lines if isinstance(line.get("layers"), dict)]

    def write_plain(self, name: str, data: Mapping[str, Any]) -> None:
        """Write `data` as people may edit it."""
        write_text(self.inside(name), json_text(data))


def _remove_run(path: Path) -> None:
    for name in SUBFOLDERS:
        if (path / name).is_symlink():
            (path / name).unlink()
    for pattern in OWNED:
        for item in sorted(path.glob(pattern)):
            if pattern not in INNER:
                item.unlink()
            elif not item.is_symlink() and (item / LOCK).exists():
                _remove_run(item)
                (item / LOCK).unlink()
                _remove_if_empty(item)
    for name in SUBFOLDERS:
        _remove_if_empty(path / name)


def _remove_if_empty(folder: Path) -> None:
    if folder.is_dir() and not any(folder.iterdir()):
        folder.rmdir()


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return f"{text[:12]}…" if len(text) > 40 and " " not in text and "/" not in text else text
