"""From what a user names to samples."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from ...errors import DataError
from ..preparation import Reading
from .files import READERS, read_arrays
from .folder import list_images
from .iterables import collect
from .pixels import PerChannel, Pixels
from .records import DATASETS, read_dataset, read_records
from .rows import from_records, rows_of
from .samples import Samples, Source, drawn, windows_of

MEMORY = "<memory>"
TABLES = (".csv", ".tsv", ".jsonl", ".json", ".txt")  # of texts
FILES = f"{', '.join((*READERS, *TABLES[:-1]))} or {TABLES[-1]}"
EXPECTED = f"a {FILES} file, a folder of images, datasets:NAME or zoo:NAME"


def load_samples(
    data: object,
    *,
    draw: int | None = None,
    seed: int | None = None,
    mean: PerChannel | None = None,
    std: PerChannel | None = None,
    scale: float | None = None,
    workers: int = 2,
    reading: Reading | None = None,
) -> Samples:
    """The samples that `data` names or holds; with `draw`, so many of them at random.

    With a `seed` alone all of them come in a random order, so that the first n are a draw too; without
    either, in the order they lie in.

    `data` is the path of an .npz or .safetensors file (`x`, `y`) or of a folder of images, a name such
    as `zoo:fashion-test`, or Python objects: a tensor, a pair (inputs, labels), a dictionary of named
    inputs and perhaps `labels`, or an iterable of such batches. uint8 images become (x·scale − mean)/std,
    with 1/255 for scale where none is given. `workers` threads decode image files; their number changes
    nothing that is read. Texts (.csv, .tsv, .jsonl, SQuAD's .json, .txt, `datasets:NAME`, rows that are
    dictionaries) need a `reading` that holds a tokenizer.
    """
    pixels, reading = Pixels.of(mean, std, scale), reading or Reading()
    if isinstance(data, Samples):
        if pixels != Pixels():
            raise DataError("samples that are loaded already keep their mean, std and scale: leave them out")
        if draw is None and (seed is None or "seed" in data.options):  # they are in a random order already
            return data
        spec, source = data.spec if draw is None else MEMORY, data.source
    elif isinstance(data, (str, Path)):
        spec, source = _opened(str(data), pixels, workers, reading)
    elif (rows := rows_of(data)) is not None:
        spec, source = MEMORY, from_records(rows, reading, pixels)
    elif isinstance(data, Iterable):
        spec, source = MEMORY, collect(data, pixels)
    else:
        raise DataError(
            f"data of type {type(data).__name__}: give {EXPECTED}, tensors, or a DataLoader around a Dataset"
        )
    if reading.task == "features":  # what is kept are the float network's own, whatever classes there are
        source = source.without_labels()
    options: dict[str, Any] = {key: value for key, value in asdict(pixels).items() if value is not None}
    if isinstance(data, Samples):
        options = dict(data.options)
    if draw is not None or seed is not None:
        seed = seed or 0
        total = len(source) if source.groups is None else len(torch.unique(source.groups))
        source = source.select(windows_of(source.groups, drawn(spec, total, draw, seed)))
        options |= {"seed": seed} if draw is None else {"draw": draw, "seed": seed}
    source.check()
    return Samples(source, spec, options)


def _opened(spec: str, pixels: Pixels, workers: int, reading: Reading) -> tuple[str, Source]:
    if spec == MEMORY:
        raise DataError("these samples were given as Python objects, which no file holds: give them again")
    if spec.startswith("zoo:"):
        from ..models.zoo import data_path

        return spec, read_arrays(data_path(spec.removeprefix("zoo:")), spec, pixels)
    if spec.startswith(DATASETS):
        return spec, from_records(read_dataset(spec), reading, pixels)
    path = Path(spec).expanduser().absolute()
    if path.is_dir():
        return str(path), list_images(
            path, pixels, workers, reading.preparation.images, reading.preparation.classes
        )
    if not path.exists():
        raise DataError(f"{spec}: no such file or folder: give {EXPECTED}")
    if path.suffix in TABLES:
        return str(path), from_records(read_records(path, spec), reading, pixels)
    if path.suffix not in READERS:
        raise DataError(f"{spec}: unknown kind of data: give {EXPECTED}")
    return str(path), read_arrays(path, spec, pixels)
