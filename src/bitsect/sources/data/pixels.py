"""From the bytes of an image to what a network takes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ...errors import DataError

PerChannel = float | Sequence[float]  # one number for all channels, or one for each


@dataclass(frozen=True)
class Pixels:
    """(x·scale − mean)/std as float32 N×C×H×W, of uint8 pixels N×H×W×C or N×H×W.

    Without a scale x is divided by 255: in float32 this is not quite x·(1/255), and it is what
    networks were trained with.
    """

    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    scale: float | None = None

    @classmethod
    def of(cls, mean: PerChannel | None, std: PerChannel | None, scale: float | None) -> Pixels:
        pixels = cls(_per_channel(mean), _per_channel(std), scale)
        numbers = (*(pixels.mean or ()), *(pixels.std or ()), scale or 0.0)
        if not all(map(math.isfinite, numbers)) or 0.0 in (pixels.std or ()):
            raise DataError(f"mean {mean}, std {std}, scale {scale}: give finite numbers and no std of 0")
        return pixels

    def __call__(self, x: Tensor) -> Tensor:
        x = (x.unsqueeze(-1) if x.ndim == 3 else x).movedim(-1, 1)
        x = x.to(torch.float32, memory_format=torch.contiguous_format)
        x = x.div_(255) if self.scale is None else x.mul_(self.scale)
        if self.mean is not None:
            x.sub_(_shaped(self.mean, "mean", x.shape[1]))
        if self.std is not None:
            x.div_(_shaped(self.std, "std", x.shape[1]))
        return x


def _per_channel(values: PerChannel | None) -> tuple[float, ...] | None:
    if values is None:
        return None
    return (float(values),) if isinstance(values, (int, float)) else tuple(map(float, values))


def _shaped(values: tuple[float, ...], name: str, channels: int) -> Tensor:
    if len(values) not in (1, channels):
        raise DataError(
            f"{name} has {len(values)} values, but the images have {channels} channels: give 1 or {channels}"
        )
    return torch.tensor(values).reshape(-1, 1, 1)
