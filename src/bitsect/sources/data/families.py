"""Families: samples that may be wrong together, as frames of a film or questions about one article.

They are no independent evidence. So a family is searched on or held out as a whole, and what held-out
samples prove counts families.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable

import torch
from torch import Tensor

from ...errors import DataError, OptionError
from .folder import Folder
from .records import Records
from .samples import Source

PIECES = 4  # of a running text, next to each other, that are a family


def families_of_rows(records: Records, source: Source, column: str | None) -> Tensor | None:
    """The family of every sample by a `column` of its row; of running text, that of its neighbours."""
    if records.whole:
        return torch.arange(len(source)) // PIECES
    if column is None:
        return None
    if column not in records.columns:
        raise DataError(
            f"{records.title}: has no column '{column}' to group by, only {', '.join(records.columns)}"
        )
    found = _numbered(str(row[column]) for row in records.rows)
    return found if source.groups is None else found[source.groups]


def families_of_files(folder: Folder, pattern: str | None) -> Tensor | None:
    """The family of every image: what `pattern` finds in its path, or the first group in it."""
    if pattern is None:
        return None
    try:
        wanted = re.compile(pattern)
    except re.error as error:
        raise OptionError(f"group_by '{pattern}' is no regular expression: {error}") from None
    names = []
    for path in folder.paths:
        found = wanted.search(path.relative_to(folder.root).as_posix())
        if found is None:
            raise DataError(f"{path}: '{pattern}', to group by, is not found in its path: mend the pattern")
        names.append(found.groups() or found.group())
    return _numbered(names)


def _numbered(names: Iterable[Hashable]) -> Tensor:
    """A number for each name, by the order in which they appear."""
    known: dict[Hashable, int] = {}
    return torch.tensor([known.setdefault(name, len(known)) for name in names])
