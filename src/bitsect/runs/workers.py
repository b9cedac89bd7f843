"""Workers: several processes, or those of a cluster, that do the pieces of a run's work.

Which worker does a piece changes no bit of it: each has the run's own batch size and threads, and sums are
made of the pieces in their fixed order. Only the process that asks writes to the run folder.

A worker that dies is replaced, and its piece done again; a piece that ends workers three times is named and
ends the run, with all that was finished kept.
"""

from __future__ import annotations

import pickle
import queue
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from ..errors import BitsectError, OptionError, RunError
from ..measure.work import Pieces, Work
from ..network.program import Program
from ..values.pieces import Piece
from .packing import pack_program
from .worker import Desk, about_here, computed

MOST_DEATHS = 3  # of workers, over one piece or before their first one


class DiedError(BitsectError):
    """The worker at the other end is gone."""


class Line(Protocol):
    """A worker at the other end."""

    def ask(self, verb: str, *arguments: Any) -> Any:
        """Its answer; what goes wrong there is raised here, and a DiedError where it ended instead."""

    def close(self) -> None:
        """End it at once."""


class WorkerSite(Protocol):
    """Where workers live."""

    size: int  # how many there are to be

    def hire(self) -> Line:
        """A new worker, which may still be on its way."""

    def put(self, value: Any) -> Callable[[], Any]:
        """A function that travels, and gives `value` to every worker without a copy for each."""

    def close(self) -> None: ...


@dataclass(frozen=True, eq=False)
class _Job:
    desk: int
    order: bytes
    name: str


@dataclass(frozen=True)
class _Outcome:
    """What became of a job: a piece, an error, or the end of the worker."""

    piece: Piece | None = None
    error: BaseException | None = None
    died: str | None = None


class _Hand:
    """A worker as the run sees it: a thread asks it one thing after the other and tells what came of it."""

    def __init__(self, line: Line, crew: Workers) -> None:
        self.line, self.crew, self.started = line, crew, False
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._known: set[int] = set()  # desks that it has opened
        threading.Thread(target=self._talk, daemon=True).start()

    def give(self, job: _Job) -> None:
        self._jobs.put(job)

    def close(self) -> None:
        self._jobs.put(None)
        self.line.close()

    def _talk(self) -> None:
        while (job := self._jobs.get()) is not None:
            outcome = self._done(job)
            self.crew.outcomes.put((self, job, outcome))
            if outcome.died is not None:
                return

    def _done(self, job: _Job) -> _Outcome:
        try:
            if not self.started:
                self.line.ask("start", self.crew.threads)
                self.started = True
            if job.desk not in self._known:
                found = self.line.ask("open", job.desk, self.crew.desks[job.desk])
                if found != self.crew.expected:
                    raise RunError(
                        "a worker does not compute what this process does, bit by bit: workers need the same "
                        f"versions and kind of processor, here {', '.join(about_here())}"
                    )
                self._known.add(job.desk)
            return _Outcome(piece=self.line.ask("do", job.desk, job.order, job.name))
        except DiedError as error:
            return _Outcome(died=str(error))
        except BaseException as error:  # raised again by the thread that waits for the piece
            return _Outcome(error=error)


@dataclass
class Workers:
    """The workers of a run; each knows the program and the desks that it was asked to work at."""

    site: WorkerSite
    threads: int
    program: Program | None = None
    desks: list[Desk] = field(default_factory=list, init=False)
    outcomes: queue.SimpleQueue[tuple[_Hand, _Job, _Outcome]] = field(init=False)
    expected: str = field(default="", init=False)  # what the program computes of its example
    _hands: list[_Hand] = field(default_factory=list, init=False)
    _busy: dict[_Hand, _Job] = field(default_factory=dict, init=False)
    _put: dict[int, tuple[Any, Callable[[], Any]]] = field(default_factory=dict, init=False)
    _homes: dict[int, dict[str, _Hand]] = field(default_factory=dict, init=False)
    _dead_before_work: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self.outcomes = queue.SimpleQueue()

    @property
    def size(self) -> int:
        return self.site.size

    def of(self, program: Program) -> Workers:
        """These workers, once it is known what they work on."""
        if program.device.type != "cpu":
            raise OptionError(
                f"workers share processors, and the network is on {program.device}: leave [workers=] out"
            )
        self.program = program
        return self

    def begin(self) -> None:
        """Let workers come: what they load takes seconds."""
        while len(self._hands) < self.size:
            self._hands.append(_Hand(self.site.hire(), self))

    def close(self) -> None:
        """End all of them at once."""
        for hand in self._hands:
            hand.close()
        self._hands, self._busy = [], {}
        self.site.close()

    def put(self, value: Any) -> Callable[[], Any]:
        """Where workers find `value`; put there once."""
        if id(value) not in self._put:
            packed = pack_program(value) if isinstance(value, Program) else value
            self._put[id(value)] = value, self.site.put(packed)
        return self._put[id(value)][1]

    def at(self, make_desk: Callable[[], Desk]) -> AtDesk:
        """The crew at a desk, which is made once it is needed."""
        return AtDesk(self, make_desk)

    def opened(self, desk: Desk) -> int:
        """The number of a new desk."""
        _check_travels(desk)
        if not self.expected:
            assert self.program is not None
            self.expected = computed(self.program)
        self.desks.append(desk)
        return len(self.desks) - 1

    def do(self, desk: int, work: Work, names: Sequence[str], *, in_order: bool) -> Pieces:
        """The pieces `names`, as they are done; in order, there are as many ahead as there are workers."""
        self.begin()
        order = _that_travels(work)
        ahead = self.size if in_order else None
        # Batches of plans stay where they were judged before: there the float outputs are at hand.
        waiting = _Waiting(names, work.group, ahead, self._homes.setdefault(desk, {}) if in_order else {})
        mine: set[_Job] = set()
        deaths: Counter[str] = Counter()
        found: dict[str, Piece] = {}
        given = 0
        while given < len(names):
            self._share_out(waiting, lambda name: _Job(desk, order, name), mine)
            hand, job, outcome = self.outcomes.get()
            is_mine = job in mine  # else of one who asked before, and did not wait for it
            self._busy.pop(hand, None)
            if outcome.died is not None:
                self._replace(hand, outcome.died)
                if is_mine:
                    deaths[job.name] += 1
                    if deaths[job.name] == MOST_DEATHS:
                        if not in_order:
                            yield from self._finished(mine)
                        raise _deadly(job.name, work, outcome.died)
                    waiting.back(job.name)
            elif is_mine and outcome.error is not None:
                raise outcome.error
            elif is_mine:
                assert outcome.piece is not None
                found[job.name] = outcome.piece
                self._dead_before_work = 0
            for name in waiting.ready(found):
                given += 1
                yield name, found.pop(name)

    def _share_out(self, waiting: _Waiting, job: Callable[[str], _Job], mine: set[_Job]) -> None:
        for hand in self._hands:
            if hand not in self._busy and (name := waiting.take(hand)) is not None:
                self._busy[hand] = given = job(name)
                mine.add(given)
                hand.give(given)

    def _replace(self, hand: _Hand, why: str) -> None:
        hand.close()
        if not hand.started:
            self._dead_before_work += 1
            if self._dead_before_work >= MOST_DEATHS:
                raise RunError(f"workers end before they do anything ({why}): leave [workers=] out")
        self._hands[self._hands.index(hand)] = _Hand(self.site.hire(), self)

    def _finished(self, mine: set[_Job]) -> Pieces:
        """What others have begun when the run must end, as far as it comes to an end."""
        while mine & set(self._busy.values()):
            hand, job, outcome = self.outcomes.get()
            del self._busy[hand]
            if outcome.died is not None:
                self._replace(hand, outcome.died)
            elif job in mine and outcome.piece is not None:
                yield job.name, outcome.piece


@dataclass
class AtDesk:
    """The workers of a run at one desk: what does the pieces of an evaluator's work."""

    workers: Workers
    make_desk: Callable[[], Desk]
    _number: int | None = field(default=None, init=False)

    def do(self, work: Work, names: Sequence[str], *, in_order: bool) -> Pieces:
        if self._number is None:
            self._number = self.workers.opened(self.make_desk())
        return self.workers.do(self._number, work, names, in_order=in_order)


class _Waiting:
    """Pieces that nobody has begun, and who takes which.

    Pieces of one group share what was computed, so a worker stays with its groups; without any of its own it
    takes one that nobody has, then helps where most is left.
    """

    def __init__(
        self,
        names: Sequence[str],
        group: Callable[[str], str],
        ahead: int | None,
        homes: dict[str, _Hand],
    ) -> None:
        self.homes, self._ahead = homes, ahead
        self._names, self._next = list(names), 0  # the first that was not handed on
        self._place = {name: place for place, name in enumerate(names)}
        self._left: dict[str, deque[str]] = {}
        self._suspects: deque[str] = deque()  # whoever had them died: all else comes first
        for name in names:
            self._left.setdefault(group(name), deque()).append(name)

    def take(self, hand: _Hand) -> str | None:
        """A piece for `hand`, if there is one that may be begun."""
        groups = [group for group, names in self._left.items() if self._may_begin(names[0])]
        if not groups:
            return self._suspects.popleft() if self._suspects else None
        own = [group for group in groups if self.homes.get(group) is hand]
        free = [group for group in groups if group not in self.homes]
        group = (own or free or [max(groups, key=lambda each: len(self._left[each]))])[0]
        self.homes.setdefault(group, hand)
        name = self._left[group].popleft()
        if not self._left[group]:
            del self._left[group]
        return name

    def _may_begin(self, name: str) -> bool:
        return self._ahead is None or self._place[name] < self._next + self._ahead

    def back(self, name: str) -> None:
        """`name` waits again: whoever had it is gone."""
        self._suspects.append(name)

    def ready(self, found: dict[str, Piece]) -> Iterable[str]:
        """The names that can be handed on: all, or those that are next."""
        if self._ahead is None:
            yield from list(found)
            return
        while self._next < len(self._names) and self._names[self._next] in found:
            self._next += 1
            yield self._names[self._next - 1]


def _deadly(name: str, work: Work, why: str) -> RunError:
    what = getattr(work.order.make, "__name__", "work") if work.order else "work"
    return RunError(
        f"piece '{name}' of {what.replace('_', ' ')} ended {MOST_DEATHS} workers ({why}); what was finished "
        "is kept: go on with fewer [workers=], or make a run of smaller [batch_size=]"
    )


def _check_travels(desk: Desk) -> None:
    """Refuse a task that a worker could not import."""
    try:
        found = b"__main__" not in pickle.dumps(desk.task)
    except Exception:  # what cannot be pickled says so in many ways
        found = False
    if not found:
        raise OptionError(
            f"task '{desk.task.name}' is a function that workers cannot import: put it into a module and "
            "name it as [task=package.module:function], or leave [workers=] out"
        )


def _that_travels(work: Work) -> bytes:
    assert work.order is not None
    try:
        return pickle.dumps(work.order, protocol=pickle.HIGHEST_PROTOCOL)
    except Exception as error:  # what cannot be pickled says so in many ways
        raise OptionError(f"this work cannot be given to workers ({error}): leave [workers=] out") from None
