"""Runtimes in a process of their own, and what becomes of kernels that end it."""

from __future__ import annotations

import json
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Timer
from typing import Any

import numpy as np

from ...errors import BitsectError
from ...files import first_line
from ...names import python_command

Array = np.ndarray[Any, Any]
LONGEST_RUN = 1200  # seconds for one batch or one answer; a file may loop for ever
PROGRAM = "from bitsect.exporters.runtimes.child import main; main()"
ADVICE = (
    "a virtual machine may hide units that the processor announces: set "
    "ONEDNN_MAX_CPU_ISA=AVX512_CORE_FP16 in the environment and try again"
)


class RuntimeDiedError(BitsectError):
    """The process in which a model ran is gone."""


@dataclass(frozen=True)
class Model:
    """A written model and the inputs that it is to run on."""

    name: str
    path: Path
    feed: Path  # .npz
    engine: str | None = None  # where it runs, if not as the others do

    def to_json(self) -> dict[str, Any]:
        return {"name": self.name, "path": str(self.path), "feed": str(self.feed), "engine": self.engine}


@dataclass(frozen=True)
class Times:
    """Milliseconds of the runs of one model: the least of every visit, and its mean with all waiting."""

    least: tuple[float, ...]
    mean: tuple[float, ...]


@dataclass(frozen=True)
class Fault:
    """Why a model does not run here."""

    why: str


class Apart:
    """A runtime in a process of its own, which is started when it is needed and again when it died."""

    def __init__(self, engine: str) -> None:
        self.engine, self._process = engine, None
        self.version = ""

    def __enter__(self) -> Apart:
        self._started()
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    pipe.close()
            process.terminate()
            process.wait()

    _process: subprocess.Popen[str] | None

    def _started(self) -> subprocess.Popen[str]:
        if self._process is None:
            with tempfile.TemporaryFile() as nowhere:
                self._process = subprocess.Popen(
                    python_command(PROGRAM),
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=nowhere,
                    text=True,
                    encoding="utf-8",
                )
            (about,) = self._ask(self._process, {"do": "engine"})
            self.version = str(about["version"])
        return self._process

    def ask(self, request: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """The lines that answer `request`; a DiedError where the process ended instead."""
        return self._ask(self._started(), request)

    def _ask(self, process: subprocess.Popen[str], request: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(json.dumps({"engine": self.engine, **request}) + "\n")
            process.stdin.flush()
        except OSError:  # it died before: its end is told below
            pass
        overdue = False

        def end() -> None:
            nonlocal overdue
            overdue = True
            process.kill()

        while True:
            watch = Timer(LONGEST_RUN, end)
            watch.daemon = True
            watch.start()
            try:
                line = process.stdout.readline()
            finally:
                watch.cancel()
            if not line:
                break
            answer = json.loads(line)
            if "done" in answer:
                return
            if "error" in answer:
                raise BitsectError(f"{self.engine}: {answer['error'][:300]}")
            yield answer
        self._process = None
        code = process.wait()
        if overdue:
            raise RuntimeDiedError(f"no answer in {LONGEST_RUN:,} seconds: a loop without end?")
        raise RuntimeDiedError(_end_of(code))

    def time(
        self,
        models: Sequence[Model],
        *,
        threads: int = 1,
        visits: int = 5,
        visit_seconds: float = 0.004,
    ) -> dict[str, Times | Fault]:
        """How long each model takes, all in turns; a Fault for those that do not run here.

        A model that ends the process is left out, and the others are timed in a new one.
        """
        found: dict[str, Times | Fault] = {}
        left = {model.name: model for model in models}
        while left:
            begun = None
            request = {
                "do": "time",
                "models": [model.to_json() for model in left.values()],
                "threads": threads,
                "visits": visits,
                "visit_seconds": visit_seconds,
            }
            try:
                for answer in self.ask(request):
                    begun = answer.get("began", begun)
                    if answer.get("ran") == begun:
                        begun = None
                    if "failed" in answer:
                        found[answer["failed"]] = Fault(first_line(Exception(answer["why"])))
                        begun = None
                    if "timed" in answer:
                        found[answer["timed"]] = Times(tuple(answer["least"]), tuple(answer["mean"]))
                return found
            except RuntimeDiedError as error:
                fault = Fault(str(error))
                # A kernel that dies does so at its first run; else nobody knows which one it was.
                for name in [begun] if begun is not None else list(left):
                    found[name] = fault
                left = {name: model for name, model in left.items() if name not in found}
        return found


def _end_of(code: int) -> str:
    if code >= 0:
        return f"the process ended with code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    return f"its kernel ended the process with {name}" + (f": {ADVICE}" if name == "SIGILL" else "")
