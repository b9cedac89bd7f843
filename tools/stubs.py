"""Writes src/bitsect/__init__.pyi: what editors and type checkers know of the public names.

The package loads its names on first use and makes keyword arguments of option fields, and neither can be read
from its source. `python tools/stubs.py` writes the stub; a test holds it to what this script would write.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Callable, Iterator
from dataclasses import fields
from importlib import import_module
from pathlib import Path
from typing import Any

import bitsect
from bitsect.values.options import described

STUB = Path(bitsect.__file__).with_name("__init__.pyi")
HEAD = '''"""Made by tools/stubs.py from the signatures and the option fields: do not edit."""'''
BUILT_IN = {"None", "str", "int", "float", "bool", "list", "tuple", "dict"}


def stub() -> str:
    """The text of the stub."""
    functions, groups = [], dict[str, type]()
    homes = dict(bitsect._HOME_OF)
    for name, home in list(homes.items()):
        taken = getattr(getattr(bitsect, name), "option_groups", None)
        if taken is not None:
            functions.append(_function(getattr(import_module(f"bitsect.{home}"), name), taken))
            groups |= {kind.__name__: kind for kind in taken.values()}
            del homes[name]
    body = [*(_options(kind) for kind in groups.values()), *functions]
    public = sorted((home, name) for name, home in homes.items())
    imports = [f"from .{home} import {name} as {name}" for home, name in public]
    imports += sorted(_imports("\n".join(body), set(homes)))
    names = ", ".join(f'"{name}"' for name in bitsect.__all__)
    return "\n".join([HEAD, "", *imports, "", "__version__: str", f"__all__ = [{names}]", *body]) + "\n"


def _options(kind: type) -> str:
    """The keyword arguments that the option fields of `kind` become."""
    types = {each.name: str(each.type) for each in fields(kind)}
    lines = [f"class _{kind.__name__}(TypedDict, total=False):"]
    lines += [f"    {name}: {about.python or types[name]}" for name, _, about in described(kind)]
    return "\n".join(lines)


def _function(function: Callable[..., Any], groups: dict[str, type]) -> str:
    own = inspect.signature(inspect.unwrap(function))
    bases = ", ".join(f"_{kind.__name__}" for kind in groups.values())
    parts, starred = [], False
    for name, parameter in own.parameters.items():
        if parameter.kind is parameter.KEYWORD_ONLY and not starred:
            parts, starred = [*parts, "*"], True
        if name in groups:
            parts.append(f"{name}: {groups[name].__name__} = ...")
        else:
            parts.append(
                f"{name}: {parameter.annotation}" + " = ..." * (parameter.default is not parameter.empty)
            )
    options = f"_{function.__name__.title().replace('_', '')}"
    parameters, returned = ", ".join([*parts, f"**options: Unpack[{options}]"]), own.return_annotation
    return f"class {options}({bases}): ...\ndef {function.__name__}({parameters}) -> {returned}: ..."


def _imports(body: str, public: set[str]) -> Iterator[str]:
    """What the declarations name besides the public names, each from where the package defines it."""
    code = ast.parse(body)
    defined = {node.name for node in ast.walk(code) if isinstance(node, ast.ClassDef)}
    loaded = {
        node.id for node in ast.walk(code) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)
    }
    named = loaded - public - defined - BUILT_IN
    places = {"Any": "typing", "TypedDict": "typing", "Unpack": "typing", "Path": "pathlib"}
    places |= dict.fromkeys(("Callable", "Iterable", "Mapping", "Sequence"), "collections.abc")
    for name in named:
        yield f"from {places.get(name) or _home(name)} import {name}"


def _home(name: str) -> str:
    """The module of the package that defines `name`."""
    root = STUB.parent
    for path in sorted(root.rglob("*.py")):
        if re.search(rf"^(class {name}\b|{name}(: TypeAlias)? = )", path.read_text(), re.MULTILINE):
            return "." + ".".join(path.relative_to(root).with_suffix("").parts)
    raise LookupError(name)


if __name__ == "__main__":
    STUB.write_text(stub())
