"""Arrays in files; neither kind of file can run code when it is read."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from ..errors import DataError
from .arrays import LABELS, Arrays, make_arrays, take_labels
from .pixels import Pixels

RESERVED = ("y", "mean", "std")


def read_arrays(path: Path, name: str, pixels: Pixels) -> Arrays:
    """The samples of a file: `x`, or inputs by name; where given `y`; and `mean`, `std` of pixels.

    Without a `y`, `labels` or `label` are the labels; beside a `y` they are an input of that name.
    What `pixels` says goes before the file's own mean and std. Floats are taken as they are, except
    that float64, numpy's default, becomes the networks' float32.
    """
    tensors = {key: _narrow(tensor) for key, tensor in READERS[path.suffix](path, name).items()}
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


def read_npz(path: Path, name: str) -> dict[str, Tensor]:
    if not zipfile.is_zipfile(path):
        raise DataError(f"{name}: not an .npz archive, or a truncated one: write it again with numpy.savez")
    try:
        with np.load(path, allow_pickle=False) as archive:
            return {key: torch.from_numpy(archive[key]) for key in _wanted(archive.files)}
    except TypeError as error:
        raise DataError(f"{name}: {str(error).split('. ')[0]}: store numbers") from None
    except (ValueError, zipfile.BadZipFile, zlib.error, EOFError, OSError) as error:
        if "allow_pickle" in str(error):
            raise DataError(
                f"{name}: holds Python objects (pickle), which could run code: store plain arrays"
            ) from None
        raise DataError(f"{name}: damaged archive ({error}): write it again with numpy.savez") from None


def read_safetensors(path: Path, name: str) -> dict[str, Tensor]:
    try:
        with safe_open(path, "pt") as archive:
            return {key: archive.get_tensor(key) for key in _wanted(archive.keys())}
    except (SafetensorError, OSError) as error:
        raise DataError(
            f"{name}: not a .safetensors file, or a truncated one ({error}): write it again"
        ) from None


READERS: dict[str, Callable[[Path, str], dict[str, Tensor]]] = {
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
