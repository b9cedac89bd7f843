"""How a benchmark prints what it found: a line for each figure, or one JSON object."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any


def show(report: Mapping[str, Any], as_json: bool) -> None:
    if as_json:
        print(json.dumps(report))
        return
    for name, value in report.items():
        print(f"{name:24} {value}")
