"""How commands speak: results on stdout, everything else on stderr."""

from __future__ import annotations

import json
import math
import shlex
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from ..errors import in_command
from ..reports.terminal.lines import Aside, Wrapped
from ..reports.text import csv_text

stdout = Console(highlight=False)
stderr = Console(stderr=True, highlight=False)
errors = Console(stderr=True, highlight=False)  # which --quiet does not silence

INTERRUPTED = 130  # what a shell calls Ctrl-C


@contextmanager
def working(run: str | None = None) -> Iterator[None]:
    """Whatever a user's own code prints goes to stderr: stdout is for results.

    Interrupted, a command says whether the folder `run` holds what it has found so far.
    """
    try:
        with redirect_stdout(sys.stderr):
            yield
    except KeyboardInterrupt:
        if run is not None and Path(run, "run.json").is_file():
            complain(f"interrupted; {run} keeps what was found so far: go on with `{_same_command()}`")
        else:
            complain("interrupted; nothing is kept" + ("" if run else ": --out names a folder that keeps it"))
        raise SystemExit(INTERRUPTED) from None


def _same_command() -> str:
    """This command, to be given again: it must not start anew."""
    return shlex.join(["bitsect", *(word for word in sys.argv[1:] if word != "--fresh")])


def print_lines(lines: Iterable[Any]) -> None:
    """The lines of an answer, and on stderr what is said besides."""
    for line in lines:
        if isinstance(line, Aside):
            note(in_command(line))
        elif isinstance(line, str):
            stdout.print(in_command(line), markup=False, soft_wrap=True)
        else:
            stdout.print(line, soft_wrap=not isinstance(line, Wrapped | Table))


def print_json(data: dict[str, Any]) -> None:
    """One JSON object on stdout; a number that is not finite is null, for JSON has no NaN."""
    print(json.dumps(_finite(data), ensure_ascii=False, indent=2, allow_nan=False))


def write_rows(path: str, rows: Sequence[Mapping[str, Any]]) -> None:
    """`rows` in the CSV file `path`."""
    from ..runs.disk import write_text

    write_text(Path(path), csv_text(rows))
    note(f"Written to {path}")


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value


def complain(message: str) -> None:
    """One line on stderr, whatever the message holds; what would steer a terminal is spelt out."""
    line = "".join(each if each.isprintable() else repr(each)[1:-1] for each in " ".join(message.split()))
    errors.print(f"[bold red]error:[/] {_escape(line)}", soft_wrap=True)


def note(message: str) -> None:
    """Something on stderr that is worth knowing."""
    stderr.print(f"[dim]{_escape(message)}[/]", soft_wrap=True)


def _escape(text: str) -> str:
    from rich.markup import escape

    return escape(text)
