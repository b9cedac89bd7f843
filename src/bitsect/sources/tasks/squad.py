"""Answers to questions as spans of a text, judged as SQuAD does: F1 over words, or an exact match."""

from __future__ import annotations

import json
import re
import string
from collections import Counter
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from ...errors import DataError
from .outputs import divergence, named_tensors
from .task import Outcome, Task

LONGEST_ANSWER = 30  # tokens
HEADER = 4  # bytes before the record: where the answer begins and ends
_PUNCTUATION = frozenset(string.punctuation)


def normalize(text: str) -> str:
    """`text` in lower case, without punctuation, articles and extra blanks.

    >>> normalize("The  U.S. (an example)")
    'us example'
    """
    kept = "".join(letter for letter in text.lower() if letter not in _PUNCTUATION)
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", kept).split())


def exact_match(answer: str, wanted: list[str]) -> float:
    """1 where the answer is one of those wanted, up to what `normalize` takes away."""
    return float(any(normalize(answer) == normalize(each) for each in wanted or [""]))


def f1(answer: str, wanted: list[str]) -> float:
    """The largest F1 over words between the answer and one of those wanted; without words, whether both are.

    >>> round(f1("the cat sat", ["cat"]), 3)
    0.667
    """
    return max(_f1(normalize(answer).split(), normalize(each).split()) for each in wanted or [""])


def _f1(found: list[str], wanted: list[str]) -> float:
    if not found or not wanted:
        return float(found == wanted)
    common = sum((Counter(found) & Counter(wanted)).values())
    if not common:
        return 0.0
    precision, recall = common / len(found), common / len(wanted)
    return 2 * precision * recall / (precision + recall)


def spans(outputs: Any) -> tuple[Tensor, Tensor]:
    """The logits of where an answer begins and ends."""
    tensors = named_tensors(outputs)
    missing = [name for name in ("start_logits", "end_logits") if name not in tensors]
    if missing:
        raise DataError(
            f"question answering reads start_logits and end_logits, the network gives "
            f"{', '.join(filter(None, tensors)) or 'one output'}: choose another [task=]"
        )
    return tensors["start_logits"], tensors["end_logits"]


def losses(outputs: Any, labels: Tensor) -> Tensor:
    """The mean cross-entropy of both ends; a window without the answer points to its first token."""
    _check(labels)
    header = labels[:, :HEADER].long()
    ends = (header[:, 0] + 256 * header[:, 1], header[:, 2] + 256 * header[:, 3])
    both = [
        F.cross_entropy(z.float() if z.dtype == torch.float16 else z, at, reduction="none")
        for z, at in zip(spans(outputs), ends, strict=True)
    ]
    return (both[0] + both[1]) / 2


def _judge(score: Callable[[str, list[str]], float]) -> Callable[[Any, Tensor], Outcome]:
    def judge(outputs: Any, labels: Tensor) -> Outcome:
        _check(labels)
        start, end = (z.detach().float().cpu() for z in spans(outputs))
        scores, weights = [], []
        for row, label in enumerate(labels.cpu()):
            record = _record(bytes(label.tolist()))
            answer, weight = best_answer(start[row], end[row], record)
            scores.append(score(answer, record["answers"]))
            weights.append(weight)
        values = torch.tensor([scores, weights], dtype=torch.float64, device=labels.device)
        return Outcome(losses(outputs, labels), values[0], values[1])

    return judge


def best_answer(start: Tensor, end: Tensor, record: dict[str, Any]) -> tuple[str, float]:
    """The likeliest span of a window as text, and how likely: the sum of its two logits.

    Spans lie in the context and are of at most 30 tokens. Where a question may have no answer, the sum at the
    first token is that of none, and what counts is by how much a span exceeds it.
    """
    inside = [at for at, span in enumerate(record["spans"]) if span is not None]
    if not inside:
        return "", -torch.inf
    low, high = inside[0], inside[-1] + 1
    sums = start[low:high, None] + end[None, low:high]
    allowed = torch.ones_like(sums, dtype=torch.bool).triu().tril(LONGEST_ANSWER - 1)
    sums = sums.masked_fill(~allowed, -torch.inf)
    best = int(sums.argmax())
    first, last = low + best // (high - low), low + best % (high - low)
    weight, text = float(sums.flatten()[best]), record["text"]
    answer = text[record["spans"][first][0] : record["spans"][last][1]]
    if not record["null"]:
        return answer, weight
    surplus = weight - float(start[0] + end[0])
    return (answer if surplus > 0 else ""), surplus


def span_divergence(reference: Any, outputs: Any) -> Tensor:
    """KL(reference ‖ outputs) of both ends, the mean."""
    before, after = spans(reference), spans(outputs)
    return (divergence(before[0], after[0]) + divergence(before[1], after[1])) / 2


@lru_cache(maxsize=20_000)
def _record(label: bytes) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(label[HEADER:].rstrip(b"\0"))
    return found


def _check(labels: Tensor) -> None:
    if labels.dtype != torch.uint8 or labels.ndim != 2:
        raise DataError(
            "question answering is judged by texts: give SQuAD's JSON, or question, context and answers"
        )


QUESTION_ANSWERING = Task("question-answering", _judge(f1), losses=losses, diverge=span_divergence)
EXACT = Task("question-answering-exact", _judge(exact_match), losses=losses, diverge=span_divergence)
