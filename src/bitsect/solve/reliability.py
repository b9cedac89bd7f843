"""Scores with how far they can be trusted: standard errors and the agreement of two halves."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np

from ..values.format import Format
from ..values.measured import Measured
from ..values.ranks import spearman
from ..values.scores import Scores
from ..values.scoring import Scoring
from .metrics import Array, Metric, tabulate

SPLITS = 20  # one split in halves says little: the agreement is averaged over this many

Weights = Callable[[int, np.random.Generator], Array]


def score(
    measured: Measured,
    metric: Metric,
    format: Format,
    scoring: Scoring | None = None,
    *,
    bootstrap: int = 200,
    seed: int = 0,
) -> Scores:
    """The scores of all layers at `format`, with what is known of their noise.

    `standard_error` is the spread of the score over `bootstrap` resamples, `split_half` the Spearman
    correlation of the scores from two disjoint halves, averaged over 20 random splits. Samples and
    probes are drawn independently of each other, and the probes of each mini-batch of those of the
    next. Where there are fewer than two of either there is nothing to draw from, and both are None; so
    is `split_half` for fewer than two layers.
    """
    scoring = scoring or Scoring()
    (means,) = tabulate(measured, format, metric.needs)
    values = metric(means, scoring)
    draws = _draws(measured, metric, format)

    def replicated(weights: Weights) -> Array:
        """The scores [L, B] under B weightings of the draws."""

        @cache
        def drawn(axis: str, count: int) -> Array:
            rng = np.random.default_rng([seed, axis == "probes"])
            # Every mini-batch is in the trace: what could have come out otherwise are the probes of each.
            parts = count // draws["probes"] if axis == "probes" else 1
            return np.concatenate([weights(count // parts, rng) for _ in range(parts)]) / parts

        def average(rows: Array, axis: str) -> Array:
            averaged: Array = rows @ drawn(axis, rows.shape[1])
            return averaged

        replicates = tabulate(measured, format, metric.needs, average)
        return np.stack([metric(means, scoring) for means in replicates], axis=1)

    standard_error = split_half = None
    if min(draws.values(), default=0) >= 2:
        if bootstrap >= 2:
            spread = replicated(lambda n, rng: resampled(n, rng, bootstrap)).std(axis=1, ddof=1)
            standard_error = tuple(spread.tolist())
        if len(values) >= 2:
            split_half = _agreement(replicated(lambda n, rng: halved(n, rng, SPLITS)))
    return Scores(
        metric.name,
        format,
        measured.layers,
        tuple(values.tolist()),
        standard_error,
        split_half,
        draws.get("samples"),
        draws.get("probes"),
        measured.probing if "probes" in draws else None,
    )


def halves_agree(rows: Array, seed: int = 0) -> float | None:
    """The `split_half` of scores that are plain means of their rows [L, draws]."""
    if min(rows.shape) < 2:
        return None
    return _agreement(rows @ halved(rows.shape[1], np.random.default_rng([seed, False]), SPLITS))


def _agreement(halves: Array) -> float:
    """The mean Spearman correlation of column k and column k + SPLITS."""
    pairs = zip(halves[:, :SPLITS].T, halves[:, SPLITS:].T, strict=True)
    return float(np.mean([spearman(one, other) for one, other in pairs]))


def resampled(draws: int, rng: np.random.Generator, count: int) -> Array:
    """Weights [draws, count] of draws with replacement: how often each came, over all.

    Drawing one fewer than there are makes the spread of a mean that of its standard error, be they two.
    """
    return rng.multinomial(draws - 1, np.full(draws, 1 / draws), size=count).T / (draws - 1)


def halved(draws: int, rng: np.random.Generator, count: int) -> Array:
    """Weights [draws, 2 count] of random halves; column k + count is the other half of column k."""
    weights = np.zeros((draws, 2 * count))
    for k in range(count):
        shuffled = rng.permutation(draws)
        for column, half in ((k, shuffled[0::2]), (k + count, shuffled[1::2])):
            weights[half, column] = 1 / len(half)
    return weights


def _draws(measured: Measured, metric: Metric, format: Format) -> dict[str, int]:
    """How many samples and probes a metric rests on, as far as it does."""
    drawn = metric.needs - {"weight_error"}
    return {
        "probes" if name == "traces" else "samples": measured.table(name, format).shape[-1]
        for name in sorted(drawn)
    }
