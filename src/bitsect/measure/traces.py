"""Traces of the loss Hessian for every layer, by one of two estimators.

Gauss–Newton. With f_n the outputs of sample n and S_n S_nᵀ = ∂²ℓ_n/∂f_n², one backward pass gives

    g = ∂/∂w (1/√N) Σ_n (S_n ε_n) · f_n,   E‖g_i‖² = (1/N) Σ_n tr(J_niᵀ ∂²ℓ_n/∂f_n² J_ni),   ε = ±1

for every layer i at once, never negative and without cross terms. Where the outputs are piecewise linear
in the weights of a layer this is the trace of its Hessian; elsewhere the part that the loss contributes.

Hutchinson.  tr H_i = E[vᵀ H_i v], v = ±1: a Hessian product for every layer. Probing several layers at
once adds the cross terms v_iᵀ H_ij v_j, whose mean is zero: cheaper and far noisier (`studies/traces.py`).

A probe goes through all samples, a few at a time. What is estimated is the mean over these samples, so
only the signs are random: the variance is that within each mini-batch, and none is left out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray

from ..errors import BitsectError
from ..network.program import Program
from ..values.pieces import Done, Piece
from ..values.probing import Probing
from .context import Context, own_leaves
from .curvature import NoRootError, curvature_vectors, signs
from .piecewise import piecewise_linear_layers
from .work import Progress, Work, fill, shared, silent

Array = NDArray[np.float64]
Estimate = Callable[[Context, torch.Tensor, torch.Generator], dict[str, float]]

# Samples whose gradients are summed: fewer have fewer cross terms, more run faster; see the benchmark.
MINI_BATCH = 8
MEMORY_BYTES = 4e9  # what the graph of a double backward pass may take
KEPT_COPIES = 8  # values that a double backward pass keeps for each value of the forward pass
FEWEST = 8  # pairs of estimates at least: two that are equal may be so by chance
FREEDOM = 32  # degrees of freedom that a standard error rests on at least


def hessian_traces(
    context: Context,
    journal: Callable[[str], Done],
    *,
    estimator: str = "gauss-newton",
    probes: int = 64,
    tolerance: float = 0.05,
    seed: int = 0,
    progress: Progress = silent,
) -> tuple[Array, Probing]:
    """Estimates [layers, mini-batches, probes] whose mean is the trace, and how well that is known.

    Pieces are kept in `journal(estimator)`. Where the loss does not allow Gauss–Newton probes,
    Hutchinson's estimator takes their place.
    """
    chosen = (probes, tolerance, seed, progress)
    if estimator == "hutchinson":
        estimates = estimate_traces(context, journal(estimator), hutchinson(), *chosen)
        return estimates, Probing(estimator, relative_error(estimates), tolerance)
    curved = tuple(name for name in context.layers if name not in piecewise_linear_layers(context.program))
    try:
        estimates = estimate_traces(context, journal(estimator), gauss_newton, *chosen)
        if curved and not estimates.any():
            raise NoRootError("the loss has no curvature in the outputs: what there is, is in the network")
    except NoRootError as error:
        estimates = estimate_traces(context, journal("hutchinson"), hutchinson(), *chosen)
        return estimates, Probing("hutchinson", relative_error(estimates), tolerance, instead=str(error))
    return estimates, Probing(estimator, relative_error(estimates), tolerance, curved)


def estimate_traces(
    context: Context,
    done: Done,
    estimate: Estimate,
    probes: int,
    tolerance: float,
    seed: int = 0,
    progress: Progress = silent,
) -> Array:
    """Estimates [layers, mini-batches, probes], each piece kept in `done`.

    It ends when the relative standard error of the median layer is at most `tolerance`, and rests on
    enough to be believed, or at `probes`.
    """
    parts = list(mini_batches(context))
    # Weighted by its samples, so that the plain mean over mini-batches is that over all samples.
    weights = np.array([len(part) for part in parts]) * len(parts) / len(context.evaluator.samples)
    found: list[Array] = []  # [layers, mini-batches] for each probe
    for probe in range(probes):
        if (probe - 1) * len(parts) >= FEWEST and _is_known(np.stack(found, axis=2), tolerance):
            break
        pieces = fill(done, probe_work(context, estimate, probe, seed), progress)
        found.append(np.stack([piece["trace"] for piece in pieces], axis=1) * weights)
    return np.stack(found, axis=2)


@shared
def probe_work(context: Context, estimate: Estimate, probe: int, seed: int) -> Work:
    """One probe through all samples: a piece for each mini-batch."""

    # Known by the first sample and by what would be the next one if they followed each other.
    parts = {f"{probe}/{int(part[0])}-{int(part[0]) + len(part)}": part for part in mini_batches(context)}

    def do(name: str) -> Piece:
        part = parts[name]
        (number,) = np.random.SeedSequence([seed, probe, int(part[0])]).generate_state(1, np.uint64)
        generator = torch.Generator().manual_seed(int(number))
        return _piece(context, estimate(context, part, generator))

    return Work(tuple(parts), do)


def relative_error(estimates: Array) -> float | None:
    """Standard error over trace for the median layer; None after a single probe."""
    _, batches, probes = estimates.shape
    if probes < 2:
        return None
    variance = estimates.var(axis=2, ddof=1).sum(axis=1) / (batches**2 * probes)
    mean = np.abs(estimates.mean(axis=(1, 2)))
    return float(np.median(np.sqrt(variance) / np.maximum(mean, np.finfo(float).tiny)))


def _is_known(estimates: Array, tolerance: float) -> bool:
    error = relative_error(estimates)
    return error is not None and error <= tolerance and freedom(estimates) >= FREEDOM


def freedom(estimates: Array) -> float:
    """Degrees of freedom of the median layer's standard error: (P − 1) (Σ_m v_m)² / Σ_m v_m² (Satterthwaite).

    They are far fewer than there are estimates where a few unsure samples hold most of the variance.
    """
    probes = estimates.shape[2]
    variances = estimates.var(axis=2, ddof=1)
    squares = (variances**2).sum(axis=1) * (probes - 1) / (probes + 1)  # without the bias of squaring
    total = variances.sum(axis=1) ** 2
    each = np.full(len(total), np.inf)  # without any variance there is nothing to doubt
    np.divide((probes - 1) * total, squares, out=each, where=squares > 0)
    return float(np.median(each))


def gauss_newton(context: Context, part: torch.Tensor, generator: torch.Generator) -> dict[str, float]:
    """‖g_i‖² of every layer on some samples, by one backward pass."""
    inputs, labels = context.evaluator.part(part)

    def projected(outputs: object) -> torch.Tensor:
        vectors = curvature_vectors(
            lambda given: context.evaluator.task.loss(given, labels), outputs, generator
        )
        products = [
            (vector * leaf).sum().float() for vector, leaf in zip(vectors, own_leaves(outputs), strict=True)
        ]
        return torch.stack(products).sum() / math.sqrt(len(part))

    derivative = context.program.differentiate(inputs, projected, context.layers, once=True)
    return {
        layer: sum(float(each.double().square().sum()) for each in gradients)
        for layer, gradients in derivative.gradients.items()
    }


def hutchinson(group: int | None = 1) -> Estimate:
    """A Hessian product for every `group` layers, or for all at once."""
    return partial(_products, group)


def _products(
    group: int | None, context: Context, part: torch.Tensor, generator: torch.Generator
) -> dict[str, float]:
    evaluator = context.evaluator
    inputs, labels = evaluator.part(part)
    derivative = context.program.differentiate(
        inputs, lambda outputs: evaluator.task.loss(outputs, labels).mean(), context.layers
    )
    traces: dict[str, float] = {}
    for layers in _groups(context.layers, group):
        vectors = {
            layer: tuple(signs(variable, generator) for variable in derivative.variables[layer])
            for layer in layers
        }
        for layer, products in derivative.product(vectors).items():
            traces[layer] = sum(
                float(torch.sum(vector.double() * product.double()))
                for vector, product in zip(vectors[layer], products, strict=True)
            )
    return traces


def mini_batches(context: Context) -> Iterator[torch.Tensor]:
    """The indices of the mini-batches: all samples, in parts that differ by one at most.

    Where lengths differ, samples of one length go together.
    """
    samples = context.evaluator.samples
    if samples.source.lengths is not None:
        yield from samples.parts(mini_batch(context))
        return
    count = math.ceil(len(samples) / mini_batch(context))
    for part in range(count):
        yield torch.arange(part * len(samples) // count, (part + 1) * len(samples) // count)


def mini_batch(context: Context) -> int:
    """Samples that are differentiated at once."""
    return min(context.evaluator.batch_size, differentiated_rows(context.program))


def _piece(context: Context, traces: dict[str, float]) -> Piece:
    estimates = np.array([traces[layer] for layer in context.layers])
    if not np.isfinite(estimates).all():
        layer = context.layers[int(np.flatnonzero(~np.isfinite(estimates))[0])]
        raise BitsectError(f"the trace of layer '{layer}' is not finite: check the loss on these samples")
    return {"trace": estimates}


def _groups(layers: Sequence[str], size: int | None) -> Iterator[Sequence[str]]:
    step = size or len(layers)
    for start in range(0, len(layers), step):
        yield layers[start : start + step]


def differentiated_rows(program: Program) -> int:
    """How many samples are differentiated at once, at most."""
    # A fixed batch costs the same however few of its rows are samples.
    wanted = MINI_BATCH if program.fixed_batch is None else program.fixed_batch
    return min(wanted, fitting_rows(program))


def fitting_rows(program: Program) -> int:
    """How many samples a double backward pass has memory for."""
    return max(1, int(MEMORY_BYTES // max(1, program.bytes_per_sample * KEPT_COPIES)))
