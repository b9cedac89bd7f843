"""Measurements as independent pieces of work."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from ..values.pieces import Done, Piece

Progress = Callable[[int], None]


def silent(count: int) -> None:
    """Progress that nobody watches."""


@dataclass(frozen=True)
class Work:
    """The pieces of a measurement by name, and how one of them is done.

    Pieces do not depend on each other, so that any worker can do any of them. Done in order, they share
    what they have in common, such as the float pass of a batch.
    """

    pieces: tuple[str, ...]
    do: Callable[[str], Piece]


def fill(done: Done, work: Work, progress: Progress = silent) -> Iterable[Piece]:
    """All pieces, in order; those that are not in `done` yet are done now and kept there."""
    for name in work.pieces:
        if name not in done:
            done[name] = work.do(name)
        progress(1)
    return (done[name] for name in work.pieces)
