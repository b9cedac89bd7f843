"""Where networks come from, what a .pt2 file may do, and `bitsect layers`."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim

import bitsect
from bitsect.cli import main
from bitsect.errors import BitsectError
from bitsect.network.capture import capture
from bitsect.sources.models import load_model, parse_example
from bitsect.sources.models.pt2 import load_pt2
from odd_models import model_of, same

# What users' own modules hold, as they write them.
USER_MODULE = """
import torch
from torch import nn

print("a user's module prints what it likes")


class Branches(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x):
        if x.sum() > 0:
            return self.layer(x)
        return x


def module():
    return nn.Linear(4, 3)


def pair():
    print("building")
    return nn.Linear(4, 3), torch.zeros(2, 4)


def empty():
    return nn.Linear(4, 3, device="meta"), torch.zeros(2, 4)


def program():
    return torch.export.export(nn.Linear(4, 3), (torch.zeros(2, 4),))


def branches():
    return Branches(), torch.zeros(2, 4)


def wrong():
    return {"weight": torch.zeros(2)}


def raises():
    raise KeyError("no such\\ncheckpoint")


instance = nn.Linear(4, 2)
number = 3
"""


@pytest.fixture
def user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A folder with a user's module in it, which is the current one."""
    (tmp_path / "users_networks.py").write_text(USER_MODULE, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    yield
    sys.modules.pop("users_networks", None)


# package.module:function


@pytest.mark.usefixtures("user")
def test_functions_give_networks(capsys: pytest.CaptureFixture[str]) -> None:
    assert isinstance(load_model("users_networks:module").model, nn.Linear)
    assert load_model("users_networks:module").example is None
    pair = load_model("users_networks:pair")
    assert isinstance(pair.model, nn.Linear)
    assert pair.example.shape == (2, 4)
    assert isinstance(load_model("users_networks:program").model, torch.export.ExportedProgram)
    assert load_model("users_networks:instance").model.out_features == 2  # type: ignore[union-attr]
    assert isinstance(load_model("users_networks:Branches").model, nn.Module)
    assert capsys.readouterr().out == ""


@pytest.mark.usefixtures("user")
@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("users_networks:wrong", "returned dict; expected a torch.nn.Module, or a pair"),
        ("users_networks:raises", "raised KeyError"),
        ("users_networks:number", "is not a function that returns a network"),
        ("users_networks:modul", "has no 'modul'; did you mean 'module'?"),
        ("users_network:module", "no module 'users_network'"),
        ("users_networks", "unknown model 'users_networks': use hf:FOLDER, zoo:NAME, paper:NAME"),
        ("users_networks.py", "is not a .pt2 file"),
        ("paper:resnet51", "use resnet50, mobilenetv2, bert-large"),
        ("zoo:lenet", "lenet"),
        ("missing.pt2", "missing.pt2: no such file"),
    ],
)
def test_what_is_no_network_is_told(spec: str, message: str) -> None:
    with pytest.raises(BitsectError, match=message.replace("?", r"\?")):
        load_model(spec)


@pytest.mark.parametrize(("shape", "sizes"), [("3x8x9", (2, 3, 8, 9)), ("16", (2, 16)), ("3×4", (2, 3, 4))])
def test_a_sample_shape_is_doubled_to_a_batch(shape: str, sizes: tuple[int, ...]) -> None:
    assert parse_example(shape).shape == sizes


@pytest.mark.parametrize("shape", ["", "3x", "axb", "0x3", "-1x3", "3,4"])
def test_a_sample_shape_that_is_none_is_refused(shape: str) -> None:
    with pytest.raises(BitsectError, match="3x224x224"):
        parse_example(shape)


# FILE.pt2


def save(path: Path, model: nn.Module | None = None, *, is_open: bool = True, example: Any = None) -> Path:
    model = model or nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    example = (torch.randn(2, 4),) if example is None else example
    shapes = ({0: Dim("batch")},) if is_open else None
    torch.export.save(torch.export.export(model.eval(), example, dynamic_shapes=shapes), path)
    return path


@pytest.mark.parametrize("is_open", [True, False])
def test_a_saved_program_is_the_network(tmp_path: Path, is_open: bool) -> None:
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(64, 3))
    path = save(tmp_path / "net.pt2", model, is_open=is_open, example=(torch.randn(2, 1, 6, 6),))
    network = load_model(str(path))
    program = capture(network.model, network.example)
    assert program.fixed_batch == (None if is_open else 2)
    direct = capture(model, torch.randn(2, 1, 6, 6))
    assert [(layer.name, layer.macs) for layer in program.layers] == [
        (layer.name, layer.macs) for layer in direct.layers
    ]
    x = torch.randn(5 if is_open else 1, 1, 6, 6)
    with torch.no_grad():
        expected = model(x if is_open else torch.cat([x, x]))[: len(x)]
    assert same(program.run(x), expected)


def test_shared_weights_survive_the_file(tmp_path: Path) -> None:
    model, example = model_of("tied_decoder")
    program = capture(load_pt2(save(tmp_path / "net.pt2", model, example=(example,))))
    assert [(layer.name, layer.weights) for layer in program.layers] == [("1", 64), ("2", 88)]
    derivative = program.differentiate(example, lambda output: output.square().mean(), ["2"])
    assert derivative.gradients["2"][0].abs().max() > 0


def test_a_program_without_example_asks_for_one(tmp_path: Path) -> None:
    exported = torch.export.load(save(tmp_path / "net.pt2"))
    exported._example_inputs = None
    with pytest.raises(BitsectError, match="holds no example input"):
        capture(exported)
    assert capture(exported, torch.zeros(2, 4)).fixed_batch is None


@pytest.mark.parametrize("share", [0, 10, 60, 99])
def test_a_file_cut_short_is_refused(tmp_path: Path, share: int) -> None:
    path = save(tmp_path / "net.pt2")
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) * share // 100])
    with pytest.raises(BitsectError, match=r"not a \.pt2 archive, an old one, or cut short"):
        load_pt2(path)


def test_other_kinds_of_files_are_refused(tmp_path: Path) -> None:
    for name, write in {
        "text": lambda path: path.write_text("weights"),
        "state": lambda path: torch.save({"weight": torch.zeros(3)}, path),
        "folder": lambda path: path.mkdir(),
    }.items():
        path = tmp_path / f"{name}.pt2"
        write(path)
        with pytest.raises(BitsectError, match=str(path)):
            load_pt2(path)


def test_symbolic_sizes_of_honest_files_pass(tmp_path: Path) -> None:
    class Sizes(nn.Module):
        def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
            pairs = x.reshape(x.shape[0] // 2, 2, 4).sum(1)
            return pairs, y[: x.shape[0]], nn.functional.pad(x, (0, 0, 0, x.shape[0] % 3))

    auto = {0: Dim.AUTO}
    exported = torch.export.export(
        Sizes(), (torch.randn(4, 4), torch.randn(6, 4)), dynamic_shapes=(auto, auto)
    )
    torch.export.save(exported, tmp_path / "net.pt2")
    assert load_pt2(tmp_path / "net.pt2").range_constraints


# bitsect layers


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of `bitsect ARGUMENTS` in this process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["bitsect", *arguments])
        patch.setenv("COLUMNS", "200")
        code: Any = 0
        try:
            main()
        except SystemExit as end:
            code = end.code or 0
    output = capsys.readouterr()
    return int(code), output.out, output.err


@pytest.mark.parametrize(
    ("name", "layers", "weights", "megabytes"),
    [
        ("resnet50", 54, 25_502_912, 51.005824),
        ("mobilenetv2", 53, 3_469_760, 6.93952),
        ("bert-large", 193, 301_991_936, 603.983872),
    ],
)
def test_the_papers_sizes(
    name: str, layers: int, weights: int, megabytes: float, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("transformers")
    code, out, _ = run(capsys, "layers", f"paper:{name}", "--json")
    data = json.loads(out)
    assert code == 0
    assert data["totals"]["layers"] == len(data["layers"]) == layers
    assert data["totals"]["weights"] == sum(layer["weights"] for layer in data["layers"]) == weights
    sizes = data["totals"]["size_mb"]
    assert sizes == {"16": megabytes, "8": megabytes / 2, "4": megabytes / 4}
    assert all({"name", "kind", "weights", "macs"} <= set(layer) for layer in data["layers"])
    assert all(layer["macs"] > 0 for layer in data["layers"])
    if name == "bert-large":
        assert round(sizes["16"], 2) == 603.98
        assert [layer["kind"] for layer in data["layers"]].count("matmul") == 48


@pytest.mark.usefixtures("user")
def test_layers_of_a_users_network(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "layers", "users_networks:pair", "--json")
    assert code == 0
    data = json.loads(out)
    assert data["totals"] == {
        "layers": 1,
        "weights": 12,
        "macs": 12,
        "size_mb": {"16": 24e-6, "8": 12e-6, "4": 6e-6},
    }
    assert data["layers"][0] == {
        "name": "weight",
        "kind": "linear",
        "weight_shape": [3, 4],
        "weights": 12,
        "macs": 12,
        "places": ["weight"],
    }
    assert data["batch"] == "any"
    assert data["skipped"] == []


@pytest.mark.filterwarnings("ignore:The tensor attributes")
def test_layers_for_people(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    class Reads(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.cell, self.head = (
                nn.Embedding(9, 8),
                nn.LSTM(8, 8, batch_first=True),
                nn.Linear(8, 3),
            )

        def forward(self, tokens: Tensor) -> Tensor:
            return self.head(self.cell(self.words(tokens))[0][:, -1]).view(2, 3)

    path = save(tmp_path / "net.pt2", Reads(), is_open=False, example=(torch.zeros(2, 5, dtype=torch.long),))
    code, out, err = run(capsys, "layers", str(path))
    assert (code, err) == (0, "")
    for part in (
        "3 layers, 536 weights",
        "cell.weight_hh_l0",
        "32×8",
        "sequences are as long as the example",
        "holds its batch fixed at 2",
        "words.embedding: embedding",
    ):
        assert part in out
    code, out, _ = run(capsys, "layers", str(path), "--embeddings", "--json")
    assert [layer["name"] for layer in json.loads(out)["layers"]] == [
        "words",
        "cell.weight_ih_l0",
        "cell.weight_hh_l0",
        "head",
    ]


@pytest.mark.usefixtures("user")
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["users_networks:branches"], "users_networks.py:14 `if x.sum() > 0:`"),
        (["users_networks:module"], "gives no example input: pass --input-shape"),
        (["users_networks:module", "--input-shape", "5"], "cannot be captured"),
        (["users_networks:module", "--input-shape", "a"], "is not of the form 3x224x224"),
        (["users_networks:raises"], "raised KeyError"),
        (["missing.pt2"], "no such file"),
        (["nothing"], "unknown model 'nothing'"),
        (["users_networks:pair", "--device", "banana"], "device 'banana' cannot be used here"),
        (["users_networks:empty", "--device", "cpu"], "has no weights to move"),
    ],
)
def test_an_error_is_one_line_on_stderr_and_one_object_for_programs(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = run(capsys, "layers", *arguments, "--json")
    (line,) = [line for line in err.splitlines() if "a user's module" not in line and line != "building"]
    assert code == 1
    assert line.startswith("error: ")
    assert message in line
    assert json.loads(out)["error"]["message"] == line.removeprefix("error: ")


@pytest.mark.usefixtures("user")
def test_an_input_shape_is_enough(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "layers", "users_networks:module", "--input-shape", "7x4", "--json")
    assert code == 0
    assert json.loads(out)["totals"]["macs"] == 7 * 12


@pytest.mark.parametrize(
    "arguments", [["layers"], ["layers", "x", "--nothing"], ["nothing"], ["layers", "a", "b"]]
)
def test_wrong_usage_is_told_apart(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, *arguments)
    assert (code, out) == (2, "")
    assert "Usage" in err


def test_the_version_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "--version")[:2] == (0, f"bitsect {bitsect.__version__}\n")


# What loads torch, and what does not


@pytest.mark.parametrize(
    "code",
    [
        "import bitsect",
        "import bitsect.solve.search, bitsect.solve.metrics, bitsect.latency, bitsect.values",
        "sys.argv = ['bitsect', '--help']; from bitsect.cli import main; main()",
        "sys.argv = ['bitsect', 'layers', '--help']; from bitsect.cli import main; main()",
    ],
)
def test_torch_stays_unloaded(code: str) -> None:
    check = "atexit.register(lambda: print('TORCH' if 'torch' in sys.modules else 'LIGHT'))"
    command = [sys.executable, "-c", f"import atexit, sys; {check}; {code}"]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    assert result.stdout.splitlines()[-1] == "LIGHT"


def test_the_command_itself() -> None:
    """As a process: one object on stdout, nothing else."""
    arguments = ["layers", "torch.nn:Identity", "--input-shape", "3", "--json"]
    result = subprocess.run([sys.executable, "-m", "bitsect", *arguments], capture_output=True, text=True)
    assert (result.returncode, result.stderr) == (0, "")
    assert json.loads(result.stdout)["totals"]["layers"] == 0


class Talkative:
    """An object of another library that shows all that it holds."""

    def __repr__(self) -> str:
        return "x" * 10**6


@pytest.mark.parametrize("call", [load_model, bitsect.layers])
@pytest.mark.parametrize("thing", [Talkative(), {"w": torch.zeros(9)}, b"net.pt2", "x" * 10**6])
def test_what_is_no_network_is_told_in_a_short_line(call: Any, thing: object) -> None:
    with pytest.raises(BitsectError) as told:
        call(thing)
    assert len(str(told.value)) < 1000
    assert "network" in str(told.value)


def test_a_message_is_never_longer_than_a_page() -> None:
    error = BitsectError("first " + "x" * 10**6 + " last")
    assert len(str(error)) < 5000
    assert (str(error)[:6], str(error)[-5:]) == ("first ", " last")
