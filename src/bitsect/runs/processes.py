"""Workers in processes of their own on this machine."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from ..errors import OptionError
from ..names import python_command
from .packing import Shelf
from .worker import receive, send
from .workers import DiedError

# Nothing of the caller's own script is run again in a worker, whether or not it is guarded by
# `if __name__ == "__main__"`: a worker is another program.
PROGRAM = "from bitsect.runs.worker import main; main()"


class Processes:
    """`size` processes, which share weights and samples in a file that they map into their memory."""

    def __init__(self, size: int, threads: int, shelf: Path) -> None:
        self.size, self.threads = size, threads
        self._shelf = Shelf(shelf)

    def hire(self) -> Process:
        return Process(self.threads)

    def put(self, value: Any) -> Callable[[], Any]:
        try:
            return self._shelf.put(value)
        except OSError as error:
            raise OptionError(
                f"weights and samples cannot be shared with workers ({error}): leave [workers=] out"
            ) from None

    def close(self) -> None:
        self._shelf.close()


class Process:
    """A worker at the other end of two pipes; it ends when they are closed, whatever closes them."""

    def __init__(self, threads: int) -> None:
        env = {
            **os.environ,
            "OMP_NUM_THREADS": str(threads),
            "OMP_WAIT_POLICY": os.environ.get("OMP_WAIT_POLICY", "passive"),
        }
        self._said = tempfile.TemporaryFile()  # noqa: SIM115, for its end is that of this object
        self._process = subprocess.Popen(
            python_command(PROGRAM),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._said,
            env=env,
            # Ctrl-C is for the process that asks: it ends this one.
            start_new_session=os.name == "posix",
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    def ask(self, verb: str, *arguments: Any) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            send(self._process.stdin, (verb, arguments))
            right, answer = receive(self._process.stdout)
        except (EOFError, OSError, ValueError):  # of pipes that are closed, here or there
            raise DiedError(self._end()) from None
        if not right:
            raise answer
        return answer

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with suppress(OSError):  # what was left in it has nowhere to go
                    pipe.close()

    def _end(self) -> str:
        """How it ended, and the last that it said."""
        try:
            code = self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            return "it answers no more"
        end = f"with code {code}"
        if code < 0:
            names = {number.value: number.name for number in signal.Signals}
            end = f"by {names.get(-code, f'signal {-code}')}"
            end += ", as by a system that is out of memory" if code == -signal.SIGKILL else ""
        self._said.seek(0)
        lines = self._said.read()[-2000:].decode(errors="replace").split("\n")
        last = next((line.strip() for line in reversed(lines) if line.strip()), "")
        return f"a process ended {end}" + (f", saying {last[:200]}" if last and code >= 0 else "")
