"""Questions about texts as SQuAD has them: a long context is read in windows that overlap."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import torch

from ...errors import DataError
from ..preparation import Preparation
from .columns import NamedColumns
from .sequences import Sequences, filled

WINDOW, STRIDE = 384, 128  # tokens of a window, and by how many two of them overlap


def encode_questions(
    columns: NamedColumns, preparation: Preparation, limit: int | None, stride: int | None
) -> Sequences:
    """A sample for each window; windows of one question are a group."""
    tokenizer = preparation.tokenizer
    if not getattr(tokenizer, "is_fast", False):
        raise DataError(
            f"{preparation.name}: questions need a tokenizer that knows places of tokens: a fast one"
        )
    questions, contexts = columns.texts("question"), columns.texts("context")
    answers = columns.values("answers") if columns.has("answers") else None
    if answers is None:
        raise DataError(f"{columns.records.title}: questions without answers: add a column 'answers'")
    can_be_impossible = any(row.get("impossible") for row in columns.records.rows)
    size = min(limit or WINDOW, WINDOW if limit is None else limit)
    rows: dict[str, list[list[int]]] = {}
    labels: list[list[int]] = []
    places: list[str] = []
    groups: list[int] = []
    for index, (question, context) in enumerate(zip(questions, contexts, strict=True)):
        name = columns.records.name(index)
        encoded = _windows(tokenizer, question, context, size, stride, name)
        known = _answers(answers[index], name)
        for window in range(len(encoded["input_ids"])):
            for key, values in preparation.taken(encoded).items():
                if key != "offset_mapping":
                    rows.setdefault(key, []).append(list(values[window]))
            label = _label(encoded, window, context, known, can_be_impossible)
            labels.append(list(label))
            places.append(columns.records.places[index])
            groups.append(index)
    sizes = torch.tensor([len(ids) for ids in rows["input_ids"]])
    fillers = {"input_ids": int(tokenizer.pad_token_id or 0)}
    tensors = {key: filled(values, fillers.get(key, 0)) for key, values in rows.items()}
    held = filled(labels, 0).to(torch.uint8)
    return Sequences(columns.records.title, tensors, sizes, held, places, torch.tensor(groups), fillers)


def _windows(tokenizer: Any, question: str, context: str, size: int, stride: int | None, name: str) -> Any:
    asked = tokenizer(question.strip(), add_special_tokens=False, verbose=False)["input_ids"]
    room = size - len(asked) - tokenizer.num_special_tokens_to_add(pair=True)
    if room <= 0 or (stride is not None and stride >= room):
        raise DataError(
            f"{name}: the question leaves {max(0, room)} of {size} tokens for the context: "
            "pass a larger [max_length=], or a smaller [stride=]"
        )
    return tokenizer(
        question.strip(),
        context,
        truncation="only_second",
        max_length=size,
        stride=min(STRIDE, room // 2) if stride is None else stride,
        return_overflowing_tokens=True,
        return_offsets_mapping=True,
        verbose=False,
    )


def _answers(given: Any, name: str) -> list[tuple[str, int]]:
    """Texts and where they begin, as SQuAD's file or the dataset of that name has them."""
    try:
        if isinstance(given, dict):
            return [(str(t), int(s)) for t, s in zip(given["text"], given["answer_start"], strict=True)]
        if isinstance(given, str):
            return [(given, -1)]
        return [(str(each["text"]), int(each.get("start", each.get("answer_start", -1)))) for each in given]
    except (KeyError, TypeError, ValueError):
        raise DataError(f"{name}: answers {str(given)[:60]!r} are not as SQuAD has them: mend it") from None


def _label(
    encoded: Any, window: int, context: str, answers: list[tuple[str, int]], can_be_impossible: bool
) -> Iterator[int]:
    """Bytes: where the answer begins and ends in the window, 0 if it does not; then JSON for the score."""
    spans = [
        list(span) if part == 1 else None
        for span, part in zip(encoded["offset_mapping"][window], encoded.sequence_ids(window), strict=True)
    ]
    inside = [at for at, span in enumerate(spans) if span is not None]
    first = spans[inside[0]][0] if inside else 0  # type: ignore[index]
    last = spans[inside[-1]][1] if inside else 0  # type: ignore[index]
    start = end = 0
    for text, at in answers[:1]:
        at = at if at >= 0 and context.startswith(text, at) else context.find(text)
        if inside and at >= first and at + len(text) <= last and text:
            start = next((k for k in reversed(inside) if spans[k][0] <= at), 0)  # type: ignore[index]
            end = next((k for k in inside if spans[k][1] >= at + len(text)), 0)  # type: ignore[index]
    record = {
        "text": context[first:last],
        "spans": [[span[0] - first, span[1] - first] if span else None for span in spans],
        "answers": [text for text, _ in answers],
        "null": can_be_impossible,
    }
    yield from (*start.to_bytes(2, "little"), *end.to_bytes(2, "little"))
    yield from json.dumps(record, separators=(",", ":")).encode()
