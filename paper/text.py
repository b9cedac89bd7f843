"""Rows as text: CSV for programs, Markdown for people."""

from __future__ import annotations

import csv
import io
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from bitsect import BitsectError


def csv_text(rows: Sequence[Mapping[str, Any]]) -> str:
    """`rows` as CSV with a column for every name; what a row lacks is left empty."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    text = io.StringIO()
    writer = csv.DictWriter(text, names, restval="", lineterminator="\n")
    writer.writeheader()
    for row in rows:
        writer.writerow({k: f"{v:.6g}" if isinstance(v, float) else v for k, v in row.items()})
    return text.getvalue()


def markdown_table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table of Markdown; what a cell holds stays text, whatever is in it.

    >>> print(markdown_table(["layer", "bits"], [["a|b", "8"]]))
    | layer | bits |
    |---|---|
    | a\\|b | 8 |
    """
    lines = [heads, *rows]
    shown = ["| " + " | ".join(map(plain, cells)) + " |" for cells in lines]
    return "\n".join([shown[0], "|---" * len(heads) + "|", *shown[1:]])


def plain(text: str) -> str:
    """`text` as Markdown that shows it: what would mark it up is escaped, and it stays on one line."""
    return re.sub(r"([\\`*_\[\]|<>])", r"\\\1", " ".join(text.split()))


def write_whole(path: Path, data: bytes) -> None:
    """Write `data` to `path`, whole or not at all."""
    beside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        beside.write_bytes(data)
        beside.replace(path)
    except OSError as error:
        beside.unlink(missing_ok=True)
        raise BitsectError(f"{path} cannot be written: {error.strerror or error}") from None
