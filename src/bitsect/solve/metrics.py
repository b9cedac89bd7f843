"""Metrics: from what was measured to one number per layer, rising with its sensitivity.

A metric sees only averaged measurements. The same function can therefore be run again on bootstrap
resamples (for standard errors) and on two halves of the samples (for split-half agreement):

>>> @metric("single", "traces")
... def mine(means: Means, scoring: Scoring) -> Array:
...     return means["single"] * means["traces"]
>>> sorted(mine.needs)
['single', 'traces']

A function like this one in a module of your own is called `your.module:mine`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..errors import BitsectError
from ..names import calling, choose
from ..values.format import Format
from ..values.measured import TABLES, Measured
from ..values.scoring import Scoring

Array = NDArray[np.float64]
Average = Callable[[Array, str], Array]

SQNR_LIMIT_DB = 300.0  # what stands for no noise at all: beyond what float64 sums can tell apart
CHUNK_ROWS = 1024  # rows widened to float64 at a time: the pairs of a large network are many


@dataclass(frozen=True, eq=False)
class Means:
    """The tables that a metric asked for, averaged over samples or probes.

    `means["traces"]`, `["single"]`, `["noise"]`, `["fisher"]`, `["weight_error"]` are [L], `["base"]`
    and `["signal"]` are [1], and `["pair"]` is [L, L]: symmetric, with the single losses on its diagonal.
    """

    weights: Array  # [L]
    elements: Array  # [L]
    tables: Mapping[str, Array]

    def __getitem__(self, name: str) -> Array:
        if name not in self.tables:
            raise BitsectError(f"the metric reads '{name}' without asking for it: add it to @metric(…)")
        return self.tables[name]


@dataclass(frozen=True)
class Metric:
    """A function of means, and the tables that it reads."""

    name: str
    needs: frozenset[str]
    function: Callable[[Means, Scoring], Array]

    def __call__(self, means: Means, scoring: Scoring) -> Array:
        with calling("metric", self.name):
            scores = np.asarray(self.function(means, scoring), np.float64)
        if scores.shape != means.weights.shape:
            raise BitsectError(
                f"metric '{self.name}' must give one number for each of {len(means.weights)} layers, "
                f"got an array of {scores.shape}"
            )
        if scoring.size_penalty and means.weights.any():
            # The magnitude, because the scores of sqnr are negative; the paper's own are not.
            share = means.weights / means.weights.mean()
            scores = scores + scoring.size_penalty * abs(scores.mean()) * share
        return scores

    @property
    def summary(self) -> str:
        return (self.function.__doc__ or "").strip().partition("\n")[0]


def metric(*needs: str) -> Callable[[Callable[[Means, Scoring], Array]], Metric]:
    """A decorator that makes a metric of a function which reads the tables `needs`.

    Who reads "pair" has "single" too: a layer paired with itself.
    """
    for name in needs:
        if name not in TABLES:
            raise BitsectError(f"no table is called '{name}': there are {', '.join(TABLES)}")
    tables = frozenset(needs) | ({"single"} if "pair" in needs else frozenset())
    return lambda function: Metric(function.__name__, tables, function)


@metric("traces")
def hessian(means: Means, scoring: Scoring) -> Array:
    """Curvature of the loss: E_i = max(0, tr H_i) / n_i, or without n_i if `trace` says so.

    n_i counts the weights, or the elements of both operands of a matmul of two activations. An
    estimate of a trace can be negative, which as a sensitivity means nothing.
    """
    trace = np.maximum(means["traces"], 0.0)
    return trace / np.maximum(means.elements, 1.0) if scoring.trace == "mean_trace" else trace


@metric("pair")
def interlayer(means: Means, scoring: Scoring) -> Array:
    """Excess loss in pairs: E_i = Σ_{j≠i} max(0, L_ij − max(L_i, L_j)); `sum` clips the sum instead.

    L_ij − max(L_i, L_j) = [L_ij − L_i − L_j + L_0] + [min(L_i, L_j) − L_0]: without any interaction it
    still orders by the single-layer loss, against which it must be compared.
    """
    single = means["single"]
    excess = means["pair"] - np.maximum(single[:, None], single[None, :])  # 0 on the diagonal
    if scoring.clip == "pair":
        excess = np.maximum(excess, 0.0)
    total: Array = np.maximum(excess.sum(axis=1), 0.0)
    return total


@metric("traces", "pair")
def aughessian(means: Means, scoring: Scoring) -> Array:
    """The paper's: E = hessian + β · interlayer with β = mean(hessian) / mean(interlayer), or 0."""
    # The bare functions: the size penalty is added once, to the whole.
    curvature, excess = hessian.function(means, scoring), interlayer.function(means, scoring)
    if not excess.any():
        return curvature
    # Divided before it is multiplied, and sums for means: no β of a mean near 0 overflows.
    augmented: Array = curvature + curvature.sum() * (excess / excess.sum())
    return augmented


@metric("single")
def single(means: Means, scoring: Scoring) -> Array:
    """Loss with only that layer rounded: E_i = L_i."""
    return means["single"]


@metric("signal", "noise")
def sqnr(means: Means, scoring: Scoring) -> Array:
    """Noise at the network's output: E_i = −10 · log₁₀(Σ‖f‖² / Σ‖f − f_i‖²), sums over samples.

    In decibels within ±300, so that no noise is a number too.
    """
    with np.errstate(divide="ignore", invalid="ignore"):  # no noise or no signal, cut below
        decibels = 10 * np.log10(means["noise"]) - 10 * np.log10(means["signal"])
    finite: Array = np.clip(np.nan_to_num(decibels, nan=-SQNR_LIMIT_DB), -SQNR_LIMIT_DB, SQNR_LIMIT_DB)
    return finite


@metric("damage")
def damage(means: Means, scoring: Scoring) -> Array:
    """How far the outputs move: E_i = mean over samples of ‖centred change of the logits‖² / 2 classes.

    Unlike a loss it counts samples of which the network is sure as much as others; for outputs that are
    no logits, it is the squared error over the mean square of the output.
    """
    return means["damage"]


@metric("fisher")
def fisher(means: Means, scoring: Scoring) -> Array:
    """FIT: E_i = mean over samples of Σ (∂L/∂θ)² · noise power of θ, over weights and activations."""
    return means["fisher"]


@metric("traces", "weight_error")
def hawq(means: Means, scoring: Scoring) -> Array:
    """HAWQ-V2: E_i = mean trace · ‖Q(W) − W‖²; 0 for a matmul of two activations."""
    trace = np.maximum(means["traces"], 0.0)
    return trace / np.maximum(means.elements, 1.0) * means["weight_error"]


@metric()
def random(means: Means, scoring: Scoring) -> Array:
    """No measurement at all: a seeded random order, the least that a metric must beat."""
    return np.random.default_rng(scoring.probe_seed).random(len(means.weights))


METRICS: dict[str, Metric] = {
    each.name: each for each in (aughessian, hessian, interlayer, single, damage, sqnr, fisher, hawq, random)
}


def metric_named(name: str) -> Metric:
    """The metric called `name`: one of METRICS, or `package.module:function`."""
    found = choose("metric", name, METRICS, own=True)
    if not isinstance(found, Metric):
        raise BitsectError(
            f"metric '{name}' does not say what it needs: "
            'put @bitsect.metric("single") or the like above it'
        )
    return found


def plain(rows: Array, axis: str) -> Array:
    """The mean of each row, [R, 1]; equal rows have equal means to the last bit."""
    means: Array = rows.mean(axis=1, keepdims=True)
    return means


def tabulate(
    measured: Measured, format: Format, needs: frozenset[str], average: Average = plain
) -> Iterator[Means]:
    """The means of the tables `needs`, one `Means` for each column that `average` makes.

    `average(rows, axis)` turns rows [R, n] of draws into [R, B] averages, where `axis` says what was
    drawn: "samples", or "probes" for the traces, which come mini-batch by mini-batch.
    """
    columns = {name: _averaged(measured, name, format, average) for name in sorted(needs - {"weight_error"})}
    fixed = {
        name: measured.table(name, format).astype(np.float64) for name in sorted(needs & {"weight_error"})
    }
    weights, elements = measured.weights.astype(np.float64), measured.elements.astype(np.float64)
    count = next((table.shape[1] for table in columns.values()), 1)
    for column in range(count):
        tables = {name: table[:, column] for name, table in columns.items()} | fixed
        if "pair" in tables:
            tables["pair"] = _square(tables["pair"], tables["single"])
        yield Means(weights, elements, tables)


def _averaged(measured: Measured, name: str, format: Format, average: Average) -> Array:
    table = measured.table(name, format)
    rows = table.reshape(len(table), -1) if name == "traces" else np.atleast_2d(table)
    if not rows.shape[1]:
        raise BitsectError(f"{measured.words(name, format)}: there is not one sample")
    axis = "probes" if name == "traces" else "samples"
    chunks = range(0, max(1, len(rows)), CHUNK_ROWS)
    averages = np.concatenate([average(rows[i : i + CHUNK_ROWS].astype(np.float64), axis) for i in chunks])
    broken = np.flatnonzero(~np.isfinite(averages).all(axis=1))
    if broken.size:
        where = measured.row(name, int(broken[0]))
        raise BitsectError(f"{measured.words(name, format)} are not finite for {where}")
    return averages


def _square(pair: Array, single: Array) -> Array:
    upper = np.triu_indices(len(single), 1)
    square = np.diag(single)
    square[upper] = pair
    square.T[upper] = pair
    return square
