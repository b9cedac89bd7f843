"""The ledger: which searches had their plans proven on which samples, and what that leaves to the next.

Ten searches that may each err in 5 of 100 cases err together far more often. So the error of a promise is
spent over all searches on the same samples: the k-th may spend 6 / (π² k²) of it, which adds up to the
whole, and besides what the one before it did not lose. Only plans that are not proven cost a search a part
of what it has (the fallback procedure, for any number of questions). Samples are the same where any of them
are, whatever the seed, the file or the run. The ledger is kept in the run, where [fresh=True] leaves it,
and beside the run for all runs there.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from ..errors import BitsectError, RunError
from .disk import json_text, lock, open_file, read_json_object, reading, write_text

OWN, SHARED, LOCK = "ledger.json", ".bitsect-ledger.json", ".bitsect-ledger.lock"
SKETCH = 128  # digests that a set of samples is known by: its least ones
WAIT_SECONDS = 30.0  # for others who write in the ledger, which takes them no time
WAY_OUT = "move it away only if no plan was ever proven on these samples"
ORDINALS = ("first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth", "tenth")


@dataclass(frozen=True)
class Search:
    """One search, whatever the targets, and its part of what promises may err."""

    key: str  # of everything that was asked but the target
    number: int  # among the searches on these samples
    share: float  # of the level
    samples: tuple[str, ...]  # the least of their digests
    left: float | None = None  # of its share, for the next search; None before it ended


def share(number: int) -> float:
    """The part of the level that is set aside for the search of this number: 6 / (π² k²).

    >>> [round(share(number), 3) for number in (1, 2, 3)]
    [0.608, 0.152, 0.068]
    """
    return 6 / (math.pi * number) ** 2


def in_words(number: int) -> str:
    """What a search of this number is called.

    >>> in_words(3), in_words(12)
    ('third search on these samples', 'search 12 on these samples')
    """
    if number > len(ORDINALS):
        return f"search {number:,} on these samples"
    return f"{ORDINALS[number - 1]} search on these samples"


class Ledger:
    """The ledger of the run in `folder` and of the runs beside it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def enter(self, key: str, digests: Iterable[bytes]) -> Search:
        """The entry of the search with this `key` on samples with these `digests`; made at its first look."""
        known = {digest.hex()[:16] for digest in digests}
        with self._alone():
            searches = self._read()
            before = [each for each in searches if not known.isdisjoint(each.samples)]
            for each in before:
                if each.key == key:
                    self._write(searches)  # both files know of it from now on
                    return each
            number, handed_on = 1, 0.0
            if before:
                last = max(before, key=lambda each: each.number)
                number, handed_on = last.number + 1, last.left or 0.0
            search = Search(key, number, share(number) + handed_on, tuple(sorted(known)[:SKETCH]))
            self._write([*searches, search])
        return search

    def close(self, search: Search, left: float) -> None:
        """Write down what is `left` of the share of a search, after its looks for one target or another."""
        with self._alone():
            self._write(_merged([*self._read(), replace(search, left=left)]))

    @property
    def _files(self) -> tuple[Path, Path]:
        return self.folder / OWN, self.folder.parent / SHARED

    def _read(self) -> list[Search]:
        """The searches that either file knows of."""
        found = []
        for path in self._files:
            with reading(path, WAY_OUT):
                entries = (read_json_object(path, WAY_OUT) or {}).get("searches", [])
                found += [_search(entry) for entry in entries]
        return _merged(found)

    def _write(self, searches: list[Search]) -> None:
        own, shared = self._files
        text = json_text({"bitsect": "ledger", "searches": [asdict(each) for each in searches]})
        if not shared.exists() or shared.read_text() != text:
            with suppress(BitsectError):  # where nobody may write beside this run, its own ledger has to do
                write_text(shared, text)
        write_text(own, text)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Keep others out for a moment; the system lets them in again if we are killed."""
        try:
            held = open_file(self.folder.parent / LOCK, "ab")
        except RunError:
            yield
            return
        with held:
            end = time.monotonic() + WAIT_SECONDS
            while not lock(held):
                if time.monotonic() > end:
                    raise RunError(f"{self.folder.parent / LOCK} is held by another bitsect: try again later")
                time.sleep(0.02)
            yield


def _merged(searches: Iterable[Search]) -> list[Search]:
    """Each search once, with the least that anybody says is left of it."""
    found: dict[Any, Search] = {}
    for each in searches:
        of = each.number, each.key, each.samples
        left = [one.left for one in (each, found.get(of, each)) if one.left is not None]
        found[of] = replace(each, left=min(left, default=None))
    return [found[of] for of in sorted(found)]


def _search(entry: Any) -> Search:
    left, share = entry["left"], min(1.0, max(0.0, float(entry["share"])))
    return Search(
        str(entry["key"]),
        int(entry["number"]),
        share,
        tuple(map(str, entry["samples"])),
        None if left is None else min(share, max(0.0, float(left))),
    )
