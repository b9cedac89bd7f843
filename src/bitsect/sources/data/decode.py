"""Image files to arrays."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import DataError, MissingExtraError
from ...files import reading
from ..room import Room
from .processor import resized

FORMATS = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")  # whatever a file is called
GREY = ("1", "L", "LA")
COLOUR = ("RGB", "RGBA", "P", "PA", "CMYK", "YCbCr", "LAB", "HSV")


def common_mode(paths: Iterable[Path]) -> tuple[str, tuple[int, int]]:
    """The mode to read all images in: L if every one is grey, else RGB; and their size, which must be one.

    Only headers are read, so that a folder which does not fit is refused before any work.
    """
    first: tuple[Path, tuple[int, int]] | None = None
    grey = True
    for path in paths:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of large images: they are looked at before one is decoded
            with _opened(path) as image:
                size, mode = image.size, image.mode
        if mode not in GREY + COLOUR:
            raise DataError(f"{path}: pixels of mode {mode} are not bytes: store them as float in an .npz")
        first = first or (path, size)
        if size != first[1]:
            sizes = f"is {size[0]}×{size[1]}, but {first[0]} is {first[1][0]}×{first[1][1]}"
            raise DataError(f"{path}: {sizes}: resize and crop them to one size")
        grey = grey and mode in GREY
    return "L" if grey else "RGB", (0, 0) if first is None else first[1]


def decode(path: Path, mode: str, processor: Any, room: Room) -> NDArray[np.uint8]:
    """The image as H×W×C, brought to the size of a network by its processor if there is one."""
    with _opened(path) as image:
        image.verify()  # compares checksums where a format has them, which decoding does not
    with _opened(path) as image:
        if processor is not None:
            room.check(f"{path}: an image of {image.width}×{image.height}", 6 * image.width * image.height)
            return resized(processor, image.convert(mode))
        pixels = np.asarray(image.convert(mode))
    return pixels[..., None] if mode == "L" else pixels


def read_ahead(
    read: Callable[[int], NDArray[np.uint8]], parts: Sequence[list[int]], workers: int
) -> Iterator[NDArray[np.uint8]]:
    """The images of each part, in order; meanwhile so many threads read the next part.

    Threads, because Pillow releases Python's lock while it decodes.
    """
    pool = ThreadPoolExecutor(max(1, workers))
    try:
        for images, _ in pairwise(pool.map(read, part) for part in (*parts, [])):
            yield np.stack(list(images))
    finally:
        pool.shutdown(cancel_futures=True)


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    try:
        from PIL import Image
    except ImportError:
        raise MissingExtraError("pillow", "images", "a folder of images") from None
    with (
        reading(path, DataError, what="readable image", missing="no such image", way_out="mend or remove it"),
        Image.open(path, formats=FORMATS) as image,
    ):
        yield image
