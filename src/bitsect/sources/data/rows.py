"""Rows with named columns, of files and of Python, as samples: texts by a tokenizer, pictures as they are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...errors import DataError
from ..preparation import Reading
from .arrays import Arrays, make_arrays
from .pixels import Pixels
from .processor import as_processed, resized
from .records import Records, dataset_records, listed_records
from .samples import Source
from .texts import class_of, encode


def rows_of(data: Any) -> Records | None:
    """The rows that a `datasets.Dataset` or a list of dictionaries holds; None for batches of tensors."""
    if type(data).__module__.partition(".")[0] == "datasets":
        if not hasattr(data, "column_names") or hasattr(data, "keys"):
            raise DataError(f"data of type {type(data).__name__}: give one split of it, as data['train']")
        return dataset_records(data)
    if not isinstance(data, Sequence) or isinstance(data, str | bytes) or not data:
        return None
    first = data[0]
    if isinstance(first, Mapping) and any(
        not isinstance(each, Tensor | np.ndarray) for each in first.values()
    ):
        return listed_records(data)
    return None


def from_records(records: Records, reading: Reading, pixels: Pixels) -> Source:
    """The samples that rows hold: pictures where a column holds them, else texts."""
    picture = next((name for name, value in records.rows[0].items() if _is_picture(value)), None)
    if picture is None:
        if pixels != Pixels():
            raise DataError(f"{records.title}: mean, std and scale are for images in uint8: leave them out")
        return encode(records, reading)
    return _pictures(records, picture, reading, pixels)


def _is_picture(value: Any) -> bool:
    return hasattr(value, "convert") and hasattr(value, "getbands")


def _pictures(records: Records, column: str, reading: Reading, pixels: Pixels) -> Arrays:
    processor = reading.preparation.images
    images: list[np.ndarray[Any, Any]] = []
    for index, row in enumerate(records.rows):
        if not _is_picture(row[column]):
            raise DataError(f"{records.name(index)}: '{column}' is no image: mend it")
        colour = row[column].convert("RGB")
        image = np.asarray(colour) if processor is None else resized(processor, colour)
        if images and image.shape != images[0].shape:
            raise DataError(
                f"{records.name(index)} is of another size than the first: resize them to one size"
            )
        images.append(image)
    labels = [row.get("label", row.get("labels")) for row in records.rows]
    classes = None
    if all(label is not None for label in labels):
        numbers = [class_of(label, reading.preparation.classes) for label in labels]
        bad = next((index for index, number in enumerate(numbers) if number is None), None)
        if bad is not None:
            raise DataError(f"{records.name(bad)}: label {labels[bad]!r} is no class: mend it")
        classes = torch.tensor(numbers)
    x = torch.from_numpy(np.stack(images))
    return make_arrays(records.title, {"x": x}, "tensor", classes, as_processed(processor, pixels))
