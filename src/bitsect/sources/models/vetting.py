"""What a saved program may hold: every text that torch makes into code, an import or a call is looked at.

torch pastes names into source that it executes, evaluates sizes, looks up operators by dotted names and
imports what a structure of inputs names. All of these are admitted by lists, before torch sees the file.
"""

from __future__ import annotations

import json
import math
import pickle
import re
from collections.abc import Callable, Iterator, Mapping
from io import BytesIO
from typing import Any

import torch
from torch import Tensor

from ...errors import BitsectError
from ...files import parse_json
from .archive import SAVE, DamagedError, check_archive
from .sizes import LARGEST_NUMBER, is_arithmetic


class UnsafeError(BitsectError):
    """Something that would be executed, or could not be told from it, in words."""


# The functions of Python and torch that compute sizes, and those that run a part of a graph.
SIZE_FUNCTION = re.compile(
    r"_operator\.(eq|ne|le|ge|lt|gt|neg|pos|mul|add|sub|floordiv|mod|truediv|and_|or_|not_|getitem|pow)"
    r"|math\.(trunc|floor|ceil|sqrt)|torch\.(sym_(not|int|float|ite|max|min|sqrt|sum)|_sym_sqrt)"
)
CONTROL = re.compile(
    r"torch\.ops\.higher_order\."
    r"(cond|while_loop|map_impl|scan|associative_scan|wrap_with_set_grad_enabled|wrap_with_autocast)"
)
# The operators of PyTorch, and those that capture puts in their place.
TENSOR_OPERATOR = re.compile(r"torch\.ops\.(aten|prims|bitsect)\.(\w+)\.(\w+)")

# How inputs and outputs may be nested. Others name a module, which looking them up would import.
STRUCTURES = (
    "builtins.tuple",
    "builtins.list",
    "builtins.dict",
    "collections.OrderedDict",
    "collections.deque",
)
OUTPUT_STRUCTURES = ("collections.namedtuple", "transformers.")
CACHE = re.compile(r"transformers\.(cache_utils|models\.\w+\.\w+):\w*(Cache|Layer)")

IDENTIFIERS = ("name", "as_name")
PATHS = ("parameter_name", "buffer_name", "tensor_constant_name", "user_input_name", "fqn")
CUSTOM = ("as_custom_obj", "custom_obj", "class_fqn")
SYMBOL = re.compile(r"[A-Za-z_]+\d{0,6}")  # torch counts up to the number of a symbol
DEEPEST_PRODUCT = 64  # sizes multiplied together, one node after another
EXPANDED = 2**26  # elements that a tensor may be expanded to from fewer that are stored


def check_program(data: Any) -> None:
    """Refuse a saved graph if a text in it could be more than a name, a size or an operator of PyTorch."""
    if not isinstance(data, dict):
        raise UnsafeError("the program is not an object")
    for symbol in data.get("range_constraints") or {}:
        if not SYMBOL.fullmatch(symbol):
            raise UnsafeError(f"a size is called {_shown(symbol)}")
    _check(data)


def _check(data: Any) -> None:
    if isinstance(data, list):
        for item in data:
            _check(item)
    elif isinstance(data, dict):
        for key, value in data.items():
            CHECKS.get(key, _nothing)(value)
            if key == "nodes" and isinstance(value, list):
                _check_products(value)
            if key != "metadata":
                _check(value)
    elif isinstance(data, int) and abs(data) > LARGEST_NUMBER:
        raise UnsafeError("a number is larger than any size")


def _check_name(value: Any) -> None:
    if isinstance(value, str) and value and not value.isidentifier():
        raise UnsafeError(f"a value is called {_shown(value)}")


def _check_names(value: Any) -> None:
    for name in value or ():
        if not (isinstance(name, str) and name.isidentifier()):
            raise UnsafeError(f"an input is called {_shown(name)}")


def check_path(value: Any) -> None:
    """Refuse the path of a module or weight that could end the quotes which torch puts around it."""
    if isinstance(value, str) and not (value.isprintable() and not set(value) & set("\"'\\")):
        raise UnsafeError(f"a weight or module is called {_shown(value)}")


def _check_operator(value: Any) -> None:
    if not isinstance(value, str) or SIZE_FUNCTION.fullmatch(value) or CONTROL.fullmatch(value):
        return
    found = TENSOR_OPERATOR.fullmatch(value)
    if found is not None:
        space, name, overload = found.groups()
        operator = getattr(getattr(getattr(torch.ops, space), name, None), overload, None)
        if isinstance(operator, torch._ops.OpOverload):
            qualified = f"{space}::{name}" + ("" if overload == "default" else f".{overload}")
            of_files = any(argument.name == "filename" for argument in operator._schema.arguments)
            # What the dispatcher has no kernel for belongs to TorchScript, among it writing a file.
            if torch._C._dispatch_has_kernel(qualified) and not of_files:
                return
    raise UnsafeError(f"it calls {_shown(value)}, which is no tensor operator of PyTorch")


def _check_size(value: Any) -> None:
    if not is_arithmetic(value):
        raise UnsafeError(f"a size is given as the code {_shown(value)}")


def _check_guards(value: Any) -> None:
    for guard in value or ():
        if not is_arithmetic(guard, guard=True):
            raise UnsafeError(f"a size is given as the code {_shown(guard)}")


def _check_inputs(value: Any) -> None:
    """Keyword arguments become names in the source of `forward`; nested keys are quoted there."""
    if not isinstance(value, str):
        return
    top = _structure(value)
    for context in _contexts(top, STRUCTURES):
        for key in _texts(context):
            check_path(key)
    children = top["children_spec"] if top["type"] == "builtins.tuple" else []
    if len(children) == 2 and children[1]["type"] == "builtins.dict":
        _check_names(parse_json(children[1]["context"]))


def _check_outputs(value: Any) -> None:
    if isinstance(value, str):
        for _ in _contexts(_structure(value), (*STRUCTURES, *OUTPUT_STRUCTURES)):
            pass


def _structure(text: str) -> Any:
    version, top = parse_json(text)
    if version != 1:
        raise UnsafeError(f"its inputs or outputs are described in version {_shown(version)}")
    return top


def _contexts(node: Mapping[str, Any], allowed: tuple[str, ...]) -> Iterator[Any]:
    """What is said of each level of a structure, the names of its parts; refused if it names a module."""
    kind, context = node["type"], node["context"]
    if kind is not None:
        plain = kind in allowed or any(kind.startswith(each) for each in allowed if each.endswith("."))
        if not plain:
            raise UnsafeError(f"its inputs or outputs are held by {_shown(kind)}")
        # As torch does it: a namedtuple is looked up by its name, all others are JSON.
        said = context if kind == "collections.namedtuple" else parse_json(context)
        for part in _parts(said):
            if isinstance(part, dict):
                _check_cache(part, kind)
        yield said
    for child in node["children_spec"]:
        yield from _contexts(child, allowed)


def _check_cache(part: Mapping[str, Any], kind: str) -> None:
    """Refuse what a structure says of its classes, unless it is a key-value cache of transformers."""
    named, attribute = part.get("p"), part.get("n")
    cache = named is None or (isinstance(named, str) and CACHE.fullmatch(named) is not None)
    plain = attribute is None or isinstance(getattr(torch, attribute, None), torch.dtype | torch.layout)
    if not kind.startswith("transformers.") or "__enum__" in part or not (cache and plain):
        raise UnsafeError(f"its inputs or outputs name the class {_shown(named or part)}")


def _parts(value: Any) -> Iterator[Any]:
    yield value
    for item in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from _parts(item)


def _texts(value: Any) -> Iterator[str]:
    return (part for part in _parts(value) if isinstance(part, str))


def _check_metadata(value: Any) -> None:
    """Where a node comes from: dotted names, which torch looks up among its own, and plain text."""
    if not isinstance(value, dict):
        return
    for source in str(value.get("source_fn_stack") or "").split(";"):
        target = source.rpartition(",")[2]
        if target and not re.fullmatch(r"[\w.<> -]*", target):
            raise UnsafeError(f"a node comes from {_shown(target)}")


def _no_custom(value: Any) -> None:
    if value:
        raise UnsafeError("it holds an object that is no tensor")


def _check_products(nodes: list[Any]) -> None:
    """Refuse sizes that are multiplied over and over: each node may double the digits of the last."""
    factors: dict[Any, int] = {}
    for node in nodes:
        target = node["target"]
        if not SIZE_FUNCTION.fullmatch(target):
            continue
        counts = [factors.get(name, 1) for name in _names(node["inputs"])] or [1]
        total = sum(counts) if target == "_operator.mul" else max(counts)
        if target == "_operator.pow":
            power = node["inputs"][1]["arg"].get("as_int", math.inf)
            if not -8 <= power <= 8:
                raise UnsafeError("a size is raised to a power that is not a small number")
            total *= max(1, abs(power))
        if total > DEEPEST_PRODUCT:
            raise UnsafeError("a size is multiplied with itself over and over")
        for name in _names(node["outputs"]):
            factors[name] = total


def _names(data: Any) -> Iterator[str]:
    """Every value that is named somewhere in `data`."""
    if isinstance(data, list):
        for item in data:
            yield from _names(item)
    elif isinstance(data, dict):
        if isinstance(data.get("as_name"), str):
            yield data["as_name"]
        for item in data.values():
            yield from _names(item)


def _nothing(value: Any) -> None:
    pass


CHECKS: dict[str, Callable[[Any], None]] = {
    **dict.fromkeys(IDENTIFIERS, _check_name),
    **dict.fromkeys(PATHS, check_path),
    **dict.fromkeys(CUSTOM, _no_custom),
    "custom_obj_values": _no_custom,
    "custom_obj_name": _no_custom,
    "forward_arg_names": _check_names,
    "target": _check_operator,
    "as_operator": _check_operator,
    "expr_str": _check_size,
    "guards_code": _check_guards,
    "in_spec": _check_inputs,
    "out_spec": _check_outputs,
    "metadata": _check_metadata,
}


def check_payloads(data: Any, prefix: str, sizes: Mapping[str, int]) -> None:
    """Refuse weights or constants unless each is a plain tensor that lies in the archive as a whole."""
    for path, payload in data["config"].items():
        check_path(path)
        member = payload["path_name"]
        # A path that names neither a weight nor a tensor is unpickled whatever the flag says.
        if payload["use_pickle"] or not member.startswith(("weight_", "tensor_")):
            raise UnsafeError(f"'{path}' is pickled")
        if f"{prefix}{member}" not in sizes:
            raise DamagedError(f"'{path}' is missing: {prefix}{member} is not in the archive: {SAVE}")
        meta, stored = payload["tensor_meta"], sizes[f"{prefix}{member}"]
        elements = math.prod(size["as_int"] for size in meta["sizes"])
        if meta["device"]["type"] != "meta" and elements > (max(stored, EXPANDED) if stored else 0):
            raise DamagedError(
                f"'{path}' claims {elements:,} elements where {stored:,} bytes are stored: {SAVE}"
            )


def check_pickle(data: bytes, name: str) -> None:
    """Refuse example inputs or old weights unless they are tensors in tuples, lists and dictionaries."""
    try:
        check_archive(BytesIO(data))
        loaded = torch.load(BytesIO(data), weights_only=True)
    except DamagedError as error:
        raise DamagedError(f"{name}: {error}") from None
    except Exception as error:
        kind = "pickled objects" if isinstance(error, pickle.UnpicklingError) else "no tensors"
        raise UnsafeError(f"{name} holds {kind}") from None
    _check_values(loaded, name, len(data))


def _check_values(value: Any, name: str, size: int) -> None:
    if isinstance(value, Tensor):
        # A storage that claims more than there is would be read beyond its end.
        if not value.is_meta and value.untyped_storage().nbytes() > size:
            raise UnsafeError(f"{name} claims more than it holds")
    elif isinstance(value, dict):
        for key, item in value.items():
            check_path(key)
            _check_values(item, name, size)
    elif isinstance(value, list | tuple):
        for item in value:
            _check_values(item, name, size)


def _shown(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return f"`{text[:80]}{'…' if len(text) > 80 else ''}`"
