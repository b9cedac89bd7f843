"""Images as the processor of a network has them."""

from __future__ import annotations

from typing import Any

import numpy as np

from .pixels import Pixels


def resized(processor: Any, image: Any) -> np.ndarray[Any, Any]:
    """The image as the processor cuts and scales it, H×W×C, still in bytes."""
    made = processor(images=image, do_rescale=False, do_normalize=False, return_tensors="np")
    pixels: np.ndarray[Any, Any] = np.ascontiguousarray(
        np.moveaxis(np.asarray(made["pixel_values"][0]), 0, -1)
    )
    return pixels.round().clip(0, 255).astype(np.uint8)


def as_processed(processor: Any, pixels: Pixels) -> Pixels:
    """How bytes become inputs: as asked, else as the processor has it."""
    if processor is None or pixels != Pixels():
        return pixels
    normal = bool(getattr(processor, "do_normalize", True))
    return Pixels.of(
        tuple(processor.image_mean) if normal else None,
        tuple(processor.image_std) if normal else None,
        float(processor.rescale_factor) if getattr(processor, "do_rescale", True) else 1.0,
    )
