"""Hessian traces against whole Hessians, whole Gauss–Newton matrices, and their own standard errors."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.autograd.functional import hessian, jacobian
from torch.nn import functional as F

from bitsect.errors import BitsectError
from bitsect.measure import traces as traces_module
from bitsect.measure.context import Context
from bitsect.measure.curvature import NoRootError, _hessian, _roots, curvature_vectors
from bitsect.measure.piecewise import piecewise_linear_layers
from bitsect.measure.traces import (
    FEWEST,
    MINI_BATCH,
    estimate_traces,
    freedom,
    gauss_newton,
    hessian_traces,
    hutchinson,
    mini_batch,
    mini_batches,
    relative_error,
)
from bitsect.network.capture import capture
from bitsect.network.program import Program
from bitsect.solve.metrics import METRICS
from bitsect.solve.reliability import score
from bitsect.sources.tasks.task import Outcome, Task
from bitsect.values import INT8, Measured
from bitsect.values.probing import Probing
from odd_models import Block
from test_measure import Once, labels_for
from tiny import judge, refill, residual, seeded

Forward = Callable[[dict[str, list[Tensor]], Tensor], Tensor]  # (variables of each layer, inputs) → logits
Small = tuple[Program, Tensor, dict[str, list[Tensor]], Forward]


@cache
def small_networks() -> dict[str, Small]:
    """(program, inputs, variables of each layer, forward by hand as a function of these)"""
    return {
        "tanh": _convolution(torch.tanh),
        "relu": _convolution(torch.relu),
        "attention": _attention(),
        "shared weight": _shared(),
    }


def _convolution(activation: Callable[[Tensor], Tensor]) -> Small:
    def run(self: Any, x: Tensor) -> Tensor:
        return self.head(activation(self.conv(x)).flatten(1))

    model = refill(Block(run, conv=nn.Conv2d(1, 2, 2), head=nn.Linear(8, 3)))

    def by_hand(v: dict[str, list[Tensor]], x: Tensor) -> Tensor:
        hidden = activation(F.conv2d(x, v["conv"][0], model.conv.bias)).flatten(1)
        return F.linear(hidden, v["head"][0], model.head.bias)

    x = seeded(6, 1, 3, 3)
    return capture(model, x[:2]), x, {"conv": [model.conv.weight], "head": [model.head.weight]}, by_hand


def _attention() -> Small:
    def attend(self: Any, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        return self.out(((q @ k.transpose(1, 2) / 2).softmax(-1) @ v).mean(1))

    model = refill(Block(attend, qkv=nn.Linear(2, 6), out=nn.Linear(2, 3)))
    zeros = {
        "qk": [torch.zeros(5, 3, 2), torch.zeros(5, 2, 3)],
        "av": [torch.zeros(5, 3, 3), torch.zeros(5, 3, 2)],
    }

    def by_hand(v: dict[str, list[Tensor]], x: Tensor) -> Tensor:
        q, k, value = F.linear(x, v["qkv"][0], model.qkv.bias).chunk(3, -1)
        scores = (q + v["qk"][0]) @ (k.transpose(1, 2) + v["qk"][1]) / 2
        mixed = (scores.softmax(-1) + v["av"][0]) @ (value + v["av"][1])
        return F.linear(mixed.mean(1), v["out"][0], model.out.bias)

    x = seeded(5, 3, 2) * 2
    variables = {"qkv": [model.qkv.weight], **zeros, "out": [model.out.weight]}
    return capture(model, x[:2]), x, variables, by_hand


def _shared() -> Small:
    def twice(self: Any, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.shared(torch.tanh(self.shared(x)))))

    model = refill(Block(twice, shared=nn.Linear(4, 4), head=nn.Linear(4, 3)))

    def by_hand(v: dict[str, list[Tensor]], x: Tensor) -> Tensor:
        for _ in range(2):
            x = torch.tanh(F.linear(x, v["shared"][0], model.shared.bias))
        return F.linear(x, v["head"][0], model.head.bias)

    x = seeded(6, 4) * 2
    return capture(model, x[:2]), x, {"shared": [model.shared.weight], "head": [model.head.weight]}, by_hand


NETWORKS = ["tanh", "relu", "attention", "shared weight"]


def flattened(name: str) -> tuple[Callable[[Tensor], Tensor], Tensor, dict[str, slice]]:
    """The logits as a function of all variables in one vector; that vector; where each layer's are."""
    program, x, variables, forward = small_networks()[name]
    assert [layer.name for layer in program.layers] == list(variables)
    flat = [tensor.detach().double() for group in variables.values() for tensor in group]
    sizes = [tensor.numel() for tensor in flat]

    def logits(vector: Tensor) -> Tensor:
        parts = iter(torch.split(vector, sizes))
        shaped = {
            layer: [next(parts).reshape(tensor.shape).float() for tensor in group]
            for layer, group in variables.items()
        }
        return forward(shaped, x)

    ends = np.cumsum([sum(tensor.numel() for tensor in group) for group in variables.values()])
    places = {
        layer: slice(start, end) for layer, start, end in zip(variables, [0, *ends], ends, strict=False)
    }
    return logits, torch.cat([tensor.flatten() for tensor in flat]), places


@cache
def whole_hessian(name: str) -> tuple[Tensor, dict[str, slice]]:
    """The Hessian of the mean loss with respect to all variables at once, and where each layer's are."""
    logits, vector, places = flattened(name)
    labels = labels_for(len(small_networks()[name][1]))
    return hessian(lambda v: F.cross_entropy(logits(v), labels), vector), places


@cache
def whole_gauss_newton(name: str) -> tuple[Tensor, dict[str, slice]]:
    """(1/N) Σ_n J_nᵀ (diag(p_n) − p_n p_nᵀ) J_n, in full."""
    logits, vector, places = flattened(name)
    matrix = torch.zeros(len(vector), len(vector), dtype=torch.float64)
    p = logits(vector).softmax(1).double()
    for row, p_n in zip(jacobian(logits, vector).double(), p, strict=True):
        matrix += row.mT @ (torch.diag(p_n) - torch.outer(p_n, p_n)) @ row / len(p)
    return matrix.detach(), places


def traces_of(whole: tuple[Tensor, dict[str, slice]]) -> np.ndarray[Any, Any]:
    matrix, places = whole
    return np.array([float(matrix[place, place].trace()) for place in places.values()])


def context_of(name: str, batch_size: int = 64) -> Context:
    program, x, _, _ = small_networks()[name]
    return Context(judge(program, (x, labels_for(len(x))), batch_size=batch_size))


def standard_errors(estimates: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    _, batches, probes = estimates.shape
    return np.sqrt(estimates.var(axis=2, ddof=1).sum(axis=1) / (batches**2 * probes))


def assert_agree(estimates: np.ndarray[Any, Any], exact: np.ndarray[Any, Any]) -> None:
    error = standard_errors(estimates)
    assert (np.abs(estimates.mean(axis=(1, 2)) - exact) <= 3 * error + 1e-5 * np.abs(exact)).all()
    assert (error < 0.2 * np.abs(exact).max()).all()  # so that agreeing means something


# Against matrices in full


@pytest.mark.parametrize("name", NETWORKS)
def test_hessian_products_are_those_of_the_whole_hessian(name: str) -> None:
    context, (matrix, places) = context_of(name), whole_hessian(name)
    inputs, labels = context.evaluator.part(slice(None))
    derivative = context.program.differentiate(
        inputs, lambda outputs: F.cross_entropy(outputs, labels), context.layers
    )
    for layers in (*((layer,) for layer in context.layers), context.layers):
        vectors = {n: [seeded(*v.shape, seed=7) for v in derivative.variables[n]] for n in layers}
        products = derivative.product(vectors)
        for layer in layers:
            expected = sum(
                matrix[places[layer], places[other]]
                @ torch.cat([v.flatten() for v in vectors[other]]).double()
                for other in layers
            )
            found = torch.cat([product.flatten() for product in products[layer]]).double()
            torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("group", [1, None])
def test_hutchinson_agrees_with_the_whole_hessian(name: str, group: int | None) -> None:
    estimates = estimate_traces(context_of(name), {}, hutchinson(group), 100, 0.0)
    assert_agree(estimates, traces_of(whole_hessian(name)))


@pytest.mark.parametrize("name", NETWORKS)
def test_gauss_newton_agrees_with_the_whole_gauss_newton_matrix(name: str) -> None:
    estimates = estimate_traces(context_of(name), {}, gauss_newton, 100, 0.0)
    assert_agree(estimates, traces_of(whole_gauss_newton(name)))
    assert (estimates >= 0).all()


@pytest.mark.parametrize("name", NETWORKS)
def test_the_gauss_newton_trace_is_the_hessians_where_it_is_said_to_be(name: str) -> None:
    whole, part = traces_of(whole_hessian(name)), traces_of(whole_gauss_newton(name))
    exact = piecewise_linear_layers(small_networks()[name][0])
    expected = {"tanh": {"head"}, "relu": {"conv", "head"}, "shared weight": {"head"}}
    assert exact == expected.get(name, {"av", "out"})
    for layer, one, other in zip(context_of(name).layers, whole, part, strict=True):
        assert (one == pytest.approx(other, rel=1e-4)) == (layer in exact)


@pytest.mark.parametrize("estimator", [gauss_newton, hutchinson()])
def test_mini_batches_give_the_trace_over_all_samples(estimator: Any) -> None:
    context = context_of("relu", batch_size=4)
    assert [part.tolist() for part in mini_batches(context)] == [[0, 1, 2], [3, 4, 5]]
    assert_agree(estimate_traces(context, {}, estimator, 60, 0.0), traces_of(whole_hessian("relu")))


def test_a_larger_mini_batch_weighs_more() -> None:
    program, x, _, _ = small_networks()["relu"]
    context, done = Context(judge(program, (x[:5], labels_for(5)), batch_size=3)), Once()
    estimates = estimate_traces(context, done, gauss_newton, 2, 0.0)
    for part, (name, size) in enumerate({"0-2": 2, "2-5": 3}.items()):
        assert np.allclose(estimates[:, part, 1], done[f"1/{name}"]["trace"] * size / 2.5)


# Where the outputs are piecewise linear


def _layers(run: Callable[..., Any], example: Tensor | None = None, **parts: nn.Module) -> set[str]:
    example = seeded(2, 4) if example is None else example
    return set(piecewise_linear_layers(capture(refill(Block(run, **parts)), example)))


def linear() -> nn.Module:
    return nn.Linear(4, 4)


def test_rectifiers_pools_sums_and_batch_norm_are_piecewise_linear() -> None:
    program = residual()[1]
    assert piecewise_linear_layers(program) == {layer.name for layer in program.layers}


LINEAR_BETWEEN: list[Callable[[Tensor], Tensor]] = [
    F.relu,
    F.relu6,
    F.leaky_relu,
    F.hardsigmoid,
    lambda x: torch.where(x > 0, x, x * 0.1),
    lambda x: x.clamp(-1, 1) + x.abs() - x.max(1, keepdim=True).values,
    lambda x: torch.cat([x[:, :2], x[:, 2:] / 3], 1),
    lambda x: x.masked_fill(torch.tensor([True, False, True, False]), 0.0),
]
CURVED_BETWEEN: list[Callable[[Tensor], Tensor]] = [
    F.gelu,
    F.silu,
    F.hardswish,
    torch.sigmoid,
    lambda x: x.softmax(-1),
    lambda x: x * x,
    lambda x: 1 / (2 + x.abs()),
    lambda x: x / (2 + x.abs().sum()),
    lambda x: F.layer_norm(x, (4,)),
    torch.special.i0,  # an operator that nobody listed
]


def test_what_lies_between_a_layer_and_the_outputs_decides() -> None:
    def run(self: Any, x: Tensor) -> Tensor:
        every = zip([*LINEAR_BETWEEN, *CURVED_BETWEEN], self.branches, strict=True)
        return sum(self.head(between(layer(x))) for between, layer in every)

    count = len(LINEAR_BETWEEN) + len(CURVED_BETWEEN)
    found = _layers(run, branches=nn.ModuleList(linear() for _ in range(count)), head=linear())
    assert found == {"head", *(f"branches.{i}" for i in range(len(LINEAR_BETWEEN)))}


def test_a_product_is_linear_in_one_factor_and_curved_in_what_makes_both() -> None:
    def run(self: Any, x: Tensor) -> Tensor:
        gated = self.gated(x)
        gated.exp()  # which no output reads
        parallel = self.parallel(x) - self.parallel(-x).relu()
        in_a_row = self.in_a_row(self.in_a_row(x).relu())
        return gated * F.hardsigmoid(self.gate(gated)) + parallel + in_a_row

    names = ("gated", "gate", "parallel", "in_a_row")
    assert _layers(run, **{name: linear() for name in names}) == {"gate", "parallel"}


# The square root of the output's Hessian


def token_loss(f: Tensor, labels: Tensor) -> Tensor:
    """The mean over a mask of tokens, as language models have it."""
    mask = torch.ones(f.shape[:2], dtype=f.dtype)
    mask[0, 1:] = 0
    each = F.cross_entropy(f.transpose(1, 2), labels[:, None].expand(-1, f.shape[1]), reduction="none")
    return (each * mask).sum(1) / mask.sum(1)


def quadratic(f: Tensor, labels: Tensor) -> Tensor:
    return (f @ seeded(4, 4, seed=9).to(f.dtype)).square().sum(1)


LOSSES: dict[str, tuple[Any, Callable[[Any, Tensor], Tensor]]] = {
    "cross entropy": (seeded(3, 4), lambda f, y: F.cross_entropy(f, y, reduction="none")),
    "weighted, smoothed": (
        seeded(3, 4) * 9,
        lambda f, y: F.cross_entropy(
            f, y, torch.arange(1, 5, dtype=f.dtype), reduction="none", label_smoothing=0.1
        ),
    ),
    "tokens": (seeded(3, 5, 4), token_loss),
    "pixels": (
        seeded(3, 4, 2, 2),
        lambda f, y: F.cross_entropy(f, y[:, None, None].expand(3, 2, 2), reduction="none").sum((1, 2)),
    ),
    "start and end": (
        (seeded(3, 6), seeded(3, 6, seed=1)),
        lambda f, y: sum(F.cross_entropy(each, y, reduction="none") for each in f) / 2,
    ),
    "one logit": (
        seeded(3),
        lambda f, y: F.binary_cross_entropy_with_logits(f, (y > 0).to(f.dtype), reduction="none"),
    ),
    "regression": (seeded(3, 7), lambda f, y: (f - y[:, None]).square().mean(1)),
    "dense": (seeded(3, 4), quadratic),
    "single precision only": (
        seeded(3, 4),
        lambda f, y: (f @ seeded(4, 4, seed=9)).square().sum(1),
    ),
    "one of two outputs": ((seeded(3, 4), seeded(3, 2)), lambda f, y: quadratic(f[0], y)),
}


@pytest.mark.parametrize("name", LOSSES)
def test_the_root_squared_is_the_hessian_of_the_loss(name: str) -> None:
    """The vector is linear in its signs, so that unit vectors for signs give the root itself."""
    outputs, loss = LOSSES[name]
    labels = torch.tensor([1, 0, 2])
    leaves = list(outputs) if isinstance(outputs, tuple) else [outputs]
    used, product = _hessian(lambda f: loss(f, labels), outputs, leaves)
    assert product is not None
    values = [leaves[i].double() for i in used]
    size = sum(value.numel() for value in values)

    def parted(vector: Tensor) -> list[Tensor]:
        parts = torch.split(vector, [value.numel() for value in values])
        return [part.reshape(value.shape) for part, value in zip(parts, values, strict=True)]

    def matrix(function: Callable[[list[Tensor]], list[Tensor]]) -> Tensor:
        units = torch.eye(size, dtype=torch.float64)
        return torch.stack([torch.cat([p.flatten() for p in function(parted(unit))]) for unit in units], 1)

    whole = matrix(product)
    roots = [matrix(root.draw) for root in _roots(product, values)]
    fitting = [root for root in roots if torch.allclose(root @ root.mT, whole, rtol=1e-5, atol=1e-6)]
    assert fitting
    drawn = curvature_vectors(lambda f: loss(f, labels), outputs, torch.Generator().manual_seed(0))
    assert [vector.dtype for vector in drawn] == [leaf.dtype for leaf in leaves]
    assert all(vector.any() == (i in used) for i, vector in enumerate(drawn))


def test_a_sure_sample_has_a_root_too() -> None:
    outputs, labels = torch.tensor([[40.0, 0.0, -3.0], [900.0, 0.0, 1.0]]), torch.tensor([0, 0])
    loss: Callable[[Tensor], Tensor] = lambda f: F.cross_entropy(f, labels, reduction="none")  # noqa: E731
    (vector,) = curvature_vectors(loss, outputs, torch.Generator().manual_seed(0))
    assert vector.isfinite().all()
    assert vector[0].abs().max() == pytest.approx(np.exp(-20.0), rel=0.2)


@pytest.mark.parametrize(
    ("loss", "why"),
    [
        (lambda f: -f.square().sum(1), "not convex"),
        (lambda f: (f - f.mean(0)).square().sum(1), "depends on another's"),
    ],
)
def test_a_loss_without_a_root_says_so(loss: Callable[[Tensor], Tensor], why: str) -> None:
    with pytest.raises(NoRootError, match=why):
        curvature_vectors(loss, seeded(4, 3), torch.Generator().manual_seed(0))


def test_too_many_outputs_of_no_known_form_are_refused() -> None:
    weights = seeded(600)
    with pytest.raises(NoRootError, match="600 outputs"):
        curvature_vectors(lambda f: (f * weights).sum(1) ** 2, seeded(2, 600), torch.Generator())


# Probing: how many, which samples, and how sure


def with_task(loss: Callable[[Tensor], Tensor], **model: Any) -> Context:
    task = Task("mine", lambda outputs, labels: Outcome(loss(outputs), torch.zeros(len(labels))))
    program = capture(refill(model.get("model", nn.Linear(3, 3))), torch.zeros(2, 3))
    return Context(judge(program, (seeded(4, 3), labels_for(4)), task=task))


def test_where_gauss_newton_cannot_be_had_hutchinson_steps_in_and_says_so() -> None:
    context, done = with_task(lambda f: -f.square().sum(1)), {}
    estimates, probing = hessian_traces(context, lambda name: done.setdefault(name, {}), probes=4)
    assert (estimates < 0).all()
    assert probing.estimator == "hutchinson"
    assert list(done) == ["gauss-newton", "hutchinson"]
    assert any("gauss-newton cannot be had, as the loss is not convex" in line for line in probing.doubts())


def test_a_loss_that_is_linear_in_the_outputs_leaves_the_curvature_to_the_network() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.LogSoftmax(1))
    estimates, probing = hessian_traces(with_task(lambda f: -f[:, 0], model=model), lambda name: {}, probes=4)
    assert probing.estimator == "hutchinson"
    assert estimates.any()


def test_a_layer_without_curvature_has_no_trace_and_stops_nobody() -> None:
    with np.errstate(all="raise"):
        estimates, probing = hessian_traces(with_task(lambda f: f.sum(1)), lambda name: {})
    assert estimates.shape == (1, 1, 1 + FEWEST)
    assert not estimates.any()
    assert (probing.estimator, probing.reached) == ("gauss-newton", True)


@pytest.mark.parametrize("estimator", ["gauss-newton", "hutchinson"])
def test_a_trace_that_is_not_finite_names_its_layer(estimator: str) -> None:
    context = with_task(lambda f: (f * 0).sqrt().sum(1), model=nn.Sequential(nn.Linear(3, 3)))
    with pytest.raises(BitsectError, match="the trace of layer '0' is not finite"):
        hessian_traces(context, lambda name: {}, estimator=estimator)


def test_every_probe_goes_through_all_samples() -> None:
    program = small_networks()["shared weight"][0]
    x = seeded(2 * MINI_BATCH + 3, 4)
    context, done = Context(judge(program, (x, labels_for(len(x))), batch_size=64)), Once()
    estimates = estimate_traces(context, done, gauss_newton, 40, np.inf)
    _, parts, probes = estimates.shape
    assert parts == 3
    assert sorted(done) == sorted(f"{p}/{part}" for p in range(probes) for part in ("0-6", "6-12", "12-19"))


def test_estimates_that_are_equal_by_chance_are_not_taken_for_certainty() -> None:
    def alike(context: Context, part: Tensor, generator: torch.Generator) -> dict[str, float]:
        return dict.fromkeys(context.layers, 1.0)

    assert estimate_traces(context_of("relu"), {}, alike, 64, 0.05).shape == (2, 1, 1 + FEWEST)
    assert estimate_traces(context_of("relu", batch_size=1), {}, alike, 64, 0.05).shape == (2, 6, 3)


def test_a_few_unsure_samples_are_not_taken_for_many() -> None:
    rng = np.random.default_rng(0)
    alike = rng.normal(100, 1, (5, 64, 4))
    one_holds_all = alike * np.where(np.arange(64) == 7, 1.0, 1e-3)[:, None]
    assert freedom(alike) > 100
    assert 2 < freedom(one_holds_all) < 6
    assert freedom(np.ones((5, 64, 4))) == np.inf


@pytest.mark.parametrize(
    ("count", "batch_size", "sizes"), [(6, 64, [6]), (6, 4, [3, 3]), (7, 3, [2, 2, 3]), (1, 5, [1])]
)
def test_mini_batches_leave_no_sample_out(count: int, batch_size: int, sizes: list[int]) -> None:
    program = small_networks()["shared weight"][0]
    context = Context(judge(program, (seeded(count, 4), labels_for(count)), batch_size=batch_size))
    batches = [part.tolist() for part in mini_batches(context)]
    assert [len(batch) for batch in batches] == sizes
    assert [sample for batch in batches for sample in batch] == list(range(count))


def test_memory_bounds_the_mini_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    context = context_of("tanh")
    assert mini_batch(context) == MINI_BATCH
    needed = context.program.bytes_per_sample * traces_module.KEPT_COPIES
    monkeypatch.setattr(traces_module, "MEMORY_BYTES", 3.5 * needed)
    assert mini_batch(context) == 3
    monkeypatch.setattr(traces_module, "MEMORY_BYTES", 1)
    assert mini_batch(context) == 1


@pytest.mark.parametrize("estimator", [gauss_newton, hutchinson()])
def test_probing_stops_when_it_knows_enough_and_goes_on_when_asked(estimator: Any) -> None:
    context, done = context_of("tanh"), Once()
    enough = relative_error(estimate_traces(context, {}, estimator, 40, 0.0))
    assert enough is not None
    estimates = estimate_traces(context, done, estimator, 400, enough)
    count = len(done)
    assert 2 <= count <= 40
    assert (relative_error(estimates) or 1.0) <= enough
    assert np.array_equal(estimate_traces(context, done, estimator, 400, enough), estimates)
    seen: list[int] = []
    more = estimate_traces(context, done, estimator, count + 5, 0.0, progress=seen.append)
    assert (len(done), sum(seen)) == (count + 5, count + 5)
    fresh = estimate_traces(context, {}, estimator, count + 5, 0.0)
    assert fresh.tobytes() == more.tobytes()


@pytest.mark.parametrize("estimator", [gauss_newton, hutchinson()])
def test_probes_are_fresh_and_seeded(estimator: Any) -> None:
    context = context_of("attention", batch_size=3)
    one, same, other = (estimate_traces(context, {}, estimator, 5, 0.0, seed=seed) for seed in (0, 0, 1))
    assert np.array_equal(one, same)
    every = np.concatenate([one, other], axis=2).reshape(len(context.layers), -1)
    # A square does not tell ε from −ε, so that a few are equal by chance.
    assert all(len(set(row)) > 10 for row in every)


def test_standard_errors_cover_the_trace() -> None:
    """Probes drawn from a pool, mini-batch by mini-batch: ± 1.96 standard errors hold the pool's mean."""
    pool = estimate_traces(context_of("relu", batch_size=2), {}, gauss_newton, 80, 0.0)
    rng = np.random.default_rng(0)
    inside = []
    for _ in range(1000):
        drawn = np.take_along_axis(pool, rng.integers(0, 80, (1, 3, 20)), axis=2)
        apart = np.abs(drawn.mean(axis=(1, 2)) - pool.mean(axis=(1, 2)))
        inside.append(apart <= 1.96 * standard_errors(drawn))
    assert np.mean(inside, axis=0) == pytest.approx(0.95, abs=0.03)


def measured_of(estimates: np.ndarray[Any, Any], probing: Probing | None = None) -> Measured:
    layers = tuple(f"layer{i}" for i in range(len(estimates)))
    ones = np.ones(len(layers))
    return Measured(layers, ones, ones, estimates, probing=probing)


@pytest.mark.parametrize("probes", [2, 3, 12])
def test_scores_have_the_standard_errors_of_their_traces(probes: int) -> None:
    """Mini-batches differ by far more than probes do: that is no error of the trace over these samples."""
    rng = np.random.default_rng(0)
    estimates = rng.normal(100 * np.arange(1, 41)[:, None], 1.0, (3, 40, probes))
    found = score(measured_of(estimates), METRICS["hessian"], INT8, bootstrap=4000)
    assert found.standard_error == pytest.approx(standard_errors(estimates), rel=0.06)
    assert found.probes == probes


def test_probing_tells_what_it_is_and_whether_it_reached_its_tolerance() -> None:
    context = context_of("tanh")
    _, probing = hessian_traces(context, lambda name: {}, probes=3, tolerance=1e-9)
    assert probing.gauss_newton_part == ("conv",)
    assert not probing.reached
    assert "not to 1e-07 %: raise [probes=]" in "".join(probing.doubts())
    assert "in 1 layers (conv)" in "".join(probing.meaning())
    _, probing = hessian_traces(context, lambda name: {}, probes=1)
    assert probing.relative_error is None
    assert "takes two probes" in "".join(probing.doubts())
    _, probing = hessian_traces(context_of("relu"), lambda name: {}, probes=60, tolerance=0.3)
    assert (list(probing.meaning()), list(probing.doubts())) == ([], [])
    found = score(measured_of(np.ones((2, 1, 3)), probing), METRICS["hessian"], INT8)
    assert found.probing == type(found).from_json(found.to_json()).probing == probing
