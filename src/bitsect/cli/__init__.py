"""The command line: each command is made of a verb, called and printed."""

from __future__ import annotations

import atexit
import gc
import os
import signal
import sys
import threading
import traceback

from ..errors import BitsectError
from . import commands, recipe  # each adds its commands to the app
from .app import app

__all__ = ["app", "commands", "main", "recipe"]


class Ended(BaseException):
    """The system ends this process; no exit of a user's own code, which would be a fault there."""


def main() -> None:
    """Run a command; our own errors become one line on stderr and exit code 1.

    With --json an error is one JSON object on stdout too.
    """
    _leave_in_order()
    # Nothing that a library starts may take Python's own modules from the current folder.
    os.environ.setdefault("PYTHONSAFEPATH", "1")
    # Torch leaves a second's worth of objects that the end of the process frees at once anyway.
    atexit.register(gc.freeze)
    try:
        app(prog_name="bitsect")
    except BitsectError as error:
        _fail(error.as_command(), type(error).__name__)
    except Ended as ended:
        sys.exit(128 + ended.args[0])
    except OSError as error:
        _fail(f"{error.filename or 'input or output'}: {error.strerror or error}", type(error).__name__)


def _leave_in_order() -> None:
    """Let a command that the system ends leave as it does after Ctrl-C: without its temporary files."""
    if threading.current_thread() is not threading.main_thread():
        return

    def end(number: int, frame: object) -> None:
        raise Ended(number)

    for name in ("SIGTERM", "SIGHUP"):  # Windows has no SIGHUP, and nohup ignores it
        number = getattr(signal, name, None)
        if number is not None and signal.getsignal(number) == signal.SIG_DFL:
            signal.signal(number, end)


def _fail(message: str, kind: str) -> None:
    from .output import complain, print_json

    if {"-v", "--verbose"} & {*sys.argv}:
        traceback.print_exc()
    if "--json" in sys.argv:
        print_json({"error": {"kind": kind, "message": message}})
    complain(message)
    sys.exit(1)
