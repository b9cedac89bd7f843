"""Arrays in files; neither kind of file can run code when it is read."""

from __future__ import annotations

import math
import zipfile
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from safetensors import safe_open
from torch import Tensor

from ...errors import DataError
from ...files import reading
from ..room import COPIES, Room
from .arrays import LABELS, Arrays, make_arrays, take_labels
from .pixels import Pixels

RESERVED = ("y", "mean", "std")
ENCRYPTED = 0x1  # flag of a member


def read_arrays(path: Path, name: str, pixels: Pixels, room: Room) -> Arrays:
    """The samples of a file: `x`, or inputs by name; where given `y`; and `mean`, `std` of pixels.

    Without a `y`, `labels` or `label` are the labels; beside a `y` they are an input of that name.
    What `pixels` says goes before the file's own mean and std. Floats are taken as they are, except
    that float64, numpy's default, becomes the networks' float32.
    """
    read = READERS[path.suffix.lower()](path, name, room)
    tensors = {key: _narrow(tensor) for key, tensor in read.items()}
    labels, mean, std = (tensors.pop(key, None) for key in RESERVED)
    if labels is None:
        labels = take_labels(tensors, name)
    if not tensors:
        raise DataError(f"{name}: holds no inputs: store them as 'x', or by the names the network gives them")
    if "x" not in tensors:
        return make_arrays(name, tensors, "dict", labels, pixels)
    if tensors["x"].dtype == torch.uint8:
        own = Pixels.of(_numbers(mean), _numbers(std), None)
        pixels = replace(pixels, mean=pixels.mean or own.mean, std=pixels.std or own.std)
    return make_arrays(name, tensors, "tensor", labels, pixels)


def read_npz(path: Path, name: str, room: Room) -> dict[str, Tensor]:
    """Every array that is asked for, whole: numpy by itself stops before a member's checksum is compared."""
    with (
        reading(name, DataError, what="numpy archive", way_out="write it again with numpy.savez"),
        zipfile.ZipFile(path) as archive,
    ):
        members = {member.removesuffix(".npy"): member for member in archive.namelist()}
        wanted, total = _wanted(members), 0
        for key in wanted:
            shape, size = _claimed(archive, members[key], name)
            room.check_shape(name, key, shape[1:], size)
            total += size
        room.check(name, COPIES * total)
        return {key: _read_member(archive, members[key], name) for key in wanted}


def _claimed(archive: zipfile.ZipFile, member: str, name: str) -> tuple[tuple[int, ...], int]:
    """The shape and the bytes of an array, as its header says."""
    if archive.getinfo(member).flag_bits & ENCRYPTED:
        raise DataError(f"{name}: '{member}' is encrypted: store plain arrays")
    with archive.open(member) as file:
        version = np.lib.format.read_magic(file)
        read_header = {
            (1, 0): np.lib.format.read_array_header_1_0,
            (2, 0): np.lib.format.read_array_header_2_0,
        }
        shape, _, dtype = read_header[version](file)
        if dtype.hasobject:
            raise DataError(
                f"{name}: '{member}' holds Python objects (pickle), which could run code: store plain arrays"
            )
        claimed, stored = math.prod(shape) * dtype.itemsize, archive.getinfo(member).file_size
        if claimed > stored:
            raise DataError(f"{name}: '{member}' claims {claimed:,} bytes and has {stored:,}: write it again")
        return shape, claimed


def _read_member(archive: zipfile.ZipFile, member: str, name: str) -> Tensor:
    with archive.open(member) as file:
        array = np.lib.format.read_array(file, allow_pickle=False)
        if file.read(1):
            raise DataError(f"{name}: '{member}' holds more than its shape says: write it again")
    try:
        return torch.from_numpy(array.astype(array.dtype.newbyteorder("="), copy=False))
    except TypeError as error:
        raise DataError(f"{name}: '{member}': {str(error).split('. ')[0]}: store numbers") from None


def read_safetensors(path: Path, name: str, room: Room) -> dict[str, Tensor]:
    with (
        reading(name, DataError, what=".safetensors file"),
        safe_open(path, "pt") as archive,
    ):
        wanted, whole = _wanted(archive.keys()), path.stat().st_size
        for key in wanted:
            room.check_shape(name, key, archive.get_slice(key).get_shape()[1:], whole)
        room.check(name, COPIES * whole)
        return {key: archive.get_tensor(key) for key in wanted}


READERS: dict[str, Callable[[Path, str, Room], dict[str, Tensor]]] = {
    ".npz": read_npz,
    ".safetensors": read_safetensors,
}


def _wanted(keys: Iterable[str]) -> list[str]:
    """All keys, but beside an `x` only those that say something about it."""
    found = list(keys)
    about = ("x", *RESERVED, *(() if "y" in found else LABELS))
    return [key for key in found if key in about] if "x" in found else found


def _numbers(tensor: Tensor | None) -> list[float] | None:
    return None if tensor is None else [float(value) for value in tensor.flatten()]


def _narrow(tensor: Tensor) -> Tensor:
    if tensor.dtype in (torch.uint16, torch.uint32, torch.uint64):
        return tensor.to(torch.int64)  # torch can hold these, but hardly do anything with them
    return tensor.to(torch.float32) if tensor.dtype == torch.float64 else tensor
