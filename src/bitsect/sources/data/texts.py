"""From rows of texts to sequences of tokens, as the task of a network has them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from ...errors import DataError
from ...files import first_line
from ..preparation import Reading
from ..tasks.outputs import IGNORED
from .columns import NamedColumns
from .questions import encode_questions
from .records import Records
from .sequences import Sequences, filled, shown

BLOCK = 256  # tokens of a piece of running text, where nothing else is said
MASKED = 0.15  # the share of tokens that a masked language model is asked for
FILLERS = {"attention_mask": 0, "token_type_ids": 0}


def encode(records: Records, reading: Reading) -> Sequences:
    """The samples that `records` hold, for the task of `reading`."""
    try:
        return _encoded(records, reading)
    except BaseException as error:
        # What a tokenizer's own library raises where it gives up is no Exception.
        if type(error).__name__ != "PanicException":
            raise
        raise DataError(
            f"{reading.preparation.name}: its tokenizer gives up on a text of {records.title} "
            f"({first_line(error)}): name another with [processor=hf:FOLDER], or give tokens"
        ) from error


def _encoded(records: Records, reading: Reading) -> Sequences:
    if "input_ids" in records.columns:
        return _tokenized(records, reading)
    if reading.task.startswith("question-answering"):
        columns = NamedColumns.of(records, reading.columns)
        return encode_questions(columns, reading.preparation, reading.limit, reading.stride)
    if {"question", "context", "answers"} <= set(records.columns) and not reading.columns:
        raise DataError(
            f"{records.title} holds questions with answers, which {reading.preparation.name} does not give: "
            f"it is judged by {reading.task}; name the texts with [columns=text=question] if they are meant"
        )
    return ENCODERS.get(reading.task, _texts)(records, reading)


def _texts(records: Records, reading: Reading) -> Sequences:
    """A text, or a pair of them, for each sample."""
    columns, tokenizer = NamedColumns.of(records, reading.columns), reading.preparation.tokenizer
    texts = [columns.texts("text")]
    if columns.has("pair"):
        texts.append(columns.texts("pair"))
    encoded = _cut(records, reading, tokenizer, *texts)
    return _sequences(records, reading, encoded, _labels(columns, reading))


def _cut(records: Records, reading: Reading, tokenizer: Any, *texts: Any, **more: Any) -> Any:
    """What the tokenizer makes of texts; one that is too long is cut if that was asked for, else refused."""
    longest = reading.preparation.longest
    if reading.max_length is not None:
        return tokenizer(*texts, truncation=True, max_length=reading.limit, verbose=False, **more)
    encoded = tokenizer(*texts, verbose=False, **more)
    for index, ids in enumerate(encoded["input_ids"]):
        if longest is not None and len(ids) > longest:
            raise DataError(
                f"{records.name(index)} has {len(ids)} tokens, the network takes {longest}: "
                f"pass [max_length={longest}] to cut texts, or shorten it"
            )
    return encoded


def _sequences(
    records: Records, reading: Reading, encoded: Mapping[str, Any], labels: Tensor | None
) -> Sequences:
    taken = reading.preparation.taken(encoded)
    if "input_ids" not in taken:
        raise DataError(f"{reading.preparation.name} takes no input_ids: give its inputs by their names")
    sizes = torch.tensor([len(ids) for ids in taken["input_ids"]])
    fillers = {**FILLERS, "input_ids": _filler(reading)}
    tensors = {name: filled(rows, fillers.get(name, 0)) for name, rows in taken.items()}
    return Sequences(records.title, tensors, sizes, labels, records.places, fillers=fillers)


def _filler(reading: Reading) -> int:
    tokenizer = getattr(reading.preparation.processor, "tokenizer", reading.preparation.processor)
    return int(getattr(tokenizer, "pad_token_id", None) or 0)


def _labels(columns: NamedColumns, reading: Reading) -> Tensor | None:
    """One label for each sample: a class, a number, or for several classes 0 and 1 each."""
    if reading.task in ("features", "outputs") or not columns.has("label"):
        return None
    values = columns.values("label")
    if reading.task == "multi-label":
        return _several(columns, values, reading)
    if reading.task == "regression":
        return torch.tensor([_number(columns, index, value) for index, value in enumerate(values)])
    return torch.tensor([_class(columns, index, value, reading) for index, value in enumerate(values)])


def _number(columns: NamedColumns, index: int, value: Any) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number):
        raise DataError(f"{columns.records.name(index)}: label {value!r} is no number: mend it")
    return number


def class_of(value: Any, classes: Mapping[str, int]) -> int | None:
    """The number of a class, which may be given by its name; None if it is neither."""
    if str(value).strip() in classes:
        return classes[str(value).strip()]
    if isinstance(value, int) or (isinstance(value, str) and value.strip().isdecimal()):
        return int(value)
    return None


def _class(columns: NamedColumns, index: int, value: Any, reading: Reading) -> int:
    classes = reading.preparation.classes
    number = class_of(value, classes)
    if number is not None:
        return number
    known = f": the network's classes are {', '.join(list(classes)[:8])}" if classes else ""
    raise DataError(f"{columns.records.name(index)}: label {value!r} is no class{known}")


def _several(columns: NamedColumns, values: list[Any], reading: Reading) -> Tensor:
    """0 or 1 for each class, from a list of classes or of zeros and ones."""
    count = len(reading.preparation.classes)
    rows = []
    for index, value in enumerate(values):
        if not isinstance(value, list | tuple):
            raise DataError(f"{columns.records.name(index)}: label {value!r} is no list of classes: mend it")
        if len(value) == count and all(each in (0, 1, 0.0, 1.0) for each in value):
            rows.append([float(each) for each in value])
            continue
        chosen = {_class(columns, index, each, reading) for each in value}
        if chosen and max(chosen) >= count:
            raise DataError(f"{columns.records.name(index)}: class {max(chosen)} of {count}: mend it")
        rows.append([float(number in chosen) for number in range(count)])
    return torch.tensor(rows)


def _words(records: Records, reading: Reading) -> Sequences:
    """A list of words for each sample, and a tag for each word; its first token carries it."""
    columns, tokenizer = NamedColumns.of(records, reading.columns), reading.preparation.tokenizer
    words = columns.values("tokens", list)
    tags = columns.values("label", list) if columns.has("label") else None
    encoded = _cut(records, reading, tokenizer, words, is_split_into_words=True)
    labels = None
    if tags is not None:
        rows = []
        for index, (each, tag) in enumerate(zip(words, tags, strict=True)):
            if len(each) != len(tag):
                raise DataError(f"{records.name(index)}: {len(each)} words and {len(tag)} tags: mend it")
            classes = [_class(columns, index, value, reading) for value in tag]
            before = [None, *encoded.word_ids(index)[:-1]]
            rows.append(
                [
                    IGNORED if word is None or word == last else classes[word]
                    for word, last in zip(encoded.word_ids(index), before, strict=True)
                ]
            )
        labels = filled(rows, IGNORED)
    return _sequences(records, reading, encoded, labels)


def _language(records: Records, reading: Reading) -> Sequences:
    """Running text in pieces of one length, or a text for each sample; its tokens are the labels."""
    tokenizer = reading.preparation.tokenizer
    columns = NamedColumns.of(records, reading.columns)
    texts = columns.texts("text")
    if not records.whole:
        encoded = _cut(records, reading, tokenizer, texts)
        pieces, places = encoded["input_ids"], records.places
    else:
        before, after = _around(tokenizer, texts)
        size = min(reading.max_length or BLOCK, reading.limit or BLOCK) - len(before) - len(after)
        lines = tokenizer(texts, add_special_tokens=False, verbose=False)["input_ids"]
        running = [token for line in lines for token in line]
        starts = range(0, max(1, len(running) - size + 1), size)
        pieces = [[*before, *running[at : at + size], *after] for at in starts]
        places = [f"tokens {at} to {min(at + size, len(running)) - 1}" for at in starts]
    ids = [list(piece) for piece in pieces]
    labels = ids
    if reading.task == "masked-language-modelling":
        ids, labels = _masked(ids, tokenizer)
    encoded = {"input_ids": ids, "attention_mask": [[1] * len(piece) for piece in ids]}
    held = Records(records.title, [{}] * len(ids), list(places))
    return _sequences(held, reading, encoded, filled(labels, IGNORED))


def _around(tokenizer: Any, texts: list[str]) -> tuple[list[int], list[int]]:
    """The tokens that a tokenizer puts before and after a text."""
    text = next((text for text in texts if text.strip()), "a")
    inner = tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
    outer = tokenizer(text, verbose=False)["input_ids"]
    for at in range(len(outer) - len(inner) + 1):
        if outer[at : at + len(inner)] == inner:
            return outer[:at], outer[at + len(inner) :]
    return [], []


def _masked(pieces: list[list[int]], tokenizer: Any) -> tuple[list[list[int]], list[list[int]]]:
    """Each piece with some tokens masked, at least one, and the labels that ask for them."""
    if tokenizer.mask_token_id is None:
        raise DataError("a masked language model needs a tokenizer with a mask token: name one")
    generator = torch.Generator().manual_seed(0)
    special = set(tokenizer.all_special_ids)
    ids, labels = [], []
    for piece in pieces:
        places = [at for at, token in enumerate(piece) if token not in special] or [0]
        count = max(1, round(MASKED * len(places)))
        order = torch.randperm(len(places), generator=generator)[:count].tolist()
        hidden = {places[at] for at in order}
        ids.append([tokenizer.mask_token_id if at in hidden else token for at, token in enumerate(piece)])
        labels.append([token if at in hidden else IGNORED for at, token in enumerate(piece)])
    return ids, labels


def _tokenized(records: Records, reading: Reading) -> Sequences:
    """Rows that hold tokens already, as `datasets` has them after a tokenizer was mapped over it."""
    names = [name for name in records.columns if _are_tokens(records.rows[0][name])]
    encoded = {name: [list(map(int, row[name])) for row in records.rows] for name in names}
    _strip(encoded)
    given = encoded.pop("labels", encoded.pop("label", None))
    taken = reading.preparation.taken(encoded)
    if given is not None and reading.task == "multi-label":
        labels: Tensor | None = torch.tensor(given, dtype=torch.float32)
    elif given is not None:
        labels = filled(given, IGNORED)
    elif reading.task == "language-modelling":
        labels = filled(encoded["input_ids"], IGNORED)
    else:
        labels = _labels(NamedColumns.of(records, reading.columns), reading)
    for index in range(len(records.rows)):
        if len({len(rows[index]) for rows in taken.values()}) > 1:
            raise DataError(f"{records.name(index)}: its inputs are of several lengths: mend it")
    return _sequences(records, reading, taken, labels)


def _strip(encoded: dict[str, list[list[int]]]) -> None:
    """Take off the padding that masks show, of everything that is as long as its row."""
    for index, mask in enumerate(encoded.get("attention_mask", ())):
        kept = shown(torch.tensor(mask))
        for rows in encoded.values():
            if len(rows[index]) == len(mask):
                rows[index] = rows[index][kept]


def _are_tokens(value: Any) -> bool:
    return isinstance(value, list | tuple | Tensor) and all(isinstance(each, int) for each in list(value))


ENCODERS: dict[str, Callable[[Records, Reading], Sequences]] = {
    "token-classification": _words,
    "language-modelling": _language,
    "masked-language-modelling": _language,
}
