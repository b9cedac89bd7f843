"""Measurements against slow and obvious references: whole passes, single gradients."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from itertools import combinations
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bitsect.errors import BitsectError
from bitsect.measure import expansion as expansion_module
from bitsect.measure import sketch as sketch_module
from bitsect.measure.context import Context
from bitsect.measure.noise import fisher_terms, weight_errors
from bitsect.measure.pairs import exact_pairs, linear_pairs, single_losses
from bitsect.measure.traces import hessian_traces
from bitsect.measure.work import Work, fill
from bitsect.network.capture import capture
from bitsect.sources.tasks.task import Outcome, Task, task_named
from bitsect.values import INT4, INT8, ONNXRUNTIME, PAPER, PLACEMENTS, Format, Placement, Plan
from bitsect.values.grid import Grid
from bitsect.values.pieces import Done, Piece
from odd_models import Block, program_of
from tiny import CLASSES, images, judge, refill, residual, residual_context, seeded


class Once(dict[str, Piece]):
    """Pieces of work, none of which may be done twice."""

    def __setitem__(self, key: str, value: Piece) -> None:
        assert key not in self
        super().__setitem__(key, value)


def labels_for(count: int, classes: int = 3) -> Tensor:
    return torch.randint(classes, (count,), generator=torch.Generator().manual_seed(count))


# Pairs, against whole passes


def mixed() -> nn.Module:
    """A weight in two places, an attention without weights of its own, a weight on the left."""

    def run(self: Any, x: Tensor) -> Tensor:
        x = torch.tanh(self.shared(x))
        x = (x @ x.transpose(1, 2)).softmax(-1) @ x + x
        x = torch.einsum("st,btd->bsd", self.left, x)
        return self.head(self.shared(x).relu().mean(1))

    parts = {
        "shared": nn.Linear(6, 6),
        "left": nn.Parameter(torch.zeros(4, 5)),
        "head": nn.Linear(6, CLASSES),
    }
    return refill(Block(run, **parts))


@cache
def contexts() -> dict[str, Context]:
    made = {f"residual, {name}": residual_context(6, placement) for name, placement in PLACEMENTS.items()}
    x = seeded(5, 5, 6)
    program = capture(mixed(), x[:2])
    for name, placement in PLACEMENTS.items():
        made[f"mixed, {name}"] = Context(
            judge(program, (x, labels_for(5, CLASSES)), placement=placement, batch_size=2)
        )
    return made


CONTEXTS = [f"{network}, {placement}" for network in ("residual", "mixed") for placement in PLACEMENTS]


def whole_passes(context: Context, format: Format, *layers: str) -> tuple[list[Tensor], list[Tensor]]:
    """Labels and outputs of every batch with only `layers` in `format`."""
    evaluator = context.evaluator
    plan = Plan.uniform(context.program.layers).replace(layers, format)
    batches = list(evaluator.samples.batches(evaluator.batch_size))
    outputs = [context.program.run(batch.inputs, evaluator.rounder(plan)) for batch in batches]
    return [batch.labels for batch in batches if batch.labels is not None], outputs


def naive(context: Context, format: Format, *layers: str) -> dict[str, np.ndarray[Any, Any]]:
    """Task loss and divergence of every sample, by torch's own functions."""
    labels, outputs = whole_passes(context, format, *layers)
    _, exact = whole_passes(context, format)
    task = [F.cross_entropy(o, y, reduction="none") for o, y in zip(outputs, labels, strict=True)]
    kl = [
        (p.double().softmax(1) * (p.double().log_softmax(1) - q.double().log_softmax(1))).sum(1)
        for p, q in zip(exact, outputs, strict=True)
    ]
    return {"task": torch.cat(task).double().numpy(), "kl": torch.cat(kl).clamp(min=0).numpy()}


def joined(context: Context, done: Done, row: object, name: str) -> np.ndarray[Any, Any]:
    return np.concatenate([done[f"{start}/{row}"][name] for start in context.starts()], axis=-1)


@pytest.mark.parametrize("name", CONTEXTS)
@pytest.mark.parametrize("format", ["int8", "int4", "w4a16"])
def test_exact_pairs_are_those_of_whole_passes_bit_for_bit(name: str, format: str) -> None:
    context, wanted = contexts()[name], Format.parse(format)
    done = Once()
    fill(done, exact_pairs(context, wanted))
    base = naive(context, wanted)
    assert np.array_equal(joined(context, done, "float", "task"), base["task"])
    assert not joined(context, done, "float", "kl").any()
    for i, layer in enumerate(context.layers):
        alone = naive(context, wanted, layer)
        assert np.array_equal(joined(context, done, i, "task"), alone["task"])
        assert np.allclose(joined(context, done, i, "kl"), alone["kl"], rtol=1e-9, atol=1e-15)
        for j in range(i + 1, len(context.layers)):
            both = naive(context, wanted, layer, context.layers[j])
            assert np.array_equal(joined(context, done, i, "pair_task")[j - i - 1], both["task"])
            assert np.allclose(
                joined(context, done, i, "pair_kl")[j - i - 1], both["kl"], rtol=1e-9, atol=1e-15
            )
    assert "pair_task" not in done[f"0/{len(context.layers) - 1}"]
    if format != "w4a16":  # the network must feel it, or this proves nothing
        assert all(joined(context, done, i, "kl").any() for i in range(len(context.layers)))


@pytest.mark.parametrize("name", CONTEXTS)
def test_single_losses_and_output_noise_are_those_of_whole_passes(name: str) -> None:
    context = contexts()[name]
    done, pairs = Once(), Once()
    fill(done, single_losses(context, INT4))
    fill(pairs, exact_pairs(context, INT4))
    _, exact = whole_passes(context, INT4)
    signal = torch.cat(exact).double().square().sum(1).numpy()
    assert np.array_equal(joined(context, done, "float", "signal"), signal)
    for i, layer in enumerate(context.layers):
        _, outputs = whole_passes(context, INT4, layer)
        noise = (torch.cat(outputs) - torch.cat(exact)).double().square().sum(1).numpy()
        assert np.array_equal(joined(context, done, i, "noise"), noise)
        for start in context.starts():
            piece = done[f"{start}/{i}"]
            for shared in ("task", "kl", "noise"):
                assert np.array_equal(piece[shared], pairs[f"{start}/{i}"][shared])


def linear_table(context: Context, format: Format, loss: str) -> np.ndarray[Any, Any]:
    done = Once()
    fill(done, linear_pairs(context, format))
    return np.concatenate([done[str(start)][f"pair_{loss}"] for start in context.starts()], axis=1)


@pytest.mark.parametrize("name", CONTEXTS)
def test_linear_pairs_by_the_formula(name: str) -> None:
    context = contexts()[name]
    found = {loss: linear_table(context, INT4, loss) for loss in ("task", "kl")}
    labels, exact = whole_passes(context, INT4)
    outputs = [torch.cat(whole_passes(context, INT4, layer)[1]) for layer in context.layers]
    base, labelled = torch.cat(exact), torch.cat(labels)
    for row, (one, other) in enumerate(combinations(outputs, 2)):
        both = base + (one - base) + (other - base)
        assert np.allclose(found["task"][row], F.cross_entropy(both, labelled, reduction="none"), rtol=1e-5)
        kl = F.kl_div(both.double().log_softmax(1), base.double().softmax(1), reduction="none").sum(1)
        assert np.allclose(found["kl"][row], kl, rtol=1e-5, atol=1e-12)


def test_linear_pairs_are_exact_where_outputs_add_up() -> None:
    def run(self: Any, x: Tensor) -> Tensor:
        return self.a(x) + self.b(x.tanh()) + self.c(x.relu())

    program = capture(refill(Block(run, **{n: nn.Linear(6, 3) for n in "abc"})), torch.zeros(2, 6))
    context = Context(judge(program, (seeded(7, 6), labels_for(7)), batch_size=3))
    done = Once()
    fill(done, exact_pairs(context, INT4))
    exact = np.concatenate([joined(context, done, i, "pair_task") for i in range(2)])
    assert np.allclose(linear_table(context, INT4, "task"), exact, rtol=1e-5)
    assert not np.allclose(exact[0], joined(context, done, 0, "task"), rtol=1e-3)


def test_wide_outputs_are_expanded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Close to the estimate that keeps all outputs, and never far from it for small moves."""
    context = contexts()["residual, paper"]
    whole = {loss: linear_table(context, INT8, loss) for loss in ("task", "kl")}
    monkeypatch.setattr(expansion_module, "OUTPUT_BYTES", 0)
    for loss, expected in whole.items():
        found = linear_table(context, INT8, loss)
        assert found.shape == expected.shape
        scale = np.abs(expected - expected.mean()).max()
        assert np.abs(found - expected).max() < 0.02 * scale


def test_the_expansion_is_exact_for_a_quadratic_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    def squared(outputs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        loss = (outputs - labels[:, None]).square().sum(1) - 1  # may be below zero
        return loss, (loss < 1).float()

    program = capture(refill(nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3))), torch.zeros(2, 6))
    context = Context(judge(program, (seeded(7, 6), labels_for(7)), batch_size=3, task=task_named(squared)))
    expected = linear_table(context, INT4, "task")
    monkeypatch.setattr(expansion_module, "OUTPUT_BYTES", 0)
    assert np.allclose(linear_table(context, INT4, "task"), expected, rtol=1e-4, atol=1e-5)
    # Of few random sums inner products are right in the mean.
    monkeypatch.setattr(sketch_module, "SKETCH_BYTES", 0)
    rows = torch.randn(200, 4096, generator=torch.Generator().manual_seed(0))
    rows[100:] = rows[:100] + 0.1 * rows[100:]
    small = torch.stack([sketch_module.Sketch(4096, 1, seed)(rows) for seed in range(40)])
    found, wanted = (small[:, :100] * small[:, 100:]).sum(-1).mean(), (rows[:100] * rows[100:]).sum(-1).mean()
    assert float(found) == pytest.approx(float(wanted), rel=0.01)


def test_pieces_that_are_there_are_not_made_again_and_the_rest_is_the_same() -> None:
    context = contexts()["residual, onnxruntime"]
    whole = Once()
    fill(whole, exact_pairs(context, INT8))
    for kept in (["0/3", "4/float", "4/0"], ["0/float"], [f"0/{i}" for i in range(8)], list(whole)):
        done = Once({key: whole[key] for key in kept})
        seen: list[int] = []
        fill(done, exact_pairs(context, INT8), seen.append)
        assert sum(seen) == 2 * (len(context.layers) + 1)  # each batch has a piece in float too
        assert done.keys() == whole.keys()
        for key, piece in whole.items():
            assert {name: array.tobytes() for name, array in piece.items()} == {
                name: array.tobytes() for name, array in done[key].items()
            }


def test_only_the_first_samples() -> None:
    context = contexts()["residual, paper"]
    done = Once()
    fill(done, exact_pairs(Context(context.evaluator, 4), INT8))
    assert {key.split("/")[0] for key in done} == {"0"}


# Odd outputs and sizes


def measure_all(context: Context, format: Format = INT4) -> tuple[Done, Done, Done]:
    pairs, singles, linear = Once(), Once(), Once()
    fill(pairs, exact_pairs(context, format))
    fill(singles, single_losses(context, format))
    fill(linear, linear_pairs(context, format))
    return pairs, singles, linear


def test_one_layer_has_no_pairs() -> None:
    program = capture(refill(nn.Sequential(nn.Linear(6, 3))), torch.zeros(2, 6))
    context = Context(judge(program, (seeded(4, 6), labels_for(4)), batch_size=3))
    pairs, _, linear = measure_all(context)
    assert sorted(pairs) == ["0/0", "0/float", "3/0", "3/float"]
    assert sorted(pairs["0/0"]) == ["kl", "noise", "task"]
    assert not any(name.startswith("pair") for piece in linear.values() for name in piece)
    assert traces_of(context).shape == (1, 2, 8)


def test_one_sample() -> None:
    context = residual_context(1)
    pairs, _, linear = measure_all(context)
    assert pairs["0/0"]["pair_task"].shape == (7, 1)
    assert linear["0"]["pair_kl"].shape == (28, 1)
    assert traces_of(context).shape == (8, 1, 8)


def traces_of(context: Context) -> np.ndarray[Any, Any]:
    return hessian_traces(context, lambda name: Once(), probes=8)[0]


def test_one_logit_has_the_binary_loss_and_curvature() -> None:
    program = capture(refill(nn.Sequential(nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 1))), torch.zeros(2, 6))
    x, labels = seeded(4, 6), torch.tensor([0, 1, 1, 0])
    context = Context(judge(program, (x, labels)))
    pairs, _, _ = measure_all(context)
    logit = program.run(x)[:, 0].double()
    expected = F.binary_cross_entropy_with_logits(logit, labels.double(), reduction="none")
    assert pairs["0/float"]["task"] == pytest.approx(expected.numpy(), rel=1e-6)
    rounded = program.run(x, context.rounding(INT4, context.layers[0]))[:, 0].double()
    coins = (torch.distributions.Bernoulli(logits=each) for each in (logit, rounded))
    assert pairs["0/0"]["kl"] == pytest.approx(torch.distributions.kl_divergence(*coins).numpy(), abs=1e-9)
    assert pairs["0/0"]["noise"].all()
    assert traces_of(context).any()


def test_a_fixed_batch() -> None:
    program = program_of("fixed_view")
    x, labels = seeded(5, 5, 8), labels_for(5)
    context = Context(judge(program, (x, labels), batch_size=64))
    assert list(context.starts()) == [0, 2, 4]
    pairs, _, _ = measure_all(context)
    assert pairs["4/0"]["pair_task"].shape == (1, 1)
    both = context.program.run(x[4:], context.rounding(INT4, *context.layers))
    assert np.array_equal(
        pairs["4/0"]["pair_task"][0], F.cross_entropy(both, labels[4:], reduction="none").double()
    )
    assert np.isfinite(traces_of(context)).all()
    done = Once()
    fill(done, fisher_terms(context, INT4))
    assert len(done) == 5


def test_a_dictionary_keeps_its_names_in_linear_pairs() -> None:
    """The logits are not the first output, and a task may ask for any of them by name."""

    def run(self: Any, x: Tensor) -> dict[str, Tensor]:
        hidden = self.a(x)
        return {"hidden": hidden, "order": x.argmax(1), "logits": self.b(hidden.relu())}

    program = capture(refill(Block(run, a=nn.Linear(4, 6), b=nn.Linear(6, 3))), torch.zeros(2, 4))
    x, labels = seeded(5, 4), labels_for(5)

    def by_name(outputs: dict[str, Tensor], labels: Tensor) -> Outcome:
        loss = F.cross_entropy(outputs["logits"], labels, reduction="none") + outputs["order"]
        return Outcome(loss, (outputs["logits"].argmax(1) == labels).float())

    _, _, plain = measure_all(Context(judge(program, (x, labels))))
    _, _, named = measure_all(Context(judge(program, (x, labels), task=Task("by name", by_name))))
    order = x.argmax(1).numpy()[None]
    found = np.concatenate([named[start]["pair_task"] for start in named], axis=1)
    expected = np.concatenate([plain[start]["pair_task"] for start in plain], axis=1)
    assert np.allclose(found, expected + order, rtol=1e-6)


def test_outputs_that_are_no_logits_are_measured_by_their_task() -> None:
    def run(self: Any, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.b(self.a(x).relu()).sum(2), self.b(x).mean()

    def squares(outputs: Any, labels: Tensor) -> Outcome:
        return Outcome(outputs[0].square().mean(1) - labels, torch.zeros(len(labels)))

    program = capture(refill(Block(run, a=nn.Linear(4, 4), b=nn.Linear(4, 3))), seeded(2, 5, 4))
    context = Context(judge(program, (seeded(5, 5, 4), labels_for(5)), task=Task("squares", squares)))
    assert "kl" in measure_all(context)[0]["0/0"]

    def volumes(self: Any, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.b(self.a(x).relu()), self.b(x).mean()

    program = capture(refill(Block(volumes, a=nn.Linear(4, 4), b=nn.Linear(4, 3))), seeded(2, 5, 4))
    for of_rank in (lambda outputs: outputs[0].flatten(1), lambda outputs: outputs[0].mean((1, 2))[:, None]):

        def loss(outputs: Any, labels: Tensor, of_rank: Any = of_rank) -> Outcome:
            return Outcome(of_rank(outputs).square().mean(1), torch.zeros(len(labels)))

        context = Context(judge(program, (seeded(5, 5, 4), labels_for(5)), task=Task("volumes", loss)))
        pairs, _, linear = measure_all(context)
        assert sorted(pairs["0/0"]) == ["noise", "pair_task", "task"]
        assert [name for name in linear["0"] if "pair" in name] == ["pair_task"]


def test_one_number_for_each_sample() -> None:
    def run(self: Any, x: Tensor) -> Tensor:
        return self.b(self.a(x).relu()).squeeze(1)

    def squares(outputs: Tensor, labels: Tensor) -> Outcome:
        return Outcome((outputs - labels).square(), torch.zeros(len(labels)))

    program = capture(refill(Block(run, a=nn.Linear(4, 4), b=nn.Linear(4, 1))), seeded(2, 4))
    x, labels = seeded(3, 4), labels_for(3)
    context = Context(judge(program, (x, labels), task=Task("squares", squares)))
    pairs, _, _ = measure_all(context)
    assert np.array_equal(pairs["0/float"]["signal"], program.run(x).double().square())
    assert pairs["0/0"]["noise"].shape == (3,)


def test_a_task_without_a_loss_leaves_the_divergence() -> None:
    task = Task("score", lambda outputs, labels: (outputs.argmax(1) == labels).float())
    context = Context(judge(residual()[1], images(3), task=task))
    pairs, _, linear = measure_all(context)
    assert sorted(pairs["0/0"]) == ["kl", "noise", "pair_kl"]
    assert [name for name in linear["0"] if "pair" in name] == ["pair_kl"]
    with pytest.raises(BitsectError, match="task 'score' gives no loss"):
        hessian_traces(context, lambda name: {})
    neither = Context(
        judge(program_of("module_used_twice"), (seeded(3, 5, 8), labels_for(3)), task=_nothing())
    )
    with pytest.raises(BitsectError, match="task 'nothing' gives no loss, and the outputs are no logits"):
        fill({}, exact_pairs(neither, INT8))


def _nothing() -> Task:
    return Task("nothing", lambda outputs, labels: torch.zeros(len(labels)))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_other_precisions(dtype: torch.dtype) -> None:
    model = refill(nn.Sequential(nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 3))).to(dtype)
    x = seeded(5, 6).to(dtype)
    context = Context(judge(capture(model, x[:2]), (x, labels_for(5))))
    pairs, singles, linear = measure_all(context)
    assert np.array_equal(linear["0"]["single_task"][0], singles["0/0"]["task"])
    assert np.isfinite(pairs["0/0"]["pair_task"]).all()
    assert np.isfinite(linear["0"]["pair_task"]).all()
    assert (weight_errors(context, INT8) > 0).all()


@pytest.mark.parametrize("measure", [exact_pairs, single_losses])
def test_the_first_tensor_that_rounding_breaks_is_named(measure: Callable[..., Work]) -> None:
    """Only layer a, at two bits, makes a value negative whose root is taken."""

    def run(self: Any, x: Tensor) -> Tensor:
        return self.c(self.b((self.a(x) - 3.7).sqrt()))

    model = refill(Block(run, a=nn.Linear(2, 2), b=nn.Linear(2, 2), c=nn.Linear(2, 2)))
    with torch.no_grad():
        model.a.weight.copy_(torch.tensor([[3.0, 1.4], [1.4, 3.0]]))
        model.a.bias.zero_()
    x = torch.ones(3, 2)
    evaluator = judge(capture(model, x[:2]), (x, labels_for(3, 2)), batch_size=3)
    done: Done = {}
    with pytest.raises(BitsectError, match=r"'b\.input' is the first tensor that holds them"):
        fill(done, measure(Context(evaluator), Format(2, None)))
    assert list(done) == ["0/float"]


def test_a_pair_that_breaks_is_named_though_neither_layer_does_alone() -> None:
    def run(self: Any, x: Tensor) -> Tensor:
        return self.c((self.a(x) + self.b(x) - 6.2).sqrt())

    model = refill(Block(run, a=nn.Linear(2, 2), b=nn.Linear(2, 2), c=nn.Linear(2, 2)))
    with torch.no_grad():
        for layer in (model.a, model.b):
            layer.weight.copy_(torch.tensor([[3.0, 1.4], [1.4, 3.0]]))
            layer.bias.zero_()
    x = torch.ones(3, 2)
    evaluator = judge(capture(model, x[:2]), (x, labels_for(3, 2)), batch_size=3)
    with pytest.raises(BitsectError, match=r"'c\.input' is the first tensor that holds them"):
        fill({}, exact_pairs(Context(evaluator), Format(2, None)))
    fill({}, single_losses(Context(evaluator), Format(2, None)))


# Noise


def test_weight_errors() -> None:
    context = contexts()["mixed, paper"]
    rounder = context.evaluator.rounder
    expected = []
    for layer in context.program.layers:
        multiply = next(m for m in context.program.multiplies if m.layer == layer.name)
        if multiply.weight is None:
            expected.append(0.0)
            continue
        weight = context.program.constant(multiply.weight.node)
        rounded = rounder.codes(layer.name, multiply.weight, INT4).weight
        expected.append(float((rounded.double() - weight.double()).square().sum()))
    found = weight_errors(context, INT4)
    assert found == pytest.approx(expected, rel=1e-5)
    assert (found > 0).tolist() == [layer.weight_shape is not None for layer in context.program.layers]


def fisher_by_hand(
    context: Context, model: nn.Module, x: Tensor, label: Tensor, format: Format
) -> list[float]:
    """Σ gradient² × mean squared rounding error, of weights and operands of the mixed network."""
    rounder, program = context.evaluator.rounder, context.program
    plan = Plan.uniform(program.layers, format)
    grids = rounder(plan).inputs
    weights = {n: w.detach().clone().requires_grad_() for n, w in model.named_parameters() if "bias" not in n}
    operands: dict[str, list[tuple[Tensor, Grid | None]]] = {layer.name: [] for layer in program.layers}
    places = {m.layer: [p for p in program.multiplies if p.layer == m.layer] for m in program.multiplies}
    visits = dict.fromkeys(places, 0)

    def taken(layer: str, *values: Tensor) -> list[Tensor]:
        multiply = places[layer][visits[layer]]
        visits[layer] += 1
        positions = [i for i, operand in enumerate(multiply.operands) if operand.layout is None]
        kept = []
        for position, value in zip(positions, values, strict=True):
            copy = value + torch.zeros_like(value, requires_grad=True)
            copy.retain_grad()
            operands[layer].append((copy, grids.get((multiply.node.name, position))))
            kept.append(copy)
        return kept

    matmuls = [layer.name for layer in program.layers if layer.kind == "matmul"]
    shared, head = weights["shared.weight"], weights["head.weight"]
    (y,) = taken("shared", x)
    y = torch.tanh(F.linear(y, shared, model.shared.bias))
    one, other = taken(matmuls[0], y, y.transpose(1, 2))
    one, other = taken(matmuls[1], (one @ other).softmax(-1), y)
    y = one @ other + y
    (y,) = taken("left", y)
    y = torch.einsum("st,btd->bsd", weights["left"], y)
    (y,) = taken("shared", y)
    (y,) = taken("head", F.linear(y, shared, model.shared.bias).relu().mean(1))
    F.cross_entropy(F.linear(y, head, model.head.bias), label).backward()
    terms = []
    for layer, error in zip(program.layers, weight_errors(context, format), strict=True):
        total = 0.0
        weight = weights.get(f"{layer.name}.weight", weights.get(layer.name))
        if weight is not None:
            assert weight.grad is not None
            total += float(weight.grad.square().sum()) * error / weight.numel()
        for value, grid in operands[layer.name]:
            if grid is not None:
                assert value.grad is not None
                noise = (grid.round(value.detach()) - value.detach()).square().mean()
                total += float(value.grad.square().sum() * noise)
        terms.append(total)
    return terms


@pytest.mark.parametrize("format", ["int8", "int4", "w4a16"])
def test_fisher_terms_against_gradients_by_hand(format: str) -> None:
    context, wanted = contexts()["mixed, paper"], Format.parse(format)
    done = Once()
    fill(done, fisher_terms(context, wanted, samples=3))
    assert len(done) == 3
    model = mixed()
    for sample in range(3):
        x, label = context.evaluator.part(slice(sample, sample + 1))
        assert isinstance(x, Tensor)
        expected = fisher_by_hand(context, model, x, label, wanted)
        assert done[str(sample)]["fisher"] == pytest.approx(expected, rel=1e-3, abs=1e-12)
        assert (done[str(sample)]["fisher"] > 0).sum() == (3 if format == "w4a16" else 5)
    seen: list[int] = []
    fill(done, fisher_terms(context, wanted), seen.append)
    assert len(done) == 5
    assert sum(seen) == len(done) == 5


@pytest.mark.parametrize("placement", [PAPER, ONNXRUNTIME], ids=lambda placement: placement.name)
def test_divergence_is_never_negative_and_grows_with_rounding(placement: Placement) -> None:
    context = contexts()[f"residual, {placement.name}"]
    sums = {}
    for format in (INT8, INT4):
        done = Once()
        fill(done, exact_pairs(context, format))
        values = np.concatenate([piece["kl"] for key, piece in done.items() if "float" not in key])
        assert (values >= 0).all()
        sums[format] = values.sum()
    assert sums[INT4] > 10 * sums[INT8] > 0
