"""Measurements as independent pieces of work, done here or by workers elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import wraps
from typing import Any, Protocol

from ..values.pieces import Done, Piece

Progress = Callable[[int], None]
Pieces = Generator[tuple[str, Piece], None, None]


def silent(count: int) -> None:
    """Progress that nobody watches."""


@dataclass(frozen=True)
class Work:
    """The pieces of a measurement by name, and how one of them is done.

    Pieces do not depend on each other, so that any worker can do any of them. Done in order, they share
    what they have in common, such as the float pass of a batch: those of one `group` do.
    """

    pieces: tuple[str, ...]
    do: Callable[[str], Piece]
    group: Callable[[str], str] = str
    order: Order | None = None  # how a worker makes this work for itself, if it can
    crew: Crew | None = None  # the workers, if there are any


@dataclass(frozen=True)
class Order:
    """A measurement in words that travel: made of the same things, it is the same work anywhere."""

    make: Callable[..., Work]
    of: Callable[[Any], Any]  # what it measures, made of a worker's own evaluator
    arguments: tuple[Any, ...]
    options: Mapping[str, Any]

    def work(self, evaluator: Any) -> Work:
        return self.make(self.of(evaluator), *self.arguments, **self.options)


class Crew(Protocol):
    """Workers that have opened what is measured."""

    def do(self, work: Work, names: Sequence[str], *, in_order: bool) -> Pieces:
        """The pieces `names` with their names, as they are done; in order, workers are a few pieces ahead."""


class Measurable(Protocol):
    """What is measured: an evaluator, or one with a number of samples."""

    @property
    def crew(self) -> Crew | None: ...

    @property
    def again(self) -> Callable[[Any], Any]:
        """A function that travels, and makes the same thing of a worker's own evaluator."""


def shared(make: Callable[..., Work]) -> Callable[..., Work]:
    """A decorator of functions that make a work, and that workers can call with the same arguments."""

    @wraps(make)
    def made(of: Measurable, *arguments: Any, **options: Any) -> Work:
        work = make(of, *arguments, **options)
        return replace(work, order=Order(made, of.again, arguments, options), crew=of.crew)

    return made


def fill(done: Done, work: Work, progress: Progress = silent) -> Iterable[Piece]:
    """All pieces, in order; those that are not in `done` yet are done now and kept there."""
    missing = [name for name in work.pieces if name not in done]
    progress(len(work.pieces) - len(missing))
    for name, piece in _pieces(work, missing, in_order=False):
        done[name] = piece
        progress(1)
    return (done[name] for name in work.pieces)


def in_order(work: Work, names: Sequence[str]) -> Generator[Piece, None, None]:
    """The pieces `names` one after the other, each when it is asked for; workers are a few pieces ahead.

    What they did beyond the last one that was asked for is forgotten: the same is known with workers
    and without.
    """
    with closing(_pieces(work, names, in_order=True)) as coming:
        for _, piece in coming:
            yield piece


def _pieces(work: Work, names: Sequence[str], *, in_order: bool) -> Pieces:
    if work.crew is not None and len(names) > 1:
        return work.crew.do(work, names, in_order=in_order)
    return ((name, work.do(name)) for name in names)
