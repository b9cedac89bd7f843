"""Images in a folder, decoded when they are needed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..errors import DataError
from .decode import common_mode, decode_each
from .pixels import Pixels

SUFFIXES = (".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp")


@dataclass(frozen=True)
class Folder:
    """Image files, the class of each if there are classes, and how they are read."""

    root: Path
    paths: Sequence[Path]
    labels: Tensor | None
    pixels: Pixels
    workers: int

    def __len__(self) -> int:
        return len(self.paths)

    @cached_property
    def mode(self) -> str:
        return common_mode(self.paths)

    def select(self, indices: Tensor) -> Folder:
        labels = None if self.labels is None else self.labels[indices]
        return replace(self, paths=self._at(indices), labels=labels)

    def check(self) -> None:
        _ = self.mode  # reads every header

    def stream(self, parts: Sequence[Tensor]) -> Iterator[Tensor]:
        for images in decode_each([self._at(indices) for indices in parts], self.mode, self.workers):
            yield self.pixels(torch.from_numpy(images))

    def contents(self) -> Iterator[Any]:
        yield f"{self.mode} {self.pixels}".encode()
        for index, path in enumerate(self.paths):
            label = None if self.labels is None else int(self.labels[index])
            image = path.read_bytes()
            yield f"{path.relative_to(self.root).as_posix()} {label} {len(image)}".encode()
            yield image

    def _at(self, indices: Tensor) -> list[Path]:
        return [self.paths[index] for index in indices.tolist()]


def list_images(root: Path, pixels: Pixels, workers: int) -> Folder:
    """The images in the sub-folders of a folder, which are the classes; or, unlabelled, in itself.

    If all sub-folders have integers for names, these are the classes; else they are counted in the
    order of their names. Hidden files, and those without the suffix of an image, are left out.
    """
    classes = sorted(path for path in root.iterdir() if path.is_dir() and not path.name.startswith("."))
    paths, labels = _images(root), None
    if classes and paths:
        raise DataError(f"{paths[0]}: lies beside sub-folders, which are classes: move it into one")
    if classes:
        numbered = all(folder.name.isdecimal() for folder in classes)
        numbers: list[int] = []
        for number, folder in enumerate(classes):
            images = _images(folder)
            paths += images
            numbers += [int(folder.name) if numbered else number] * len(images)
        labels = torch.tensor(numbers)
    if not paths:
        raise DataError(f"{root}: no images in it or its sub-folders: expected {', '.join(SUFFIXES)}")
    return Folder(root, paths, labels, pixels, workers)


def _images(folder: Path) -> list[Path]:
    return sorted(
        path
        for path in folder.iterdir()
        if path.suffix.lower() in SUFFIXES and not path.name.startswith(".") and path.is_file()
    )
