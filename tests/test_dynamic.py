"""w8a8d: ranges that are found at run time; and embeddings as layers of files for a runtime."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import bitsect
from bitsect.errors import ExportError, PlanError, RunError
from bitsect.exporters.exporter import Written
from bitsect.exporters.onnx.nodes import LARGE_BYTES
from bitsect.exporters.proof import Proof
from bitsect.exporters.runtimes.onnxruntime import OnnxModel, kernels
from bitsect.latency import clock as clocks
from bitsect.latency import timed
from bitsect.latency.written import takes
from bitsect.network.capture import capture
from bitsect.network.program import Program
from bitsect.rounding.placements.dynamic import DynamicProduct, OwnRange, is_dynamic_product
from bitsect.rounding.rounder import Rounder
from bitsect.solve.allowed import allowed_formats
from bitsect.sources.data import load_samples
from bitsect.sources.tasks.task import task_named
from bitsect.values import FLOAT, INT8, ONNXRUNTIME, PAPER, Format, Goal, LatencyTable, Plan
from bitsect.values.boundary import Boundary
from bitsect.values.format import DYNAMIC
from bitsect.values.latency_table import place_key
from odd_models import Block, weight
from odd_models import one_thread as one_thread
from short import export_onnx, prove
from tiny import refill, seeded


@pytest.fixture(autouse=True)
def a_moment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Timing takes a moment, and its cache is the test's own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(timed, "VISITS", 2)
    monkeypatch.setattr(timed, "VISIT_SECONDS", 0.0005)
    monkeypatch.setattr(timed, "PASSES", (2, 2))
    monkeypatch.setattr(clocks, "WHOLE_VISITS", 3)
    monkeypatch.setattr(clocks, "VISIT_SECONDS", 0.001)


# The arithmetic


def test_codes_are_those_of_onnx_runtime() -> None:
    """Against DynamicQuantizeLinear itself: values of one sign, zeros, ties, tiny and huge ranges."""
    from onnx import TensorProto, helper

    info = helper.make_tensor_value_info
    node = helper.make_node("DynamicQuantizeLinear", ["x"], ["c", "s", "z"])
    outputs = [info("c", TensorProto.UINT8, None), info("s", TensorProto.FLOAT, None)]
    outputs.append(info("z", TensorProto.UINT8, None))
    graph = helper.make_graph([node], "g", [info("x", TensorProto.FLOAT, ["n"])], outputs)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    draws = seeded(40, 257) * torch.logspace(-30, 30, 40)[:, None]
    ties = torch.arange(257.0)[None] / 2
    samples = torch.cat([draws, draws.abs(), -draws.abs(), torch.zeros(1, 257), ties, ties - 60])
    codes, scales = OwnRange().codes(samples)
    for sample, mine, scale in zip(samples, codes, scales, strict=True):
        theirs, their_scale, zero = session.run(None, {"x": sample.numpy()})
        assert float(scale) == float(their_scale)
        assert np.array_equal(mine.numpy(), theirs.astype(np.float32) - zero)


def plain_network() -> tuple[nn.Module, Tensor]:
    model = nn.Sequential(nn.Linear(24, 16), nn.ReLU(), nn.Linear(16, 7, bias=False))
    return model, seeded(48, 24)


def shared_input() -> tuple[nn.Module, Tensor]:
    """Three layers read one value, a bias is shared, one product has none."""

    def run(self: Block, x: Tensor) -> Tensor:
        total = F.linear(x, self.q, self.c) + F.linear(x, self.k) - F.linear(x, self.v, self.c)
        return F.linear(total, self.out).mean(1)

    weights = {name: weight(16, 16) for name in "qkv"}
    return Block(run, **weights, c=weight(16), out=weight(5, 16)), seeded(48, 6, 16)


def rows_in_one_axis() -> tuple[nn.Module, Tensor]:
    """A weight that stands the other way round, with samples and positions in one axis, as in GPT-2."""

    def run(self: Block, x: Tensor) -> Tensor:
        y = torch.addmm(self.c, x.view(-1, x.shape[-1]), self.w)
        return torch.matmul(y.view(x.shape[0], -1, 12), self.v).sum(1)

    return Block(run, w=weight(8, 12), c=weight(12), v=weight(12, 5)), seeded(48, 6, 8)


def batch_norm() -> tuple[nn.Module, Tensor]:
    return nn.Sequential(nn.Linear(24, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 5)), seeded(48, 24)


def long_sums() -> tuple[nn.Module, Tensor]:
    """Sums beyond what float32 adds exactly."""
    model = nn.Sequential(nn.Linear(2048, 4))
    nn.init.uniform_(model[0].weight, 0.9, 1.0)
    return model, seeded(16, 2048).abs() + 9


NETWORKS: list[Callable[[], tuple[nn.Module, Tensor]]] = [
    plain_network,
    shared_input,
    rows_in_one_axis,
    batch_norm,
    long_sums,
]


def written(model: nn.Module, inputs: Tensor, path: Path) -> tuple[Program, Rounder, Plan, Written]:
    program = capture(model.eval(), inputs[:2])
    rounder, plan = Rounder(program, None, ONNXRUNTIME), Plan.uniform(program.layers, DYNAMIC)
    return program, rounder, plan, export_onnx(program, rounder, plan, path / "model.onnx")


@pytest.mark.parametrize("made", NETWORKS)
def test_files_compute_what_was_judged_to_the_last_bit(
    made: Callable[[], tuple[nn.Module, Tensor]], tmp_path: Path
) -> None:
    model, inputs = made()
    if made is not long_sums:
        refill(model)
    inputs = inputs * torch.logspace(-2, 2, len(inputs)).reshape(-1, *[1] * (inputs.ndim - 1))
    program, rounder, plan, file = written(model, inputs, tmp_path)
    rounding, ran = rounder(plan), OnnxModel(file.path)
    assert all(isinstance(rounding.kernels[each.node.name], DynamicProduct) for each in program.multiplies)
    judged = torch.cat([program.run(one[None], rounding) for one in inputs])
    whole = program.run(inputs, rounding)
    assert torch.equal(whole, judged)  # whatever else is in the batch
    runtime = torch.cat([ran.run(one[None]) for one in inputs])
    if made in (shared_input, rows_in_one_axis):  # sums in float, whose order is the library's
        assert torch.allclose(judged, runtime, rtol=1e-5, atol=1e-6 * float(judged.abs().max()))
    else:
        assert torch.equal(judged, runtime)
    names = [operator for _, operator in kernels(file.path)]
    assert not {"MatMul", "Gemm", "FusedGemm", "FusedMatMul"} & {*names}
    assert sum(name in ("DynamicQuantizeMatMul", "MatMulIntegerToFloat") for name in names) == len(plan)
    assert names.count("DynamicQuantizeLinear") == (made is shared_input)


def test_the_proof_runs_one_sample_at_a_time(tmp_path: Path) -> None:
    model, inputs = shared_input()
    program, rounder, plan, file = written(refill(model), inputs, tmp_path)
    labels = program.run(inputs).argmax(1)
    proof = prove(file, program, rounder, plan, load_samples((inputs, labels)), task_named("classification"))
    assert proof.holds
    assert proof.float_kernels == ()
    assert proof.judged_accuracy == proof.runtime_accuracy
    assert OnnxModel(file.path).judged_rows == 1
    assert any("found as the file runs" in note.instead for note in file.notes)


def test_a_file_with_another_scale_is_not_proven(tmp_path: Path) -> None:
    model, inputs = plain_network()
    program, rounder, plan, file = written(refill(model), inputs, tmp_path)
    broken = onnx.load(file.path)
    scale = next(each for each in broken.graph.initializer if each.name == "2.weight.scale")
    values = onnx.numpy_helper.to_array(scale) * np.linspace(-1, 1, 7, dtype=np.float32)
    scale.CopyFrom(onnx.numpy_helper.from_array(values, scale.name))
    onnx.save(broken, file.path)
    samples = load_samples((inputs, program.run(inputs).argmax(1)))
    proof: Proof = prove(file, program, rounder, plan, samples, task_named("classification"))
    assert not proof.holds


# Where it is refused


def test_only_the_runtime_that_has_kernels_takes_it(tmp_path: Path) -> None:
    model, inputs = plain_network()
    program, rounder, plan, _ = written(refill(model), inputs, tmp_path)
    with pytest.raises(PlanError, match="w8a8d is the arithmetic of a runtime"):
        Rounder(program, None, PAPER)(plan)
    with pytest.raises(ExportError, match="w8a8d, for which a file for openvino has no kernel"):
        export_onnx(program, rounder, plan, tmp_path / "other.onnx", target="openvino")
    for name in ("w8a4d", "w4a8d", "w8a8dg32"):
        with pytest.raises(PlanError, match="use w8a8d"):
            Format.parse(name)


def test_samples_that_do_not_lie_one_after_the_other_have_no_kernel() -> None:
    def sequence_first(self: Block, x: Tensor) -> Tensor:
        return F.linear(x.transpose(0, 1).reshape(-1, 8), self.w).reshape(x.shape[1], x.shape[0], 5).mean(0)

    def by_einsum(self: Block, x: Tensor) -> Tensor:
        return torch.einsum("bij,kj->bik", x, self.w).mean(1)

    for run in (sequence_first, by_einsum):
        program = capture(Block(run, w=weight(5, 8)).eval(), seeded(2, 6, 8))
        (multiply,) = program.multiplies
        assert not is_dynamic_product(program, multiply)
        with pytest.raises(PlanError, match=r"layer 'w': no kernel finds .* with keep='w=float,int8'"):
            Rounder(program, None, ONNXRUNTIME)(Plan.uniform(program.layers, DYNAMIC))


# What a search may choose


def test_ranges_found_at_run_time_come_first_where_a_network_takes_as_long() -> None:
    model, inputs = plain_network()
    layers = capture(model.eval(), inputs[:2]).layers
    names = [layer.name for layer in layers]
    between = tuple(Boundary(None, name, 16) for name in names)
    goal = Goal(target="99%", formats="w8a8d,int8", destination="onnxruntime")
    for quantize_ms, chosen in ((0.1, DYNAMIC), (0.001, INT8)):
        rows = {place_key(layer.places[0]): {FLOAT: 1.0, DYNAMIC: 0.3, INT8: 0.25} for layer in layers}
        steps = {f"{step} n16": {INT8: quantize_ms} for step in ("quantize", "dequantize")}
        table = LatencyTable("here", "made up", (FLOAT, DYNAMIC, INT8), rows | steps, boundaries=between)
        allowed = allowed_formats(layers, goal, table)
        assert {ladder[-1] for ladder in allowed.formats.values()} == {chosen}
        assert (INT8 in allowed.steps) is (chosen == INT8)
    assert str(goal.formats[0]) == "w8a8d"  # above int8: it loses less


# Embeddings


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.body = nn.Embedding(64, 16), nn.Linear(16, 16)

    def forward(self, tokens: Tensor) -> Tensor:
        return F.linear(torch.tanh(self.body(self.table(tokens))), self.table.weight).mean(1)


@pytest.mark.parametrize("format", [INT8, DYNAMIC, Format.parse("w8a16")])
def test_a_tied_embedding_is_held_once(format: Format, tmp_path: Path) -> None:
    from short import calibrate

    tokens = torch.arange(60 * 5).remainder(64).reshape(60, 5)
    model = refill(Tied()).eval()
    program = capture(model, tokens[:2], embeddings=True)
    tied = program.layers[0]
    assert [place.signature.kind for place in tied.places] == ["embedding", "linear"]
    assert takes(tied, format)
    assert not takes(tied, Format.parse("w4a16g8"))
    labels = model(tokens).argmax(1)
    rounder = Rounder(program, calibrate(program, load_samples((tokens, labels))), ONNXRUNTIME)
    plan = Plan.uniform(program.layers, format)
    file = export_onnx(program, rounder, plan, tmp_path / "tied.onnx")
    large = [e for e in onnx.load(file.path).graph.initializer if len(e.dims) == 2 and e.dims[1] > 1]
    assert {*large[0].dims} == {16, 64}
    assert LARGE_BYTES <= 64 * 16
    assert len([each for each in large if sorted(each.dims) == [16, 64]]) == 1
    samples = load_samples((tokens, labels))
    assert prove(file, program, rounder, plan, samples, task_named("classification")).holds


class Factors(nn.Module):
    """Matrix factorisation: what a user is predicted to give an item."""

    def __init__(self) -> None:
        super().__init__()
        self.users, self.items = nn.Embedding(300, 32), nn.Embedding(200, 32)

    def forward(self, pair: Tensor) -> Tensor:
        score = (self.users(pair[:, 0]) * self.items(pair[:, 1])).sum(-1, keepdim=True)
        return torch.cat([score, -score], 1)


def test_a_network_of_embeddings_alone_has_layers_to_quantise(tmp_path: Path) -> None:
    pairs = torch.stack([torch.arange(200) % 300, torch.arange(200) * 7 % 200], 1)
    model = refill(Factors()).eval()
    labels = model(pairs).argmax(1)
    result = bitsect.quantize(
        model, (pairs, labels), target=0.9, objective="size", confidence=None, out=tmp_path / "run"
    )
    assert {format.stored_bits for format in result.plan.values()} == {8}
    file = tmp_path / "run" / "model.onnx"
    assert file.stat().st_size < 0.6 * 4 * 500 * 32
    again = OnnxModel(file).run(pairs)
    assert (again.argmax(1) == labels).float().mean() >= 0.9


def test_an_older_run_goes_on_without_embeddings(tmp_path: Path) -> None:
    tokens = torch.arange(40 * 5).remainder(64).reshape(40, 5)
    model = refill(Tied()).eval()
    data, asked = (tokens, model(tokens).argmax(1)), {"target": 0.5, "confidence": None}
    run = tmp_path / "run"
    bitsect.quantize(model, data, embeddings=False, out=run, formats="int8", **asked)
    result = bitsect.quantize(model, data, out=run, formats="int8", **asked)
    assert "embedding" not in {layer.kind for layer in result.run.layers}
    with pytest.raises(RunError, match="was made with embeddings false, not true"):
        bitsect.quantize(model, data, embeddings=True, out=run, formats="int8", **asked)
    fresh = bitsect.quantize(model, data, out=tmp_path / "new", formats="int8", **asked)
    assert "embedding" in {layer.kind for layer in fresh.run.layers}
    counted = bitsect.quantize(model, data, destination="bits", formats="int8", **asked)
    assert "embedding" not in {layer.kind for layer in counted.run.layers}
