"""Values that do not belong where they are put in JSON, and ways to put them there."""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator
from typing import Any

MARK = "zq"
CODE = "__import__('os').system('touch zqowned')"
TEXTS = (
    "",
    f"zq{CODE}",
    f'zq" + str({CODE}) + "',
    f"zq' and {CODE} == 0 or 'x",
    "zq\\\nx22zq",
    f"zq\n    {CODE}\n",
    f"zq=0); {CODE}; (zq",
    "zq.__class__.__mro__",
    "zqcanary:Kind",
    "../../zqowned",
    "/tmp/zqowned",
    "zq\x00",
    "zq\x1b[2J\n",
    "zq" * 100_000,
    "class",
    "self",
    "__class__",
    "zq\ud800",
    "Infinity",
    "zqcanary",
)
SIZES = (
    "Integer(99999999999999999999)",
    "floor(Float('9\\\n14599999999'))",
    "Pow(Integer(9), Integer(999999999))",
    f"Symbol('zq', integer={CODE})",
    "Symbol('zq', integer=True)",
    "Mul(Integer(2), Symbol('s0', positive=True, integer=True))",
    "Mul(" + ", ".join(["Integer(999999999)"] * 20) + ")",
    "Add(" * 60 + "Integer(1)" + ")" * 60,
    f"Function('zq')({CODE})",
)
NUMBERS = (
    0,
    1,
    -1,
    2,
    3,
    7,
    63,
    64,
    255,
    2**16,
    10**6,
    2**31 - 1,
    2**31,
    10**9,
    2**40,
    2**62,
    2**63 - 1,
    2**63,
)
NUMBERS = (*NUMBERS, -(2**31), -(2**63), 10**30, 0.5, -0.0, 1e-320, 1e308, 1e400, float("nan"))
KINDS = "as_int as_float as_bool as_string as_tensor as_tensors as_ints as_none as_expr as_name as_sym_int"
KINDS += " as_sym_ints as_graph as_device as_scalar_type as_custom_obj as_operator as_complex as_layout"


def places(data: Any) -> Iterator[tuple[Any, Any]]:
    """Every place in `data`, as what holds it and its key there."""
    waiting = [data]
    while waiting:
        holder = waiting.pop()
        for key, value in list(holder.items() if isinstance(holder, dict) else enumerate(holder)):
            yield holder, key
            if isinstance(value, dict | list):
                waiting.append(value)


def value(chance: random.Random) -> Any:
    """Something that does not belong anywhere."""
    made = chance.randrange(12)
    if made < 4:
        return chance.choice(NUMBERS)
    if made < 7:
        return chance.choice(TEXTS)
    if made == 7:
        return chance.choice(SIZES)
    deep: Any = []
    for _ in range(chance.choice((1, 70, 900))):
        deep = [deep] if chance.random() < 0.5 else {"zq": deep}
    return chance.choice((None, True, [], {}, [1, 2], {"as_int": chance.choice(NUMBERS)}, {"zq": 1}, deep))


def retyped(data: Any, chance: random.Random, whole: list[Any]) -> None:
    """Change one place of `data`: another value, none, another name, or a part of somewhere else."""
    holder, key = chance.choice(list(places(data)))
    way = chance.choice(
        ("value", "value", "like", "like", "remove", "rename", "double", "graft", "graft", "swap")
    )
    if way == "like":
        holder[key] = like(holder[key], chance)
    elif way == "remove":
        del holder[key]
    elif way == "rename" and isinstance(holder, dict):
        holder[chance.choice((*KINDS.split(), "zq"))] = holder.pop(key)
    elif way == "double" and isinstance(holder, list):
        holder[key:key] = [copy.deepcopy(holder[key])] * chance.choice((1, 1, 2, 1000))
    elif way == "graft":
        other, place = chance.choice(list(places(chance.choice(whole))))
        holder[key] = copy.deepcopy(other[place])
    elif way == "swap":
        other, place = chance.choice(list(places(data)))
        holder[key], other[place] = copy.deepcopy(other[place]), copy.deepcopy(holder[key])
    else:
        holder[key] = value(chance)


def like(found: Any, chance: random.Random) -> Any:
    """Another value of the kind of `found`, so that more of the reader is reached."""
    if isinstance(found, bool):
        return not found
    if isinstance(found, int | float):
        return found + chance.choice((-1, 1, 2)) if chance.random() < 0.4 else chance.choice(NUMBERS)
    if isinstance(found, str):
        return chance.choice((found + chance.choice(TEXTS), chance.choice(TEXTS), chance.choice(SIZES)))
    if isinstance(found, list):
        return found[::-1] if chance.random() < 0.5 else found[: chance.randrange(len(found) + 1)]
    return value(chance) if found is None else {}
