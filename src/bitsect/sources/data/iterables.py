"""Samples given as Python objects: tensors, or batches in an iterable such as a DataLoader."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...errors import DataError
from ..tasks.outputs import IGNORED
from .arrays import Arrays, Form, make_arrays, take_labels
from .pixels import Pixels
from .samples import Source
from .sequences import Sequences, filled, shown

NAME = "data"
PAIRS = "give (inputs, labels), several inputs as a tuple"
LISTED = (
    "a list of tensors: stack them to one, torch.stack(images); a network that takes a list is captured "
    "inside one whose forward(x) calls it with list(x)"
)
IDS, MASK = "input_ids", "attention_mask"


def collect(data: Any, pixels: Pixels) -> Arrays | Sequences:
    """The samples of one batch or of an iterable of batches, in the order they come.

    A batch is `inputs` or `(inputs, labels)`. Inputs are a tensor, a tuple of tensors or a
    dictionary of tensors, each with the sample as its first dimension. In a batch that is a dictionary
    `labels` (or `label`) are the labels, as every collator of Hugging Face has them; a network that
    takes an input of that name is given `(inputs, labels)`, or `(inputs,)` where there are none.
    """
    pair = isinstance(data, tuple) and len(data) == 2 and isinstance(data[1], (Tensor, np.ndarray))
    if isinstance(data, tuple) and len(data) == 2 and _are_numbers(data[1]):
        pair, data = True, (data[0], torch.tensor(data[1]))
    if pair or isinstance(data, (Tensor, np.ndarray, Mapping)):
        data = [data]
    batches = [_batch(batch, f"{NAME}: batch {number}") for number, batch in enumerate(data)]
    if not batches:
        raise DataError(f"{NAME}: holds no samples: an iterator that was used up yields nothing again")
    form, labelled = batches[0].form, batches[0].labels is not None
    for batch in batches:
        same = batch.form == form and batch.tensors.keys() == batches[0].tensors.keys()
        if not same or (batch.labels is not None) != labelled:
            raise DataError(f"{batch.title} is made of other parts than the first: make all batches alike")
    if form == "dict" and _are_ragged(batches):
        return _sequences(batches, NAME)
    tensors = {key: _joined([batch.tensors[key] for batch in batches]) for key in batches[0].tensors}
    labels = _joined([batch.labels for batch in batches if batch.labels is not None]) if labelled else None
    return make_arrays(NAME, tensors, form, labels, pixels)


def _are_ragged(batches: list[Arrays]) -> bool:
    """Whether batches hold tokens, each padded to a length of its own, as collators do."""
    ids = [batch.tensors.get(IDS) for batch in batches]
    return len({part.shape[1] for part in ids if part is not None and part.ndim == 2}) > 1


def without_padding(source: Source) -> Source:
    """Rows of tokens as long as their masks say, where all are filled up to one length; else the same."""
    if not isinstance(source, Arrays) or source.form != "dict":
        return source
    mask, shape = source.tensors.get(MASK), source.tensors.get(IDS, torch.empty(0)).shape
    alike = len(shape) == 2 and all(tensor.shape == shape for tensor in source.tensors.values())
    if mask is None or not alike or bool(mask.bool().all()):
        return source
    return _sequences([source], source.title)


def _sequences(batches: list[Arrays], title: str) -> Sequences:
    """Rows of tokens without the padding that a mask shows."""
    ids, mask = batches[0].tensors[IDS], batches[0].tensors.get(MASK)
    masked = ids[mask == 0] if mask is not None and mask.shape == ids.shape else ids[:0]
    fillers = {IDS: int(masked[0])} if masked.numel() else {}
    rows: dict[str, list[Tensor]] = {key: [] for key in batches[0].tensors}
    labels: list[Tensor] = []
    for batch in batches:
        width, mask = batch.tensors[IDS].shape[1], batch.tensors.get(MASK)
        for row in range(len(batch)):
            kept = slice(0, width) if mask is None else shown(mask[row])
            for key, tensor in batch.tensors.items():
                if tensor.ndim != 2 or tensor.shape[1] != width:
                    raise DataError(f"{batch.title}: '{key}' is {tuple(tensor.shape)} beside {width} tokens")
                rows[key].append(tensor[row, kept])
            if batch.labels is not None:
                per_token = batch.labels.ndim == 2 and batch.labels.shape[1] == width
                labels.append(batch.labels[row, kept] if per_token else batch.labels[row])
    sizes = torch.tensor([len(row) for row in rows[IDS]])
    held = None
    if labels:
        held = filled(labels, IGNORED) if labels[0].ndim else torch.stack(labels)
        held = held if held.is_floating_point() else held.to(torch.int64)
    places = [f"sample {number}" for number in range(len(sizes))]
    tensors = {key: filled(parts, fillers.get(key, 0)) for key, parts in rows.items()}
    return Sequences(title, tensors, sizes, held, places, fillers=fillers)


def _batch(batch: Any, name: str) -> Arrays:
    inputs, labels = batch, None
    if isinstance(batch, (tuple, list)):
        if len(batch) not in (1, 2):
            many = isinstance(batch, list) and all(isinstance(part, Tensor) for part in batch)
            raise DataError(f"{name} is {LISTED}" if many else f"{name} has {len(batch)} parts: {PAIRS}")
        inputs, labels = batch if len(batch) == 2 else (*batch, None)
    elif isinstance(batch, Mapping):
        inputs = dict(batch)
        labels = take_labels(inputs, name)
        if not inputs:
            raise DataError(
                f"{name} holds labels and no inputs: add them by the names the network gives them"
            )
    form: Form = "tensor"
    if isinstance(inputs, Mapping):
        form, parts = "dict", dict(inputs)
    elif isinstance(inputs, (tuple, list)):
        form, parts = "tuple", {str(number): part for number, part in enumerate(inputs)}
    else:
        parts = {"x": inputs}
    tensors = {key: _tensor(part, name) for key, part in parts.items()}
    if isinstance(inputs, list) and labels is not None and len(inputs) == len(labels) != len(tensors["0"]):
        raise DataError(f"the inputs of {name} are {LISTED}")
    return Arrays(name, tensors, form, None if labels is None else _tensor(labels, name), None)


def _tensor(value: Any, name: str) -> Tensor:
    if isinstance(value, np.ndarray):
        value = torch.from_numpy(value)
    if isinstance(value, str):
        raise DataError(
            f"{name} holds a text: give texts as a list of dictionaries, [{{'text': …, 'label': …}}], "
            "with [processor=TOKENIZER]"
        )
    if not isinstance(value, Tensor) or value.ndim == 0:
        raise DataError(
            f"{name} holds a single {type(value).__name__}: give batches of tensors, as a DataLoader does"
        )
    return value.detach().cpu()


def _joined(parts: list[Tensor]) -> Tensor:
    shapes = sorted({tuple(part.shape[1:]) for part in parts})
    if len(shapes) > 1:
        raise DataError(
            f"{NAME}: samples of shapes {shapes[0]} and {shapes[1]}: bring them to one shape; inputs and "
            "their labels are a tuple, (inputs, labels)"
        )
    return torch.cat(parts)


def _are_numbers(values: Any) -> bool:
    """Whether these are labels in a plain list."""
    return isinstance(values, list) and all(isinstance(value, int | float) for value in values)
