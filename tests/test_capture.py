"""Capture: which layers are found, how they are named and counted, what is said of the rest."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
import types
from collections import namedtuple
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
import torch.utils._pytree as pytree
from torch import Tensor, nn
from torch.export import Dim
from torch.utils.flop_counter import FlopCounterMode

import bitsect
from bitsect.errors import CaptureError
from bitsect.network.capture import capture
from bitsect.network.operators import never_negative
from bitsect.network.program import Program
from bitsect.network.remarks import remarks
from bitsect.sources.models import load_model
from bitsect.sources.tasks.outputs import named_tensors
from bitsect.values import Comparison
from odd_models import (
    BATCH,
    MODELS,
    Block,
    batch_of,
    eager,
    model_of,
    program_of,
    reference,
    rows,
    same,
    weight,
)
from odd_models import one_thread as one_thread
from tiny import refill


def layers_of(program: Program) -> list[tuple[str, str, tuple[int, ...] | None]]:
    return [(layer.name, layer.kind, layer.weight_shape) for layer in program.layers]


# What is found

FOUND: dict[str, list[tuple[str, str, tuple[int, ...] | None]]] = {
    "shared_weight": [("parts.0", "linear", (8, 8)), ("parts.1", "linear", (8, 8))],
    "shared_memory": [("parts.0", "linear", (8, 8))],
    "module_used_twice": [("parts.0", "linear", (8, 8))],
    "block_used_twice": [
        ("0.matmul", "matmul", None),
        ("0.mix", "linear", (5, 5)),
        ("0.matmul_2", "matmul", None),
        ("2.matmul", "matmul", None),
        ("2.matmul_2", "matmul", None),
    ],
    "tied_embedding": [("body", "linear", (8, 8)), ("embedding", "linear", (11, 8))],
    "tied_decoder": [("1", "linear", (8, 8)), ("2", "linear", (11, 8))],
    "autoencoder": [("table", "linear", (3, 8))],
    "functional_matmul": [("qk", "matmul", None), ("av", "matmul", None)],
    "matmul_weights": [
        ("right", "linear", (8, 6)),
        ("left", "linear", (4, 5)),
        ("heads", "linear", (3, 6, 6)),
        ("vector", "linear", (6,)),
    ],
    "bmm_mm_baddbmm": [
        ("bmm", "matmul", None),
        ("bmm_2", "matmul", None),
        ("mix", "linear", (25, 8)),
        ("last", "linear", (8, 4)),
        ("vector", "linear", (4,)),
    ],
    "products_in_disguise": [(name, "linear", (8, 8)) for name in "abcde"],
    "products_of_vectors": [],
    "einsum": [
        ("right", "linear", (8, 6)),
        ("left", "linear", (5, 5)),
        ("qk", "matmul", None),
        ("av", "matmul", None),
        ("heads", "linear", (2, 6, 3)),
    ],
    "einsum_shorthand": [("a", "linear", (6, 8)), ("b", "linear", (6, 4)), ("c", "linear", (3, 4))],
    "outer_products": [("layer", "linear", (8, 8))],
    "gpt2_conv1d": [("0", "linear", (8, 12)), ("2", "linear", (12, 8))],
    "expanded_weight": [("w", "linear", (8, 4))],
    "convolutions": [
        ("0", "conv2d", (8, 3, 3, 3)),
        ("2", "depthwise", (8, 1, 3, 3)),
        ("3", "conv2d", (16, 4, 3, 3)),
        ("4", "conv_transpose", (16, 6, 3, 3)),
        ("5", "conv_transpose", (6, 2, 2, 3)),
    ],
    "convolutions_3d": [("0", "conv3d", (4, 2, 3, 1, 3)), ("1", "conv_transpose", (4, 2, 2, 2, 2))],
    "dynamic_filter": [("make", "conv2d", (12, 3, 1, 1)), ("conv2d", "conv2d", None)],
    "attention_grouped_queries": [
        ("q", "linear", (24, 8)),
        ("kv", "linear", (16, 8)),
        ("qk", "matmul", None),
        ("av", "matmul", None),
    ],
    "encoder_layer": [
        ("self_attn.in_proj_weight", "linear", (24, 8)),
        ("self_attn.qk", "matmul", None),
        ("self_attn.av", "matmul", None),
        ("self_attn.out_proj", "linear", (8, 8)),
        ("linear1", "linear", (16, 8)),
        ("linear2", "linear", (8, 16)),
    ],
    "cross_attention": [
        ("attend.q_proj_weight", "linear", (8, 8)),
        ("attend.k_proj_weight", "linear", (8, 6)),
        ("attend.v_proj_weight", "linear", (8, 6)),
        ("attend.qk", "matmul", None),
        ("attend.av", "matmul", None),
        ("attend.out_proj", "linear", (8, 8)),
    ],
    "decoder_layer": [
        ("layer.self_attn.in_proj_weight", "linear", (24, 8)),
        ("layer.self_attn.qk", "matmul", None),
        ("layer.self_attn.av", "matmul", None),
        ("layer.self_attn.out_proj", "linear", (8, 8)),
        ("layer.multihead_attn.q", "linear", (8, 8)),
        ("layer.multihead_attn.kv", "linear", (16, 8)),
        ("layer.multihead_attn.qk", "matmul", None),
        ("layer.multihead_attn.av", "matmul", None),
        ("layer.multihead_attn.out_proj", "linear", (8, 8)),
        ("layer.linear1", "linear", (16, 8)),
        ("layer.linear2", "linear", (8, 16)),
    ],
    "standardised_weight": [("0", "conv2d", (4, 3, 3, 3)), ("2", "conv2d", (2, 4, 3, 3))],
    "tuple_input": [],
    "weight_norm": [("0", "conv2d", (4, 3, 3, 3)), ("2", "linear", (3, 144))],
    "old_weight_norm": [("linear", "linear", (4, 8))],
    "constant_subgraph": [("a", "linear", (4, 8))],
    "unused_parameters": [("a", "linear", (4, 8))],
    "lstm": [
        ("cell.weight_ih_l0", "linear", (24, 8)),
        ("cell.weight_hh_l0", "linear", (24, 6)),
        ("head", "linear", (3, 6)),
    ],
    "autocast_inside": [("a", "linear", (8, 8)), ("b", "linear", (4, 8))],
}


@pytest.mark.parametrize("name", FOUND)
def test_layers_are_the_multiplies(name: str) -> None:
    assert layers_of(program_of(name)) == FOUND[name]


@pytest.mark.parametrize("name", MODELS)
def test_names_are_unique(name: str) -> None:
    program = program_of(name)
    places = [place.name for layer in program.layers for place in layer.places]
    assert len(set(places)) == len(places) == len(program.multiplies)
    assert len({layer.name for layer in program.layers}) == len(program.layers)


@pytest.mark.parametrize("name", ["block_used_twice", "weight_norm"])
def test_names_and_fingerprint_are_stable(name: str) -> None:
    program, again = program_of(name), capture(*MODELS[name]())
    assert layers_of(again) == layers_of(program)
    assert list(again.tensors) == list(program.tensors)
    assert again.fingerprint == program.fingerprint
    larger = capture(MODELS[name]()[0], batch_of(model_of(name)[1], 4))
    assert larger.layers == program.layers


def test_fingerprint_tells_weights_shapes_and_graphs_apart() -> None:
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU())
    small, large = (capture(model, torch.zeros(2, 1, size, size)) for size in (8, 16))
    other = capture(nn.Sequential(model[0], nn.Tanh()), torch.zeros(2, 1, 8, 8))
    changed = copy.deepcopy(model)
    with torch.no_grad():
        changed[0].bias[0] += 1
    prints = [small, large, other, capture(changed, torch.zeros(2, 1, 8, 8))]
    assert len({program.fingerprint for program in prints}) == 4


def test_fingerprint_is_the_same_in_another_process() -> None:
    code = "from odd_models import program_of; print(program_of('shared_weight').fingerprint)"
    command = [sys.executable, "-W", "ignore", "-c", code]
    result = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True, check=True)
    assert result.stdout.strip() == program_of("shared_weight").fingerprint


def test_a_shared_weight_is_one_layer_with_a_range_per_place() -> None:
    program = program_of("shared_weight")
    shared = program.layers[0]
    assert [place.name for place in shared.places] == ["parts.0@1", "parts.0@2"]
    assert shared.weights == 64
    tensors = [m.activations[0].tensor for m in program.multiplies if m.layer == "parts.0"]
    assert len(set(tensors)) == 2


def test_a_tied_embedding_is_one_layer_on_request() -> None:
    model, example = model_of("tied_decoder")
    program = capture(model, example, embeddings=True)
    assert layers_of(program) == [("0", "embedding", (11, 8)), ("1", "linear", (8, 8))]
    assert [place.signature.kind for place in program.layers[0].places] == ["embedding", "linear"]
    assert not program.skipped
    assert same(program.run(example), eager(model, example))


@pytest.mark.parametrize(
    ("name", "layer", "channels"),
    [
        ("gpt2_conv1d", "0", 12),  # addmm(bias, x, W): the columns
        ("matmul_weights", "right", 6),
        ("matmul_weights", "left", 4),  # W · x: the rows
        ("matmul_weights", "heads", 18),  # a matrix per head
        ("matmul_weights", "vector", 1),
        ("einsum", "right", 6),
        ("einsum", "left", 5),
        ("einsum", "heads", 6),
        ("einsum_shorthand", "a", 6),
        ("einsum_shorthand", "b", 4),
        ("einsum_shorthand", "c", 3),
        ("expanded_weight", "w", 4),
        ("convolutions", "2", 8),
        ("convolutions", "3", 16),
        ("convolutions", "4", 6),
        ("convolutions", "5", 4),  # transposed in two groups of two
        ("products_in_disguise", "a", 8),
        ("attention", "qkv", 48),
    ],
)
def test_scaling_an_output_channel_of_the_weight_scales_it_in_the_output(
    name: str, layer: str, channels: int
) -> None:
    """The channel axis is that of the multiply: a kernel holds all that one output sums over."""
    program = program_of(name)
    (multiply,) = (m for m in program.multiplies if m.layer == layer)
    operand = multiply.weight
    assert operand is not None
    assert operand.layout is not None
    original = program.constant(operand.node)
    kernels = operand.layout.to_kernels(original)
    assert len(kernels) == channels
    assert torch.equal(operand.layout.from_kernels(kernels, original.shape), original)
    last = kernels.clone()
    last[-1] *= 3
    scaled = operand.layout.from_kernels(last, original.shape)

    def output(value: Tensor) -> Tensor:
        args = list(multiply.node.args)
        shape = multiply.place.signature.input
        x = torch.ones(BATCH, *shape[1:]) if len(shape) > 1 else torch.ones(shape)
        x = torch.linspace(0.1, 1, x.numel()).reshape(x.shape)
        if isinstance(args[0], str):
            factors = [None, None]
            factors[operand.position], factors[1 - operand.position] = value, x
            return multiply.node.target(args[0], factors)  # type: ignore[operator,no-any-return]
        for position in range(len(args)):
            if position == operand.position:
                args[position] = value.expand(BATCH, -1, -1) if name == "expanded_weight" else value
            elif position == multiply.activations[0].position:
                args[position] = x
            elif isinstance(args[position], torch.fx.Node):
                args[position] = torch.zeros(tuple(args[position].meta["val"].shape))
        return multiply.node.target(*args)  # type: ignore[operator,no-any-return]

    before, after = output(original), output(scaled)
    changed = ~torch.isclose(before, after, rtol=1e-4)
    assert torch.allclose(after[changed], 3 * before[changed], rtol=1e-4)
    assert int(changed.sum()) * channels == changed.numel()


# How much it multiplies

# Multiply-adds that the counter sees differently, per sample, and why.
UNSEEN = {
    "matmul_weights": 4 * 6,  # a matrix times a vector is not counted
    "bmm_mm_baddbmm": 4,
    "outer_products": -5 * 8,  # counted, but nothing is summed
    "constant_subgraph": -5 * 4 / BATCH,  # the same for every sample, computed once
    "control_flow": None,  # torch compiles the branches, and once counted not again
    "whole_numbers": -5 * 5 * 8 * (1 + 1),  # of integers, of complex numbers
    "masked_rows": None,  # as many rows as the values say
    "experts": None,
}


@pytest.mark.parametrize("name", [name for name in MODELS if UNSEEN.get(name, 0) is not None])
def test_multiply_adds_are_half_of_the_counted_flops(name: str) -> None:
    model, example = model_of(name)
    with FlopCounterMode(display=False) as counter:
        reference(model, example)
    macs = sum(layer.macs for layer in program_of(name).layers)
    assert counter.get_total_flops() == 2 * BATCH * (macs - UNSEEN.get(name, 0))  # type: ignore[operator]


def test_multiply_adds_by_hand() -> None:
    macs = {layer.name: layer.macs for layer in program_of("convolutions").layers}
    assert macs == {
        "0": 4 * 4 * 8 * 3 * 9,
        "2": 4 * 4 * 8 * 9,
        "3": 4 * 4 * 16 * 4 * 9,
        "4": 4 * 4 * 16 * 6 * 9,
        "5": 8 * 8 * 6 * 2 * 2 * 3,
    }


def test_signatures_say_what_a_kernel_must_know() -> None:
    signature = program_of("padding_same").layers[0].places[0].signature
    assert (signature.stride, signature.padding, signature.dilation) == ((1, 1), (2, 2), (2, 2))
    assert (signature.input, signature.output) == ((1, 3, 8, 8), (1, 4, 8, 8))
    grouped = program_of("convolutions").layers[2].places[0].signature
    assert (grouped.groups, grouped.operand) == (2, (16, 4, 3, 3))
    qk = program_of("attention").layers[1].places[0].signature
    assert (qk.input, qk.operand, qk.output) == ((1, 4, 5, 4), (1, 4, 4, 5), (1, 4, 5, 5))


# What stays in float

SKIPPED = {
    "custom_operator": [("double", "custom operator")],
    "control_flow": [("cond", "branches")],
    "tuple_input": [("bilinear", "no quantised form")],
    "products_of_vectors": [
        (name, "no quantised form") for name in ("addbmm", "addmv", "dot", "vdot", "linalg_vecdot")
    ],
    "outer_products": [("matmul", "not a sum"), ("einsum", "not a sum")],
    "whole_numbers": [("matmul", "not floating point"), ("matmul", "not floating point")],
    "tied_embedding": [("embedding.embedding", "where embeddings are asked for")],
}


@pytest.mark.parametrize("name", MODELS)
def test_what_is_skipped_is_listed_with_its_reason(name: str) -> None:
    skipped = [
        item
        for item in program_of(name).skipped
        if "where embeddings are asked for" not in item.reason or name in SKIPPED
    ]
    expected = SKIPPED.get(name, [])
    assert [item.name for item in skipped] == [where for where, _ in expected]
    for item, (_, reason) in zip(skipped, expected, strict=True):
        assert reason in item.reason


def test_random_operators_are_listed_whether_they_see_an_input_or_not() -> None:
    def run(self: Any, x: Tensor) -> Tensor:
        x = x + torch.rand_like(x) + torch.randn(8, device=x.device)
        attended = F.scaled_dot_product_attention(x, x, x, dropout_p=0.5)
        return self.a(F.dropout(attended, training=True)) + F.dropout(x, training=False)

    skipped = capture(Block(run, a=nn.Linear(8, 8)), rows()).skipped
    assert [item.name for item in skipped] == ["rand_like", "randn", "native_dropout", "native_dropout"]
    assert all("random" in item.reason for item in skipped)


def test_a_program_exported_in_training_mode_is_told() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)).train()
    exported = torch.export.export(model, (torch.randn(2, 3, 8, 8),))
    (item,) = capture(exported).skipped
    assert item.name == "1._native_batch_norm_legit_functional"
    assert "training mode" in item.reason


# Wrappers and casts: a layer has the name it has in the plain network


class Nested(nn.Module):
    def __init__(self, wrap: Callable[[nn.Module], nn.Module]) -> None:
        super().__init__()
        self.body, self.head = wrap(nn.Sequential(nn.Linear(8, 8), nn.ReLU())), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x))


WRAPPERS: dict[str, Callable[[nn.Module], nn.Module]] = {
    "compile": lambda module: torch.compile(module, backend="eager"),  # type: ignore[return-value]
    "data parallel": nn.DataParallel,
    "both": lambda module: nn.DataParallel(torch.compile(module, backend="eager")),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("name", WRAPPERS)
def test_wrappers_leave_names_and_fingerprints_as_they_are(name: str) -> None:
    wrap = WRAPPERS[name]
    plain, nested = Nested(lambda module: module), Nested(wrap)
    whole = wrap(plain)
    nested.load_state_dict(dict(zip(nested.state_dict(), plain.state_dict().values(), strict=True)))
    modules = list(nested.modules())
    expected = capture(plain, torch.randn(2, 8))
    for wrapped in (whole, nested):
        program = capture(wrapped, torch.randn(2, 8))
        assert program.layers == expected.layers
        assert program.fingerprint == expected.fingerprint
    assert list(nested.modules()) == modules


def test_layers_under_autocast_keep_their_names() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4))
    with torch.autocast("cpu", torch.bfloat16):
        program = capture(model, torch.randn(2, 8))
    assert [layer.name for layer in program.layers] == ["0", "2"]
    (remark,) = remarks(program)
    assert "'0' computes in bfloat16" in remark
    assert "leave out torch.autocast" in remark
    (remark,) = remarks(capture(model.bfloat16(), torch.randn(2, 8).bfloat16()))
    assert "call model.float()" in remark


# What is captured is what the network computes


class Padded(nn.Module):
    """Pools over all positions, padded ones too: torch's fast path has zeros there."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        self.embed, self.encoder, self.head = (
            nn.Embedding(9, 8),
            nn.TransformerEncoder(layer, 1),
            nn.Linear(8, 4),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.encoder(self.embed(x), src_key_padding_mask=x == 0).mean(1))


def test_the_fast_path_of_transformers_is_told_from_the_path_of_training() -> None:
    tokens = torch.tensor([[1, 2, 3, 4, 5, 6], [1, 2, 0, 0, 0, 0], [7, 8, 8, 0, 0, 0]])
    model = refill(Padded())
    program = capture(model, tokens)
    (remark,) = remarks(program)
    assert "fast path" in remark
    assert "torch.backends.mha.set_fastpath_enabled(False)" in remark
    assert torch.backends.mha.get_fastpath_enabled()
    assert same(program.run(tokens), reference(model, tokens))
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        assert not list(remarks(capture(model, tokens)))
    finally:
        torch.backends.mha.set_fastpath_enabled(True)


@pytest.mark.parametrize("name", MODELS)
def test_every_odd_network_is_captured_to_rounding_noise(name: str) -> None:
    compared = program_of(name).comparison
    assert compared is not None
    assert compared.is_noise


def test_a_capture_that_predicts_something_else_is_refused_with_the_way_to_go_on() -> None:
    def run(self: Any, x: Tensor) -> Tensor:
        return self.a(x) if torch.compiler.is_exporting() else -self.a(x)

    model, x = Block(run, a=nn.Linear(8, 4)), torch.randn(3, 8)
    with pytest.raises(CaptureError, match=r"3 of 3 predictions change.*pass torch.export.export") as caught:
        capture(model, x)
    assert "\n" not in str(caught.value)
    assert capture(torch.export.export(model, (x,))).comparison is None


def test_outputs_of_another_shape_are_refused() -> None:
    def run(self: Any, x: Tensor) -> Tensor:
        return self.a(x)[:, : 4 if torch.compiler.is_exporting() else 3]

    with pytest.raises(CaptureError, match=r"outputs of other shapes.*runs only outside torch"):
        capture(Block(run, a=nn.Linear(8, 4)), torch.randn(3, 8))


def test_a_capture_that_is_a_little_off_is_told() -> None:
    def run(self: Any, x: Tensor) -> Tensor:
        return self.a(x) * (1.0 if torch.compiler.is_exporting() else 1.01)

    program = capture(Block(run, a=nn.Linear(8, 4)), torch.randn(3, 8))
    (remark,) = remarks(program)
    assert "(1.0% of the largest output)" in remark
    assert "predictions" not in remark
    assert Comparison.from_json(json.loads(json.dumps(program.comparison.to_json()))) == program.comparison


def test_networks_that_are_not_steady_are_not_refused() -> None:
    def run(self: Any, x: Tensor) -> Tensor:
        self.calls = getattr(self, "calls", 0) + 1
        return self.a(x) * (-1.0) ** self.calls

    program = capture(Block(run, a=nn.Linear(8, 4)), torch.randn(3, 8))
    assert any("differently from call to call" in remark for remark in remarks(program))
    drawn = Block(lambda self, x: self.a(x) + torch.rand_like(x[:, :4]), a=nn.Linear(8, 4))
    assert capture(drawn, torch.randn(3, 8)).comparison is None


def test_comparing_changes_neither_buffers_nor_inputs_nor_the_random_state() -> None:
    def run(self: Any, x: Tensor) -> Tensor:
        self.calls += 1
        self.last = x.mean(0)
        return self.a(x.mul_(2)) * self.calls

    model, x = Block(run, a=nn.Linear(8, 8), calls=torch.zeros(1), last=torch.zeros(8)), torch.randn(3, 8)
    before, state, kept = copy.deepcopy(model.state_dict()), torch.get_rng_state(), x.clone()
    program = capture(model, x)
    assert program.comparison is not None
    assert program.comparison.is_noise
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert torch.equal(x, kept)
    assert torch.equal(torch.get_rng_state(), state)


# What capture leaves behind


def test_the_model_is_left_as_it_was() -> None:
    model, example = MODELS["training_mode"]()
    modes = [module.training for module in model.modules()]
    state = copy.deepcopy(model.state_dict())
    attributes = {name: set(vars(module)) for name, module in model.named_modules()}
    program = capture(model, example)
    assert [module.training for module in model.modules()] == modes
    assert all(torch.equal(state[key], value) for key, value in model.state_dict().items())
    assert {name: set(vars(module)) for name, module in model.named_modules()} == attributes
    assert same(program.run(example), eager(model, example))
    assert not any("dropout" in item.name for item in program.skipped)


@pytest.mark.parametrize("own", [False, True])
def test_forward_is_left_as_it_was(own: bool) -> None:
    model, example = MODELS["dictionary_input"]()
    if own:
        model.forward = types.MethodType(lambda self, **inputs: self.run(self, **inputs), model)  # type: ignore[method-assign]
    before = vars(model).get("forward")
    program = capture(model, example)
    assert program.fixed_batch is None
    assert vars(model).get("forward") is before


def test_modes_are_restored_after_a_failure() -> None:
    model = Block(lambda self, x: self.missing(x), a=nn.Dropout()).train()
    with pytest.raises(CaptureError):
        capture(model, torch.zeros(2, 3))
    assert all(module.training for module in model.modules())
    assert "forward" not in vars(model)


def test_a_forward_that_prints_is_not_heard(capfd: pytest.CaptureFixture[str]) -> None:
    def run(self: Any, x: Tensor) -> Tensor:
        print("hello")
        print("there", file=sys.stderr)
        return self.a(x)

    capture(Block(run, a=nn.Linear(8, 4)), rows())
    assert capfd.readouterr() == ("", "")


def test_buffers_that_forward_changes_start_every_run_as_captured() -> None:
    model, example = MODELS["buffer_counted"]()
    program = capture(model, example)
    first = program.run(example)
    model(example)
    assert same(program.run(example), first)
    assert float(model.calls) == 1


# Batches


def test_a_single_sample_is_enough_of_an_example() -> None:
    model = nn.Linear(8, 4)
    program = capture(model, torch.randn(1, 8))
    assert program.fixed_batch is None
    x = torch.randn(7, 8)
    assert same(program.run(x), eager(model, x))


def test_inputs_of_one_row_need_not_be_samples() -> None:
    model, (x, positions, shift) = model_of("unbatched_input")
    several = capture(model, (x, positions, shift[0]))
    assert several.fixed_batch is None
    many = (batch_of(x, 5), positions, shift[0])
    assert same(several.run(many), eager(model, many))
    single = capture(model, (x[:1], positions, shift[0]))
    assert single.fixed_batch == 1
    one = (x[1:], positions, shift[0])
    assert same(single.run(one), eager(model, one))


@pytest.mark.parametrize("name", MODELS)
def test_only_networks_that_fix_their_batch_are_fixed(name: str) -> None:
    fixed = name.startswith("fixed") or name == "product_chains"
    assert program_of(name).fixed_batch == (BATCH if fixed else None)


def test_other_open_axes_of_an_exported_program_are_kept() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4))
    example = torch.randn(2, 5, 8)
    length = Dim("length", min=2, max=16)
    exported = torch.export.export(model, (example,), dynamic_shapes=({1: length},))
    program = capture(exported)
    assert program.fixed_batch == 2
    assert [layer.macs for layer in program.layers] == [5 * 64, 5 * 32]
    longer = torch.randn(2, 11, 8)
    assert same(program.run(longer), eager(model, longer))
    assert same(program.run(longer[:1]), eager(model, longer)[:1])
    both = torch.export.export(model, (example,), dynamic_shapes=({0: Dim("batch"), 1: length},))
    free = capture(both)
    assert free.fixed_batch is None
    assert [layer.macs for layer in free.layers] == [5 * 64, 5 * 32]
    many = torch.randn(3, 7, 8)
    assert same(free.run(many), eager(model, many))


def test_positional_and_named_inputs_at_once_are_refused() -> None:
    model, (x, memory) = model_of("cross_attention")
    named = Block(lambda self, x, memory: self.inner(x, memory), inner=model)
    exported = torch.export.export(named, (x,), {"memory": memory})
    with pytest.raises(CaptureError, match="both positional and named"):
        capture(exported)


def test_an_exported_program_is_not_changed() -> None:
    model, example = model_of("residual_in_place")
    exported = torch.export.export(model, (example,))
    before = str(exported.graph)
    state = dict(exported.state_dict)
    capture(exported, device="meta")
    assert str(exported.graph) == before
    assert all(exported.state_dict[key] is value for key, value in state.items())


def test_a_program_in_core_operators_is_captured_too() -> None:
    """As users save it who ran the decompositions themselves: addmm, bmm, convolution."""
    model, example = model_of("residual_in_place")
    exported = torch.export.export(model, (example,)).run_decompositions()
    assert layers_of(capture(exported)) == layers_of(program_of("residual_in_place"))
    model, example = model_of("encoder_layer")
    exported = torch.export.export(model, (), example).run_decompositions()
    core = capture(exported)
    kinds = [layer.kind for layer in core.layers]
    assert kinds.count("linear") == 4
    attention = kinds.count("matmul") == 2 or any("attention" in item.name for item in core.skipped)
    assert attention, "attention must be layers or be listed"


# Devices


@pytest.mark.parametrize("name", ["shared_weight", "tied_decoder", "encoder_layer", "convolutions"])
def test_counting_needs_no_weights(name: str) -> None:
    with torch.device("meta"):
        model, example = MODELS[name]()
    program = capture(model, example)
    assert program.layers == program_of(name).layers
    assert program.device.type == "meta"
    assert program.run(example).device.type == "meta"


@pytest.mark.parametrize("name", ["shared_memory", "attention_causal", "constant_subgraph"])
def test_a_program_is_moved_whole(name: str) -> None:
    """Nothing stays behind: no parameter, no buffer, no tensor that forward makes."""
    model, example = MODELS[name]()
    program = capture(model, example, device="meta")
    assert program.layers == program_of(name).layers
    assert program.device.type == "meta"
    assert program.run(example).device.type == "meta"
    values = pytree.tree_leaves(list(program._constants.values()))
    assert all(value.device.type == "meta" for value in values if isinstance(value, Tensor))


def test_a_network_without_weights_knows_its_device() -> None:
    model, example = model_of("functional_matmul")
    assert capture(model, example.to("meta")).device.type == "meta"
    assert capture(model, example).device.type == "cpu"


@pytest.mark.parametrize("device", ["mps" if torch.cuda.is_available() else "cuda", "banana"])
def test_an_unusable_device_is_refused(device: str) -> None:
    with pytest.raises(CaptureError, match=f"device '{device}' cannot be used here: ") as caught:
        capture(nn.Linear(2, 2), torch.zeros(2, 2), device=device)
    assert "\n" not in str(caught.value)


def test_weights_cannot_come_from_the_meta_device() -> None:
    with pytest.raises(CaptureError, match="on the meta device: it has no weights to move to 'cpu'"):
        capture(nn.Linear(2, 2, device="meta"), torch.zeros(2, 2), device="cpu")


def test_no_tensor_is_made_on_a_fixed_device() -> None:
    source = Path(__file__).parents[1] / "src" / "bitsect"
    for path in (*(source / "network").glob("*.py"), source / "sources" / "models" / "pt2.py"):
        text = path.read_text(encoding="utf-8")
        assert "cuda" not in text.replace("cudnn", "").replace("is_cuda", "")
        assert '"cpu"' not in text


# Errors


class Branches(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        if x.sum() > 0:  # the line to be named
            return self.a(x)
        return x


def test_a_branch_on_values_is_explained() -> None:
    with pytest.raises(CaptureError) as caught:
        capture(Branches(), torch.randn(2, 4))
    line = next(
        number
        for number, text in enumerate(Path(__file__).read_text(encoding="utf-8").splitlines(), 1)
        if "# the line to be named" in text
    )
    assert str(caught.value) == (
        f"Branches cannot be captured at {__file__}:{line} `if x.sum() > 0:  # the line to be named`: "
        "what happens here depends on the values of a tensor, which a captured graph cannot know; "
        "keep to tensor operations: torch.where or torch.cond in place of a branch"
    )


class Asserts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        assert not torch.isnan(x).any()
        return self.a(x)


class Unknown:
    def __init__(self, value: Tensor) -> None:
        self.value = value


ERRORS: dict[str, tuple[nn.Module, Any, list[str]]] = {
    "numpy": (
        Block(lambda self, x: torch.from_numpy(x.numpy()) + self.a(x), a=nn.Linear(4, 4)),
        torch.zeros(2, 4),
        ["test_capture.py:", "x.numpy()", "replace it by a tensor operation"],
    ),
    "shapes": (
        nn.Sequential(nn.Linear(4, 4), nn.Linear(5, 5)),
        torch.zeros(2, 4),
        ["Sequential cannot be captured: ", "check that model(example) runs"],
    ),
    "missing": (nn.Bilinear(2, 2, 2), torch.zeros(2, 2), ["missing", "input2"]),
    "keyword": (nn.Linear(2, 2), {"inputs": torch.zeros(2, 2)}, ["'inputs'", "call a single one x"]),
    "dtype": (nn.Linear(2, 2), torch.zeros(2, 2).half(), ["Half", "of the type that its weights have"]),
    "assert": (Asserts(), torch.zeros(2, 4), ["leave this assert out of forward"]),
    "no rows": (
        Block(lambda self, x: x if x[x > 0].numel() == 0 else self.a(x), a=nn.Linear(4, 4)),
        torch.zeros(2, 4),
        ["leave the question out: layers take tensors without rows"],
    ),
    "packed": (
        Block(
            lambda self, x, n: self.a(nn.utils.rnn.pack_padded_sequence(x, n, True, False))[1][0],
            a=nn.LSTM(4, 4, batch_first=True),
        ),
        (torch.zeros(2, 3, 4), torch.tensor([3, 1])),
        ["packed sequences", "give the padded batch as it is"],
    ),
    "type": (Block(lambda self, x: Unknown(x)), torch.zeros(2, 2), ["Unknown", "let forward return tensors"]),
    "name": (
        Block(lambda self, x: x @ self.code, code=weight(2, 2)),
        torch.zeros(2, 2),
        ["'code'", "rename that parameter"],
    ),
}


@pytest.mark.parametrize("name", ERRORS)
def test_errors_are_one_line_with_the_way_out(name: str, capfd: pytest.CaptureFixture[str]) -> None:
    model, example, parts = ERRORS[name]
    with pytest.raises(CaptureError) as caught:
        capture(model, example)
    message = str(caught.value)
    assert "\n" not in message
    for part in parts:
        assert part in message
    assert capfd.readouterr() == ("", "")


NO_NETWORKS: dict[str, tuple[Callable[[], Any], str]] = {
    "script": (
        lambda: torch.jit.script(nn.Linear(2, 2)),
        "TorchScript.*give the nn.Module that it was made of",
    ),
    "trace": (lambda: torch.jit.trace(nn.Linear(2, 2), torch.zeros(2, 2)), "TorchScript.*give the nn.Module"),
    "weights": (lambda: nn.Linear(2, 2).state_dict(), "not a OrderedDict.*load_state_dict"),
    "function": (lambda: torch.relu, "not a builtin_function.*nn.Module"),
    "class": (lambda: nn.Linear, "not a class Linear: give an instance"),
    "nothing": (lambda: 3, "not a int: give a torch.nn.Module"),
}


@pytest.mark.parametrize("name", NO_NETWORKS)
@pytest.mark.filterwarnings("ignore:`torch.jit")
def test_what_is_no_network_is_named(name: str) -> None:
    make, message = NO_NETWORKS[name]
    with pytest.raises(CaptureError, match=message):
        capture(make(), torch.zeros(2, 2))


def test_an_example_is_asked_for() -> None:
    with pytest.raises(CaptureError, match="example"):
        capture(nn.Linear(2, 2))


# Signs


SIGNS: dict[bool, list[Callable[[Tensor], Tensor]]] = {
    True: [
        lambda x: torch.relu(x),
        lambda x: F.relu6(x).flatten(1),
        lambda x: x.clamp(min=0.5),
        lambda x: F.hardtanh(x, 0, 1),
        lambda x: torch.relu(x) + torch.sigmoid(x),
        lambda x: F.max_pool1d(torch.relu(x), 2),
        lambda x: torch.cat([torch.relu(x), x.exp()]),
        lambda x: torch.relu(x) * 2 + 1,
        lambda x: F.pad(torch.relu(x), (1, 1)),
        lambda x: F.pad(torch.relu(x), (-1, 1)),
    ],
    False: [
        lambda x: x,
        lambda x: F.gelu(x),
        lambda x: x.clamp(max=1),
        lambda x: torch.relu(x) - 1,
        lambda x: torch.relu(x) + -1,
        lambda x: torch.relu(x) * -1.0,
        lambda x: torch.add(torch.relu(x), torch.relu(x), alpha=-1),
        lambda x: F.pad(torch.relu(x), (1, 1), value=-1),
        lambda x: torch.cat([torch.relu(x), x]),
    ],
}


@pytest.mark.parametrize("expected", SIGNS)
def test_signs_are_known_only_where_operators_prove_them(expected: bool) -> None:
    model = Block(lambda self, x: [make(x) for make in SIGNS[expected]])
    exported = torch.export.export(model, (rows(),)).run_decompositions({})
    (outputs,) = next(node.args for node in exported.graph.nodes if node.op == "output")
    assert [never_negative(node) for node in outputs] == [expected] * len(outputs)


# Classes that a network answers in


@dataclass
class Boxes:
    boxes: Tensor
    scores: Tensor
    masks: Tensor | None = None


class Found(NamedTuple):
    logits: Tensor
    found: Boxes


ANSWERS: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "dataclass": Boxes,
    "named tuple": namedtuple("Pair", "logits hidden"),
    "both": lambda y, h: Found(y, Boxes(y, h)),
    "in a list": lambda y, h: [{"q": Boxes(y, h)}, (y,)],
}


@pytest.mark.parametrize("kind", ANSWERS)
def test_outputs_of_own_classes_are_captured_and_saved_as_plain_ones(kind: str, tmp_path: Path) -> None:
    make = ANSWERS[kind]
    model = Block(
        lambda self, x: make(self.b(self.a(x)), self.a(x)), a=nn.Linear(4, 3), b=nn.Linear(3, 5)
    ).eval()
    program = capture(model, torch.randn(2, 4))
    x = torch.randn(3, 4)
    wanted, found = model(x), program.run(x)
    assert type(found) is type(wanted)
    names = named_tensors(wanted)
    assert all(torch.equal(names[name], value) for name, value in named_tensors(found).items())
    torch.export.save(program.exported, tmp_path / "net.pt2")
    again = load_model(str(tmp_path / "net.pt2")).model
    assert {*named_tensors(capture(again).run(x))} == {*names}


@pytest.mark.parametrize(
    "network", [nn.Linear(0, 8), nn.Linear(8, 0), nn.Sequential(nn.ReLU(), nn.Linear(0, 2))]
)
def test_a_layer_that_multiplies_nothing_is_refused(network: nn.Module) -> None:
    size = next(module.in_features for module in network.modules() if isinstance(module, nn.Linear))
    data = (torch.randn(16, size), torch.zeros(16, dtype=torch.int64))
    with pytest.raises(
        CaptureError, match=r"layer '\w+' multiplies nothing, as one of its sizes is 0: take it"
    ):
        bitsect.quantize(network, data, target="90%", threads=1)
