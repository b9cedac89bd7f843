"""What a verb takes, read from its source: importing it would load torch, and help starts at once."""

from __future__ import annotations

import ast
import inspect
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from .. import values
from ..errors import in_command

PIPELINE = Path(__file__).parents[1] / "pipeline"
NEEDED = object()  # the default of a parameter that has none
TEACHER = "quantize:quantize"  # whose documentation holds where a verb says "as for `quantize`"


@dataclass(frozen=True)
class Parameter:
    """A parameter of a verb: its type as written, its default and its documentation."""

    name: str
    type: str
    default: Any
    text: str


@dataclass(frozen=True)
class Verb:
    """The parameters of a function in `pipeline/`, and the option values whose fields it takes besides."""

    parameters: tuple[Parameter, ...]
    groups: tuple[type[Any], ...]
    refused: tuple[str, ...]  # fields of these that the verb has no use for


@cache
def verb(reference: str) -> Verb:
    """The verb at `module:function`."""
    module, _, name = reference.partition(":")
    tree = ast.parse((PIPELINE / f"{module}.py").read_text(encoding="utf-8"))
    (function,) = (node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == name)
    constants = _constants(tree)
    groups = {
        word.arg: getattr(values, ast.unparse(word.value))
        for call in function.decorator_list
        if isinstance(call, ast.Call)
        for word in call.keywords
        if word.arg is not None
    }
    texts = _documented(function)
    taught = {} if reference == TEACHER else {each.name: each.text for each in verb(TEACHER).parameters}
    parameters = tuple(
        Parameter(argument.arg, ast.unparse(argument.annotation or ast.Constant("Any")), default, text)
        for argument, default in _arguments(function.args, constants)
        if argument.arg not in groups
        for text in [texts.get(argument.arg) or taught.get(argument.arg, "")]
    )
    return Verb(parameters, tuple(groups.values()), constants.get("REFUSED", ()))


def _constants(tree: ast.Module) -> dict[str, Any]:
    """The names that a module gives to plain values."""
    found: dict[str, Any] = {}
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            found[node.targets[0].id] = _literal(node.value, found)
    return found


def _literal(node: ast.expr | None, constants: dict[str, Any]) -> Any:
    if node is None:
        return NEEDED
    if isinstance(node, ast.Name):
        return constants.get(node.id)
    try:
        return ast.literal_eval(node)
    except ValueError:
        return None


def _arguments(arguments: ast.arguments, constants: dict[str, Any]) -> list[tuple[ast.arg, Any]]:
    """Each argument with its default."""
    needed: list[ast.expr | None] = [None] * (len(arguments.args) - len(arguments.defaults))
    defaults = [*needed, *arguments.defaults, *arguments.kw_defaults]
    listed = zip([*arguments.args, *arguments.kwonlyargs], defaults, strict=True)
    return [(argument, _literal(default, constants)) for argument, default in listed]


def _documented(function: ast.FunctionDef) -> dict[str, str]:
    """What the section `Arguments:` of a docstring says of each, as the command line says it."""
    section = inspect.cleandoc(ast.get_docstring(function) or "").partition("Arguments:\n")[2]
    section = re.split(r"\n(?=\S)", section)[0]
    names = [argument.arg for argument in (*function.args.args, *function.args.kwonlyargs)]
    entries = re.findall(r"^    ([\w, ]+): (.*(?:\n {5,}.*)*)", section, re.MULTILINE)
    return {
        name: _as_command(" ".join(text.split()), names)
        for listed, text in entries
        if not text.startswith("as for `")
        for name in listed.split(", ")
    }


def _as_command(text: str, names: list[str]) -> str:
    """`text` without what is for Python alone, and with its options as the command line has them."""
    text = re.sub(r"`(\w+)`", lambda found: f"[{found[1]}=]" if found[1] in names else found[1], text)
    text = in_command(text.partition(" In Python ")[0]).replace("`", "").removesuffix(".") + "."
    return text[0].upper() + text[1:] if re.match(r"[a-z]+[ ,]", text) else text
