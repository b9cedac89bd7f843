"""Recurrent networks and mixtures of experts, whose multiplies torch hides inside operators of their own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import onnx
import pytest
import torch
from torch import Tensor, nn
from torch.autograd import gradcheck, gradgradcheck
from torch.onnx._internal.exporter import _registration
from torch.utils import _pytree as pytree

import bitsect
from bitsect.exporters.proof import Proof
from bitsect.exporters.runtimes.onnxruntime import OnnxModel
from bitsect.latency import a100
from bitsect.network.capture import capture
from bitsect.network.grouped import grouped_mm
from bitsect.network.program import Program
from bitsect.pipeline.export import export
from bitsect.rounding.rounder import Rounder
from bitsect.rounding.weights import quantize_weight
from bitsect.sources.data import load_samples
from bitsect.sources.tasks.task import task_named
from bitsect.values import INT4, INT8, ONNXRUNTIME, PAPER, Format, Place, Plan, Signature
from bitsect.values.latency_table import gemm_shape
from odd_models import one_thread as one_thread
from short import calibrate, export_onnx, prove

transformers = pytest.importorskip("transformers")
pytest.importorskip("transformers.integrations.moe")

STEPS, CLASSES = 3, 3
pytestmark = pytest.mark.filterwarnings("ignore:The tensor attributes", "ignore:LSTM with projections")


@pytest.fixture(autouse=True, scope="module")
def translations_read_once() -> Iterator[None]:
    """torch.onnx reads its hundreds of translations again for every export, which here takes longest."""
    apis = _registration.onnxscript_apis
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(apis, "get_torchlib_ops", cache(apis.get_torchlib_ops))
        yield


class Runs(nn.Module):
    """A network that calls `run` with its parts."""

    def __init__(self, run: Callable[..., Any], **parts: nn.Module) -> None:
        super().__init__()
        self.run, self.parts = run, nn.ModuleDict(parts)

    def forward(self, *x: Tensor) -> Any:
        return self.run(self.parts, *x)


def sequences(rows: int = 2) -> Tensor:
    return torch.randn(rows, STEPS, 5, generator=torch.Generator().manual_seed(1))


def recurrent(kind: type[nn.Module], **options: Any) -> nn.Module:
    torch.manual_seed(0)
    time_first = not options.get("batch_first")
    network = kind(5, 6, **options)
    return Runs(lambda parts, x: parts["cell"](x.transpose(0, 1) if time_first else x), cell=network).eval()


VARIANTS: dict[str, tuple[type[nn.Module], dict[str, Any]]] = {
    "LSTM": (nn.LSTM, {"bias": False}),
    "LSTM both ways in two layers": (
        nn.LSTM,
        {"bidirectional": True, "num_layers": 2, "batch_first": True, "dropout": 0.5},
    ),
    "LSTM with projections": (nn.LSTM, {"proj_size": 4, "bidirectional": True, "num_layers": 2}),
    "GRU both ways": (nn.GRU, {"bidirectional": True, "bias": False}),
    "RNN": (nn.RNN, {"num_layers": 2}),
    "RNN with ReLU": (nn.RNN, {"nonlinearity": "relu", "batch_first": True}),
}


@pytest.mark.parametrize("name", VARIANTS)
def test_a_recurrence_is_its_matmuls_and_gives_what_torch_gives(name: str) -> None:
    kind, options = VARIANTS[name]
    model = recurrent(kind, **options)
    program = capture(model, sequences())
    assert not program.skipped
    assert program.fixed_batch is None
    weights = {key: tuple(value.shape) for key, value in model.named_parameters() if "weight" in key}
    assert {layer.name: layer.weight_shape for layer in program.layers} == weights
    for layer in program.layers:  # all steps at once, or one after the other
        assert len(layer.places) == (1 if "weight_ih" in layer.name else STEPS)
        assert layer.macs == STEPS * layer.weights
    inputs = sequences(3)
    with torch.no_grad():
        wanted = pytree.tree_leaves(model(inputs))
    for ours, theirs in zip(pytree.tree_leaves(program.run(inputs)), wanted, strict=True):
        assert torch.allclose(ours, theirs, rtol=0, atol=1e-6)


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_an_initial_state_that_is_given_is_used(kind: type[nn.Module]) -> None:
    torch.manual_seed(0)

    def run(parts: nn.ModuleDict, x: Tensor, h: Tensor) -> Any:
        state = h.transpose(0, 1)
        return parts["cell"](x, (state, -state) if kind is nn.LSTM else state)

    model = Runs(run, cell=kind(5, 6, num_layers=2, batch_first=True)).eval()
    example = (sequences(), torch.randn(2, 2, 6))
    program = capture(model, example)
    wanted = model(*example)[0]
    assert torch.allclose(program.run(example)[0], wanted, rtol=0, atol=1e-6)
    assert len(program.layers) == 4


@pytest.mark.parametrize("kind", [nn.LSTMCell, nn.GRUCell, nn.RNNCell])
def test_a_cell_in_a_loop_is_one_layer_per_weight_with_a_place_for_each_step(kind: type[nn.Module]) -> None:
    torch.manual_seed(0)

    def run(parts: nn.ModuleDict, x: Tensor) -> Tensor:
        state = None
        for step in range(STEPS):
            state = parts["cell"](x[:, step], state)
        return state[0] if isinstance(state, tuple) else state  # type: ignore[return-value]

    model = Runs(run, cell=kind(5, 6)).eval()
    program = capture(model, sequences())
    assert not program.skipped
    assert {layer.name: len(layer.places) for layer in program.layers} == {
        "parts.cell.weight_ih": STEPS,
        "parts.cell.weight_hh": STEPS,
    }
    assert torch.allclose(program.run(sequences(3)), model(sequences(3)), rtol=0, atol=1e-6)


def test_a_recurrence_in_training_stays_whole() -> None:
    cell = nn.LSTM(5, 6, num_layers=2, dropout=0.5, batch_first=True)
    exported = torch.export.export(cell.train(), (sequences(),))
    (skipped, *_) = capture(exported).skipped
    assert "recurrent" in skipped.reason


def test_the_states_of_a_recurrence_share_one_range() -> None:
    program = capture(recurrent(nn.LSTM, batch_first=True), sequences())
    places = [m for m in program.multiplies if m.layer.endswith("weight_hh_l0")]
    (tensor,) = {place.operands[0].tensor for place in places}
    assert tensor is not None
    assert len(program.nodes_of(tensor)) == STEPS
    seen: list[Tensor] = []
    eight_bit_weights = Rounder(program)(Plan.uniform(program.layers, Format(8, None)))
    program.observe(sequences(8), {tensor: seen.append}, eight_bit_weights)
    assert len(seen) == STEPS
    magnitudes = torch.cat(seen).abs().flatten().sort(descending=True).values
    ranges = calibrate(program, load_samples(sequences(8)), percentile=90, batch_size=4)
    assert ranges[tensor, 8].amax == pytest.approx(float(magnitudes[len(magnitudes) // 10]), rel=1e-5)
    rounding = Rounder(program, ranges, ONNXRUNTIME)(Plan.uniform(program.layers, INT8))
    assert len({id(rounding.kernels[place.node.name]) for place in places}) == 1


def classifier(kind: type[nn.Module]) -> nn.Module:
    torch.manual_seed(0)

    def run(parts: nn.ModuleDict, tokens: Tensor) -> Tensor:
        return parts["head"](parts["cell"](parts["words"](tokens))[0][:, -1])

    cell = kind(8, 12, bidirectional=True, batch_first=True)
    return Runs(run, words=nn.Embedding(20, 8), cell=cell, head=nn.Linear(24, CLASSES)).eval()


def tokens(rows: int = 64) -> Tensor:
    return torch.randint(3, 20, (rows, STEPS), generator=torch.Generator().manual_seed(0))


def mixture() -> nn.Module:
    torch.manual_seed(0)
    config = transformers.MixtralConfig(
        hidden_size=16,
        intermediate_size=20,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        num_local_experts=4,
        vocab_size=20,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        max_position_embeddings=32,
        num_labels=CLASSES,
        use_cache=False,
    )
    return transformers.MixtralForSequenceClassification(config).eval()


def proven(program: Program, rounder: Rounder, plan: Plan, path: Path, samples: Any, **more: Any) -> Proof:
    exported = export_onnx(program, rounder, plan, path)
    task = task_named("classification")
    return prove(exported, program, rounder, plan, samples, task, **more)


@pytest.mark.parametrize("name", ["LSTM", "Mixtral"])
def test_quantised_with_the_default_metric_exported_and_proven(name: str, tmp_path: Path) -> None:
    model = mixture() if name == "Mixtral" else classifier(nn.LSTM)
    x = {"input_ids": tokens()} if name == "Mixtral" else tokens()
    with torch.no_grad():
        output = model(**x) if isinstance(x, dict) else model(x)
    answers = (output.logits if name == "Mixtral" else output).argmax(1)
    settings = bitsect.Settings(placement="onnxruntime", threads=1)
    asked = {"target": 0.9, "destination": "bits", "formats": "int8", "out": tmp_path / "run"}
    result = bitsect.quantize(model, (x, answers), settings=settings, **asked)
    assert result.target_met is not False
    assert all(score >= 0 for score in bitsect.sensitivity(tmp_path / "run").values)
    assert all("embedding" in item.reason for item in result.run.program.skipped)
    assert not any(format.is_float for format in result.plan.formats.values())
    delivery = export(tmp_path / "run", tmp_path / "net.onnx")  # of the program that the folder holds
    proof = delivery.proof
    assert proof is not None
    assert delivery.failures == ()
    assert proof.differing == ()
    assert proof.float_kernels == ()  # every quantised layer runs on an integer kernel
    assert proof.outputs_off < 1e-6


def test_a_weight_of_many_places_is_written_once(tmp_path: Path) -> None:
    program = capture(classifier(nn.GRU), tokens())
    rounder = Rounder(program, calibrate(program, load_samples(tokens()), sign="auto"), ONNXRUNTIME)
    plan = Plan.uniform(program.layers, INT8)
    export_onnx(program, rounder, plan, tmp_path / "net.onnx")
    graph = onnx.load(tmp_path / "net.onnx").graph
    held = [each for each in graph.initializer if "weight_hh" in each.name and len(each.dims) == 2]
    assert [tuple(each.dims) for each in held] == [(36, 12), (36, 12)]
    ran = OnnxModel(tmp_path / "net.onnx").run(tokens())
    assert torch.allclose(ran, program.run(tokens(), rounder(plan)), atol=1e-6)


# Experts


def slow_product(x: Tensor, weight: Tensor, ends: list[int]) -> Tensor:
    parts = [x[start:end] @ weight[g] for g, (start, end) in enumerate(pairwise([0, *ends]))]
    return torch.cat([*parts, torch.zeros(len(x) - ends[-1], weight.shape[2], dtype=x.dtype)])


@pytest.mark.parametrize("ends", [[2, 2, 7], [0, 3, 5], [7, 7, 7], [0, 0, 0]])
def test_rows_are_multiplied_by_the_weight_of_their_group(ends: list[int]) -> None:
    torch.manual_seed(0)
    x, weight = torch.randn(7, 5, dtype=torch.double), torch.randn(3, 5, 3, dtype=torch.double)
    given = torch.tensor(ends, dtype=torch.int32)
    assert torch.equal(grouped_mm(x, weight, given), slow_product(x, weight, ends))
    leaves = (x.requires_grad_(), weight.requires_grad_())
    assert gradcheck(lambda a, b: grouped_mm(a, b, given), leaves)
    assert gradgradcheck(lambda a, b: grouped_mm(a, b, given), leaves)


class Experts(nn.Module):
    """Rows sorted by expert, multiplied by an operator of transformers."""

    def __init__(self) -> None:
        super().__init__()
        self.stack = nn.Parameter(torch.randn(3, 8, 4))
        self.head = nn.Linear(4, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        expert, order = torch.sort(x[:, 0].mul(100).long() % 3)
        ends = (expert[:, None] <= torch.arange(3)).sum(0).int()
        y = torch.ops.transformers.grouped_mm_fallback(x[order], self.stack, ends)
        return self.head(y[torch.argsort(order)])


@cache
def experts() -> tuple[Experts, Tensor, Program]:
    torch.manual_seed(0)
    model, x = Experts().eval(), torch.randn(96, 8)
    return model, x, capture(model, x[:2])


def test_experts_have_scales_of_their_own() -> None:
    model, x, program = experts()
    layer, _ = program.layers
    assert (layer.name, layer.kind, layer.weight_shape) == ("stack", "grouped", (3, 8, 4))
    assert layer.macs == 8 * 4
    assert torch.allclose(program.run(x), model(x), atol=1e-6)
    operand = program.multiplies[0].operands[1]
    rounded = Rounder(program).weight("stack", operand, INT4)
    assert operand.layout is not None
    for expert in range(3):  # as if each were a layer by itself
        alone = quantize_weight(model.stack[expert].T, type(operand.layout)((0,), (1,)), INT4)
        assert torch.equal(rounded[expert], alone.weight.T)


@pytest.mark.parametrize("format", ["float", "int8", "int4", "w4a16"])
def test_experts_run_in_onnx_as_judged(format: str, tmp_path: Path) -> None:
    _, x, program = experts()
    samples = load_samples(x)
    rounder = Rounder(program, calibrate(program, samples, sign="auto"), ONNXRUNTIME)
    plan = Plan.uniform(program.layers, Format.parse(format))
    proof = proven(program, rounder, plan, tmp_path / "net.onnx", samples)
    assert proof.holds, proof.failures
    assert proof.differing == ()
    assert proof.outputs_off < 1e-6
    assert proof.float_kernels == ()
    # One row leaves all experts but one with none.
    one = OnnxModel(tmp_path / "net.onnx", exact=True).run(x[:1])
    assert torch.allclose(one, program.run(x[:1], rounder(plan)), atol=1e-6)


def test_experts_are_written_for_anyone(tmp_path: Path) -> None:
    _, x, program = experts()
    rounder = Rounder(program, calibrate(program, load_samples(x)), PAPER)
    plan = Plan.uniform(program.layers, INT4)
    export_onnx(program, rounder, plan, tmp_path / "net.onnx", target="portable")
    ran = OnnxModel(tmp_path / "net.onnx", optimise=False).run(x)
    assert torch.allclose(ran, program.run(x, rounder(plan)), atol=1e-5)


def test_mixtral_has_a_layer_per_stack_of_experts() -> None:
    model = mixture()
    example = {"input_ids": tokens(2)}
    program = capture(model, example)
    kinds = {layer.name: (layer.kind, layer.weight_shape) for layer in program.layers}
    assert kinds["model.layers.0.mlp.experts.gate_up_proj"] == ("grouped", (4, 40, 16))
    assert kinds["model.layers.0.mlp.experts.down_proj"] == ("grouped", (4, 16, 20))
    with torch.no_grad():
        wanted = model(input_ids=tokens(3)).logits
    assert torch.allclose(program.run({"input_ids": tokens(3)}).logits, wanted, atol=1e-6)
    assert a100.table(program.layers).rows  # and each has a latency


@pytest.mark.parametrize(("rows", "shape"), [(12, (3, 5, 7, 4)), (3, (1, 5, 7, 3)), (9, (3, 5, 7, 4))])
def test_rows_are_taken_to_be_spread_evenly_over_the_experts(
    rows: int, shape: tuple[int, int, int, int]
) -> None:
    signature = Signature("grouped", (rows, 7), (4, 7, 5), (rows, 5))
    assert gemm_shape(Place("experts", signature, rows * 35)) == shape


# GPT-2, whose linear layers are written as addmm


class Added(nn.Module):
    """A product that adds its bias by itself, as GPT-2's do."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(40, 24)), nn.Parameter(torch.randn(24))

    def forward(self, x: Tensor) -> Tensor:
        return torch.addmm(self.bias, x.flatten(0, 1), self.weight)


class Multiplied(Added):
    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight


@pytest.mark.parametrize("format", [INT8, INT4])
@pytest.mark.parametrize("make", [Added, Multiplied, lambda: nn.Linear(40, 24)])
def test_products_of_codes_are_judged_to_the_last_bit(
    make: Callable[[], nn.Module], format: Format, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    model, x = make(), torch.randn(64, 3, 40)
    program = capture(model, x[:2])
    rounder = Rounder(program, calibrate(program, load_samples(x), sign="auto"), ONNXRUNTIME)
    plan = Plan.uniform(program.layers, format)
    export_onnx(program, rounder, plan, tmp_path / "net.onnx")
    assert torch.equal(OnnxModel(tmp_path / "net.onnx").run(x), program.run(x, rounder(plan)))


def test_gpt2_runs_as_judged_and_names_its_cache(tmp_path: Path) -> None:
    torch.manual_seed(1)
    config = transformers.GPT2Config(
        n_embd=16,
        n_layer=1,
        n_head=2,
        n_positions=32,
        vocab_size=50,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        num_labels=5,
    )
    model = transformers.GPT2ForSequenceClassification(config).eval()
    x = {"input_ids": torch.randint(3, 50, (64, 12))}
    program = capture(model, {"input_ids": x["input_ids"][:2]})
    rounder = Rounder(program, calibrate(program, load_samples(x), sign="auto"), ONNXRUNTIME)
    plan = Plan.uniform(program.layers, INT8)
    export_onnx(program, rounder, plan, tmp_path / "net.onnx")
    judged = pytree.tree_leaves(program.run(x, rounder(plan)))
    ran = OnnxModel(tmp_path / "net.onnx", exact=True).run_flat(x)
    for one, other in zip(judged, ran, strict=True):
        assert float((one - other).abs().max() / one.abs().max()) < 1e-6
    names = [each.name for each in onnx.load(tmp_path / "net.onnx").graph.output]
    assert names[0] == "logits"
    assert len(names) == 3  # and keys and values


def test_torchs_own_grouped_product_is_a_layer_too() -> None:
    """torch.export takes it in bfloat16 only."""

    def run(parts: nn.ModuleDict, x: Tensor) -> Tensor:
        ends = torch.tensor([1, 1, 2], dtype=torch.int32)
        return torch.nn.functional.grouped_mm(x, parts["stack"].weight, offs=ends)

    stack = nn.Module()
    stack.weight = nn.Parameter(torch.randn(3, 8, 16, dtype=torch.bfloat16))
    model, x = Runs(run, stack=stack), torch.randn(2, 8, dtype=torch.bfloat16)
    program = capture(model, x)
    assert [(layer.name, layer.kind) for layer in program.layers] == [("parts.stack", "grouped")]
    assert torch.allclose(program.run(x), model(x), rtol=1e-2)
