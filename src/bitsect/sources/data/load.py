"""From what a user names to samples."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ...errors import DataError
from ..preparation import Preparation, Reading
from .families import families_of_files, families_of_rows
from .files import READERS, read_arrays
from .folder import list_images
from .iterables import collect, without_padding
from .pixels import PerChannel, Pixels
from .records import DATASETS, Records, read_dataset, read_records
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
        spec, source, families = data.spec if draw is None else MEMORY, data.source, data.families
    elif isinstance(data, (str, Path)):
        spec, source, families = _opened(str(data), pixels, workers, reading)
    elif (rows := rows_of(data)) is not None:
        spec, source, families = MEMORY, from_records(rows, reading, pixels), None
    elif isinstance(data, Iterable):
        spec, source, families = MEMORY, collect(data, pixels), None
    else:
        raise DataError(
            f"data of type {type(data).__name__}: give {EXPECTED}, tensors, or a DataLoader around a Dataset"
        )
    if reading.preparation.inputs is not None and not isinstance(data, Samples):
        source = without_padding(source)  # a network of transformers takes any length
    _check_tokens(source, reading.preparation)
    if reading.task in (
        "features",
        "outputs",
    ):  # what is kept are the float network's own, whatever classes there are
        source = source.without_labels()
    options: dict[str, Any] = {key: value for key, value in asdict(pixels).items() if value is not None}
    if isinstance(data, Samples):
        options = dict(data.options)
    if draw is not None or seed is not None:
        seed = seed or 0
        total = len(source) if source.groups is None else len(torch.unique(source.groups))
        chosen = windows_of(source.groups, drawn(spec, total, draw, seed))
        source, families = source.select(chosen), None if families is None else families[chosen]
        options |= {"seed": seed} if draw is None else {"draw": draw, "seed": seed}
    source.check()
    return Samples(source, spec, options, families=families)


def _check_tokens(source: Source, preparation: Preparation) -> None:
    """Refuse more tokens than the network takes, and those of another network's tokenizer."""
    ids = getattr(source, "tensors", {}).get("input_ids")
    if ids is None or ids.ndim != 2 or ids.is_floating_point():
        return
    longest, vocabulary = preparation.longest, preparation.vocabulary
    sizes = torch.full((len(ids),), ids.shape[1]) if source.lengths is None else source.lengths
    if longest is not None and int(sizes.max()) > longest:
        row = int(sizes.argmax())
        raise DataError(
            f"{source.name(row)} has {int(sizes[row])} tokens, the network takes {longest}: cut it"
        )
    unknown = (ids < 0) | (ids >= (vocabulary or torch.inf))
    unknown &= torch.arange(ids.shape[1]) < sizes[:, None]
    rows = unknown.any(1).nonzero().flatten()
    if len(rows):
        row = int(rows[0])
        raise DataError(
            f"{source.name(row)} has the token {int(ids[row][unknown[row]][0])}, the network knows 0 to "
            f"{(vocabulary or 0) - 1}: use the tokenizer that belongs to it"
        )


Opened = tuple[str, Source, Tensor | None]


def _opened(spec: str, pixels: Pixels, workers: int, reading: Reading) -> Opened:
    if spec == MEMORY:
        raise DataError("these samples were given as Python objects, which no file holds: give them again")
    if spec.startswith("zoo:"):
        from ..models.zoo import data_path

        return spec, read_arrays(data_path(spec.removeprefix("zoo:")), spec, pixels, reading.room), None
    if spec.startswith(DATASETS):
        return spec, *_of_rows(read_dataset(spec), reading, pixels)
    path = Path(spec).expanduser().absolute()
    if path.is_dir():
        made_by = reading.preparation
        inputs, name = made_by.inputs, made_by.name
        if inputs is not None and "input_ids" in inputs and "pixel_values" not in inputs:
            raise DataError(f"{spec} is a folder, of images; {name} takes texts: give a file of them")
        folder = list_images(path, pixels, workers, made_by.images, made_by.classes, room=reading.room)
        return str(path), folder, families_of_files(folder, reading.group_by)
    if not path.exists():
        raise DataError(f"{spec}: no such file or folder: give {EXPECTED}")
    suffix = path.suffix.lower()
    if suffix in TABLES:
        return str(path), *_of_rows(read_records(path, spec, reading.room), reading, pixels)
    if suffix not in READERS:
        raise DataError(f"{spec}: unknown kind of data: give {EXPECTED}")
    return str(path), read_arrays(path, spec, pixels, reading.room), None


def _of_rows(records: Records, reading: Reading, pixels: Pixels) -> tuple[Source, Tensor | None]:
    source = from_records(records, reading, pixels)
    return source, families_of_rows(records, source, reading.group_by)
