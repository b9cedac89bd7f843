"""Structured mutations of a .pt2 archive: of its JSON, its pickled examples, its weights and its zip file.

Every name in the archives begins with `odd_json.MARK`, and so does every text that a mutation puts in: code
that holds it was made of a text of the file.
"""

from __future__ import annotations

import bz2
import io
import json
import random
import struct
import zipfile
from collections.abc import Callable
from typing import Any

from odd_json import NUMBERS, SIZES, TEXTS, like, places, retyped

Entries = dict[str, bytes]

FUNCTIONS = (
    "torch.os.system",
    "builtins.eval",
    "torch.ops.aten.from_file.default",
    "torch.ops.aten.save.default",
    "torch.ops.aten.max_pool2d_with_indices_backward.default",
    "torch.ops.aten.segment_reduce.default",
    "torch.ops.aten._convert_indices_from_coo_to_csr.default",
    "torch.ops.higher_order.wrap_with_set_grad_enabled",
    "torch.ops.higher_order.cond",
    "_operator.pow",
    "_operator.call",
    "math.factorial",
    "torch.ops.zq.canary.default",
    "zqcanary.Kind",
)
PICKLES = (
    b"cos\nsystem\n(S'touch zqowned'\ntR.",
    b"\x80\x02czqcanary\nKind\nq\x00)R.",
    b"\x80\x02c__builtin__\neval\nX\x02\x00\x00\x00zq\x85R.",
    b"\x80\x04\x8c\x02os\x8c\x06system\x93\x8c\x02zq\x85R.",
    b"(" * 5000 + b".",
    b"\x80\x02]q\x00h\x00a.",
    b"\x80\x02" + b"]" * 50_000 + b"a" * 49_999 + b".",
    b"\x80\x02\x8a\xff" + b"\xff" * 255 + b".",
    b"I" + b"9" * 100_000 + b"\n.",
)


def mutated(one: Entries, whole: list[Entries], chance: random.Random) -> tuple[bytes, str]:
    """One of the archives with one to four things changed, and what was done to it, in words."""
    entries, done = dict(one), []
    for _ in range(chance.choice((1, 1, 1, 2, 2, 3, 4))):
        kind = chance.choices(list(WAYS), [weight for weight, _ in WAYS.values()])[0]
        try:
            WAYS[kind][1](entries, chance, whole)
        except Exception:
            continue  # what was changed before left nothing that could be changed so
        done.append(kind)
    data = archive(entries, chance if chance.random() < 0.08 else None)
    return (
        (damaged(data, chance), "; ".join([*done, "zip"]))
        if chance.random() < 0.12
        else (data, "; ".join(done))
    )


# Parts of JSON


def edited(entries: Entries, name: str, change: Callable[[Any], None]) -> None:
    data = json.loads(entries[name])
    change(data)
    entries[name] = json.dumps(data).encode()


PROGRAM = "models/model.json"
TABLES = ("data/weights/model_weights_config.json", "data/constants/model_constants_config.json")
EXAMPLES = "data/sample_inputs/model.pt"


def in_program(entries: Entries, chance: random.Random, whole: list[Entries]) -> None:
    others = [json.loads(each[PROGRAM]) for each in whole]
    edited(entries, PROGRAM, lambda data: retyped(data, chance, others))


def in_nodes(entries: Entries, chance: random.Random, whole: list[Entries]) -> None:
    others = [json.loads(each[PROGRAM])["graph_module"]["graph"]["nodes"] for each in whole]
    edited(
        entries,
        PROGRAM,
        lambda data: retyped(chance.choice(data["graph_module"]["graph"]["nodes"]), chance, others),
    )


def in_operands(entries: Entries, chance: random.Random, whole: list[Entries]) -> None:
    """Numbers that an operator is given: these reach kernels."""

    def change(data: Any) -> None:
        node = chance.choice(data["graph_module"]["graph"]["nodes"])
        found = [
            (holder, key)
            for holder, key in places(node["inputs"])
            if isinstance(holder[key], int | float) and key != "kind"
        ]
        for holder, key in chance.sample(found, min(len(found), chance.choice((1, 1, 2, 5)))):
            holder[key] = like(holder[key], chance)

    edited(entries, PROGRAM, change)


def operator(entries: Entries, chance: random.Random, whole: list[Entries]) -> None:
    """Another operator: of those that are known, or one that must not be."""
    from bitsect.sources.models.operators import operators

    known = chance.random() < 0.7
    target = chance.choice(sorted(operators()) if known else FUNCTIONS)
    edited(
        entries,
        PROGRAM,
        lambda data: chance.choice(data["graph_module"]["graph"]["nodes"]).update(target=target),
    )


def operand(entries: Entries, chance: random.Random, whole: list[Entries]) -> None:
    """One value of the graph in the place of another: weights of wrong sizes reach kernels."""

    def change(data: Any) -> None:
        held = data["graph_module"]["graph"]
        found = [
            (holder, key)
            for node in held["nodes"]
            for holder, key in places(node["inputs"])
            if isinstance(holder[key], dict) and "name" in holder[key] and key == "as_tensor"
        ]
        holder, key = chance.choice(found)
        holder[key] = {"name": chance.choice(sorted(held["tensor_values"]))}

    edited(entries, PROGRAM, change)


def in_structure(entries: Entries, chance: random.Random, whole: list[Entries]) -> None:
    """JSON within a text of the JSON."""

    def change(data: Any) -> None:
        signature, which = data["graph_module"]["module_call_graph"][0]["signature"], chance.choice("io")
        key = {"i": "in_spec", "o": "out_spec"}[which]
        inner = json.loads(signature[key])
        retyped(inner, chance, [inner])
        signature[key] = json.dumps(inner)

    edited(entries, PROGRAM, change)


def sized(entries: Entries, chance: random.Random, whole: list[Entries]) -> None:
    """Sizes and strides of inputs and weights, and guards, given as texts."""

    def change(data: Any) -> None:
        data["guards_code"] = [chance.choice(TEXTS + SIZES)]
        metas = data["graph_module"]["graph"]["tensor_values"]
        name = chance.choice(sorted(metas))
        size = {"as_expr": {"expr_str": chance.choice(SIZES), "hint": {"as_int": chance.choice(NUMBERS)}}}
        metas[name][chance.choice(("sizes", "strides"))][0] = size

    edited(entries, PROGRAM, change)


def renamed(entries: Entries, chance: random.Random, whole: list[Entries]) -> None:
    """A name in every place where it stands: what only meets its own kind stays consistent."""
    data = json.loads(entries[PROGRAM])["graph_module"]
    names = [*data["graph"]["tensor_values"], *(json.loads(entries[TABLES[0]])["config"])]
    old, new = (json.dumps(each).encode() for each in (chance.choice(names), chance.choice(TEXTS)))
    for name in (PROGRAM, *TABLES):
        entries[name] = entries[name].replace(old, new)


def in_table(entries: Entries, chance: random.Random, whole: list[Entries]) -> None:
    name = chance.choice(TABLES)
    others = [json.loads(each[name]) for each in whole]
    edited(entries, name, lambda data: retyped(data, chance, others))


def raw_json(entries: Entries, chance: random.Random, whole: list[Entries]) -> None:
    """What only a text of JSON can be: doubled keys, numbers without end, no text at all."""
    name = chance.choice((PROGRAM, *TABLES))
    text, place = entries[name], chance.randrange(len(entries[name]))
    inserted = chance.choice(
        (
            b'"graph_module": 1, ',
            b"9" * 5000,
            b"NaN",
            b"\\ud800",
            b"\xff",
            b"[" * 100_000,
            b'{"zq":' * 3000,
            b"\x00",
        )
    )
    entries[name] = text[:place] + inserted + text[place + chance.choice((0, 1, 50)) :]


# Bytes


def weight(entries: Entries, chance: random.Random, whole: list[Entries]) -> None:
    """The bytes of a weight: fewer, more, a pickle, or other values."""
    name = chance.choice([name for name in entries if "/weight" in name and not name.endswith("json")])
    data = entries[name]
    entries[name] = chance.choice(
        (b"", data[:-1], data * 2, chance.choice(PICKLES), chance.randbytes(len(data)), b"\xff" * len(data))
    )


def examples(entries: Entries, chance: random.Random, whole: list[Entries]) -> None:
    """The archive of the example inputs: its pickle as bytes and as instructions, its data, its names."""
    with zipfile.ZipFile(io.BytesIO(entries[EXAMPLES])) as inner:
        held = {info.filename.partition("/")[2]: inner.read(info) for info in inner.infolist()}
    code = bytearray(held["data.pkl"])
    way = chance.randrange(6)
    if way == 0:
        code = bytearray(chance.choice(PICKLES))
    elif way == 1:
        for _ in range(chance.choice((1, 2, 5))):
            code[chance.randrange(len(code))] = chance.randrange(256)
    elif way == 2:
        place = chance.randrange(2, len(code))
        code[place:place] = chance.choice(
            (*PICKLES, b"\x81", b"b", b"0", b"2", b"1", b"R", b"Q", b"N", b"(", b".")
        )[:-1]
    elif way == 3:
        start = chance.randrange(len(code))
        del code[start : start + chance.choice((1, 4, 20))]
    elif way == 4:
        size = code.find(b"K")
        code[size + 1] = chance.randrange(256)
    else:
        name = chance.choice(sorted(held))
        held[chance.choice((name, "data/../zq", "data/0"))] = held[name][
            : chance.randrange(len(held[name]) + 1)
        ]
    held["data.pkl"] = bytes(code) if way < 5 else held.get("data.pkl", b"")
    entries[EXAMPLES] = archive(held, chance if chance.random() < 0.2 else None)


def members(entries: Entries, chance: random.Random, whole: list[Entries]) -> None:
    """A member that is gone, called something else, added or exchanged with another."""
    name, other = chance.choice(sorted(entries)), chance.choice(sorted(entries))
    way = chance.randrange(4)
    if way == 0:
        del entries[name]
    elif way == 1:
        entries[chance.choice(("../zqowned", "/tmp/zqowned", "models/zq.json", "x" * 60_000, "zq\x01"))] = (
            entries.pop(name)
        )
    elif way == 2:
        entries[name], entries[other] = entries[other], entries[name]
    else:
        entries[f"data/constants/opaque_obj_{chance.randrange(3)}"] = chance.choice(PICKLES)


WAYS: dict[str, tuple[int, Callable[[Entries, random.Random, list[Entries]], None]]] = {
    "program": (20, in_program),
    "nodes": (12, in_nodes),
    "operands": (12, in_operands),
    "operator": (10, operator),
    "operand": (8, operand),
    "structure": (6, in_structure),
    "sizes": (6, sized),
    "names": (6, renamed),
    "table": (10, in_table),
    "raw JSON": (3, raw_json),
    "weight": (5, weight),
    "examples": (10, examples),
    "members": (4, members),
}


def archive(entries: Entries, chance: random.Random | None = None) -> bytes:
    """The members as an archive; with `chance` some of them compressed, doubled or in no folder."""
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as file:
        for name, data in entries.items():
            odd = chance.randrange(12) if chance else 9
            kind = {0: zipfile.ZIP_DEFLATED, 1: zipfile.ZIP_BZIP2, 2: zipfile.ZIP_LZMA}.get(odd, 0)
            info = zipfile.ZipInfo(name if odd == 3 else f"net/{name}")
            file.writestr(info, bytes(10**7) if odd == 0 else data, kind)
            if odd == 4:
                file.filelist[-1].file_size += 2**33
            elif odd == 5:
                file.filelist[-1].header_offset = 0
            elif odd == 6:
                file.filelist[-1].flag_bits |= 1
            elif odd == 7:
                file.filelist.append(file.filelist[-1])
    return made.getvalue()


def damaged(data: bytes, chance: random.Random) -> bytes:
    """The file cut short, longer, or with bytes of its directory changed."""
    way, changed = chance.randrange(5), bytearray(data)
    directory = data.rfind(b"PK\x01\x02") if chance.random() < 0.5 else data.find(b"PK\x01\x02")
    if way == 0:
        return data[: chance.randrange(len(data))]
    if way == 1:
        return chance.randbytes(chance.randrange(1, 99)) + data + chance.randbytes(chance.choice((0, 30)))
    if way == 2:
        place = directory + chance.choice((10, 16, 20, 24, 28, 30, 32, 42))  # a field of a member
        changed[place : place + 4] = struct.pack("<I", chance.choice((0, 1, 8, 255, 2**31, 2**32 - 1)))
    elif way == 3:
        for _ in range(chance.choice((1, 3, 30))):
            changed[chance.randrange(max(directory, 0), len(changed))] = chance.randrange(256)
    else:
        return bz2.compress(data) if chance.random() < 0.1 else data + data
    return bytes(changed)
