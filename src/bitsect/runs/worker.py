"""A worker: it opens what a run works with once, then does one piece after the other.

The same object serves in a process of this machine (`main`) and on a cluster (`runs/ray.py`). It writes
nothing: what it finds goes back to the process that asked, which alone keeps it.
"""

from __future__ import annotations

import hashlib
import os
import pickle
import platform
import queue
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import IO, Any

import torch
import torch.utils._pytree as pytree
from torch import Tensor

from .. import __version__
from ..errors import BitsectError
from ..measure.evaluator import Evaluator
from ..measure.prefixes import Prefixes
from ..measure.work import Order, Work
from ..network.program import Program
from ..rounding.fitting import Fitter
from ..rounding.rounder import Rounder
from ..sources.data import Samples
from ..sources.tasks.task import Task
from ..values import Format, Ranges, placement_named
from ..values.pieces import Piece
from .memory import keep_freed_memory
from .packing import unpack_program

OPEN_DESKS = 3  # evaluators that a worker holds at once, each with its rounded weights


@dataclass(frozen=True)
class Desk:
    """What a worker needs to judge and measure as a run does."""

    program: Callable[[], Any]  # where it lies, as a PackedProgram
    samples: Callable[[], Samples]
    task: Task
    batch_size: int
    labels: Tensor | None  # where the samples have none: the float network's own answers
    placement: str
    rounding: str
    ranges: Ranges | None  # without them, the float network alone is judged
    fitted: Callable[[], Mapping[str, Piece]]  # what was made of the weights by GPTQ
    formats: tuple[Format, ...]  # in which they were fitted
    room: float  # for what plans share, in bytes

    def evaluator(self, program: Program, samples: Samples) -> Evaluator:
        rounder = None
        if self.ranges is not None:
            rounder = Rounder(program, self.ranges, placement_named(self.placement), self.rounding)
            if self.formats:
                Fitter(rounder, samples, dict(self.fitted()), batch_size=self.batch_size)(self.formats)
        evaluator = Evaluator(program, rounder, samples, self.task, batch_size=self.batch_size)
        if self.labels is not None:
            vars(evaluator)["labels"] = self.labels
        return evaluator


class Worker:
    """What is open in a worker: programs and samples, the evaluators made of them, and the work at hand."""

    def __init__(self, threads: int) -> None:
        torch.set_num_threads(threads)
        keep_freed_memory()
        self._desks: dict[int, Desk] = {}
        self._opened: dict[Any, Any] = {}  # programs and samples, by where they lie
        self._evaluators: dict[int, Evaluator] = {}
        self._at_hand: tuple[int, bytes, Work] | None = None

    def open(self, number: int, desk: Desk) -> str:
        """Know `desk` by `number`; returns a fingerprint of what the program computes here."""
        self._desks[number] = desk
        return computed(self._program(desk))

    def do(self, number: int, order: bytes, name: str) -> Piece:
        """The piece `name` of the work that `order` describes, at the desk `number`."""
        if self._at_hand is None or self._at_hand[:2] != (number, order):
            self._at_hand = None  # so that what two of them hold is never held at once
            made: Order = pickle.loads(order)
            self._at_hand = number, order, made.work(self._evaluator(number))
        return self._at_hand[2].do(name)

    def _evaluator(self, number: int) -> Evaluator:
        found = self._evaluators.pop(number, None)
        if found is None:
            while len(self._evaluators) >= OPEN_DESKS:
                del self._evaluators[next(iter(self._evaluators))]
            desk = self._desks[number]
            samples = self._once(desk.samples, lambda: desk.samples())
            program = self._program(desk)
            found = desk.evaluator(program, samples)
            found.prefixes = self._once(("prefixes", desk.program), lambda: Prefixes(program, desk.room))
        self._evaluators[number] = found  # the last one used is the last to be dropped
        return found

    def _program(self, desk: Desk) -> Program:
        program: Program = self._once(desk.program, lambda: unpack_program(desk.program()))
        return program

    def _once(self, where: Any, make: Callable[[], Any]) -> Any:
        if where not in self._opened:
            self._opened[where] = make()
        return self._opened[where]


def computed(program: Program) -> str:
    """A fingerprint of what a program computes of its example here, and of what computes it."""
    digest = hashlib.sha256(" ".join(about_here()).encode())
    for leaf in pytree.tree_leaves(program.run(program.example)):
        if isinstance(leaf, Tensor):
            digest.update(leaf.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    digest.update(repr([layer.name for layer in program.layers]).encode())
    digest.update(repr(sorted(program.tensors)).encode())
    return digest.hexdigest()


def about_here() -> tuple[str, ...]:
    """What the bits of a result depend on, besides the run's own settings."""
    capability = torch.backends.cpu.get_cpu_capability()
    return f"bitsect {__version__}", f"torch {torch.__version__}", capability, platform.machine()


# Messages: a length of eight bytes, then a pickle.


def send(file: IO[bytes], message: Any) -> None:
    data = pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)
    file.write(len(data).to_bytes(8, "little") + data)
    file.flush()


def receive(file: IO[bytes]) -> Any:
    """The next message; an EOFError where the other side is gone."""
    size = file.read(8)
    data = file.read(int.from_bytes(size, "little")) if len(size) == 8 else b""
    if not data:
        raise EOFError
    return pickle.loads(data)


def that_travels(error: BaseException) -> BaseException:
    """`error` as another process can raise it again."""
    if not isinstance(error, BitsectError):
        error.add_note("".join(traceback.format_exception(error)))
    try:
        again = pickle.loads(pickle.dumps(error))
        if type(again) is type(error) and again.args == error.args:
            return error
    except Exception:  # an exception of a user's own may not survive it in any way
        pass
    if isinstance(error, BitsectError):
        return BitsectError(error.message)
    return RuntimeError(f"{type(error).__name__}: {error}\n{traceback.format_exc()}")


def main() -> None:
    """Answer the requests on stdin, one line of work at a time, until whoever asks is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C ends the process that asks, and that ends this one
    # What is printed by a user's own code must not come between the answers.
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    requests: queue.SimpleQueue[tuple[str, tuple[Any, ...]]] = queue.SimpleQueue()

    def listen() -> None:
        try:
            while True:
                requests.put(receive(sys.stdin.buffer))
        except (EOFError, OSError):
            os._exit(0)  # even in the middle of a piece: nobody waits for it any more

    threading.Thread(target=listen, daemon=True).start()
    worker: Worker | None = None
    while True:
        verb, arguments = requests.get()
        try:
            if verb == "start":
                worker, answer = Worker(*arguments), None
            else:
                answer = getattr(worker, verb)(*arguments)
            send(answers, (True, answer))
        except Exception as error:
            send(answers, (False, that_travels(error)))
