"""Ways out besides ONNX: .pt2, packed safetensors and folders of transformers, each to the judged bits."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import save_file
from torch import nn

import bitsect
from bitsect.errors import BitsectError, ExportError, OptionError
from bitsect.exporters import EXPORTERS
from bitsect.exporters.constants import needed_constants
from bitsect.exporters.packed.codes import narrowest, pack, packed_size, unpack
from bitsect.exporters.packed.exporter import Read
from bitsect.exporters.packed.read import Packed
from bitsect.exporters.packed.write import digest, write_packed
from bitsect.exporters.pt2 import check, write_pt2
from bitsect.exporters.subject import Subject
from bitsect.names import choose
from bitsect.runs.opening import open_run
from bitsect.sources.tasks.task import task_named
from bitsect.values import INT4, INT8, ONNXRUNTIME, PAPER, Format, Placement, Plan
from odd_models import model_of, one_thread, program_of
from tiny import Residual, images, judge, refill, residual

__all__ = ["one_thread"]


def subject_of(program: Any, plan: Plan, placement: Placement, data: Any) -> Subject:
    evaluator = judge(program, data, placement=placement)
    assert evaluator.rounder is not None
    return Subject(program, evaluator.rounder, plan, task_named("classification"))


def mixed(program: Any, *formats: Format) -> Plan:
    return Plan({layer.name: formats[i % len(formats)] for i, layer in enumerate(program.layers)})


# Codes as bytes


@settings(max_examples=60)
@given(bits=st.integers(2, 8), count=st.integers(0, 40), seed=st.integers(0, 99))
def test_codes_come_back_as_they_were(bits: int, count: int, seed: int) -> None:
    most = 2 ** (bits - 1) - 1
    drawn = torch.randint(-most, most + 1, (count,), generator=torch.Generator().manual_seed(seed))
    packed = pack(drawn.float(), bits)
    assert len(packed) == packed_size(count, bits) == -(-count * {2: 2, 3: 4, 4: 4}.get(bits, 8) // 8)
    assert torch.equal(unpack(packed, count, bits).long(), drawn)


def test_numbers_are_narrowed_only_where_nothing_is_lost() -> None:
    assert narrowest(torch.tensor([0.5, -3.0])).dtype == torch.float16
    assert narrowest(torch.tensor([1e30]).bfloat16().float()).dtype == torch.bfloat16
    assert narrowest(torch.tensor([0.1])).dtype == torch.float32
    assert narrowest(torch.tensor([float("nan")])).dtype == torch.float32
    assert narrowest(torch.tensor([7])).dtype == torch.int64


# From a run to a file and back


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose 4-bit weights were fitted, with biases of their own."""
    folder = tmp_path_factory.mktemp("runs") / "run"
    bitsect.quantize(
        residual()[0], images(48), target=0.1, confidence=None, destination="bits", out=folder, batch_size=16
    )
    return folder


@pytest.mark.parametrize("ending", [".pt2", ".safetensors"])
def test_a_file_is_proven_to_the_last_bit(ending: str, run: Path, tmp_path: Path) -> None:
    plan = mixed(residual()[1], INT4, INT8, Format(4, None), Format())
    path = tmp_path / f"model{ending}"
    delivery = bitsect.export(run, path, plan=plan)
    assert delivery.kept
    proof = delivery.proof
    assert (proof.identical, proof.exact, proof.failures) == (48, True, ())
    assert proof.size_bytes == path.stat().st_size
    assert "all outputs are bit-identical" in str(proof)
    x, _ = images(5, seed=3)
    again = bitsect.export(run, tmp_path / "again" / path.name, plan=plan)
    assert path.read_bytes() == again.path.read_bytes()
    beside = () if ending == ".pt2" else (refill(Residual(), seed=9),)  # its own weights are not looked at
    model = bitsect.load(path, *beside)
    with open_run(run) as opened:
        rounding = opened.calibrate(set(plan.values()))(plan)
        assert torch.equal(model(x), opened.program.run(x, rounding))


def test_torch_alone_loads_a_saved_program(run: Path, tmp_path: Path) -> None:
    bitsect.export(run, tmp_path / "model.pt2", format="int8")
    x, _ = images(3)
    torch.save(x, tmp_path / "x.pt")
    script = (
        "import sys, torch; torch.set_num_threads(1)\n"
        f"model = torch.export.load({str(tmp_path / 'model.pt2')!r}).module()\n"
        f"torch.save(model(torch.load({str(tmp_path / 'x.pt')!r})), {str(tmp_path / 'y.pt')!r})\n"
        "assert not any(name.startswith('bitsect') for name in sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=600)
    made = bitsect.load(tmp_path / "model.pt2")
    assert torch.equal(torch.load(tmp_path / "y.pt"), made(x))


def test_four_bits_take_half_a_byte(tmp_path: Path) -> None:
    program = residual()[1]
    sizes = {}
    for format in (INT4, INT8):
        plan = Plan.uniform(program.layers, format)
        subject = subject_of(program, plan, PAPER, images(4))
        write_packed(subject, tmp_path / "m.safetensors")
        (tmp_path / "other").touch()  # anybody who may read that may read this
        assert (tmp_path / "m.safetensors").stat().st_mode == (tmp_path / "other").stat().st_mode
        with safe_open(tmp_path / "m.safetensors", "pt") as file:
            names = [name for name in file.keys() if name.endswith(".codes")]  # noqa: SIM118
            sizes[format] = sum(file.get_tensor(name).nbytes for name in names)
    weights = [layer.weights for layer in program.layers]
    assert sizes[INT8] == sum(weights)
    assert sizes[INT4] == sum(-(-count // 2) for count in weights)


@pytest.mark.parametrize("placement", [PAPER, ONNXRUNTIME])
@pytest.mark.parametrize("format", [Format(2, None), Format(3, 8), Format(4, 8), Format(4, None, 2), INT8])
def test_every_format_comes_back(format: Format, placement: Placement, tmp_path: Path) -> None:
    program = residual()[1]
    plan = Plan.uniform(program.layers, format)
    if format.group_size is not None:
        plan = plan.replace(["stem", "d"], INT8)  # three channels are no groups of two
    subject = subject_of(program, plan, placement, images(4))
    write_packed(subject, tmp_path / "m.safetensors")
    x, _ = images(6, seed=5)
    read = Read(tmp_path / "m.safetensors", program).run(x)
    assert torch.equal(read, program.run(x, subject.rounder(plan)))


@pytest.mark.parametrize(
    "name",
    ["shared_weight", "tied_embedding", "tied_decoder", "matmul_weights", "einsum", "module_used_twice"],
)
def test_weights_in_odd_places_come_back(name: str, tmp_path: Path) -> None:
    program, example = program_of(name), model_of(name)[1]
    plan = Plan.uniform(program.layers, INT4)
    subject = subject_of(program, plan, PAPER, [(example,)])
    write_packed(subject, tmp_path / "m.safetensors")
    read = Read(tmp_path / "m.safetensors", program).run(example)
    assert torch.equal(read, program.run(example, subject.rounder(plan)))


def test_a_weight_that_is_looked_up_too_is_kept_in_float() -> None:
    program = program_of("tied_embedding")
    everything = needed_constants(program, Plan.uniform(program.layers))
    rounded = needed_constants(program, Plan.uniform(program.layers, INT8))
    shared = max(everything, key=lambda name: everything[name][1].numel())
    assert shared in rounded  # the look-up reads it as it is


def test_what_only_bitsect_can_run_is_not_written_as_a_program() -> None:
    program = residual()[1]
    check(program, Plan.uniform(program.layers), "")
    from bitsect.network.grouped import GROUPED

    class Grouped:
        multiplies = (type("M", (), {"layer": "experts", "node": type("N", (), {"target": GROUPED})})(),)

    with pytest.raises(ExportError, match="'experts' multiplies by groups of rows"):
        check(Grouped(), Plan({}), "")  # type: ignore[arg-type]


def test_a_fixed_batch_is_filled_up(tmp_path: Path) -> None:
    class Fixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(6, 3)

        def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
            return {"logits": self.layer(x.reshape(int(x.shape[0]), 6))}

    from bitsect.exporters.pt2 import Loaded
    from bitsect.network.capture import capture

    x = torch.randn(8, 2, 3, generator=torch.Generator().manual_seed(0))
    program = capture(Fixed().eval(), x[:4])
    assert program.fixed_batch == 4
    subject = subject_of(program, Plan.uniform(program.layers, INT8), PAPER, [(x[:4],)])
    write_pt2(subject, tmp_path / "m.pt2")
    made = Loaded(tmp_path / "m.pt2", 4).run(x[:3])
    judged = program.run(x[:3], subject.rounder(subject.plan))
    assert torch.equal(made["logits"], judged["logits"])


# Folders of transformers


def test_a_folder_of_transformers_goes_in_and_out(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    from hf_models import distilbert

    model, data = distilbert(tmp_path / "float")
    bitsect.quantize(
        f"hf:{model}",
        str(data),
        target=0.3,
        metric="sqnr",
        formats="int8",
        batch_size=4,
        confidence=None,
        destination="bits",
        out=tmp_path / "run",
    )
    out = tmp_path / "quantized"
    delivery = bitsect.export(tmp_path / "run", out)
    assert delivery.proof.holds
    config = json.loads((out / "config.json").read_text())
    assert config["quantization_config"]["quant_method"] == "bitsect"
    assert config["quantization_config"]["plan"] == json.loads((out / "plan.json").read_text())["layers"]
    words = transformers.AutoTokenizer.from_pretrained(out)(["the old cat"], return_tensors="pt")
    loaded = bitsect.load(out)
    made = loaded(**{name: words[name] for name in ("input_ids", "attention_mask")})
    packed = bitsect.load(out / "quantized.safetensors", f"hf:{model}")
    assert torch.equal(made["logits"], packed(**words)["logits"])
    with pytest.raises(Exception, match="safetensors"):  # else weights would be random
        transformers.AutoModelForSequenceClassification.from_pretrained(out)
    with pytest.raises(BitsectError, match="quantised already"):
        bitsect.layers(f"hf:{out}")
    with pytest.raises(ExportError, match=r"exists: pass force=True"):
        bitsect.export(tmp_path / "run", out)
    assert bitsect.export(tmp_path / "run", out, force=True).kept
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "thesis.txt").write_text("all of it")
    with pytest.raises(ExportError, match="is a folder: name a file in it"):
        bitsect.export(tmp_path / "run", mine, force=True)
    assert (mine / "thesis.txt").read_text() == "all of it"


# What is refused


def test_requests_that_do_not_go_together_are_one_line(run: Path, tmp_path: Path) -> None:
    for path, more, message in [
        ("m.bin", {}, r"must end in one of \.onnx, \.pt2, \.safetensors"),
        ("m.pt2", {"destination": "openvino"}, r"destination='openvino' is for an \.onnx file"),
        ("m.safetensors", {"require_speedup": True}, r"a \.safetensors file is not timed"),
        ("folder", {}, "a folder is written for networks that were given as hf:FOLDER"),
    ]:
        with pytest.raises(ExportError, match=message) as caught:
            bitsect.export(run, tmp_path / path, **more)
        assert "\n" not in str(caught.value)
        assert not (tmp_path / path).exists()


def test_every_way_out_says_what_it_is() -> None:
    for ending in EXPORTERS:
        assert choose("form", ending, EXPORTERS).about


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    program = residual()[1]
    subject = subject_of(program, mixed(program, INT4, INT8), PAPER, images(4))
    path = tmp_path_factory.mktemp("packed") / "m.safetensors"
    write_packed(subject, path)
    return path


def changed(
    packed: Path, to: Path, change: Callable[[dict[str, Any], dict[str, Any]], Any], *, sign: bool = True
) -> Path:
    """A file of someone who knows how it is made."""
    with safe_open(packed, "pt") as file:
        about = json.loads(file.metadata()["bitsect"])
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    change(about, tensors)
    if sign:
        about["digest"] = digest(tensors)
    save_file(tensors, to, {"bitsect": json.dumps(about)})
    return to


HOSTILE: list[tuple[str, Callable[[Any, Any], Any]]] = [
    ("not a packed model", lambda about, tensors: about.update(bitsect="plan")),
    ("version 99 is not 1", lambda about, tensors: about.update(version=99)),
    ("another network", lambda about, tensors: about.update(architecture="0" * 64)),
    ("lacks the tensor 'stem.weight.codes'", lambda about, tensors: tensors.pop("stem.weight.codes")),
    ("lacks the tensor 'head.bias'", lambda about, tensors: tensors.pop("head.bias")),
    ("which the network does not have", lambda about, tensors: tensors.update(more=torch.zeros(1))),
    (
        "not the codes of int4",
        lambda a, t: t.update({"stem.weight.codes": torch.zeros(7, dtype=torch.uint8)}),
    ),
    ("not the codes of int8", lambda a, t: t.update({"a.weight.codes": t["a.weight.codes"].int()})),
    ("more than 4 bits", lambda a, t: t["stem.weight.codes"].zero_()),
    ("does not hold the numbers", lambda a, t: t["a.weight.scales"].fill_(float("nan"))),
    ("'head.bias' is", lambda a, t: t.update({"head.bias": torch.zeros(3)})),
    ("got 99", lambda a, t: a["plan"]["layers"].update(stem="int99")),
    ("unknown layer 'mine'", lambda a, t: a["plan"]["layers"].update(mine="int8")),
    ("no 4-bit range", lambda a, t: a["ranges"]["tensors"].clear()),
    ("a range of", lambda a, t: a["ranges"]["tensors"].update(x={"8": [-1.0, False]})),
    ("placement", lambda a, t: a.update(placement="nowhere")),
    ("rounding", lambda a, t: a.update(rounding="os:system")),
    ("not one to be made", lambda a, t: a.update(example={"shape": [10**9, 10**9], "dtype": "float32"})),
    ("not one to be made", lambda a, t: a.update(example={"shape": [1], "dtype": "load"})),
    ("damaged", lambda a, t: a.pop("weights")),
    ("'example'|damaged and not made", lambda a, t: a.pop("example")),
]


@pytest.mark.parametrize(("message", "change"), HOSTILE)
def test_a_hostile_file_is_one_line(
    message: str, change: Callable[[Any, Any], Any], packed: Path, tmp_path: Path
) -> None:
    path = changed(packed, tmp_path / "m.safetensors", change)
    model, program = residual()
    captured_anew = "example" in message or "made" in message
    with pytest.raises(BitsectError, match=message) as caught:
        bitsect.load(path, model) if captured_anew else Packed.read(path).of_program(program)
    assert "\n" not in str(caught.value)


def test_a_damaged_file_is_one_line(packed: Path, tmp_path: Path) -> None:
    whole, path = packed.read_bytes(), tmp_path / "m.safetensors"
    flipped = bytearray(whole)
    flipped[-3] ^= 1
    for data in (b"", whole[:100], whole[:-5], bytes(flipped), b"\xff" * 64, b"no model at all"):
        path.write_bytes(data)
        with pytest.raises(BitsectError) as caught:
            bitsect.load(path, residual()[0])
        assert "\n" not in str(caught.value)
        assert str(path) in str(caught.value)
    with pytest.raises(BitsectError, match="its tensors are not those that were written"):
        bitsect.load(changed(packed, path, lambda a, t: t["head.bias"].add_(1), sign=False), residual()[0])


def test_load_says_what_goes_with_what(packed: Path, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="not the architecture"):
        bitsect.load(packed)
    with pytest.raises(BitsectError, match="cannot be captured"):
        bitsect.load(packed, "zoo:fashion-resnet")
    with pytest.raises(BitsectError, match="a network is expected"):
        bitsect.load(packed, {"weights": 1})
    with pytest.raises(BitsectError, match="no such"):
        bitsect.load(tmp_path / "nothing.safetensors", residual()[0])
    with pytest.raises(OptionError, match="runs in a runtime"):
        bitsect.load(tmp_path / "m.onnx")
    with pytest.raises(OptionError, match="holds its architecture"):
        bitsect.load(tmp_path / "m.pt2", residual()[0])
