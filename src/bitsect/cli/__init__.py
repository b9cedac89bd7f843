"""The command line: each command is one public call and a print."""

from __future__ import annotations

import sys

from ..errors import BitsectError
from . import evaluate, export, latency, layers, quantize, sensitivity  # each adds its commands to the app
from .app import app

__all__ = ["app", "evaluate", "export", "latency", "layers", "main", "quantize", "sensitivity"]

INTERRUPTED = 130  # what Typer makes of Ctrl-C


def main() -> None:
    """Run a command; our own errors become one line on stderr and exit code 1."""
    from .output import complain

    try:
        app(prog_name="bitsect")
    except BitsectError as error:
        complain(str(error))
        sys.exit(1)
    except OSError as error:
        complain(f"{error.filename or 'input or output'}: {error.strerror or error}")
        sys.exit(1)
    except SystemExit as end:
        if end.code == INTERRUPTED:
            complain("interrupted; the same command goes on from what its run folder holds")
        raise
