"""Which method's defaults hold."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ..names import choose
from ..runs.opening import is_folder
from ..values.method import METHODS, Method

DEFAULT = "paper"


def method_of(model: Any, out: str | Path | None, name: str | None) -> Method:
    """The method that was asked for; that with which the run was made; else the default."""
    if name is None:
        folder = model if is_folder(model) else out
        name = _made_with(Path(folder)) if folder is not None else None
    found: Method = choose("method", name or DEFAULT, METHODS)
    return found


def _made_with(run: Path) -> str | None:
    try:
        name = json.loads((run / "run.json").read_text())["method"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None  # what is wrong with the folder is said when it is opened
    return name if name in METHODS else None
