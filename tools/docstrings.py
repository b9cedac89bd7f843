"""Docstrings as the documentation shows them: doctests as code, options and arguments as lists.

An extension of Griffe, which reads the package for mkdocstrings.
"""

from __future__ import annotations

import re
from typing import Any

import griffe

ENTRY = re.compile(r"^    ([\w, ]+): (.+)$")


class Shown(griffe.Extension):
    """Rewrites every docstring, once, as Markdown."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = as_markdown(obj.docstring.value)


def as_markdown(text: str) -> str:
    """`text` with doctests fenced, and each indented `name: words` under a heading as an entry of a list."""
    lines: list[str] = []
    fenced = False
    for line in text.splitlines():
        if line.startswith(">>>") and not fenced:
            lines.append("```pycon")
            fenced = True
        if fenced and not line.strip():
            lines.append("```")
            fenced = False
        entry = None if fenced else ENTRY.match(line)
        if entry is not None:
            names = ", ".join(f"`{name}`" for name in entry[1].split(", "))
            lines.append(f"- {names}: {entry[2]}")
        elif not fenced and re.match(r"^(Arguments|Options of .+):$", line):
            lines += [f"**{line.removesuffix(':')}**", ""]
        else:
            lines.append(line)
    return "\n".join([*lines, *(["```"] if fenced else [])])
