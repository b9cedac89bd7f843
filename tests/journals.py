"""Run folders compared: every byte, and of journals every piece."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from bitsect.runs.folder import Journal


def contents(folder: Path) -> dict[str, Any]:
    """Every file of a run but what it took: bytes, and of a journal the pieces by name.

    Pieces are kept as they come, so their order is anyone's.
    """
    found: dict[str, Any] = {}
    for path in sorted(item for item in folder.rglob("*") if item.is_file()):
        name = str(path.relative_to(folder))
        if path.suffix == ".journal":
            start = path.read_bytes()[:4096]
            size = int.from_bytes(start[8:16], "little")
            journal = Journal(path, json.loads(start[16 : 16 + size]))
            found[name] = {
                key: {label: (array.dtype.str, array.tobytes()) for label, array in piece.items()}
                for key, piece in sorted(journal.items())
            }
            journal.close()
        elif name not in ("effort.json", "report.html") and not name.endswith(".tmp"):
            found[name] = path.read_bytes()
    return found
