"""Image files to arrays. No torch is imported, so that the processes that decode start at once."""

from __future__ import annotations

import multiprocessing
import os
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import DataError, MissingExtraError

GREY = ("1", "L", "LA")
COLOUR = ("RGB", "RGBA", "P", "PA", "CMYK", "YCbCr", "LAB", "HSV")


def common_mode(paths: Iterable[Path]) -> str:
    """The mode to read all images in: L if every one is grey, else RGB; they must be of one size.

    Only headers are read, so that a folder which does not fit is refused before any work.
    """
    first: tuple[Path, tuple[int, int]] | None = None
    grey = True
    for path in paths:
        with _opened(path) as image:
            size, mode = image.size, image.mode
        if mode not in GREY + COLOUR:
            raise DataError(f"{path}: pixels of mode {mode} are not bytes: store them as float in an .npz")
        first = first or (path, size)
        if size != first[1]:
            sizes = f"is {size[0]}×{size[1]}, but {first[0]} is {first[1][0]}×{first[1][1]}"
            raise DataError(f"{path}: {sizes}: resize and crop them to one size")
        grey = grey and mode in GREY
    return "L" if grey else "RGB"


def decode(paths: Iterable[Path], mode: str) -> NDArray[np.uint8]:
    """The images as N×H×W×C."""
    images = []
    for path in paths:
        with _opened(path) as image:
            pixels = np.asarray(image.convert(mode))
            images.append(pixels[..., None] if mode == "L" else pixels)
    return np.stack(images)


def decode_each(parts: Sequence[list[Path]], mode: str, workers: int) -> Iterator[NDArray[np.uint8]]:
    """The images of each part, in order, decoded ahead by so many processes; 0: by this one."""
    if workers == 0 or len(parts) == 1:
        yield from (decode(paths, mode) for paths in parts)
        return
    pool = _pool(workers)
    ahead: deque[Future[NDArray[np.uint8]]] = deque()
    try:
        for paths in parts:
            if len(ahead) == 2 * workers:  # so that a slow reader does not fill the memory
                yield ahead.popleft().result()
            ahead.append(pool.submit(decode, paths, mode))
        while ahead:
            yield ahead.popleft().result()
    except BrokenProcessPool:
        _pool.cache_clear()
        raise DataError(
            "the processes that decode images died: put the calls of your script under "
            "`if __name__ == '__main__':`, or take 0 workers"
        ) from None
    finally:
        for future in ahead:
            future.cancel()


@cache  # kept between passes over the samples: processes take longer to start than a batch to decode
def _pool(workers: int) -> ProcessPoolExecutor:
    # Spawned: a fork would inherit torch's threads half alive.
    spawn = multiprocessing.get_context("spawn")
    return ProcessPoolExecutor(workers, spawn, initializer=_leave_with_parent)


def _leave_with_parent() -> None:
    """End this process when its parent ends, even one that was killed and could not tell."""

    def wait() -> None:
        parent = multiprocessing.parent_process()
        if parent is not None:
            parent.join()
            os._exit(0)

    Thread(target=wait, daemon=True).start()


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    try:
        from PIL import Image
    except ImportError:
        raise MissingExtraError("pillow", "images", "a folder of images") from None
    try:
        with Image.open(path) as image:
            yield image
    except Exception as error:  # damaged files make Pillow's decoders raise nearly anything
        raise DataError(f"{path}: not a readable image ({error}): mend or remove it") from None
