"""The archive of a .pt2 file, and the tensors in it: bytes, read within their bounds and never unpickled."""

from __future__ import annotations

import math
import pickletools
import re
import zipfile
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from io import BufferedReader, BytesIO
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ...errors import BitsectError
from ...files import LARGEST_JSON, parse_json

ENCRYPTED = 0x1  # flag of a member
SAVE = "save it again with torch.export.save"
DAMAGED = "its bytes do not fit their checksum: the file is damaged, copy or save it again"
NOT_AN_ARCHIVE = "not a .pt2 archive, an old one, or cut short; write it with torch.export.save"
MOST_MEMBERS = 200_000
EXPANDED = 2**26  # elements that a tensor may be expanded to from fewer that are stored
LONGEST_PATH = 1000
DEEPEST = 64  # axes of a tensor, and levels of a structure

Members = Mapping[str, bytearray]

# As the schema of torch.export numbers them.
DTYPES = {
    1: torch.uint8,
    2: torch.int8,
    3: torch.int16,
    4: torch.int32,
    5: torch.int64,
    6: torch.float16,
    7: torch.float32,
    8: torch.float64,
    9: torch.complex32,
    10: torch.complex64,
    11: torch.complex128,
    12: torch.bool,
    13: torch.bfloat16,
    28: torch.uint16,
    29: torch.float8_e4m3fn,
    30: torch.float8_e5m2,
    31: torch.float8_e4m3fnuz,
    32: torch.float8_e5m2fnuz,
    34: torch.uint32,
    35: torch.uint64,
}
STORAGES = {
    "ByteStorage": torch.uint8,
    "CharStorage": torch.int8,
    "ShortStorage": torch.int16,
    "IntStorage": torch.int32,
    "LongStorage": torch.int64,
    "HalfStorage": torch.float16,
    "FloatStorage": torch.float32,
    "DoubleStorage": torch.float64,
    "ComplexFloatStorage": torch.complex64,
    "ComplexDoubleStorage": torch.complex128,
    "BoolStorage": torch.bool,
    "BFloat16Storage": torch.bfloat16,
}


class DamagedError(BitsectError):
    """An archive that is not what torch wrote; the caller says which file."""


class UnsafeError(BitsectError):
    """Something that only torch's own loader could make sense of, in words."""


def read_archive(source: Path | BytesIO) -> dict[str, bytearray]:
    """Every member by its name, without the archive's own folder.

    torch.save compresses nothing, so that all members together are no larger than the file.
    """
    members: dict[str, bytearray] = {}
    if not zipfile.is_zipfile(source):
        raise DamagedError(NOT_AN_ARCHIVE)
    with zipfile.ZipFile(source) as archive:
        size = source.stat().st_size if isinstance(source, Path) else len(source.getvalue())
        infos = archive.infolist()
        for info in infos:
            if info.compress_type != zipfile.ZIP_STORED or info.flag_bits & ENCRYPTED:
                raise DamagedError(f"{shown(info.filename, '')} is compressed or encrypted: {SAVE}")
        if len(infos) > MOST_MEMBERS or sum(info.file_size for info in infos) > size:
            raise DamagedError(f"its members claim more than the file holds: {SAVE}")
        for info in infos:
            _, _, name = info.filename.partition("/")
            if name in members:
                raise DamagedError(f"two members are called {shown(name, '')}: {SAVE}")
            members[name] = data = bytearray(info.file_size)
            try:
                with BufferedReader(archive.open(info)) as file:  # type: ignore[type-var]
                    whole = file.readinto(data) == len(data) and not file.read(1)  # which checks its checksum
            except (zipfile.BadZipFile, EOFError):
                whole = False
            if not whole:
                raise DamagedError(f"{shown(name, '')}: {DAMAGED}")
    return members


def json_of(members: Members, name: str) -> Any:
    """The JSON in a member."""
    if name not in members:
        raise DamagedError(f"{shown(name, '')} is missing: {SAVE}")
    if len(members[name]) > LARGEST_JSON:
        raise DamagedError(f"{shown(name, '')} is larger than {LARGEST_JSON // 2**20} MB")
    return parse_json(bytes(members[name]))


def read_weights(members: Members, folder: str, name: str) -> dict[str, Tensor]:
    """The tensors that the table `name` lists, by their paths; those of one member share their memory."""
    found: dict[str, Tensor] = {}
    for path, payload in json_of(members, folder + name)["config"].items():
        member = payload["path_name"]
        # A path that names neither a weight nor a tensor is unpickled by torch whatever the flag says.
        if payload["use_pickle"] or not re.fullmatch(r"(weight|tensor)_\d{1,9}", member):
            raise UnsafeError(f"{shown(path)} is pickled")
        if folder + member not in members:
            raise DamagedError(f"{shown(path)} is missing: {folder}{member} is not in the archive: {SAVE}")
        meta = payload["tensor_meta"]
        if meta["layout"] != 7:
            raise UnsafeError(f"{shown(path)} is no dense tensor")
        sizes, strides = ([whole(size["as_int"]) for size in meta[key]] for key in ("sizes", "strides"))
        offset, data = whole(meta["storage_offset"]["as_int"]), members[folder + member]
        place = device_of(meta["device"])
        if place.type == "meta" and not data:
            value = torch.empty_strided(sizes, strides, dtype=DTYPES[meta["dtype"]], device="meta")
        else:
            value = strided(data, DTYPES[meta["dtype"]], offset, sizes, strides, path).to(place)
        required = meta["requires_grad"] is True
        found[path] = torch.nn.Parameter(value, required) if payload["is_param"] is True else value
    return found


def strided(
    data: bytearray, dtype: torch.dtype, offset: int, sizes: Sequence[int], strides: Sequence[int], path: str
) -> Tensor:
    """A tensor in the bytes `data`, which it shares; refused if it would reach beyond them."""
    elements, stored = math.prod(sizes), len(data) // dtype.itemsize
    if len(sizes) != len(strides) or len(sizes) > DEEPEST:
        raise DamagedError(f"{shown(path)} has {len(sizes)} sizes and {len(strides)} strides: {SAVE}")
    last = offset + sum((size - 1) * stride for size, stride in zip(sizes, strides, strict=True))
    if elements and (last >= stored or elements > max(stored, EXPANDED)):
        raise DamagedError(
            f"{shown(path)} claims {elements:.3g} elements where {len(data):,} bytes are stored: {SAVE}"
        )
    if not elements:
        return torch.empty(list(sizes), dtype=dtype)
    return torch.frombuffer(data, dtype=dtype, count=stored).as_strided(sizes, strides, offset)


def read_examples(data: bytearray) -> Any:
    """Example inputs as torch.save wrote them: tensors, numbers and texts in tuples, lists and dictionaries.

    The pickle in it is read as a list of instructions of which only those are known that make these:
    nothing is imported or called by a name that stands in the file.
    """
    members = read_archive(BytesIO(data))
    if len(members["data.pkl"]) > LARGEST_JSON or members.get("byteorder", b"little") != b"little":
        raise DamagedError("its example inputs cannot be read: leave them out, or save it on another machine")
    return _Unpacked(members).value


class _Unpacked:
    """What the instructions of a pickle make."""

    def __init__(self, members: Members) -> None:
        self.members, self.stack, self.marks = members, list[Any](), list[int]()
        memo: dict[Any, Any] = {}
        for opcode, argument, _ in pickletools.genops(bytes(members["data.pkl"])):
            name = opcode.name
            if name in ("BINPUT", "LONG_BINPUT"):
                memo[argument] = self.stack[-1]
            elif name in ("BINGET", "LONG_BINGET"):
                self.stack.append(memo[argument])
            elif name in ("BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT", "BINUNICODE"):
                self.stack.append(argument)
            elif name == "GLOBAL":
                self.stack.append(_Name(argument))
            elif name in ("NONE", "NEWTRUE", "NEWFALSE"):
                self.stack.append({"NONE": None, "NEWTRUE": True, "NEWFALSE": False}[name])
            elif name == "MARK":
                self.marks.append(len(self.stack))
            elif name in ("EMPTY_TUPLE", "EMPTY_LIST", "EMPTY_DICT"):
                self.stack.append({"EMPTY_TUPLE": (), "EMPTY_LIST": [], "EMPTY_DICT": {}}[name])
            elif name in ("TUPLE", "TUPLE1", "TUPLE2", "TUPLE3"):
                self.stack.append(tuple(self._top(None if name == "TUPLE" else int(name[5:]))))
            elif name in ("APPEND", "APPENDS"):
                items = self._top(1 if name == "APPEND" else None)
                self.stack[-1].extend(items)
            elif name in ("SETITEM", "SETITEMS"):
                items = self._top(2 if name == "SETITEM" else None)
                self.stack[-1].update(zip(items[::2], items[1::2], strict=True))
            elif name == "BINPERSID":
                self.stack.append(_Storage(*self.stack.pop()))
            elif name == "REDUCE":
                function, arguments = self._top(2)
                self.stack.append(self._made(function, arguments))
            elif name not in ("PROTO", "STOP"):
                raise UnsafeError("its example inputs hold pickled objects")
        (self.value,) = self.stack
        _check_plain(self.value)

    def _top(self, count: int | None) -> list[Any]:
        start = self.marks.pop() if count is None else len(self.stack) - count
        taken, self.stack[start:] = self.stack[start:], []
        return taken

    def _made(self, function: Any, arguments: tuple[Any, ...]) -> Any:
        match function, arguments:
            case _Name("collections OrderedDict"), ():
                return OrderedDict()
            case _Name("__builtin__ set"), (list(),):  # among the attributes of a tensor, which are left out
                return ()
            case _Name("torch._tensor _rebuild_from_type_v2"), (made, _Name("torch Tensor"), inner, dict()):
                return self._made(made, inner)
            case _Name("torch._utils _rebuild_tensor_v2"), (_Storage() as held, offset, sizes, strides, *_):
                data = self.members[f"data/{whole(int(held.key))}"]
                sizes, strides = [whole(size) for size in sizes], [whole(stride) for stride in strides]
                value = strided(data, STORAGES[held.kind], whole(offset), sizes, strides, "an example input")
                return value.to(device_of({"type": held.place}))
            case _Name("torch._utils _rebuild_meta_tensor_no_storage"), (_Name() as kind, sizes, strides, _):
                dtype = {str(dtype): dtype for dtype in DTYPES.values()}[kind.replace(" ", ".")]
                sizes, strides = [whole(size) for size in sizes], [whole(stride) for stride in strides]
                return torch.empty_strided(sizes, strides, dtype=dtype, device="meta")
        raise UnsafeError("its example inputs hold pickled objects")


class _Name(str):
    """A name in a pickle, which is compared and never looked up."""


class _Storage:
    """The memory of a tensor in a pickle."""

    def __init__(self, word: str, kind: _Name, key: str, place: str, _: int) -> None:
        if word != "storage" or not kind.startswith("torch ") or not re.fullmatch(r"\d{1,9}", key):
            raise UnsafeError("its example inputs hold pickled objects")
        self.kind, self.key, self.place = kind.removeprefix("torch "), key, place


def _check_plain(value: Any, depth: int = 0) -> None:
    if depth > DEEPEST:
        raise UnsafeError("its example inputs are nested without end")
    if isinstance(value, tuple | list | dict):
        for item in value.values() if isinstance(value, dict) else value:
            _check_plain(item, depth + 1)
    elif isinstance(value, _Name | _Storage) or not isinstance(value, Tensor | int | float | str | None):
        raise UnsafeError("its example inputs hold pickled objects")


def whole(value: Any, most: int = 2**63 - 1) -> int:
    """A size or place, if it is one."""
    if type(value) is not int or not 0 <= value <= most:
        raise DamagedError(f"{shown(str(value))} is no size: {SAVE}")
    return value


def device_of(data: Mapping[str, Any]) -> torch.device:
    """A device, of the kinds that networks are saved from."""
    kind, _, index = data["type"].partition(":")
    if kind not in ("cpu", "cuda", "meta", "mps", "xpu"):
        raise UnsafeError(f"it needs the device {shown(kind)}")
    number = int(index) if re.fullmatch(r"\d{1,3}", index) else data.get("index")
    return torch.device(kind) if number is None else torch.device(kind, whole(number, 1000))


def shown(text: str, quote: str = "`") -> str:
    """A text of the file for a message: bounded, and free of what a terminal would obey."""
    plain = "".join(letter if letter.isprintable() else "?" for letter in text[:80])
    return f"{quote}{plain}{'…' if len(text) > 80 else ''}{quote}"
