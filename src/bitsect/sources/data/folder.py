"""Images in a folder, decoded when they are needed."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ...errors import DataError
from ..room import ANY, Room
from .decode import common_mode, decode, read_ahead
from .pixels import Pixels
from .processor import as_processed

AT_ONCE, AS_FLOATS = 2, 6  # images that a network is captured with, and bytes of a pixel on its way
KEPT_BYTES = 10**9  # a folder that decodes to no more is decoded once: a search reads it many times
SUFFIXES = (".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp")


@dataclass(frozen=True)
class Folder:
    """Image files, the class of each if there are classes, and how they are read."""

    root: Path
    paths: Sequence[Path]
    labels: Tensor | None
    pixels: Pixels
    workers: int
    processor: Any = None  # that brings images to the size of a network
    room: Room = ANY  # that they may take
    kept: dict[int, NDArray[np.uint8]] = field(default_factory=dict, init=False, repr=False)

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "kept": {}}  # another process decodes what it needs

    @property
    def lengths(self) -> None:
        """All are of one shape."""

    @property
    def groups(self) -> None:
        """Each is a whole."""

    def __len__(self) -> int:
        return len(self.paths)

    @cached_property
    def header(self) -> tuple[str, tuple[int, int]]:
        """The mode and size that all are read in; a processor brings them to a size of its own."""
        return common_mode(self.paths) if self.processor is None else ("RGB", (0, 0))

    @property
    def held(self) -> int:
        """The bytes of the pixels that are kept."""
        size = len(self) * math.prod(self._shape())
        return size if size <= self._most else 0

    @property
    def _most(self) -> int:
        return KEPT_BYTES if self.room.limit is None else min(KEPT_BYTES, self.room.limit // 4)

    def _shape(self) -> tuple[int, int, int]:
        mode, (width, height) = self.header
        return 1 if mode == "L" else 3, height, width

    def select(self, indices: Tensor) -> Folder:
        paths = [self.paths[index] for index in indices.tolist()]
        return replace(self, paths=paths, labels=None if self.labels is None else self.labels[indices])

    def without_labels(self) -> Folder:
        return replace(self, labels=None)

    def check(self) -> None:
        shape = self._shape()  # of which every header is read
        size, title = math.prod(shape), f"{self.root}: images of {shape[2]}×{shape[1]}"
        self.room.check_shape(title, "x", shape, size)
        self.room.check(title, min(len(self), AT_ONCE) * AS_FLOATS * size)

    def name(self, index: int) -> str:
        return str(self.paths[index])

    def stream(self, parts: Sequence[Tensor]) -> Iterator[Tensor]:
        for images in read_ahead(self._image, [indices.tolist() for indices in parts], self.workers):
            yield self.pixels(torch.from_numpy(images))

    def contents(self) -> Iterator[Any]:
        yield f"{self.header[0]} {self.pixels}".encode()
        if self.processor is not None:
            yield str(self.processor).encode()
        for index, path in enumerate(self.paths):
            label = None if self.labels is None else int(self.labels[index])
            image = path.read_bytes()
            yield f"{path.relative_to(self.root).as_posix()} {label} {len(image)}".encode()
            yield image

    def digests(self) -> Iterator[bytes]:
        return (blake2b(path.read_bytes(), digest_size=16).digest() for path in self.paths)

    def _image(self, index: int) -> NDArray[np.uint8]:
        image = self.kept.get(index)
        if image is None:
            image = decode(self.paths[index], self.header[0], self.processor, self.room)
            if image.nbytes * len(self) <= self._most:  # all are of one size
                self.kept[index] = image
        return image


def list_images(
    root: Path,
    pixels: Pixels,
    workers: int,
    processor: Any = None,
    known: Mapping[str, int] | None = None,
    *,
    room: Room,
) -> Folder:
    """The images in the sub-folders of a folder, which are the classes; or, unlabelled, in itself.

    If the network knows classes by these names, they are its own. Else, if all sub-folders have integers for
    names, these are the classes; else they are counted in the order of their names. A network that counts a
    background as class 0, which no folder holds, has all others one higher.
    Hidden files, and those without the suffix of an image, are left out.
    """
    classes = sorted(path for path in root.iterdir() if path.is_dir() and not path.name.startswith("."))
    paths, labels = _images(root), None
    if classes and paths:
        raise DataError(f"{paths[0]}: lies beside sub-folders, which are classes: move it into one")
    if classes:
        of_folder = _numbers([folder.name for folder in classes], known or {})
        numbers: list[int] = []
        for folder in classes:
            images = _images(folder)
            paths += images
            numbers += [of_folder[folder.name]] * len(images)
        labels = torch.tensor(numbers)
    if not paths:
        raise DataError(f"{root}: no images in it or its sub-folders: expected {', '.join(SUFFIXES)}")
    return Folder(root, paths, labels, as_processed(processor, pixels), workers, processor, room)


def _numbers(names: list[str], known: Mapping[str, int]) -> dict[str, int]:
    """The class of every sub-folder."""
    if all(name in known for name in names):
        return {name: known[name] for name in names}
    numbered = all(name.isdecimal() for name in names)
    first = int(known.get("background") == 0 and "background" not in names and len(names) < len(known))
    return {name: first + (int(name) if numbered else number) for number, name in enumerate(names)}


def _images(folder: Path) -> list[Path]:
    return sorted(
        path
        for path in folder.iterdir()
        if path.suffix.lower() in SUFFIXES and not path.name.startswith(".") and path.is_file()
    )
