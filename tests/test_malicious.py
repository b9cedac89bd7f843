"""Files from strangers: nothing in them runs, nothing else is touched, and each ends in one clear line."""

from __future__ import annotations

import io
import json
import pickle
import re
import struct
import sys
import time
import unicodedata
import zipfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file
from torch import Tensor, nn
from torch.export import Dim

from bitsect import layers
from bitsect.cli import main
from bitsect.errors import BitsectError, PlanError
from bitsect.network.capture import capture
from bitsect.sources.models import load_model
from bitsect.sources.models.checked import CHECKED
from bitsect.sources.models.operators import operators
from bitsect.sources.models.pt2 import load_pt2
from bitsect.sources.models.sizes import parse
from bitsect.values import LatencyTable, Layer, Plan

SECONDS = 20  # of this process at most, for any file; they take a fraction of one

Entries = dict[str, bytes]
Attack = Callable[[Entries, Path], None]


class Tiny(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 8), nn.Linear(8, 3)

    def forward(self, image: Tensor) -> Tensor:
        return self.second(self.first(image).relu())


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small network, saved."""
    path = tmp_path_factory.mktemp("honest") / "net.pt2"
    torch.manual_seed(0)  # so that some of the few samples are right in every run
    exported = torch.export.export(Tiny(), (torch.randn(2, 4),), dynamic_shapes=({0: Dim("batch")},))
    torch.export.save(exported, path)
    return path


@pytest.fixture
def mark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A file that is there only if something ran; a module that makes it lies in the current folder."""
    (tmp_path / "canary.py").write_text("from pathlib import Path\nPath('owned').touch()\nclass Kind: pass\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path / "owned"
    sys.modules.pop("canary", None)


def refused(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    """The one line in which `bitsect ARGUMENTS` ends; the folder is afterwards what it was."""
    before, start = sorted(Path.cwd().rglob("*")), time.process_time()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["bitsect", *map(str, arguments)])
        with pytest.raises(SystemExit) as end:
            main()
    output = capsys.readouterr()
    assert end.value.code == 1
    assert time.process_time() - start < SECONDS
    assert [path for path in sorted(Path.cwd().rglob("*")) if path.name != "__pycache__"] == before
    # Besides the stages that were begun, as `capture …`.
    lines = [line for line in output.err.splitlines() if not line.endswith(" …")]
    if arguments[0] == "quantize":  # which says how the float network does before the long work
        assert not any("error" in line or "Traceback" in line for line in lines[:-1]), output.err
        lines = lines[-1:]
    assert len(lines) == 1, output.err
    assert lines[0].startswith("error: ")
    assert lines[0].isprintable()
    assert len(lines[0]) < 1500
    return lines[0]


# .pt2


def rewrite(source: Path, path: Path, change: Callable[[Entries], None]) -> Path:
    """A copy of the archive with its entries changed; they are named without the folder around them."""
    with zipfile.ZipFile(source) as archive:
        root = archive.namelist()[0].partition("/")[0]
        entries = {name.partition("/")[2]: archive.read(name) for name in archive.namelist()}
    change(entries)
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in entries.items():
            archive.writestr(name.removeprefix("!") if name.startswith("!") else f"{root}/{name}", data)
    return path


class Payload:
    """Unpickled, it leaves a file behind."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.mark,)


def torch_bytes(thing: Any) -> bytes:
    buffer = io.BytesIO()
    torch.save(thing, buffer)
    return buffer.getvalue()


def edit(entries: Entries, name: str, change: Callable[[Any], None]) -> None:
    data = json.loads(entries[name])
    change(data)
    entries[name] = json.dumps(data).encode()


PROGRAM, WEIGHTS = "models/model.json", "data/weights/model_weights_config.json"


def program(entries: Entries, change: Callable[[Any], None]) -> None:
    edit(entries, PROGRAM, change)


def graph(entries: Entries, change: Callable[[Any], None]) -> None:
    program(entries, lambda data: change(data["graph_module"]["graph"]))


def structure(entries: Entries, which: str, change: Callable[[Any], None]) -> None:
    def edit_text(data: Any) -> None:
        signature = data["graph_module"]["module_call_graph"][0]["signature"]
        spec = json.loads(signature[which])
        change(spec[1])
        signature[which] = json.dumps(spec)

    program(entries, edit_text)


def renamed(entries: Entries, old: str, new: str) -> None:
    quoted = json.dumps(new).encode()
    entries[PROGRAM] = entries[PROGRAM].replace(json.dumps(old).encode(), quoted)


def pickled_weight(entries: Entries, mark: Path) -> None:
    entries["data/weights/weight_0"] = torch_bytes(Payload(mark))
    edit(
        entries,
        WEIGHTS,
        lambda data: data["config"]["first.weight"].update(use_pickle=True, path_name="weight_0"),
    )


def pickled_samples(entries: Entries, mark: Path) -> None:
    entries["data/sample_inputs/model.pt"] = torch_bytes(((Payload(mark),), {}))


def old_weights(entries: Entries, mark: Path) -> None:
    entries["data/weights/model.pt"] = torch_bytes({"first.weight": Payload(mark)})


def opaque_constant(entries: Entries, mark: Path) -> None:
    """An object that claims to be a tensor."""
    code = pickle.dumps(Payload(mark))
    entries["data/constants/opaque_obj_0"] = code + bytes(-len(code) % 4)
    weights = json.loads(entries[WEIGHTS])["config"]
    payload = {**weights["first.weight"], "path_name": "opaque_obj_0", "is_param": False}
    name = "data/constants/model_constants_config.json"
    edit(entries, name, lambda data: data["config"].update(c=payload))


def touching(mark: Path) -> str:
    return f"__import__('pathlib').Path('{mark}').touch()"


def code_in_a_size(entries: Entries, mark: Path) -> None:
    text = entries[PROGRAM].decode()
    symbol = text.split('"expr_str": "')[1].split('"')[0]
    entries[PROGRAM] = text.replace(symbol, touching(mark), 1).encode()


def code_in_a_guard(entries: Entries, mark: Path) -> None:
    program(entries, lambda data: data.update(guards_code=[f"{touching(mark)} is None"]))


def code_in_the_name_of_an_input(entries: Entries, mark: Path) -> None:
    renamed(entries, "image", f"image={touching(mark)}")


def code_in_the_name_of_a_value(entries: Entries, mark: Path) -> None:
    renamed(entries, "relu", f"relu = {touching(mark)}; relu")


def code_in_the_name_of_an_argument(entries: Entries, mark: Path) -> None:
    def change(data: Any) -> None:
        signature = data["graph_module"]["module_call_graph"][0]["signature"]
        signature["forward_arg_names"] = [f"image={touching(mark)}"]

    program(entries, change)


def code_in_the_path_of_a_weight(entries: Entries, mark: Path) -> None:
    path = f'we"+str({touching(mark)})+"ight'
    for name in (PROGRAM, WEIGHTS):
        entries[name] = entries[name].replace(b'"first.weight"', json.dumps(path).encode())


def module_named_by_inputs(entries: Entries, mark: Path) -> None:
    context = json.dumps({"__enum__": True, "fqn": "canary:Kind", "name": "A"})
    structure(entries, "in_spec", lambda spec: spec.update(context=context))


def module_named_by_outputs(entries: Entries, mark: Path) -> None:
    context = {"default_factory_module": "canary", "default_factory_name": "Kind", "dict_context": ["a"]}
    leaf = {"type": None, "context": None, "children_spec": []}
    changed = {"type": "collections.defaultdict", "context": context, "children_spec": [leaf]}
    structure(entries, "out_spec", lambda spec: spec.update(changed))


def called(entries: Entries, target: str, **arguments: Any) -> None:
    """The second of the nodes, relu, becomes a call of something else."""
    inputs = [{"name": name, "arg": value, "kind": 1} for name, value in arguments.items()]
    graph(entries, lambda data: data["nodes"][1].update(target=target, inputs=inputs))


def function_of_python(entries: Entries, mark: Path) -> None:
    called(entries, "torch.os.system", command={"as_string": f"touch {mark}"})


def operator_that_makes_files(entries: Entries, mark: Path) -> None:
    named, shared, size = {"as_string": str(mark)}, {"as_bool": True}, {"as_int": 16}
    called(entries, "torch.ops.aten.from_file.default", filename=named, shared=shared, size=size)


def operator_that_saves(entries: Entries, mark: Path) -> None:
    called(entries, "torch.ops.aten.save.default", item={"as_string": "x"}, filename={"as_string": str(mark)})


def old_format(entries: Entries, mark: Path) -> None:
    """A broken new archive beside an old one, on which torch.export.load falls back."""
    del entries["archive_version"]
    entries["!version"] = b"8.14"
    entries["!serialized_exported_program.json"] = entries[PROGRAM]
    for name in ("state_dict", "constants", "example_inputs"):
        entries[f"!serialized_{name}.pt"] = torch_bytes({"x": Payload(mark)})


# These run code in torch as it is; the others are as near to it, and refused for the same reason.
ATTACKS = [
    pickled_weight,
    pickled_samples,
    old_weights,
    opaque_constant,
    code_in_a_size,
    code_in_a_guard,
    code_in_the_name_of_an_input,
    module_named_by_inputs,
    module_named_by_outputs,
    old_format,
]
NEAR = [
    code_in_the_name_of_a_value,
    code_in_the_name_of_an_argument,
    code_in_the_path_of_a_weight,
    function_of_python,
    operator_that_makes_files,
    operator_that_saves,
]


# A reader that takes no notice of these texts has nothing to refuse.
UNREAD = [code_in_a_guard, code_in_the_name_of_a_value, old_weights, module_named_by_inputs]


@pytest.mark.parametrize("attack", ATTACKS + NEAR)
def test_a_program_cannot_run_code(
    honest: Path, mark: Path, attack: Attack, capsys: pytest.CaptureFixture[str]
) -> None:
    path = rewrite(honest, Path("net.pt2"), lambda entries: attack(entries, mark))
    if attack in UNREAD:
        assert len(capture(load_pt2(path)).layers) == 2
        load_pt2(path).network()(torch.zeros(2, 4))
    else:
        told = refused(capsys, "layers", path)
        assert str(path) in told
        assert "--trust" in told or attack is old_format
    assert not mark.exists()
    assert "canary" not in sys.modules


@pytest.mark.parametrize("attack", ATTACKS)
def test_torch_itself_would(honest: Path, mark: Path, attack: Attack) -> None:
    """The attacks above are real: this is what torch does with them, and bitsect that is told to trust."""
    path = rewrite(honest, Path("net.pt2"), lambda entries: attack(entries, mark))
    with suppress(Exception):  # the payloads are no tensors
        capture(torch.export.load(path) if attack in UNREAD else load_model(str(path), trust=True).model)
    assert mark.exists()


WRITING_WHERE_A_FILE_SAYS = [
    "torch.ops.aten.max_pool2d_with_indices_backward.default",
    "torch.ops.aten.segment_reduce.default",
    "torch.ops.aten._convert_indices_from_coo_to_csr.default",
]


@pytest.mark.parametrize("target", WRITING_WHERE_A_FILE_SAYS)
def test_operators_that_write_where_a_file_says_are_refused(
    honest: Path, mark: Path, target: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = rewrite(honest, Path("net.pt2"), lambda entries: called(entries, target))
    assert "which is no operator of a network's forward" in refused(capsys, "layers", path)


def test_the_list_of_operators_is_short_and_has_none_of_a_kind() -> None:
    names = operators()
    assert len(names) < 550
    assert not set(WRITING_WHERE_A_FILE_SAYS) & names.keys()
    kinds = re.compile(
        r"backward|unsafe(?!_view)|_convert_|segment|sparse|nested|\.out\b|from_file|save|eval|exec"
    )
    assert [name for name in names if kinds.search(name)] == []


def test_a_division_that_ends_a_process_is_none() -> None:
    """The least whole number by −1, for which the processor has no answer."""
    least, divide = -(2**63), CHECKED[torch.ops.aten.div.Tensor_mode]
    x, y = torch.tensor([least, 7, -9, 8]), torch.tensor([-1, -2, -1, 3])
    assert divide(x, y, rounding_mode="trunc").tolist() == [least, -3, 9, 2]
    assert divide(x, -1, rounding_mode="trunc").tolist() == [least, -7, 9, -8]
    assert divide(x, -2, rounding_mode="trunc").tolist() == [2**62, -3, 4, -4]
    for mode in ("trunc", "floor", None):
        for other in (y, 2, 2.5, y * 1.5):
            told = torch.div(x[1:], other[1:] if isinstance(other, Tensor) else other, rounding_mode=mode)
            assert torch.equal(divide(x, other, rounding_mode=mode)[1:], told)


# Ways to write a letter so that one reader sees another letter there: torch joins the lines of a guard, and
# of a size, before it parses them once more.
SPELT: dict[str, Callable[[str], str]] = {
    "plain": lambda letter: letter,
    "octal": lambda letter: f"\\{ord(letter):03o}",
    "hex": lambda letter: f"\\\nx{ord(letter):02x}",
    "unicode": lambda letter: f"\\\nu{ord(letter):04x}",
    "long": lambda letter: f"\\\nU{ord(letter):08x}",
    "named": lambda letter: f"\\\nN{{{unicodedata.name(letter, 'LINE FEED')}}}",
}
# What ends the text that a value is pasted into, and goes on after it.
AROUND = ('a" + str({}) + "b', "a' + str({}) + 'b", 'a"""+str({})+"""b', "a'\n{}\n'b", "a\\' + str({}) + '")
AROUND = (*AROUND, "relu' and {} == 0 or 'x", "{}")


def disguised(spelling: str, around: str, mark: Path) -> str:
    """Code that makes the mark, between quotes, in letters that a checker of texts may take for others."""
    code = touching(mark)
    text = around.format(code if "'" in around else code.replace("'", '"'))
    return "".join(letter if letter.isalnum() else SPELT[spelling](letter) for letter in text)


def spoken_network(path: Path) -> Path:
    """A network that takes a text."""

    class Spoken(Tiny):
        def forward(self, image: Tensor, mode: str) -> Tensor:  # type: ignore[override]
            made = super().forward(image)
            return made.relu() if mode == "relu" else made

    exported = torch.export.export(
        Spoken(), (torch.randn(2, 4), "relu"), dynamic_shapes=({0: Dim("batch")}, None)
    )
    torch.export.save(exported, path)
    return path


@pytest.fixture(scope="module")
def spoken(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return spoken_network(tmp_path_factory.mktemp("spoken") / "net.pt2")


def text_of_an_input(entries: Entries, text: str) -> None:
    """The value of an input, wherever it stands in the file."""

    def change(data: Any) -> None:
        module = data["graph_module"]
        module["graph"]["inputs"][-1]["as_string"] = text
        module["signature"]["input_specs"][-1]["constant_input"]["value"]["as_string"] = text

    program(entries, change)


@pytest.mark.parametrize("spelling", SPELT)
@pytest.mark.parametrize("place", ["guard", "input", "size", "stack"])
def test_no_text_of_a_program_is_code_however_it_is_spelt(
    spoken: Path, mark: Path, place: str, spelling: str
) -> None:
    """It is read as `layers` reads it, and called; either may be refused in a line, and nothing runs."""
    texts = [disguised(spelling, around, mark) for around in AROUND]

    def change(entries: Entries, text: str) -> None:
        if place == "guard":
            guards = [f"1 or M['{each}'] == 2" for each in texts]
            program(entries, lambda data: data.update(guards_code=[*guards, *texts]))
        elif place == "input":
            text_of_an_input(entries, text)
        elif place == "size":
            code = entries[PROGRAM].decode()
            symbol = json.loads(code)["graph_module"]["graph"]["tensor_values"]["image"]["sizes"][0]
            entries[PROGRAM] = code.replace(
                json.dumps(symbol["as_expr"]["expr_str"]), json.dumps(f"Symbol('{text}', integer=True)")
            ).encode()
        else:
            stack = f"L__self__,{text},{text};L['self'].first,first,{text}"
            graph(entries, lambda data: data["nodes"][0]["metadata"].update(nn_module_stack=stack))

    for text in texts[:1] if place == "guard" else texts:
        path = rewrite(spoken, Path("net.pt2"), partial(change, text=text))
        with suppress(BitsectError):
            network = load_pt2(path).network()
            for said in ("relu", text):
                with suppress(BitsectError):
                    network(torch.zeros(2, 4), said)
    with suppress(BitsectError):
        layers(str(path))
    assert not mark.exists()
    assert "canary" not in sys.modules


@pytest.mark.parametrize("place", ["guard", "input"])
def test_torch_itself_would_take_such_a_text_for_code(spoken: Path, mark: Path, place: str) -> None:
    def change(entries: Entries) -> None:
        if place == "guard":
            text = disguised("hex", AROUND[0], mark)
            program(entries, lambda data: data.update(guards_code=[f"1 or M['{text}'] == 2"]))
        else:
            text_of_an_input(entries, disguised("plain", AROUND[5], mark))

    path = rewrite(spoken, Path("net.pt2"), change)
    with suppress(Exception):
        torch.export.load(path).module()(torch.zeros(2, 4), "relu")
    assert mark.exists()


def endless_power(entries: Entries, mark: Path) -> None:
    text = entries[PROGRAM].decode()
    symbol = text.split('"expr_str": "')[1].split('"')[0]
    entries[PROGRAM] = text.replace(symbol, "9**9**9**9").encode()


def endless_products(entries: Entries, mark: Path) -> None:
    """Each node squares the last size: the sixtieth has more digits than there are atoms."""

    def change(data: Any) -> None:
        for number in range(1, 60):
            argument = {"as_sym_int": {"as_name": f"n{number - 1}"} if number > 1 else {"as_int": 9}}
            inputs = [{"name": name, "arg": argument, "kind": 1} for name in "ab"]
            output = {"as_sym_int": {"as_name": f"n{number}"}}
            node = {"target": "_operator.mul", "inputs": inputs, "outputs": [output], "metadata": {}}
            data["nodes"].insert(number - 1, node)
            data["sym_int_values"][f"n{number}"] = {"as_int": 9}

    graph(entries, change)


def nested_without_end(entries: Entries, mark: Path) -> None:
    entries[PROGRAM] = b"[" * 200_000 + b"]" * 200_000


def nested_structure(entries: Entries, mark: Path) -> None:
    def change(data: Any) -> None:
        data["graph_module"]["module_call_graph"][0]["signature"]["out_spec"] = "[" * 200_000

    program(entries, change)


def huge_weight(entries: Entries, mark: Path) -> None:
    def change(data: Any) -> None:
        meta = data["config"]["first.weight"]["tensor_meta"]
        meta["sizes"], meta["strides"] = [{"as_int": 10**12}], [{"as_int": 0}]

    edit(entries, WEIGHTS, change)


def huge_empty_weight(entries: Entries, mark: Path) -> None:
    entries["data/weights/weight_0"] = b""
    edit(
        entries,
        WEIGHTS,
        lambda data: data["config"]["first.weight"]["tensor_meta"].update(sizes=[{"as_int": 10**11}]),
    )


def missing_weight(entries: Entries, mark: Path) -> None:
    del entries["data/weights/weight_0"]


def second_program(entries: Entries, mark: Path) -> None:
    entries["models/other.json"] = entries[PROGRAM]


def other_types(entries: Entries, mark: Path) -> None:
    entries[PROGRAM] = b'{"graph_module": [1, 2], "range_constraints": 5}'


def steering_a_terminal(entries: Entries, mark: Path) -> None:
    renamed(entries, "image", "\x1b[2J\nTraceback (most recent call last):")


@pytest.mark.parametrize(
    "attack",
    [
        endless_power,
        endless_products,
        nested_without_end,
        nested_structure,
        huge_weight,
        huge_empty_weight,
        missing_weight,
        second_program,
        other_types,
        steering_a_terminal,
    ],
)
@pytest.mark.usefixtures("mark")
def test_a_program_that_would_hang_or_break_the_loader_is_refused(
    honest: Path, attack: Attack, capsys: pytest.CaptureFixture[str]
) -> None:
    path = rewrite(honest, Path("net.pt2"), lambda entries: attack(entries, Path("unused")))
    assert str(path) in refused(capsys, "layers", path)


@pytest.mark.usefixtures("mark")
def test_a_member_that_inflates_is_refused_unread(honest: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = rewrite(honest, Path("net.pt2"), lambda entries: None)
    with zipfile.ZipFile(path, "a", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("net/extra/zeros", bytes(10**7))
    assert "extra/zeros is compressed" in refused(capsys, "layers", path)


@pytest.mark.filterwarnings("ignore:Duplicate name")
@pytest.mark.usefixtures("mark")
def test_two_members_of_one_name_are_refused(honest: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = rewrite(honest, Path("net.pt2"), lambda entries: None)
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("net/models/model.json", b"{}")
    assert "two members are called models/model.json" in refused(capsys, "layers", path)


@pytest.mark.parametrize("trust", [False, True])
def test_a_flipped_bit_in_a_weight_is_noticed(honest: Path, tmp_path: Path, trust: bool) -> None:
    path = tmp_path / "net.pt2"
    data = bytearray(honest.read_bytes())
    with zipfile.ZipFile(honest) as archive:
        info = next(each for each in archive.infolist() if each.filename.endswith("weight_0"))
        weight = data.index(archive.read(info))
    data[weight + 5] ^= 1
    path.write_bytes(data)
    with pytest.raises(BitsectError, match=r"weight_0: its bytes do not fit their checksum|Bad CRC"):
        load_pt2(path, trust=trust)


def test_rewriting_alone_does_no_harm(honest: Path, tmp_path: Path) -> None:
    path = rewrite(honest, tmp_path / "net.pt2", lambda entries: None)
    assert len(capture(load_pt2(path)).layers) == 2


@pytest.mark.parametrize(
    "text",
    [
        "9**9**9**9",
        "Pow(Integer(9), Integer(9999999))",
        "Integer(99999999999999999999)",
        "LShift(1, 99999999)",
        "Float('1e99999999')",
        "floor(Float('9\\\n14599999999'))",
        "Symbol('__import__(1)')",
        "Symbol('x)')",
        "Symbol('s0')" * 2,
        "Symbol('s0', integer=print())",
        "Symbol('s0'\\\n)",
        "factorial(99999999)",
        "Integer(x)",
        "L['x'].size()[0]",
        "().__class__",
        "lambda: 0",
        "Add()",
        ")",
        "",
        "Add(" * 500 + ")" * 500,
        "Add(" + "Integer(1), " * 9999 + "Integer(1))",
        5,
    ],
)
def test_sizes_that_are_more_than_sums_and_products_are_refused(text: object) -> None:
    with pytest.raises(BitsectError, match="a size is given as"):
        parse(text)


def test_sizes_that_torch_writes_are_read() -> None:
    assert parse("Symbol('s31', positive=True, integer=True)") == "s31"
    assert parse("Add(Mul(Integer(2), Symbol('s0', integer=True)), Integer(-1))") == [
        "Add",
        ["Mul", 2, "s0"],
        -1,
    ]


# Samples


def npy(header: str, data: bytes = b"") -> bytes:
    """An array with any header; numpy's own are padded, which nobody checks."""
    text = header.encode() + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + data


def npz(path: Path, **members: bytes) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in members.items():
            archive.writestr(f"{name}.npy", data)
    return path


def pickled_array(path: Path) -> None:
    np.savez(path, x=np.array([Payload(Path("owned").absolute())], dtype=object))


def sixteen_terabytes(path: Path) -> None:
    npz(path, x=npy("{'descr': '<f4', 'fortran_order': False, 'shape': (4398046511104,)}"))


def smaller_than_it_is(path: Path) -> None:
    """Nothing is read to its end, where the checksum is compared."""
    npz(path, x=npy("{'descr': '<f4', 'fortran_order': False, 'shape': (2, 4)}", bytes(4 * 4 * 9)))


def encrypted(path: Path) -> None:
    np.savez(path, x=np.zeros((2, 4), np.float32))
    data = bytearray(path.read_bytes())
    for signature, offset in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        data[data.index(signature) + offset] |= 1
    path.write_bytes(data)


def code_for_a_header(path: Path) -> None:
    npz(path, x=npy("__import__('pathlib').Path('owned').touch()"))


def texts(path: Path) -> None:
    np.savez(path, x=np.array(["a", "b"]))


def member_outside(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("../../escaped.npy", b"")


def safetensors(path: Path, header: bytes, data: bytes = b"", claimed: int | None = None) -> None:
    path.write_bytes(struct.pack("<Q", len(header) if claimed is None else claimed) + header + data)


def endless_header(path: Path) -> None:
    safetensors(path, b"{}", claimed=2**62)


def nested_header(path: Path) -> None:
    safetensors(path, b'{"x":' + b"[" * 200_000 + b"]" * 200_000 + b"}")


def overflowing_shape(path: Path) -> None:
    entry = {"x": {"dtype": "F32", "shape": [2**32, 2**32, 2**32], "data_offsets": [0, 4]}}
    safetensors(path, json.dumps(entry).encode(), bytes(4))


def offsets_outside(path: Path) -> None:
    entry = {"x": {"dtype": "F32", "shape": [2, 4], "data_offsets": [2**40, 2**40 + 32]}}
    safetensors(path, json.dumps(entry).encode(), bytes(32))


@pytest.mark.parametrize(
    ("suffix", "write"),
    [
        *[
            (".npz", write)
            for write in (
                *(pickled_array, sixteen_terabytes, smaller_than_it_is, encrypted, code_for_a_header),
                *(texts, member_outside),
            )
        ],
        *[
            (".safetensors", write)
            for write in (endless_header, nested_header, overflowing_shape, offsets_outside)
        ],
    ],
)
def test_samples_from_a_stranger_are_refused(
    honest: Path, mark: Path, suffix: str, write: Callable[[Path], None], capsys: pytest.CaptureFixture[str]
) -> None:
    path = Path(f"samples{suffix}").absolute()
    write(path)
    assert path.name in refused(capsys, "evaluate", honest, "--data", path)
    assert not mark.exists()


# JSON and CSV

NESTED = "[" * 200_000 + "]" * 200_000
PLAN = {"bitsect": "plan", "version": 1, "layers": {"first": "int8"}}
TABLE = {
    "bitsect": "latency-table",
    "version": 1,
    "device": "toy",
    "source": "a test",
    "formats": ["float", "int8"],
    "rows": {"gemm m1 n8 k4 b1": {"float": 2.0, "int8": 1.0}},
}
ANY_JSON = [
    NESTED,
    '{"a":' * 200_000 + "1" + "}" * 200_000,
    "null",
    "[]",
    '"text"',
    "7",
    "",
    "{",
    '{"bitsect": NaN}',
    '{"bitsect": "plan", "bitsect": "latency-table"}',
    '{"bitsect": ' + "9" * 10_000 + "}",
    "\ud800".encode("utf-8", "surrogatepass"),
    b"\x00\xff",
]
WRONG_PLANS = [
    {**PLAN, "layers": []},
    {**PLAN, "layers": {"first": 8}},
    {**PLAN, "layers": {"first": ["int8"]}},
    {**PLAN, "layers": {"\x1b[2J\nfirst": "int8"}},
    {**PLAN, "layers": {"first": "int" + "9" * 400}},
    {**PLAN, "version": {}},
]
WRONG_TABLES = [
    {**TABLE, "rows": {"gemm m1 n8 k4 b1": 5}},
    {**TABLE, "rows": {"gemm m1 n8 k4 b1": {"float": 10**400}}},
    {**TABLE, "rows": {"gemm m1 n8 k4 b1": {"float": [1]}}},
    {**TABLE, "formats": [["int8"]]},
    {**TABLE, "formats": {}},
    {**TABLE, "batch": "1"},
    {**TABLE, "spread": []},
    {**TABLE, "changes": {"int8": None}},
    {**TABLE, "device": None},
]


def written(path: Path, content: Any) -> Path:
    if isinstance(content, dict):
        content = json.dumps(content)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


@pytest.fixture
def samples(mark: Path) -> Path:
    path = mark.with_name("samples.safetensors")
    save_file({"x": np.ones((4, 4), np.float32), "y": np.array([0, 1, 2, 0])}, path)
    return path


@pytest.mark.parametrize("content", [*ANY_JSON, *WRONG_PLANS])
def test_a_plan_that_is_none_is_refused(tmp_path: Path, content: Any) -> None:
    path = written(tmp_path / "plan.json", content)
    with pytest.raises(PlanError, match=r"plan\.json"):
        Plan.read(path, [Layer("first", "linear", (8, 4), ())])


@pytest.mark.parametrize("content", [*ANY_JSON, *WRONG_TABLES])
def test_a_latency_table_that_is_none_is_refused(tmp_path: Path, content: Any) -> None:
    path = written(tmp_path / "table.json", content)
    with pytest.raises(BitsectError, match=r"table\.json"):
        LatencyTable.read(path)


def test_a_bad_plan_or_table_ends_in_one_line(
    honest: Path, samples: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table, plan = written(Path("table.json"), NESTED), written(Path("plan.json"), WRONG_PLANS[3])
    assert "table.json: nested too deeply" in refused(capsys, "latency", honest, "--table", table)
    told = refused(capsys, "evaluate", honest, "--data", samples, "--plan", plan)
    assert "unknown layer '\\x1b[2J first'" in told


HEADER = "OperationKind,Disposition,Status,Runtime,m,n,k,A"


@pytest.mark.parametrize(
    "content",
    [
        "",
        "\x00",
        HEADER,
        f"{HEADER}\ngemm,passed,success,1.0,{'9' * 5000},1,1,s8:row",
        f"{HEADER}\ngemm,passed,success,1e999,1,1,1,s8:row",
        f"{HEADER}\ngemm,passed,success,1.0,1,1,1,{'x' * 200_000}",
        f"{HEADER}\n=cmd|'/c calc'!A0,passed,success,1.0,1,1,1,s8:row",
        f'{HEADER}\n"gemm',
        b"\xff\xfe\x00",
        NESTED,
    ],
)
@pytest.mark.usefixtures("mark")
def test_a_profile_that_is_none_is_refused(content: Any, capsys: pytest.CaptureFixture[str]) -> None:
    path = written(Path("mine.gemm.csv"), content)
    assert "mine.gemm.csv" in refused(capsys, "import-latency", path, "--out", "table.json")


# ONNX


def onnx_model(path: Path, change: Callable[[Any], None] = lambda model: None) -> Path:
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    kind = onnx.TensorProto.FLOAT
    values = [onnx.helper.make_tensor_value_info(name, kind, ["batch", 4]) for name in "xy"]
    weight = onnx.numpy_helper.from_array(np.eye(4, dtype=np.float32), "w")
    nodes = [onnx.helper.make_node("MatMul", ["x", "w"], ["y"])]
    made = onnx.helper.make_graph(nodes, "net", values[:1], values[1:], [weight])
    model = onnx.helper.make_model(made, opset_imports=[onnx.helper.make_opsetid("", 18)], ir_version=9)
    change(model)
    path.write_bytes(model.SerializeToString())
    return path


def outside(location: str) -> Callable[[Any], None]:
    def change(model: Any) -> None:
        weight = model.graph.initializer[0]
        weight.ClearField("raw_data")
        weight.data_location = 1  # external
        for key, value in (("location", location), ("offset", "0"), ("length", "64")):
            weight.external_data.add(key=key, value=value)

    return change


def metadata(key: str, value: str) -> Callable[[Any], None]:
    def change(model: Any) -> None:
        model.metadata_props.add(key=key, value=value)

    return change


def unknown_operator(model: Any) -> None:
    model.graph.node[0].op_type = "System"
    model.graph.node[0].domain = "os"


@pytest.mark.parametrize("runtime", ["onnxruntime", "reference"])
@pytest.mark.parametrize(
    "change",
    [
        outside("/etc/passwd"),
        outside("../secret.bin"),
        outside("missing.bin"),
        metadata("bitsect.outputs", NESTED),
        metadata("bitsect.outputs", "[5]"),
        metadata("bitsect.outputs", '["a", "b", "c"]'),
        metadata("bitsect.outputs", '{"a": 1}'),
        metadata("bitsect.pixels", NESTED),
        metadata("bitsect.pixels", '{"mean": "0.5"}'),
        metadata("bitsect.pixels", '{"workers": 100000}'),
        metadata("bitsect.pixels", "[]"),
        unknown_operator,
    ],
)
def test_an_onnx_file_from_a_stranger_is_refused(
    samples: Path, runtime: str, change: Callable[[Any], None], capsys: pytest.CaptureFixture[str]
) -> None:
    path = onnx_model(Path("net.onnx"), change)
    refused(capsys, "evaluate", path, "--data", samples, "--runtime", runtime)


def test_an_honest_onnx_file_is_judged(samples: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = onnx_model(Path("net.onnx"))
    with pytest.MonkeyPatch.context() as patch, suppress(SystemExit):
        patch.setattr(sys, "argv", ["bitsect", "evaluate", str(path), "--data", str(samples), "--json"])
        main()
    assert json.loads(capsys.readouterr().out)["accuracy"] == 0.5


# Functions that a user names


@pytest.mark.parametrize(
    ("option", "name", "message"),
    [
        ("--search", "os:system", "search 'os:system' raised TypeError: expected str"),
        ("--search", "os:getpid", "search 'os:getpid' raised TypeError: posix.getpid() takes no arguments"),
        ("--search", "mine:plan", "search 'mine:plan' returned a int: expected a bitsect.Found"),
        ("--search", "os:sep", "search 'os:sep' is a str"),
        ("--task", "os:getcwd", "task 'os:getcwd' raised TypeError"),
        (
            "--task",
            "mine:score",
            "task 'mine:score' raised ZeroDivisionError: division by zero (mine.py, line 5: ",
        ),
        ("--metric", "os:getcwd", "metric 'os:getcwd' does not say what it needs"),
        ("--metric", "mine:order", "metric 'order' raised KeyError: 'no such thing' (mine.py, line 9: "),
        ("--metric", "mine:words", "metric 'words' raised ValueError"),
    ],
)
def test_a_users_function_that_fails_is_named(
    honest: Path, samples: Path, option: str, name: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("mine.py").write_text(
        "from bitsect import metric\n\n"
        "def plan(problem): return 5\n"
        "def score(outputs, labels):\n    return labels / 0 if False else 1 / 0\n\n"
        "@metric('single')\n"
        "def order(means, options):\n    raise KeyError('no such thing')\n\n"
        "@metric('single')\n"
        "def words(means, options): return 'abc'\n"
    )
    arguments = {"--method": "paper", "--metric": "random", "--target": "50%", "--data": str(samples)}
    arguments |= {option: name}
    flat = [text for pair in arguments.items() for text in pair]
    assert message in refused(capsys, "quantize", honest, *flat)
    sys.modules.pop("mine", None)
