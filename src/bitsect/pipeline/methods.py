"""Which method's defaults hold."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ..names import choose
from ..runs.opening import is_folder
from ..values.method import METHODS, Method

DEFAULT = "paper"


def method_of(model: Any, name: str | None) -> Method:
    """The method that was asked for; that of the run's last answer; else the default."""
    if name is None and is_folder(model):
        name = _last_of(Path(model))
    found: Method = choose("method", name or DEFAULT, METHODS)
    return found


def _last_of(run: Path) -> str | None:
    try:
        name = json.loads((run / "result.json").read_text())["method"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None  # what is wrong with the folder is said when it is opened
    return name if name in METHODS else None
