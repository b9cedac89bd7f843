"""Written models: what is in the file, that it computes what was judged, and what is refused."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
import torch.utils._pytree as pytree
from torch import Tensor, nn

from bitsect import __version__
from bitsect.errors import BitsectError, DataError, ExportError, OptionError
from bitsect.exporters.onnx import write as writing
from bitsect.exporters.onnx.edit import Edit
from bitsect.exporters.onnx.form import FORMS
from bitsect.exporters.onnx.write import Written
from bitsect.exporters.proof import INTEGER_KERNELS, Proof
from bitsect.exporters.runtimes.onnxruntime import OnnxModel, ReferenceModel, kernels, latencies_ms
from bitsect.exporters.ties import Observer, Ties
from bitsect.network.capture import capture
from bitsect.network.program import Program
from bitsect.rounding.rounder import Rounder
from bitsect.rounding.weights import quantize_weight
from bitsect.sources.data import Samples, load_samples
from bitsect.sources.models import load_model
from bitsect.sources.tasks.task import task_named
from bitsect.values import FLOAT, INT4, INT8, ONNXRUNTIME, PAPER, Format, Plan
from odd_models import BATCH, Block, batch_of, model_of, program_of
from odd_models import one_thread as one_thread
from short import calibrate, export_onnx, prove
from tiny import Residual, images, refill, seeded

W4A16 = Format.parse("w4a16")
MIXED = (INT4, W4A16, INT8, FLOAT)


@dataclass(frozen=True)
class Case:
    """A network, a plan of it, and the file it was written to."""

    program: Program
    rounder: Rounder
    plan: Plan
    exported: Written

    @property
    def path(self) -> Path:
        return self.exported.path

    @property
    def graph(self) -> Any:
        return onnx.load(self.path).graph

    @property
    def target(self) -> str:
        return self.exported.destination

    def judged(self, inputs: Any) -> dict[str, Tensor]:
        return named(self.program.run(inputs, self.rounder(self.plan)))

    def ran(self, inputs: Any) -> dict[str, Tensor]:
        """What the file answers: a portable one by the letter, if the reference evaluator can.

        In ONNX Runtime weight-only layers are told to leave their inputs in float, as they were judged.
        """
        if self.target == "portable":
            with suppress(DataError):  # its ConvTranspose takes no groups
                return named(ReferenceModel(self.path).run(inputs))
        options = onnxruntime.SessionOptions()
        options.add_session_config_entry("session.qdq_matmulnbits_accuracy_level", "1")
        model = OnnxModel(self.path)
        model.session = onnxruntime.InferenceSession(self.path, options, ["CPUExecutionProvider"])
        return named(model.run(inputs))


def named(outputs: Any) -> dict[str, Tensor]:
    """The tensors of a network's outputs by their path."""
    leaves, _ = pytree.tree_flatten_with_path(dict(outputs) if isinstance(outputs, dict) else outputs)
    keys = [
        ".".join(str(getattr(key, "key", getattr(key, "idx", key))) for key in path) for path, _ in leaves
    ]
    return {key: leaf for key, (_, leaf) in zip(keys, leaves, strict=True) if isinstance(leaf, Tensor)}


def rounder_of(program: Program, samples: Samples, target: str) -> Rounder:
    placement = FORMS[target].placement
    return Rounder(program, calibrate(program, samples, sign=placement.sign), placement)


def write(
    program: Program, inputs: Any, formats: tuple[Format, ...], folder: Path, target: str = "onnxruntime"
) -> Case:
    """The program with its layers in `formats` by turns, calibrated on `inputs`."""
    samples = inputs if isinstance(inputs, Samples) else load_samples([(inputs, torch.zeros(BATCH))])
    rounder = rounder_of(program, samples, target)
    plan = Plan({layer.name: format for layer, format in zip(program.layers, cycle(formats), strict=False)})
    exported = export_onnx(program, rounder, plan, folder / "model.onnx", target=target)
    return Case(program, rounder, plan, exported)


def initializers(graph: Any) -> dict[str, np.ndarray]:
    return {each.name: onnx.numpy_helper.to_array(each) for each in graph.initializer}


def differing(written: Case, inputs: Any, flips: float = 0.0) -> list[str]:
    """The outputs that differ by more than a few last bits.

    A product that runs in float adds in another order than torch does, and what lies at the middle
    between two codes may then be rounded to the other one: `flips` is how far that may reach.
    """
    judged, ran = written.judged(inputs), written.ran(inputs)
    assert judged.keys() == ran.keys()
    found = []
    for name, expected in judged.items():
        assert (expected.shape, expected.dtype) == (ran[name].shape, ran[name].dtype)
        errors = (expected - ran[name]).abs() / expected.abs().max().clamp(min=1e-6)
        if errors.median() > 1e-6 or errors.max() > max(flips, 1e-5):
            found.append(f"{name}: {float(errors.median()):.1e}, at most {float(errors.max()):.1e}")
    return found


# The zoo of odd networks, some at a time: each network of a group has inputs and outputs of its own

TRANSPOSED = "ConvTranspose has no integer kernel"
# The networks of each group, and those of their int8 layers that ONNX Runtime runs in float, with the reason.
GROUPS: dict[str, dict[str, dict[str, str]]] = {
    "convolutions": {
        "convolutions": {"4": TRANSPOSED, "5": TRANSPOSED},
        "convolutions_1d": {"3": TRANSPOSED},
        "convolutions_3d": {"1": TRANSPOSED},
        "padding_same": {},
        "residual_in_place": {},
        "plain_batch_norm": {},
    },
    "products": {
        "autoencoder": {},
        "gpt2_conv1d": {},
        "matmul_weights": {"left": "a scale per row of the first factor"},
        "bmm_mm_baddbmm": {"last": "a bias that is scaled"},
        "expanded_weight": {},
        "einsum": dict.fromkeys(("right", "left", "qk", "av", "heads"), "Einsum has no integer kernel"),
    },
    "structures": {
        "tied_decoder": {},
        "shared_weight": {},
        "attention": {},
        "dictionary_input": {},
        "two_outputs": {},
    },
}


class Group(nn.Module):
    def __init__(self, names: Iterable[str]) -> None:
        super().__init__()
        self.networks = nn.ModuleDict({name: model_of(name)[0] for name in names})

    def forward(self, **inputs: Tensor) -> dict[str, Any]:
        outputs = {}
        for name, network in self.networks.items():
            own = {key.partition("__")[2]: x for key, x in inputs.items() if key.partition("__")[0] == name}
            outputs[name] = network(own.pop("")) if "" in own else network(**own)
        return outputs


@cache
def group(name: str) -> tuple[Program, dict[str, Tensor]]:
    inputs: dict[str, Tensor] = {}
    for network in GROUPS[name]:
        own = batch_of(model_of(network)[1], BATCH)
        named = {f"{network}__{key}": value for key, value in own.items()} if isinstance(own, dict) else None
        inputs |= named or {f"{network}__": own}
    return capture(Group(GROUPS[name]).eval(), inputs, embeddings=True), inputs


@pytest.mark.parametrize("name", GROUPS)
def test_int8_layers_run_in_integers_or_are_named(name: str, tmp_path: Path) -> None:
    program, inputs = group(name)
    written = write(program, inputs, (INT8,), tmp_path)
    assert differing(written, inputs, flips=0.02) == []
    named = {layer.removeprefix("networks.") for note in written.exported.notes for layer in note.layers}
    ran = kernels(written.path)
    for network, expected in GROUPS[name].items():
        places = {
            multiply.place.name: multiply.layer.removeprefix(f"networks.{network}.")
            for multiply in program.multiplies
            if multiply.layer.startswith(f"networks.{network}.")
            and multiply.place.signature.kind != "embedding"
        }
        in_integers = {node for node, operator in ran if operator in INTEGER_KERNELS}
        on_float = {
            layer
            for place, layer in places.items()
            if not any(node == place or node.startswith(f"{place}_token") for node in in_integers)
        }
        assert on_float == expected.keys(), network
        assert all(f"{network}.{layer}" in named for layer, why in expected.items() if "kernel" in why)


@pytest.mark.parametrize("target", FORMS)
@pytest.mark.parametrize("name", GROUPS)
def test_mixed_formats_compute_what_was_judged(name: str, target: str, tmp_path: Path) -> None:
    program, inputs = group(name)
    written = write(program, inputs, MIXED, tmp_path, target)
    onnx.checker.check_model(written.path, full_check=True)
    onnx.shape_inference.infer_shapes(onnx.load(written.path), strict_mode=True)
    assert differing(written, inputs, flips=0.1) == []


# What is in a file


@cache
def residual() -> Program:
    """Two kinds of shortcut, batch norms that negate some channels and silence others, a linear head."""
    model = refill(Residual())
    with torch.no_grad():
        for norm in model.norms.values():
            norm.weight[0].neg_()
            norm.weight[1] = 0
    return capture(model, seeded(2, 3, 8, 8))


@pytest.fixture(scope="module", params=FORMS)
def written(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    """`residual` with layers in float, int8 and int4, for each target."""
    samples = load_samples(images(16))
    return write(residual(), samples, (INT8, INT4, FLOAT), tmp_path_factory.mktemp("written"), request.param)


def test_weights_are_the_codes_that_rounding_made(written: Case) -> None:
    stored = initializers(written.graph)
    seen = Counter()
    for multiply in written.program.multiplies:
        format, operand = written.plan[multiply.layer], multiply.weight
        assert operand is not None
        if format.is_float:
            assert f"{multiply.layer}.weight.codes" not in stored
            continue
        weight = written.program.constant(operand.node)
        expected = quantize_weight(weight, operand.layout, format, "squant").codes
        factor = written.rounder.folded(multiply).factor
        if factor is not None:
            expected = expected * factor.sign().float().reshape(-1, *[1] * (expected.ndim - 1))
            seen.update(factor.sign().int().tolist())
        codes = stored[f"{multiply.layer}.weight.codes"]
        if codes.shape != expected.shape:  # a linear layer that is written as MatMul
            codes = codes.T
        assert np.array_equal(codes.astype(np.float32), expected.numpy())
    assert seen.keys() == {-1, 0, 1}


def test_scales_are_those_of_the_codes_times_batch_norm(written: Case) -> None:
    stored = initializers(written.graph)
    for multiply in written.program.multiplies:
        factor, format = written.rounder.folded(multiply).factor, written.plan[multiply.layer]
        if factor is None or format.is_float:
            continue
        made = written.rounder.codes(multiply.layer, multiply.weight, format)
        expected = (made.scales.flatten(1)[:, 0] * factor.abs()).float()
        alive = expected > 0
        found = torch.tensor(stored[f"{multiply.layer}.weight.scale"])
        assert torch.equal(found[alive], expected[alive])


def test_outputs_are_those_that_were_judged_for_any_batch(written: Case) -> None:
    for rows in (1, 3, 5):
        inputs = images(rows)[0]
        if written.target == "onnxruntime":  # integers have no last bits to differ in
            (judged,), (ran,) = written.judged(inputs).values(), written.ran(inputs).values()
            assert torch.equal(judged, ran)
        else:
            assert differing(written, inputs, flips=0.1) == []


def test_batch_norm_is_folded_and_layers_keep_their_names(written: Case) -> None:
    nodes = {node.name: node.op_type for node in written.graph.node}
    assert "BatchNormalization" not in nodes.values()
    for layer in written.program.layers:
        assert nodes[layer.name] in ("Conv", "Gemm", "MatMul")
    assert [value.name for value in written.graph.output] == ["output"]
    assert written.graph.input[0].type.tensor_type.shape.dim[0].dim_param == "batch"


def test_metadata_tell_plan_versions_and_fingerprint(written: Case) -> None:
    about = {each.key: each.value for each in onnx.load(written.path).metadata_props}
    plan = Plan.from_json(json.loads(about["bitsect.plan"]), written.program.layers)
    assert plan == written.plan
    assert about["bitsect.version"] == __version__
    assert about["bitsect.torch"] == torch.__version__
    assert about["bitsect.program"] == written.program.fingerprint
    assert about["bitsect.destination"] == written.target
    assert about["bitsect.placement"] == FORMS[written.target].placement.name
    assert OnnxModel(written.path).metadata == about


def test_nothing_tells_of_the_machine_it_was_written_on(written: Case) -> None:
    content = written.path.read_bytes()
    for trace in (str(Path.cwd()), str(Path(__file__).parent), "site-packages", ".py", "forward(", "stack"):
        assert trace.encode() not in content


def test_small_codes_stay_within_their_limits(written: Case) -> None:
    """4-bit codes are held in 8-bit tensors for ONNX Runtime, and in 4-bit tensors for everyone else."""
    model = onnx.load(written.path)
    kinds = {each.name: each.data_type for each in model.graph.initializer}
    codes_of = {
        node.input[0]: node.output[0] for node in model.graph.node if node.op_type == "QuantizeLinear"
    }
    packed = written.target == "portable"
    types = (onnx.TensorProto.INT4, onnx.TensorProto.UINT4) if packed else (onnx.TensorProto.UINT8,)
    small = [layer for layer, format in written.plan.items() if format == INT4]
    stored = initializers(model.graph)
    for layer in small:
        codes = stored[f"{layer}.weight.codes"].astype(int)
        assert (codes.min(), codes.max()) == (-7, 7)
        assert kinds[f"{layer}.weight.codes"] == (onnx.TensorProto.INT4 if packed else onnx.TensorProto.INT8)
    rounded = {codes for value, codes in codes_of.items() if ".int4." in codes}
    assert len(rounded) >= 2
    zero_points = {
        node.output[0]: node.input[2] for node in model.graph.node if node.op_type == "QuantizeLinear"
    }
    assert all(kinds[zero_points[codes]] in types for codes in rounded)
    if packed:
        assert model.opset_import[0].version >= 21
        return
    for codes in rounded:
        model.graph.output.append(onnx.helper.make_tensor_value_info(codes, onnx.TensorProto.UINT8, None))
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    far = images(8)[0].numpy() * 10  # well beyond the range that was calibrated
    for name in rounded:
        zero = int(stored[zero_points[name]])
        (values,) = session.run([name], {session.get_inputs()[0].name: far})
        low, high = (0, 15) if zero == 0 else (-7, 7)
        assert low <= int(values.min()) - zero
        assert int(values.max()) - zero == high


def test_large_weights_lie_in_a_file_of_their_own(
    written: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if written.target == "portable":
        pytest.skip("files are written the same way for every target")
    monkeypatch.setattr(writing, "LARGEST_FILE_BYTES", 100)
    path = tmp_path / "large.onnx"
    exported = export_onnx(written.program, written.rounder, written.plan, path, target=written.target)
    names = sorted(file.name for file in tmp_path.iterdir())
    assert re.fullmatch(r"large\.onnx large\.onnx\.[0-9a-f]{16}\.data", " ".join(names))
    assert exported.size_bytes == sum(file.stat().st_size for file in tmp_path.iterdir())
    onnx.checker.check_model(path, full_check=True)
    inputs = images(3)[0]
    one, other = (model(path).run(inputs) for model in (OnnxModel, ReferenceModel))
    assert torch.allclose(one, other, atol=1e-4)
    assert torch.equal(one, OnnxModel(written.path).run(inputs))


# Kernels


@pytest.mark.parametrize("format", ["w4a16", "w4a16g32", "w8a16"])
def test_weight_only_layers_take_their_own_kernel(format: str, tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(64, 48), nn.ReLU(), nn.Linear(48, 16, bias=False)).eval()
    refill(model)
    program = capture(model, seeded(2, 64))
    plan = Plan({"0": Format.parse(format), "2": Format.parse(format.partition("g")[0])})
    written = Case(
        program,
        Rounder(program, None, ONNXRUNTIME),
        plan,
        export_onnx(program, Rounder(program, None, ONNXRUNTIME), plan, tmp_path / "model.onnx"),
    )
    assert [operator for _, operator in kernels(written.path) if "MatMul" in operator] == ["MatMulNBits"] * 2
    bits = plan["0"].weight_bits
    kinds = {each.name: each.data_type for each in written.graph.initializer}
    assert kinds["0.weight.codes"] == {4: onnx.TensorProto.INT4, 8: onnx.TensorProto.INT8}[bits]
    scales = initializers(written.graph)["0.weight.scale"]
    assert scales.shape == ((2, 48) if "g" in format else (48,))
    assert differing(written, seeded(3, 64)) == []
    # Left alone, ONNX Runtime rounds the inputs too; the export says so.
    (note,) = written.exported.notes
    assert note.layers == ("0", "2")
    judged, ran = (
        program.run(seeded(3, 64), written.rounder(plan)),
        OnnxModel(written.path).run(seeded(3, 64)),
    )
    assert 0 < (judged - ran).abs().max() < 0.03 * judged.abs().max()


def test_attention_of_bert_runs_in_integers(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        vocab_size=50,
        hidden_size=32,
        num_hidden_layers=4,
        num_attention_heads=2,
        intermediate_size=64,
        attn_implementation="eager",
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = transformers.BertForSequenceClassification(config).eval()
    tokens = torch.randint(3, 50, (BATCH, 12), generator=torch.Generator().manual_seed(0))
    mask = torch.ones_like(tokens)
    mask[1, 7:] = 0
    inputs = {"input_ids": tokens, "attention_mask": mask}
    program = capture(model, inputs)
    written = write(program, inputs, (INT8,), tmp_path)
    assert differing(written, inputs, flips=0.05) == []
    products = [layer for layer in program.layers if layer.kind == "matmul"]
    assert len(products) == 8
    nodes = {node.name: node for node in written.graph.node}
    made_by = {node.output[0]: node.op_type for node in written.graph.node}
    ran = dict(kernels(written.path))
    for layer in program.layers:
        node = nodes[layer.name]
        if node.op_type == "MatMulIntegerToFloat":  # of codes, with its bias
            assert made_by[node.input[0]] == "QuantizeLinear"
            assert len(node.input) == 7
        else:
            assert [made_by[value] for value in node.input[:2]] == ["DequantizeLinear"] * 2
        assert ran[layer.name] in INTEGER_KERNELS
    # Sums in front of normalisations and Gelus are not fused with them: that would be slower.
    assert not [name for name in ran.values() if name.startswith(("Skip", "Bias"))]
    assert [node.op_type for node in written.graph.node].count("MatMulIntegerToFloat") == 24


def test_a_bias_in_the_kernel_of_a_product_gives_the_same_bits(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(40, 24), nn.Tanh(), nn.Linear(24, 33), nn.GELU(), nn.Linear(33, 5))
    refill(model.eval())
    program = capture(model, seeded(2, 7, 40))
    written = write(program, seeded(BATCH, 7, 40), (INT8,), tmp_path)
    assert [node.op_type for node in written.graph.node].count("MatMulIntegerToFloat") == 3
    outside = export_onnx(program, written.rounder, written.plan, tmp_path / "other.onnx", target="openvino")
    assert {node.domain for node in onnx.load(outside.path).graph.node} == {""}  # that any runtime reads
    x = seeded(16, 7, 40, seed=3)
    assert torch.equal(OnnxModel(written.path).run(x), OnnxModel(outside.path).run(x))
    assert differing(written, x) == []


# The proof


@cache
def zoo(name: str, target: str = "onnxruntime") -> tuple[Program, Rounder, Samples]:
    network = load_model(f"zoo:{name}")
    program = capture(network.model, network.example)
    rounder = rounder_of(program, load_samples("zoo:fashion-calibration", draw=32), target)
    return program, rounder, load_samples("zoo:fashion-test", draw=256)


def prove_written(written: Case, samples: Samples, **options: Any) -> Proof:
    task = task_named("classification")
    return prove(written.exported, written.program, written.rounder, written.plan, samples, task, **options)


INTEGER_LAYERS = {  # kernels that a network of the zoo runs with two of three layers quantised
    "fashion-resnet": {"QLinearConv", "QLinearAdd"},
    "fashion-mobilenet": {"QLinearConv"},
    "fashion-transformer": {"MatMulIntegerToFloat"},
}


@pytest.mark.parametrize("name", INTEGER_LAYERS)
def test_networks_of_the_zoo_are_proven(name: str, tmp_path: Path) -> None:
    program, rounder, samples = zoo(name)
    plan = Plan(
        {
            layer.name: format
            for layer, format in zip(program.layers, cycle((INT8, INT4, INT8, INT8, FLOAT)), strict=False)
        }
    )
    exported = export_onnx(program, rounder, plan, tmp_path / "model.onnx")
    proof = prove_written(Case(program, rounder, plan, exported), samples)
    assert proof.holds, proof.failures
    assert proof.samples == 256
    assert proof.judged_accuracy > 0.7
    assert proof.size_bytes == exported.size_bytes < proof.float_size_bytes
    assert proof.latency_ms is not None
    assert proof.latency_ratio == proof.latency_ms / proof.float_latency_ms
    assert proof.kernels is not None
    assert INTEGER_LAYERS[name] <= proof.kernels.keys()
    quantised = [layer for layer, format in plan.items() if not format.is_float]
    in_integers = sum(proof.kernels.get(kernel, 0) for kernel in INTEGER_KERNELS)
    assert in_integers + len(proof.float_kernels) == len(quantised)
    assert proof.float_kernels == ()
    assert proof.quantised_kernels == ()
    if name != "fashion-transformer":  # only its float layers add in another order
        assert proof.identical > 240


@pytest.fixture(scope="module")
def proven(tmp_path_factory: pytest.TempPathFactory) -> tuple[Written, Samples]:
    """A file with a float layer between quantised ones, and samples labelled as it was judged."""
    samples = load_samples(images(64))
    written = write(residual(), samples, (INT8, INT8, FLOAT), tmp_path_factory.mktemp("proven"))
    inputs = samples.inputs(slice(None))
    (judged,) = written.judged(inputs).values()
    return written, load_samples((inputs, judged.argmax(1)))


def test_an_honest_file_is_proven_to_the_bit(proven: tuple[Written, Samples]) -> None:
    proof = prove_written(*proven)
    assert proof.holds
    assert (proof.agreement, proof.runtime_accuracy, proof.differing) == (1, 1, ())
    assert json.loads(json.dumps(proof.to_json()))["holds"] is True
    first, *_ = str(proof).splitlines()
    assert ("SLOWER" in first) is proof.slower


def test_a_portable_file_is_proven_on_a_few_samples(tmp_path: Path) -> None:
    samples = load_samples(images(64))
    written = write(residual(), samples, MIXED, tmp_path, "portable")
    proof = prove_written(written, samples)
    assert proof.holds, proof.failures
    assert "reference" in proof.runtime
    assert proof.samples == 16
    assert proof.latency_ms is proof.latency_ratio is proof.kernels is None
    assert not proof.slower


def test_what_the_reference_evaluator_cannot_run_is_proven_elsewhere(tmp_path: Path) -> None:
    """It fails at a transposed convolution in groups."""
    model = nn.Sequential(nn.ConvTranspose2d(4, 6, 3, groups=2), nn.AvgPool2d(10), nn.Flatten())
    samples = load_samples((seeded(24, 4, 8, 8), torch.zeros(24, dtype=torch.long)))
    written = write(capture(refill(model), seeded(2, 4, 8, 8)), samples, (INT4,), tmp_path, "portable")
    proof = prove_written(written, samples)
    assert proof.holds, proof.failures
    assert "onnxruntime" in proof.runtime
    assert proof.samples == 24


@pytest.mark.parametrize("name", ["int4", "int8", "w4a8g2"])
def test_layers_without_an_integer_kernel_keep_their_biases(name: str, tmp_path: Path) -> None:
    """ONNX Runtime would round them to integers, which moves values by a hundredth of a 4-bit code."""
    up = nn.ConvTranspose2d(8, 4, 3, stride=2, padding=1, output_padding=1)
    model = nn.Sequential(
        nn.Conv2d(2, 8, 3),
        nn.ReLU(),
        up,
        nn.ReLU(),
        nn.ConvTranspose2d(4, 1, 3),
        nn.Flatten(),
        nn.Linear(196, 3),
    )
    x = seeded(64, 2, 8, 8)
    samples = load_samples((x, torch.zeros(len(x), dtype=torch.long)))
    formats = (*[Format.parse(name)] * 3, INT8)
    written = write(capture(refill(model), x[:2]), samples, formats, tmp_path)
    proof = prove_written(written, samples)
    assert proof.holds, proof.failures
    assert proof.ties.codes > 64 * 400
    assert proof.ties.ties <= 2


@pytest.mark.parametrize("part", ["codes", "scale"])
def test_a_file_that_was_changed_is_not_proven(
    part: str, proven: tuple[Written, Samples], tmp_path: Path
) -> None:
    written, samples = proven
    model = onnx.load(written.path)
    for tensor in model.graph.initializer:
        if tensor.name == f"head.weight.{part}":
            array = onnx.numpy_helper.to_array(tensor)
            changed = np.flip(array, axis=0) if part == "codes" else array * 10 ** np.arange(len(array))
            tensor.CopyFrom(onnx.numpy_helper.from_array(changed.astype(array.dtype), tensor.name))
            break
    else:
        pytest.fail("nothing was changed")
    path = tmp_path / "changed.onnx"
    onnx.save(model, path)
    changed_file = Case(
        written.program, written.rounder, written.plan, Written(path, written.target, 0, (), {})
    )
    proof = prove_written(changed_file, samples)
    assert not proof.holds
    inputs = samples.inputs(slice(None))
    differ = (OnnxModel(path).run(inputs).argmax(1) != samples.labels).nonzero().flatten().tolist()
    assert list(proof.differing) == differ != []
    predictions, accuracy, _ = proof.failures  # and outputs
    assert predictions.startswith(f"{len(differ)} of 64 predictions differ in onnxruntime")
    assert f"samples {differ[0]}, {differ[1]}" in predictions
    assert accuracy.startswith("accuracy was judged to be 100.00%")
    assert all(f"NOT PROVEN: {failure}" in str(proof) for failure in proof.failures)


class FloatFirst(nn.Module):
    """A float layer whose values are rounded where others read them, once with zeros around."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.a, self.b = (nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 3, stride=2), nn.Conv2d(8, 5, 1))

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.stem(x))
        return self.b(torch.relu(self.a(nn.functional.pad(x, (1, 2, 0, 1))))).mean((2, 3))


def moved_stem(written: Case, steps: float) -> OnnxModel:
    """The same file, with the outputs of its float layer moved by so many steps between two codes."""
    model = onnx.load(written.path)
    grid = next(iter(written.rounder(written.plan).inputs.values()))
    (bias,) = [each for each in model.graph.initializer if each.name == "stem.bias"]
    array = onnx.numpy_helper.to_array(bias) + np.float32(steps * grid.scale)
    bias.CopyFrom(onnx.numpy_helper.from_array(array, bias.name))
    onnx.save(model, written.path)
    return OnnxModel(written.path)


@pytest.mark.parametrize("steps", [5e-4, 3.0])
def test_ties_are_told_from_faults(steps: float, tmp_path: Path) -> None:
    program = capture(refill(FloatFirst()), seeded(2, 3, 14, 14))
    x = seeded(64, 3, 14, 14, seed=3)
    samples = load_samples((x, program.run(x).argmax(1)))
    written = write(program, samples, (FLOAT, INT8, INT8), tmp_path)
    ran, ties = moved_stem(written, steps).run(x), Ties()
    rounding = written.rounder(written.plan)
    observer = Observer(written.path, written.exported.codes, program, rounding)
    told = observer.rounding(rounding, x, [ran], ties)
    assert told is not None
    torch.testing.assert_close(program.run(x, told), ran)
    assert ties.codes == 64 * 8 * 13 * 15
    assert ties.ties > 0
    assert ties.furthest == max(1, steps)
    assert ties.explain is (steps < 1)
    proof = prove_written(written, samples, batch_size=16)
    assert proof.holds is (steps < 1)
    assert proof.outputs_off < 1e-5  # in every batch what ties move is told
    assert any("more than rounding ties explain" in failure for failure in proof.failures) is (steps > 1)


def test_a_float_layer_that_the_runtime_quantises_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Edit, "_keep_float", lambda edit, site: None)
    model = refill(
        nn.Sequential(*(nn.Conv2d(4, 4, 3, padding=1) for _ in range(3)), nn.AvgPool2d(8), nn.Flatten())
    )
    samples = load_samples((seeded(8, 4, 8, 8), torch.zeros(8, dtype=torch.long)))
    program = capture(model, seeded(2, 4, 8, 8))
    proof = prove_written(write(program, samples, (INT8, FLOAT, INT8), tmp_path), samples)
    assert proof.quantised_kernels == ("1",)
    assert "float layers are quantised by the runtime: 1" in proof.failures


def test_latencies_of_two_files_are_taken_by_turns(proven: tuple[Written, Samples]) -> None:
    written, samples = proven
    times = latencies_ms([written.path, written.path], samples.inputs(slice(0, 1)), seconds=0.2)
    assert all(time > 0 for time in times)  # how long each took depends on what else runs


def test_padding_with_something_else_than_zeros_is_not_on_the_grid(tmp_path: Path) -> None:
    def run(self: Any, x: Tensor) -> Tensor:
        y = self.a(x)
        return self.c(nn.functional.pad(y, (0, 2), value=0.123) + self.b(nn.functional.pad(x, (0, 2))))

    parts = {name: nn.Conv1d(4, 4, 3, padding=1) for name in "abc"}
    program = capture(refill(Block(run, **parts)), seeded(2, 4, 8))
    written = write(program, seeded(2, 4, 8), (INT8,), tmp_path)
    assert differing(written, seeded(2, 4, 8), flips=0.02) == []


def test_a_fixed_batch_is_filled_up(tmp_path: Path) -> None:
    program = program_of("fixed_view")
    inputs = batch_of(model_of("fixed_view")[1], BATCH)
    written = write(program, inputs, (INT8,), tmp_path)
    three = torch.cat([inputs, inputs[:1] * 0.5])
    ran = OnnxModel(written.path).run(three)
    assert ran.shape == (3, 3)
    assert torch.equal(ran[:2], OnnxModel(written.path).run(inputs))
    assert torch.allclose(ran[2:], program.run(three[2:], written.rounder(written.plan)), atol=1e-5)


# Refusals


def one_line(error: pytest.ExceptionInfo[BaseException], *words: str) -> None:
    message = str(error.value)
    assert "\n" not in message
    assert all(word in message for word in words), message


@pytest.mark.parametrize("model", [OnnxModel, ReferenceModel])
def test_files_that_are_none_are_refused(model: type[OnnxModel], tmp_path: Path) -> None:
    path = tmp_path / "notes.onnx"
    with pytest.raises(BitsectError) as error:
        model(path)
    one_line(error, "notes.onnx", "no such file")
    path.write_text("a text")
    with pytest.raises(ExportError) as error:
        model(path)
    one_line(error, "notes.onnx", "cannot load it")


@pytest.mark.parametrize("model", [OnnxModel, ReferenceModel])
def test_samples_of_another_shape_are_refused(
    model: type[OnnxModel], proven: tuple[Written, Samples]
) -> None:
    loaded = model(proven[0].path)
    for wrong in (seeded(2, 4, 8, 8), (seeded(2, 3, 8, 8), seeded(2, 3))):
        with pytest.raises(DataError) as error:
            loaded.run(wrong)
        one_line(error)


def test_a_plan_judged_elsewhere_is_refused(tmp_path: Path) -> None:
    program = residual()
    plan, path = Plan.uniform(program.layers), tmp_path / "model.onnx"
    for target, placement in (("onnxruntime", PAPER), ("portable", ONNXRUNTIME)):
        with pytest.raises(ExportError) as error:
            export_onnx(program, Rounder(program, None, placement), plan, path, target=target)
        one_line(error, f"'{placement.name}'", "judge the plan under that placement")
    with pytest.raises(
        OptionError, match="unknown destination 'phone': use onnxruntime, openvino or portable"
    ):
        export_onnx(program, Rounder(program), plan, path, target="phone")
    assert not any(tmp_path.iterdir())


def test_quantised_layers_in_half_precision_are_refused(tmp_path: Path) -> None:
    program = program_of("half")
    plan = Plan.uniform(program.layers, W4A16)
    with pytest.raises(ExportError) as error:
        export_onnx(program, Rounder(program, None, ONNXRUNTIME), plan, tmp_path / "model.onnx")
    one_line(error, "layer '0' computes in torch.float16", "model.float()")


def test_operators_that_onnx_does_not_know_are_named(tmp_path: Path) -> None:
    program = program_of("custom_operator")
    rounder, plan = Rounder(program, None, ONNXRUNTIME), Plan.uniform(program.layers)
    with pytest.raises(ExportError) as error:
        export_onnx(program, rounder, plan, tmp_path / "model.onnx")
    one_line(error, "torch.onnx cannot write this network", "double")
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize("reason", [ValueError("no\nsense"), KeyboardInterrupt()])
def test_a_file_is_written_whole_or_not_at_all(
    reason: BaseException, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether the checker refuses it or someone interrupts: what was there before stays."""

    def check(*args: Any, **options: Any) -> None:
        assert any(tmp_path.glob(".bitsect-*/model.onnx"))  # written, but not in its place
        raise reason

    path = tmp_path / "model.onnx"
    path.write_text("from yesterday")
    monkeypatch.setattr(onnx.checker, "check_model", check)
    program = capture(nn.Linear(4, 2), seeded(2, 4))
    rounder, plan = Rounder(program, None, ONNXRUNTIME), Plan.uniform(program.layers)
    expected = KeyboardInterrupt if isinstance(reason, KeyboardInterrupt) else ExportError
    with pytest.raises(expected) as error:
        export_onnx(program, rounder, plan, path)
    assert [file.name for file in tmp_path.iterdir()] == ["model.onnx"]
    assert path.read_text() == "from yesterday"
    if expected is ExportError:
        one_line(error, "the ONNX checker refuses the model: no")


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    program = capture(nn.Linear(4, 2), seeded(2, 4))
    rounder, plan = Rounder(program, None, ONNXRUNTIME), Plan.uniform(program.layers)
    with pytest.raises(ExportError) as error:
        export_onnx(program, rounder, plan, tmp_path / "file" / "model.onnx")
    one_line(error, "model.onnx", "cannot be written")
