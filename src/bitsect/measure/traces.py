"""Traces of the loss Hessian for every layer, by Hutchinson's estimator.

    tr H_i = E[vᵀ H_i v],   v with independent entries ±1

Probing several layers at once adds the cross terms v_iᵀ H_ij v_j to each estimate, whose mean is
zero: cheaper per probe, and noisier. `benchmarks/traces.py` measures the trade.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
import torch

from ..errors import BitsectError
from ..evaluate import Arrays, Done
from ..program import Program
from .context import Context, Progress, silent

MEMORY_BYTES = 4e9  # what the graph of a double backward pass may take
KEPT_COPIES = 8  # values that a double backward pass keeps for each value of the forward pass
FEWEST_PROBES = 8


def hessian_traces(
    context: Context,
    done: Done,
    *,
    probes: int = 64,
    tolerance: float = 0.05,
    group: int | None = None,
    seed: int = 0,
    progress: Progress = silent,
) -> int:
    """Fill `done` with one estimate per layer for each probe; returns how many probes it took.

    Each probe is fresh and sees the next mini-batch. Stops when the relative standard error of the
    median layer is at most `tolerance`, or at `probes`.
    """
    batches = list(_batches(context))
    for probe in range(probes):
        if probe >= FEWEST_PROBES and relative_error(stacked(done, probe)) <= tolerance:
            return probe
        if str(probe) not in done:
            start, stop = batches[probe % len(batches)]
            done[str(probe)] = _probe(context, start, stop, group, seed * 1_000_003 + probe)
        progress(1)
    return probes


def stacked(done: Done, probes: int) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
    """The estimates [layers, probes]."""
    return np.stack([done[str(probe)]["trace"] for probe in range(probes)], axis=1)


def relative_error(estimates: np.ndarray[tuple[int, int], np.dtype[np.float64]]) -> float:
    """Standard error over mean, for the median layer."""
    error = estimates.std(axis=1, ddof=1) / math.sqrt(estimates.shape[1])
    mean = np.abs(estimates.mean(axis=1))
    return float(np.median(error / np.maximum(mean, np.finfo(float).tiny)))


def _probe(context: Context, start: int, stop: int, group: int | None, seed: int) -> Arrays:
    program, evaluator = context.program, context.evaluator
    generator = torch.Generator().manual_seed(seed)
    inputs, labels = evaluator.part(start, stop)
    derivative = program.differentiate(
        inputs, lambda outputs: evaluator.task.loss(outputs, labels).mean(), context.layers
    )
    traces = dict.fromkeys(context.layers, 0.0)
    for layers in _groups(context.layers, group):
        vectors = {
            layer: tuple(_signs(variable, generator) for variable in derivative.variables[layer])
            for layer in layers
        }
        for layer, products in derivative.product(vectors).items():
            traces[layer] = sum(
                float(torch.sum(vector.double() * product.double()))
                for vector, product in zip(vectors[layer], products, strict=True)
            )
    estimates = np.array([traces[layer] for layer in context.layers])
    if not np.isfinite(estimates).all():
        layer = context.layers[int(np.flatnonzero(~np.isfinite(estimates))[0])]
        raise BitsectError(
            f"the Hessian trace of layer '{layer}' is not finite: check the loss on these samples"
        )
    return {"trace": estimates}


def _signs(like: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    # Drawn on the CPU, so that every device sees the same probe.
    bits = torch.randint(0, 2, like.shape, generator=generator, dtype=torch.int8)
    return (2 * bits - 1).to(device=like.device, dtype=like.dtype)


def _groups(layers: Sequence[str], size: int | None) -> Iterator[Sequence[str]]:
    step = size or len(layers)
    for start in range(0, len(layers), step):
        yield layers[start : start + step]


def _batches(context: Context) -> Iterator[tuple[int, int]]:
    """Mini-batches within memory, all of one size, so that their mean is that of the samples.

    The few samples that do not fill another one are left out.
    """
    samples = len(context.evaluator.samples)
    size = samples // math.ceil(samples / mini_batch(context))
    for start in range(0, samples - size + 1, size):
        yield start, start + size


def mini_batch(context: Context) -> int:
    """Samples that a double backward pass takes at once: those of a batch, as far as memory allows."""
    return min(context.evaluator.batch_size, fitting_rows(context.program))


def fitting_rows(program: Program) -> int:
    """How many samples a double backward pass has memory for."""
    return max(1, int(MEMORY_BYTES // max(1, program.bytes_per_sample * KEPT_COPIES)))
