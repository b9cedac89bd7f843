"""The four verbs: run, run_from, observe, differentiate; against the network itself."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import torch.utils._pytree as pytree
from torch import Tensor, nn

from bitsect.errors import BitsectError, DataError
from bitsect.network.capture import capture
from bitsect.network.parts import Rounding
from bitsect.network.program import Program
from bitsect.values.grid import Grid
from odd_models import (
    BATCH,
    MODELS,
    Block,
    batch_of,
    close,
    eager,
    image,
    model_of,
    program_of,
    reference,
    rows,
    same,
    weight,
)
from odd_models import one_thread as one_thread

OPEN = [name for name in MODELS if not name.startswith("fixed") and name != "product_chains"]
FIXED = [name for name in MODELS if name not in OPEN]
HALF = ("half", "attention_half")


# run


@pytest.mark.parametrize("name", OPEN)
@pytest.mark.parametrize("size", [1, 3, 5])
def test_a_float_run_is_the_network_bit_for_bit(name: str, size: int) -> None:
    model, example = model_of(name)
    inputs = batch_of(example, size)
    assert same(program_of(name).run(inputs), reference(model, inputs))


@pytest.mark.parametrize("name", OPEN)
def test_fused_kernels_agree_closely(name: str) -> None:
    model, example = model_of(name)
    inputs = batch_of(example, 3)
    assert close(program_of(name).run(inputs), eager(model, inputs), 1e-2 if name in HALF else 1e-5)


@pytest.mark.parametrize("name", ["convolutions", "residual_in_place", "attention"])
def test_several_threads_give_the_bits_of_several_threads(name: str) -> None:
    model, example = model_of(name)
    inputs = batch_of(example, 64)
    torch.set_num_threads(2)
    try:
        assert same(program_of(name).run(inputs), reference(model, inputs))
    finally:
        torch.set_num_threads(1)


@pytest.mark.filterwarnings("ignore:TF32")
def test_bfloat16() -> None:
    model, example = MODELS["attention"]()
    model, example = model.bfloat16(), example.bfloat16()
    with torch.backends.mkldnn.flags(
        enabled=False
    ):  # its bfloat16 kernels do not run on every virtual machine
        program = capture(model, example)
        inputs = batch_of(example, 3)
        assert same(program.run(inputs), reference(model, inputs))


def test_inputs_may_come_in_another_memory_format() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 3)).eval()
    program = capture(model, image())
    inputs = image().to(memory_format=torch.channels_last)
    assert same(program.run(inputs), eager(model, inputs))
    strided = torch.randn(BATCH, 3, 16, 16)[:, :, ::2, ::2]
    assert same(program.run(strided), eager(model, strided))


def test_frozen_weights_keep_their_bits() -> None:
    """torch multiplies in another order by a weight that needs no gradient."""
    model, example = MODELS["matmul_weights"]()
    model.requires_grad_(False)
    inputs = batch_of(example, 3)
    assert same(capture(model, example).run(inputs), eager(model, inputs))


def test_inputs_are_left_alone() -> None:
    for name in ("input_in_place", "slices_in_place", "residual_in_place"):
        inputs = batch_of(model_of(name)[1], 3)
        before = inputs.clone()
        program_of(name).run(inputs)
        assert torch.equal(inputs, before)


def test_dictionaries_may_come_in_any_order() -> None:
    model, example = model_of("dictionary_input")
    inputs = batch_of(example, 3)
    backwards = dict(reversed(inputs.items()))
    assert same(program_of("dictionary_input").run(backwards), eager(model, inputs))


def test_outputs_carry_no_graph() -> None:
    with torch.enable_grad():
        output = program_of("attention").run(model_of("attention")[1])
    assert not output.requires_grad


# run_from


@pytest.mark.parametrize("name", MODELS)
def test_a_run_from_every_layer_is_the_whole_run(name: str) -> None:
    program, inputs = program_of(name), batch_of(model_of(name)[1], 3 if name in OPEN else BATCH)
    names = [layer.name for layer in program.layers]
    whole = program.run(inputs)
    kept, states = program.run_keeping(inputs, names)
    assert same(kept, whole)
    assert list(states) == sorted(names, key=program.start)
    for layer in names:
        output, later = program.run_from(layer, states[layer], keep=names)
        assert same(output, whole)
        assert set(later) == {other for other in names if program.start(other) >= program.start(layer)}
        last = max(later, key=program.start)
        assert same(program.run_from(last, later[last])[0], whole)
    for layer in names:  # a state is as good the second time
        assert same(program.run_from(layer, states[layer])[0], whole)


def test_a_state_holds_what_is_alive_and_no_more() -> None:
    program = program_of("residual_in_place")
    _, states = program.run_keeping(
        model_of("residual_in_place")[1], [layer.name for layer in program.layers]
    )
    assert [len(state.values) for state in states.values()] == [1, 1, 2, 1, 2]


def test_a_run_from_a_layer_can_be_under_another_rounding() -> None:
    """What is before the layer stays, what comes after is rounded."""
    program, inputs = program_of("residual_in_place"), model_of("residual_in_place")[1]
    halved = scaled_weights(program, 0.5, {"3.a", "3.b"})
    _, states = program.run_keeping(inputs, ["3.a"])
    assert same(program.run_from("3.a", states["3.a"], halved)[0], program.run(inputs, halved))
    assert not same(program.run(inputs, halved), program.run(inputs))


# A rounding changes weights, operands and results


def scaled_weights(program: Program, factor: float, layers: set[str] | None = None) -> Rounding:
    return Rounding(
        weights={
            (multiply.node.name, position): program.constant(operand.node) * factor
            for multiply in program.multiplies
            if layers is None or multiply.layer in layers
            for position, operand in enumerate(multiply.operands)
            if operand.layout is not None
        }
    )


@pytest.mark.parametrize(
    "name",
    [
        "shared_weight",
        "tied_decoder",
        "gpt2_conv1d",
        "matmul_weights",
        "einsum",
        "einsum_shorthand",
        "expanded_weight",
        "convolutions",
        "convolutions_1d",
        "products_in_disguise",
        "encoder_layer",
        "fixed_loop",
    ],
)
def test_weights_are_replaced_everywhere_they_multiply(name: str) -> None:
    program, (model, example) = program_of(name), model_of(name)
    if name == "tied_decoder":  # the look-up stays in float
        program = capture(model, example, embeddings=True)
    changed = copy.deepcopy(model).requires_grad_(False)
    roots = {m.weight.root for m in program.multiplies if m.weight is not None}
    by_name = dict(changed.named_parameters())
    for root in roots:
        assert root is not None
        by_name[root.meta["aliases"][0]] *= 0.75
    inputs = batch_of(example, 3 if name in OPEN else BATCH)
    assert close(program.run(inputs, scaled_weights(program, 0.75)), reference(changed, inputs))


def test_operands_and_results_are_rounded() -> None:
    program, inputs = program_of("two_outputs"), batch_of(model_of("two_outputs")[1], 3)
    model = model_of("two_outputs")[0]
    first = program.multiplies[0]
    coarse, fine = Grid(0.25, -7, 7), Grid(0.125, 0, 15)
    rounding = Rounding(
        inputs={(first.node.name, 0): coarse}, results={program.tensors[first.output].name: fine}
    )
    with torch.no_grad():
        y = fine.round(model.a(coarse.round(inputs)))
        assert same(program.run(inputs, rounding), (y, model.b(torch.relu(y))))


# observe


def test_every_named_tensor_can_be_seen() -> None:
    for name in MODELS:
        program, inputs = program_of(name), model_of(name)[1]
        seen: dict[str, list[Tensor]] = {tensor: [] for tensor in program.tensors}
        outputs = program.observe(inputs, {tensor: values.append for tensor, values in seen.items()})
        assert same(outputs, program.run(inputs))
        assert all(len(seen[tensor]) == len(program.nodes_of(tensor)) for tensor in seen), name
        assert not any(value.requires_grad for values in seen.values() for value in values)


def test_what_is_seen_is_what_the_layers_take_and_give() -> None:
    model, example = model_of("residual_in_place")
    inputs, program, seen = batch_of(example, 3), program_of("residual_in_place"), {}
    program.observe(inputs, {name: lambda x, name=name: seen.update({name: x}) for name in program.tensors})
    with torch.no_grad():
        first = torch.relu(model[0](inputs))
        inner = torch.relu(model[2].norm(model[2].a(first)))
        total = torch.relu(model[2].b(inner) + first)
    assert torch.equal(seen["0.input"], inputs)
    assert torch.equal(seen["0.output"], first)  # after the rectifier, which the next layer reads
    assert torch.equal(seen["2.a.output"], inner)  # after batch norm and the rectifier
    assert torch.equal(seen["2.b.output"], model[2].b(inner))
    assert "2.b.input" not in seen  # the same values under their first name
    (one, other) = program.sums
    assert torch.equal(seen[one.tensor], total)
    assert one.tensor != other.tensor


def test_an_unknown_tensor_is_refused() -> None:
    with pytest.raises(BitsectError, match="unknown tensor 'nothing'"):
        program_of("attention").observe(model_of("attention")[1], {"nothing": print})


# differentiate


def loss(output: Any) -> Tensor:
    """Curved, so that its Hessian is not zero."""
    leaves = [leaf for leaf in pytree.tree_leaves(output) if isinstance(leaf, Tensor)]
    return torch.stack([(leaf.sin() * leaf.square()).mean() + leaf.exp().mean() for leaf in leaves]).sum()


DIFFERENTIATED = [
    "shared_weight",
    "tied_decoder",
    "autoencoder",
    "residual_in_place",
    "slices_assigned",
    "convolutions",
    "gpt2_conv1d",
    "matmul_weights",
    "einsum",
    "expanded_weight",
    "attention_causal",
    "attention_all_masked",
    "attention_grouped_queries",
    "encoder_layer",
]


@pytest.mark.parametrize("name", DIFFERENTIATED)
def test_derivatives_are_those_of_the_network(name: str) -> None:
    model, example = MODELS[name]()
    model = model.double()
    example = pytree.tree_map_only(Tensor, lambda x: x.double() if x.is_floating_point() else x, example)
    program = capture(model, example)
    inputs = batch_of(example, 3 if name in OPEN else BATCH)
    weights = {m.layer: m.weight.root.meta["aliases"] for m in program.multiplies if m.weight is not None}
    parameters = dict(model.named_parameters(remove_duplicate=False))
    variables = [parameters[aliases[0]] for aliases in weights.values()]
    args = (inputs,) if isinstance(inputs, Tensor) else inputs
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        value = loss(model(**args) if isinstance(args, dict) else model(*args))
    gradients = torch.autograd.grad(value, variables, create_graph=True)
    generator = torch.Generator().manual_seed(0)
    vectors = [torch.randn(v.shape, generator=generator, dtype=v.dtype) for v in variables]
    products = torch.autograd.grad(gradients, variables, vectors, retain_graph=True)
    alone = torch.autograd.grad(gradients[0], variables[0], vectors[0])

    derivative = program.differentiate(inputs, loss, weights)
    mine = derivative.product({layer: [vector] for layer, vector in zip(weights, vectors, strict=True)})
    for layer, gradient, product in zip(weights, gradients, products, strict=True):
        assert torch.allclose(derivative.gradients[layer][0], gradient, rtol=1e-9, atol=1e-12)
        assert torch.allclose(mine[layer][0], product, rtol=1e-9, atol=1e-12)
        assert gradient.abs().max() > 0
        assert product.abs().max() > 0
    first = next(iter(weights))
    (single,) = derivative.product({first: [vectors[0]]})[first]
    assert torch.allclose(single, alone[0], rtol=1e-9, atol=1e-12)


def test_hard_gates_have_the_second_derivatives_of_their_formula() -> None:
    def gate(x: Tensor) -> Tensor:
        return (x + 3).clamp(0, 6) / 6

    layers = {"a": nn.Linear(8, 8), "b": nn.Linear(8, 4)}
    kernel = Block(lambda self, x: self.b(F.hardsigmoid(self.a(x * 5)) * x), **layers)
    formula = Block(lambda self, x: self.b(gate(self.a(x * 5)) * x), **layers)
    x = rows()
    one, other = (capture(model, x).differentiate(x, loss, ["a", "b"]) for model in (kernel, formula))
    vectors = {name: [torch.randn(layer.weight.shape)] for name, layer in layers.items()}
    assert same(one.product(vectors), other.product(vectors))
    assert same(one.gradients, other.gradients)


@pytest.mark.parametrize("p", [0.0, 1.0, 2.0, 3.0, float("inf")])
@pytest.mark.parametrize("points", [4, 30])
def test_distances_are_those_of_cdist_and_are_differentiated_twice(p: float, points: int) -> None:
    """Few points have their distances from differences, many from a product; some of them are 0."""

    def run(self: Any, x: Tensor) -> Tensor:
        y = self.a(x)
        return torch.cdist(y, torch.cat([y[:, :1], self.points.expand(len(x), -1, -1)], 1), p=p)

    model = Block(run, a=nn.Linear(8, 8), points=weight(points, 8)).double()
    x = rows().double()
    program = capture(model, x)
    assert close(program.run(x), eager(model, x), 1e-7)
    if p == 0:  # counts, which have no derivative
        return
    derivative = program.differentiate(x, lambda y: y.square().sum(), ["a"])
    if p == 2 and points == 4:  # the sum of squares of all coordinates: its Hessian is known
        assert close(
            derivative.gradients["a"][0], torch.autograd.grad(model(x).square().sum(), model.a.weight)[0]
        )
    (product,) = derivative.product({"a": [torch.ones(8, 8, dtype=torch.float64)]})["a"]
    assert bool(product.isfinite().all())


def split_attention(self: Any, x: Tensor, zeros: list[Tensor]) -> Tensor:
    """The network `attention` with zeros added by hand to the operands of its two matmuls."""
    q, k, v = self.qkv(x).view(x.shape[0], -1, 3, 4, 4).permute(2, 0, 3, 1, 4)
    scores = (q * 0.5**0.5 + zeros[0]) @ (k.transpose(-2, -1) * 0.5**0.5 + zeros[1])
    y = (scores.softmax(-1) + zeros[2]) @ (v + zeros[3])
    return self.out(y.transpose(1, 2).flatten(2))


def gram(self: Any, x: Tensor, zeros: list[Tensor]) -> Tensor:
    """The network `functional_matmul` with zeros added by hand."""
    scores = (x + zeros[0]) @ (x.transpose(1, 2) + zeros[1])
    return (torch.softmax(scores, -1) + zeros[2]) @ (x + zeros[3])


@pytest.mark.parametrize(("name", "by_hand"), [("attention", split_attention), ("functional_matmul", gram)])
def test_derivatives_of_matmuls_are_with_respect_to_added_zeros(
    name: str, by_hand: Callable[..., Tensor]
) -> None:
    model, example = MODELS[name]()
    model, inputs = model.double(), batch_of(example, 3).double()
    program = capture(model, example.double())
    derivative = program.differentiate(inputs, loss, ["qk", "av"])
    shapes = [variable.shape for layer in ("qk", "av") for variable in derivative.variables[layer]]
    zeros = [torch.zeros(shape, dtype=torch.double, requires_grad=True) for shape in shapes]
    gradients = torch.autograd.grad(loss(by_hand(model, inputs, zeros)), zeros, create_graph=True)
    generator = torch.Generator().manual_seed(0)
    vectors = [torch.randn(shape, generator=generator, dtype=torch.double) for shape in shapes]
    products = torch.autograd.grad(gradients, zeros, vectors)
    mine = derivative.product({"qk": vectors[:2], "av": vectors[2:]})
    for index, layer in enumerate(("qk", "qk", "av", "av")):
        assert torch.allclose(derivative.gradients[layer][index % 2], gradients[index], rtol=1e-9, atol=1e-12)
        assert torch.allclose(mine[layer][index % 2], products[index], rtol=1e-9, atol=1e-12)
        assert products[index].abs().max() > 0


def test_parameters_over_the_same_memory_are_one_weight() -> None:
    model, example = model_of("shared_memory")
    program = program_of("shared_memory")
    tied = copy.deepcopy(model)
    tied.parts[1].weight = tied.parts[0].weight
    (gradient,) = torch.autograd.grad(loss(tied(example)), tied.parts[0].weight)
    (mine,) = program.differentiate(example, loss, ["parts.0"]).gradients["parts.0"]
    assert torch.allclose(mine, gradient, atol=1e-7)
    with torch.no_grad():
        tied.parts[0].weight *= 0.75
    assert close(program.run(example, scaled_weights(program, 0.75)), eager(tied, example))


def test_a_weight_that_is_made_is_differentiated_as_it_multiplies() -> None:
    model, example = MODELS["old_weight_norm"]()
    model, example = model.double(), example.double()
    program = capture(model, example)
    made = (model.v * (model.g / model.v.norm(dim=1, keepdim=True))).detach().requires_grad_()
    (gradient,) = torch.autograd.grad(loss(F.linear(example, made)), made)
    derivative = program.differentiate(example, loss, ["linear"])
    assert torch.allclose(derivative.gradients["linear"][0], gradient)


def test_a_loss_without_curvature_has_a_zero_product() -> None:
    program, inputs = program_of("unused_parameters"), model_of("unused_parameters")[1]
    derivative = program.differentiate(inputs, lambda output: output.sum(), ["a"])
    assert not derivative.product({"a": [torch.ones(4, 8)]})["a"][0].any()


def test_derivatives_leave_the_network_alone() -> None:
    model, example = MODELS["shared_weight"]()
    program = capture(model, example)
    before = program.run(example)
    with torch.no_grad():  # whatever the caller's mode
        program.differentiate(example, loss, ["parts.0"])
    assert all(parameter.grad is None for parameter in model.parameters())
    assert same(program.run(example), before)


def test_layers_are_differentiated_in_their_order_whatever_is_asked() -> None:
    program, inputs = program_of("residual_in_place"), model_of("residual_in_place")[1]
    derivative = program.differentiate(inputs, loss, ["3.b", "0", "2.a", "0"])
    assert list(derivative.gradients) == ["0", "2.a", "3.b"]


@pytest.mark.parametrize("verb", ["differentiate", "run_keeping", "gradients"])
def test_an_unknown_layer_is_refused(verb: str) -> None:
    program, inputs = program_of("attention"), model_of("attention")[1]
    calls: dict[str, Callable[[], Any]] = {
        "differentiate": lambda: program.differentiate(inputs, loss, ["qvk"]),
        "run_keeping": lambda: program.run_keeping(inputs, ["qvk"]),
        "gradients": lambda: program.gradients(inputs, loss, ["qvk"]),
    }
    with pytest.raises(BitsectError, match="unknown layer 'qvk'"):
        calls[verb]()


def test_first_derivatives_alone_are_the_same() -> None:
    program, inputs = program_of("attention"), model_of("attention")[1]
    layers = [layer.name for layer in program.layers]
    derivative, seen = program.differentiate(inputs, loss, layers), {}
    alone = program.gradients(inputs, loss, layers, lambda key, value: seen.update({key: value}))
    once = program.differentiate(inputs, loss, layers, once=True).gradients
    for layer, gradients in derivative.gradients.items():
        assert all(map(torch.equal, gradients, once[layer]))
    for multiply in program.multiplies:
        weights, operands = alone[multiply.layer]
        expected = weights if multiply.weight is not None else list(operands.values())
        for one, other in zip(derivative.gradients[multiply.layer], expected, strict=True):
            assert torch.allclose(one, other, atol=1e-7)
        assert {key for key in seen if key[0] == multiply.node.name} == set(operands)


# Batches


@pytest.mark.parametrize("name", FIXED)
def test_a_smaller_batch_is_padded_and_the_padding_cut_off(name: str) -> None:
    model, example = model_of(name)
    program = program_of(name)
    full = batch_of(example, BATCH)
    assert same(program.run(full), reference(model, full))
    one = full[:1]
    repeated = torch.cat([one, one])
    assert same(program.run(one), reference(model, repeated)[:1])
    layer = program.layers[-1].name
    _, states = program.run_keeping(one, [layer])
    assert same(program.run_from(layer, states[layer])[0], program.run(one))
    seen: list[Tensor] = []
    program.observe(one, {program.multiplies[0].activations[0].tensor or "": seen.append})
    assert len(seen[0]) == 1 or name == "fixed_loop"


def test_padding_has_no_part_in_derivatives() -> None:
    program, example = program_of("fixed_view"), model_of("fixed_view")[1]
    one = program.differentiate(example[:1], loss, ["a"]).gradients["a"][0]
    both = program.differentiate(torch.cat([example[:1], example[:1]]), loss, ["a"]).gradients["a"][0]
    assert torch.allclose(one, both, rtol=1e-5, atol=1e-7)


def test_a_larger_batch_than_the_fixed_one_is_refused() -> None:
    with pytest.raises(DataError, match="a batch of 3 is more than the 2"):
        program_of("fixed_view").run(rows().repeat(2, 1, 1)[:3])


def test_an_output_without_a_batch_axis_cannot_be_cut() -> None:
    model = Block(lambda self, x: self.a(x).view(2, -1).mean(), a=nn.Linear(8, 4))
    example = rows()
    program = capture(model, example)
    assert same(program.run(example), eager(model, example))
    with pytest.raises(DataError, match="no batch axis to cut padding from"):
        program.run(example[:1])


# Inputs that do not fit


def zeros(*shapes: tuple[int, ...]) -> tuple[Tensor, ...]:
    return tuple(torch.zeros(shape) for shape in shapes)


REFUSED: dict[str, tuple[str, Any, str]] = {
    "shape": (
        "attention",
        zeros((3, 5, 15)),
        r"'args_0' has shape \(3, 5, 15\); the network takes batch × 5 × 16",
    ),
    "rank": ("attention", zeros((3, 16)), "the network takes batch × 5 × 16"),
    "dtype": (
        "attention",
        torch.zeros(3, 5, 16).double(),
        "is torch.float64; the network takes torch.float32",
    ),
    "list": ("attention", [[1.0]], "is float; the network takes a tensor"),
    "number": ("tied_decoder", 3, "is int; the network takes a tensor"),
    "names": ("dictionary_input", {"first": torch.zeros(3, 8), "third": torch.zeros(3, 6)}, "named inputs"),
    "unnamed": ("dictionary_input", zeros((3, 8)), "named inputs"),
    "too few": ("cross_attention", zeros((3, 5, 8)), "takes 2 inputs; these samples hold 1"),
    "uneven": (
        "cross_attention",
        zeros((3, 5, 8), (4, 4, 6)),
        "holds 4 samples where those before it hold 3",
    ),
    "unbatched": ("unbatched_input", zeros((3, 5, 8), (4, 8), (1, 1, 4)), "the network takes 5 × 8"),
    "constant": (
        "constant_arguments",
        {"x": torch.zeros(3, 5, 8), "mask": None, "double": False, "power": 2},
        "input 'double' is False; the network was captured with True",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_inputs_that_do_not_fit_are_refused_with_what_is_expected(name: str) -> None:
    network, inputs, message = REFUSED[name]
    with pytest.raises(DataError, match=message):
        program_of(network).run(inputs)


def test_sizes_beyond_what_was_exported_are_refused() -> None:
    model = Block(lambda self, x: self.a(x) if x.shape[0] < 4 else -self.a(x), a=nn.Linear(8, 4))
    hint = {0: torch.export.Dim.AUTO}
    exported = torch.export.export(model, (torch.zeros(2, 8),), dynamic_shapes={"args": (hint,)})
    program = capture(exported)
    x = torch.randn(3, 8)
    assert same(program.run(x), eager(model, x))
    with pytest.raises(DataError, match="has a size of 4; the network was exported for 3"):
        program.run(torch.randn(4, 8))


def test_a_weight_repeated_along_the_batch_is_one_weight() -> None:
    """As `bmm` wants it, from two dimensions or from three."""
    for shape in ((8, 4), (1, 8, 4)):
        model = Block(lambda self, x: torch.bmm(x, self.w.expand(x.shape[0], -1, -1)), w=weight(*shape))
        program, inputs = capture(model, rows()), batch_of(rows(), 5)
        assert [(layer.name, layer.weights) for layer in program.layers] == [("w", 32)]
        assert same(program.run(inputs), eager(model, inputs))
        assert close(program.run(inputs, scaled_weights(program, 2)), 2 * eager(model, inputs))
