"""Docstrings as the documentation shows them: doctests as code, options and arguments as lists.

An extension of Griffe, which reads the package for mkdocstrings.
"""

from __future__ import annotations

import inspect
import re
from importlib import import_module
from typing import Any

import griffe

KINDS = {
    inspect.Parameter.POSITIONAL_ONLY: griffe.ParameterKind.positional_only,
    inspect.Parameter.POSITIONAL_OR_KEYWORD: griffe.ParameterKind.positional_or_keyword,
    inspect.Parameter.KEYWORD_ONLY: griffe.ParameterKind.keyword_only,
}
ENTRY = re.compile(r"^    ([\w, ]+): (.+)$")


class Shown(griffe.Extension):
    """Rewrites every docstring, once, as Markdown; options of functions come from the loaded package."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if isinstance(obj, griffe.Function) and isinstance(obj.parent, griffe.Module):
            _load_options(obj)
        if obj.docstring is not None:
            obj.docstring.value = as_markdown(obj.docstring.value)


def _load_options(function: griffe.Function) -> None:
    """Give `function` the keyword arguments that its decorator makes of options when it is loaded."""
    if not any("with_options" in str(each.value) for each in function.decorators):
        return
    loaded = getattr(import_module(function.module.path), function.name)
    if function.docstring is not None:
        function.docstring.value = inspect.getdoc(loaded) or ""
    function.parameters = griffe.Parameters(
        *(
            griffe.Parameter(
                each.name,
                kind=KINDS[each.kind],
                default=None if each.default is each.empty else repr(each.default),
            )
            for each in inspect.signature(loaded).parameters.values()
        )
    )


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
