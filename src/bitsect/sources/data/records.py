"""Rows of named columns from files that people write: CSV, TSV, JSON lines, SQuAD, plain text."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...errors import DataError, MissingExtraError
from ...files import first_line, parse_json, reading
from ..room import Room

LARGEST_BYTES = 2**31  # of a file that is read whole
AS_OBJECTS = 4  # times its size is what rows of texts take at least
DATASETS = "datasets:"


@dataclass(frozen=True)
class Records:
    """Rows as they were read, and what messages call each: `line 7`."""

    title: str
    rows: list[dict[str, Any]]
    places: list[str]
    whole: bool = False  # one running text, to be cut into pieces, rather than a text for each sample

    def __post_init__(self) -> None:
        if not self.rows:
            raise DataError(f"{self.title}: holds no samples: give at least one")

    @property
    def columns(self) -> list[str]:
        return list(self.rows[0])

    def name(self, index: int) -> str:
        return f"{self.title}: {self.places[index]}"


def read_records(path: Path, name: str, room: Room) -> Records:
    """The rows of a file, by the ending of its name."""
    with reading(name, DataError, what="file of texts"):
        if path.stat().st_size > LARGEST_BYTES:
            raise DataError(f"{name}: larger than {LARGEST_BYTES // 2**30} GB: give a part of it")
        room.check(name, AS_OBJECTS * path.stat().st_size)
        return READERS[path.suffix.lower()](_decoded(path, name), name)


def _decoded(path: Path, name: str) -> str:
    data = path.read_bytes()
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise DataError(
            f"{name}: line {line}: byte {data[error.start]:#x} is no UTF-8: store it as UTF-8"
        ) from None


def _read_csv(text: str, name: str) -> Records:
    return _table(csv.reader(_lines(text), strict=True), name)


def _read_tsv(text: str, name: str) -> Records:
    # Tabs part columns, and quotation marks are part of the text.
    return _table(csv.reader(_lines(text), delimiter="\t", quoting=csv.QUOTE_NONE), name)


def _lines(text: str) -> Iterator[str]:
    """The lines of a file; `str.splitlines` would also break a text at its separators of paragraphs."""
    return io.StringIO(text, newline="")


def _table(reader: Any, name: str) -> Records:
    """The rows below a header; each has as many fields as that."""
    rows: list[dict[str, Any]] = []
    places: list[str] = []
    header: list[str] | None = None
    shortest = csv.field_size_limit(LARGEST_BYTES - 1)  # of a text, which may be a book
    try:
        for fields in reader:
            if not fields:
                continue
            if header is None:
                header = [field.strip() for field in fields]
                if len(set(header)) < len(header) or not all(header):
                    raise DataError(f"{name}: line 1: a header of different names is expected, not {fields}")
                continue
            if len(fields) != len(header):
                raise DataError(
                    f"{name}: line {reader.line_num}: {len(fields)} columns, where the header has "
                    f"{len(header)}: mend this line"
                )
            rows.append(dict(zip(header, fields, strict=True)))
            places.append(f"line {reader.line_num}")
    except csv.Error as error:
        raise DataError(f"{name}: line {reader.line_num}: {error}: mend this line") from None
    finally:
        csv.field_size_limit(shortest)
    return Records(name, rows, places)


def _read_jsonl(text: str, name: str) -> Records:
    rows: list[dict[str, Any]] = []
    places: list[str] = []
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            row = parse_json(line)
        except (ValueError, RecursionError) as error:
            why = error.msg if isinstance(error, json.JSONDecodeError) else first_line(error)
            raise DataError(f"{name}: line {number}: not JSON: {why}: mend this line") from None
        if not isinstance(row, dict):
            raise DataError(f"{name}: line {number}: a {type(row).__name__}, not an object: mend this line")
        rows.append(row)
        places.append(f"line {number}")
    return _alike(Records(name, rows, places))


def _read_json(text: str, name: str) -> Records:
    """SQuAD's own form, or a list of objects."""
    try:
        data = parse_json(text)
    except json.JSONDecodeError as error:
        raise DataError(f"{name}: line {error.lineno}: not JSON: {error.msg}: mend this line") from None
    except ValueError as error:
        raise DataError(f"{name}: {first_line(error)}") from None
    if isinstance(data, list) and all(isinstance(row, dict) for row in data):
        return _alike(Records(name, data, [f"entry {number}" for number in range(len(data))]))
    if not isinstance(data, dict) or not isinstance(data.get("data"), list):
        raise DataError(f"{name}: neither SQuAD (an object with 'data') nor a list of objects")
    found = list(_questions(data["data"], name))
    return Records(name, [row for row, _ in found], [place for _, place in found])


def _questions(articles: list[Any], name: str) -> Iterator[tuple[dict[str, Any], str]]:
    """Every question with its context and answers; `impossible` where SQuAD 2 says so."""
    for number, article in enumerate(articles):
        place = f"article {number}"
        try:
            for paragraph in article["paragraphs"]:
                for question in paragraph["qas"]:
                    place = f"question {question.get('id', question['question'][:40])}"
                    answers = [
                        {"text": str(answer["text"]), "start": int(answer["answer_start"])}
                        for answer in question.get("answers", ())
                    ]
                    yield (
                        {
                            "question": str(question["question"]),
                            "context": str(paragraph["context"]),
                            "answers": answers,
                            "impossible": question.get("is_impossible"),
                            "title": str(article.get("title", number)),
                        },
                        place,
                    )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise DataError(f"{name}: {place}: not as SQuAD has it ({first_line(error)}): mend it") from None


def _read_text(text: str, name: str) -> Records:
    """One running text, line by line with their ends."""
    lines = list(_lines(text))
    if not text.strip():
        raise DataError(f"{name}: holds no text: give some")
    return Records(
        name, [{"text": line} for line in lines], [f"line {i}" for i in range(1, len(lines) + 1)], whole=True
    )


READERS: dict[str, Callable[[str, str], Records]] = {
    ".csv": _read_csv,
    ".tsv": _read_tsv,
    ".jsonl": _read_jsonl,
    ".json": _read_json,
    ".txt": _read_text,
}


def read_dataset(spec: str) -> Records:
    """The rows of a dataset that the package `datasets` knows: `datasets:NAME[#CONFIG][@SPLIT]`."""
    name, _, split = spec.removeprefix(DATASETS).partition("@")
    name, _, config = name.partition("#")
    try:
        import datasets
    except ImportError:
        raise MissingExtraError("datasets", "hf", spec) from None
    with reading(
        spec, DataError, what="dataset", way_out="give datasets:FOLDER or datasets:NAME#CONFIG@SPLIT"
    ):
        datasets.disable_progress_bars()
        folder = Path(name).expanduser()
        if (folder / "state.json").is_file() or (folder / "dataset_dict.json").is_file():
            found = datasets.load_from_disk(str(folder))
        else:
            found = datasets.load_dataset(str(folder) if folder.exists() else name, config or None)
        if hasattr(found, "keys"):  # several splits
            splits = list(found)
            if not split and len(splits) > 1:
                raise DataError(f"{spec}: has the splits {', '.join(splits)}: choose one, {spec}@{splits[0]}")
            if split and split not in splits:
                raise DataError(f"{spec}: has no split '{split}', only {', '.join(splits)}")
            found = found[split or splits[0]]
        return dataset_records(found, spec)


def dataset_records(dataset: Any, title: str = "data") -> Records:
    """The rows of a `datasets.Dataset`."""
    rows = [dict(row) for row in dataset.with_format(None)]
    return Records(title, rows, [f"row {number}" for number in range(len(rows))])


def listed_records(rows: Iterable[Mapping[str, Any]], title: str = "data") -> Records:
    """Rows that were given in Python."""
    listed = [dict(row) for row in rows]
    return _alike(Records(title, listed, [f"row {number}" for number in range(len(listed))]))


def _alike(records: Records) -> Records:
    """Refuse a row that has other columns than the first."""
    wanted = records.rows[0].keys()
    for index, row in enumerate(records.rows):
        if row.keys() != wanted:
            missing = sorted(wanted - row.keys())
            why = f"has no '{missing[0]}'" if missing else f"has a '{sorted(row.keys() - wanted)[0]}' too"
            raise DataError(f"{records.name(index)} {why}, unlike the first: mend it")
    return records
