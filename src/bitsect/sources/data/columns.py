"""Which column of a table is the text, and which the label."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...errors import DataError, OptionError
from .records import Records

ROLES = ("text", "pair", "label", "question", "context", "answers", "tokens")
# What columns are called that nobody had to name: the first that a table has is taken.
USUAL = {
    "text": (
        "text",
        "sentence",
        "sentence1",
        "premise",
        "question1",
        "question",
        "content",
        "review",
        "query",
    ),
    "pair": ("sentence2", "hypothesis", "question2", "text2", "text_pair"),
    "label": ("label", "labels", "score", "similarity_score", "target", "tags", "ner_tags", "class", "stars"),
    "question": ("question",),
    "context": ("context",),
    "answers": ("answers", "answer"),
    "tokens": ("tokens", "words"),
}


@dataclass(frozen=True)
class NamedColumns:
    """The columns of a table by their role."""

    records: Records
    named: Mapping[str, str]

    @classmethod
    def of(cls, records: Records, columns: Sequence[str]) -> NamedColumns:
        """As `columns` says (`text=review`), else by their usual names."""
        named = dict(parse_columns(columns))
        for role, column in named.items():
            if column not in records.columns:
                raise DataError(
                    f"{records.title}: {records.places[0]}: has no column '{column}' for the {role}, "
                    f"only {', '.join(records.columns)}"
                )
        taken = set(named.values())
        for role, usual in USUAL.items():
            found = next((name for name in usual if name in records.columns and name not in taken), None)
            if role not in named and found is not None:
                named[role] = found
        return cls(records, named)

    def has(self, role: str) -> bool:
        return role in self.named

    def values(self, role: str, kind: type | tuple[type, ...] | None = None) -> list[Any]:
        """The values of a column; one of another `kind` is refused by its line."""
        if role not in self.named:
            raise DataError(
                f"{self.records.title}: which column is the {role}? It has "
                f"{', '.join(self.records.columns)}: pass [columns={role}=NAME]"
            )
        name = self.named[role]
        values = [row.get(name) for row in self.records.rows]
        for index, value in enumerate(values):
            if value is None or (kind is not None and not isinstance(value, kind)):
                shown = "is missing" if value is None else f"is a {type(value).__name__}"
                raise DataError(f"{self.records.name(index)}: '{name}', the {role}, {shown}: mend it")
        return values

    def texts(self, role: str) -> list[str]:
        found: list[str] = self.values(role, str)
        return found


def parse_columns(columns: Sequence[str]) -> list[tuple[str, str]]:
    """Roles and names from texts such as `text=review,label=stars`.

    >>> parse_columns(["text=review,label=stars"])
    [('text', 'review'), ('label', 'stars')]
    """
    found = []
    for part in (part for text in columns for part in text.split(",")):
        role, equals, name = (each.strip() for each in part.partition("="))
        if role not in ROLES or not equals or not name:
            raise OptionError(f"columns '{part}': expected ROLE=NAME, with a role of {', '.join(ROLES)}")
        found.append((role, name))
    return found
