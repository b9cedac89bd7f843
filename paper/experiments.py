"""The rows of the paper's figures and tables, made from the folder of a run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

import bitsect
from bitsect import Compared, Format, Layer, Scores

from .data import GAUSS_NEWTON, HESSIAN

TARGETS = ("95%", "97.5%", "98%", "99%", "99.9%", "99.99%")  # of the paper's tables
TWO, THREE = ("99%", "99.9%"), ("99%", "99.9%", "99.99%")
PAIR = ("hessian", "aughessian")
FLOAT_BITS = 16  # what the paper calls the network before
# What a method calls the paper's Algorithms 1 and 2.
SEARCHES = {
    "paper": {"bisection": "bisection", "progressive": "progressive"},
    "paper-literal": {"bisection": "literal", "progressive": "literal-progressive"},
}
Rows = list[dict[str, Any]]
Trial = Any  # one search on one draw: an element of `Compared.trials`


@dataclass(frozen=True)
class Options:
    """What the experiments may be asked besides the run."""

    targets: tuple[str, ...] | None  # None: the paper's own
    draws: int | None
    latency: Any
    test_data: Any
    pairs: str
    method: str  # under whose rounding and searches everything is
    methods: tuple[str, ...]  # whose rows stand in the tables
    task: Any
    trust: bool
    progress: bitsect.Progress | None


class Context:
    """The folder of a run, and what its experiments were asked."""

    def __init__(self, run: Path, options: Options) -> None:
        self.run, self.options = run, options
        self.last: Compared | None = None  # what was compared last says of which samples and device

    @cached_property
    def layers(self) -> tuple[Layer, ...]:
        return bitsect.layers(self.run, trust=self.options.trust).layers

    @cached_property
    def curvature(self) -> str:
        """Whose traces they are: the Hessian's, but for the Gauss–Newton part of a curved network's."""
        (scores,) = self.scored(["hessian"])
        assert scores.probing is not None
        return GAUSS_NEWTON if scores.probing.gauss_newton_part else HESSIAN

    def compared(self, **setups: Any) -> Compared:
        """Trials by the paper's method, or by another; searches are called as in the paper."""
        asked = self.options
        own: dict[str, Any] = {"targets": TARGETS, "draws": 1, "methods": asked.method} | setups
        if "searches" in own:
            own["searches"] = [SEARCHES[asked.method][name] for name in own["searches"]]
        own |= {name: value for name in ("targets", "draws") if (value := getattr(asked, name)) is not None}
        self.last = bitsect.compare(
            self.run,
            **own,
            pairs=asked.pairs,
            formats="int8,int4",
            keep="none",
            latency=asked.latency,
            test_data=asked.test_data,
            task=asked.task,
            trust=asked.trust,
            progress=asked.progress,
        )
        return self.last

    def scored(self, names: Iterable[str] = ("hessian", "interlayer", "aughessian")) -> list[Scores]:
        """The scores of all layers at 8 bits under the method's rounding."""
        asked = self.options
        task: dict[str, Any] = {} if asked.task is None else {"task": asked.task}
        return [
            bitsect.sensitivity(
                self.run,
                metric=name,
                pairs=asked.pairs,
                score_format="int8",
                method=asked.method,
                trust=asked.trust,
                progress=asked.progress,
                **task,
            )
            for name in names
        ]


@dataclass(frozen=True)
class Experiment:
    """One figure or table of the paper: what it shows, how its rows come about, what is drawn beside them."""

    words: str
    rows: Callable[[Context], Rows]
    beside: tuple[str, ...] = ()


def _of_trials(names: Sequence[str], searches: Sequence[str], targets: Sequence[str] = TARGETS) -> Any:
    """An experiment whose rows are trials, one for each draw."""

    def rows(context: Context) -> Rows:
        compared = context.compared(metrics=names, searches=searches, targets=targets)
        return [trial.row() for trial in compared.trials]

    return rows


def _orders(context: Context) -> Rows:
    """By curvature bisection and progressive search, in random order progressive search alone."""
    asked = [("hessian", "bisection"), ("hessian", "progressive"), ("random", "progressive")]
    found = [context.compared(metrics=[metric], searches=[search]) for metric, search in asked]
    return [trial.row() for compared in found for trial in compared.trials]


def _table(context: Context) -> Rows:
    """Rows in the columns of the paper's Tables 1 – 3, in per cent as there."""
    trials: list[Trial] = []
    for name in context.options.methods:
        own = {"metrics": PAIR, "searches": BISECTED} if name == context.options.method else {"methods": name}
        trials += context.compared(**own, targets=THREE).trials
    first = _first_draw(trials)
    targets = list(dict.fromkeys(trial.setup.target for trial in first))
    first.sort(
        key=lambda trial: (trial.setup.method != context.options.method, targets.index(trial.setup.target))
    )
    assert context.last is not None
    spent = context.last.float_cost
    assert spent is not None
    rows = []
    for trial in [None, *first]:
        known = trial or first[0]
        on_test = known.test_accuracy is not None and known.test_float_accuracy is not None
        before = known.test_float_accuracy if on_test else known.float_accuracy
        after = before if trial is None else (trial.test_accuracy if on_test else trial.accuracy)
        assert before is not None
        assert after is not None
        size = 1.0 if trial is None else trial.size_ratio
        latency = 1.0 if trial is None else trial.latency_ratio
        rows.append(
            {
                **_names(trial, context),
                "accuracy_percent": 100 * after,
                "kept_percent": 100 * after / before if before else None,
                "size_mb": size * spent.size_bytes / 1e6,
                "size_percent": 100 * size,
                "latency_ms": None
                if spent.latency_ms is None or latency is None
                else latency * spent.latency_ms,
                "latency_percent": None if latency is None or spent.latency_ms is None else 100 * latency,
                **_precision(trial, context),
                "marks": _marks(trial, on_test),
                **_counts(trial),
            }
        )
    return rows


def _names(trial: Trial | None, context: Context) -> dict[str, Any]:
    if trial is None:
        return {"name": "Baseline", "method": "", "metric": "", "target": "", "no_fine_tuning": ""}
    called = {"hessian": context.curvature, "aughessian": f"Aug{context.curvature}"}
    setup = trial.setup
    name = called.get(setup.metric, setup.metric) if setup.method in SEARCHES else setup.method
    return {
        "name": f"{name} {setup.target.replace('%', ' %')}",
        "method": setup.method,
        "metric": setup.metric,
        "target": setup.target,
        "no_fine_tuning": "yes",
    }


def _precision(trial: Trial | None, context: Context) -> dict[str, Any]:
    """Bits of weights, activations and embeddings where all layers agree; else MP, as the paper says."""
    formats = {} if trial is None else {name: Format.parse(text) for name, text in trial.layers.items()}
    bits: dict[str, set[int]] = {"weights": set(), "activations": set(), "embeddings": set()}
    for layer in context.layers:
        format = formats.get(layer.name, Format.parse("float"))
        if layer.weight_shape is not None:
            bits["embeddings" if layer.kind == "embedding" else "weights"].add(format.stored_bits)
        bits["activations"].add(format.activation_bits or FLOAT_BITS)
    shown = {name: str(*found) if len(found) == 1 else "MP" for name, found in bits.items() if found}
    return {"weights": "–", "activations": "–", "embeddings": str(FLOAT_BITS)} | shown


def _marks(trial: Trial | None, on_test: bool) -> str:
    refitted = trial is not None and trial.setup.method == "bitsect"
    missed = trial is not None and not trial.met
    return ("§" if refitted else "") + ("×" if missed else "") + ("" if on_test else "¶")


def _counts(trial: Trial | None) -> dict[str, int]:
    return {} if trial is None else {f"layers_{name}": count for name, count in trial.formats.items()}


def _error_bars(context: Context) -> Rows:
    """Means and standard deviations, with paired differences to the Hessian."""
    compared = context.compared(metrics=PAIR, searches=BISECTED, draws=5)
    return [each.row() for each in compared.standings if each.setup.target != "mean"]


def _bits(context: Context) -> Rows:
    compared = context.compared(metrics=PAIR, searches=BISECTED, targets=("98%", "99.99%"))
    return [
        {
            "metric": trial.setup.metric,
            "target": trial.setup.target,
            "draw": trial.draw,
            "place": place,
            "layer": layer,
            "format": name,
            "bits": Format.parse(name).weight_bits or FLOAT_BITS,
        }
        for trial in compared.trials
        for place, (layer, name) in enumerate(trial.layers.items())
    ]


def _evaluations(context: Context) -> Rows:
    compared = context.compared(metrics=PAIR, searches=BISECTED, targets=TWO)
    return [
        {
            "metric": trial.setup.metric,
            "target": trial.setup.target,
            "draw": trial.draw,
            "layers": len(trial.layers),
            "evaluations": trial.evaluations,
            **{f"evaluations_{name}": count for name, count in trial.evaluations_by_format.items()},
        }
        for trial in compared.trials
    ]


def _scores(context: Context) -> Rows:
    return [row for scores in context.scored() for row in _score_rows(scores)]


def _score_rows(scores: Scores) -> Rows:
    mean = float(np.mean(scores.values)) or 1.0
    errors = scores.standard_error or (None,) * len(scores.layers)
    return [
        {
            "metric": scores.metric,
            "place": place,
            "layer": layer,
            "score": value,
            "standard_error": error,
            "against_mean": value / mean,
            "rank": scores.order().index(layer),
        }
        for place, (layer, value, error) in enumerate(zip(scores.layers, scores.values, errors, strict=True))
    ]


def _pair_matrix(context: Context) -> Rows:
    """L_ij − max(L_i, L_j) of every pair with its standard error over samples; alone, L_i − L_0."""
    (scores,) = context.scored(["interlayer"])
    pairs = scores.pairs
    assert pairs is not None
    errors = np.full_like(pairs.table, np.nan) if pairs.standard_error is None else pairs.standard_error
    return [
        {
            "first": pairs.layers[i],
            "second": pairs.layers[j],
            "first_place": int(i),
            "second_place": int(j),
            "excess": float(pairs.table[i, j]),
            "standard_error": float(errors[i, j]) if np.isfinite(errors[i, j]) else None,
            "first_alone": float(pairs.table[i, i]),
            "second_alone": float(pairs.table[j, j]),
        }
        for i, j in zip(*np.triu_indices(len(pairs.layers), 1), strict=True)
    ]


def _thresholds(context: Context) -> Rows:
    """For each format, how many layers took it or less, and the score of the most sensitive of them."""
    trials = context.compared(metrics=PAIR, searches=BISECTED).trials
    scored = {scores.metric: scores for scores in context.scored(PAIR)}
    # The scores are those of the run's own draw.
    return [
        row for trial in _first_draw(trials) for row in _threshold_rows(trial, scored[trial.setup.metric])
    ]


def _first_draw(trials: Sequence[Trial]) -> list[Trial]:
    return [trial for trial in trials if trial.draw == min(each.draw for each in trials)]


def _threshold_rows(trial: Trial, scores: Scores) -> Rows:
    known = dict(zip(scores.layers, scores.values, strict=True))
    bits = {layer: Format.parse(name).weight_bits or FLOAT_BITS for layer, name in trial.layers.items()}
    steps = sorted({each for each in bits.values() if each < FLOAT_BITS}, reverse=True) or [8]
    rows = []
    for step in steps:
        taken = [layer for layer, each in bits.items() if each <= step]
        rows.append(
            {
                "metric": trial.setup.metric,
                "target": trial.setup.target,
                "bits": step,
                "layers": len(taken),
                "of": len(bits),
                "score": max((known[layer] for layer in taken), default=None),
                "float": sum(each == FLOAT_BITS for each in bits.values()),
            }
        )
    return rows


BISECTED = ("bisection",)
EXPERIMENTS = {
    "table": Experiment("Tables 1 – 3: accuracy, size and latency in the paper's columns", _table),
    "figure2": Experiment("bisection and progressive search by curvature, and in random order", _orders),
    "figure3": Experiment("excess loss of every pair of layers at 8 bits", _pair_matrix, ("scores",)),
    "scores": Experiment(
        "figure 3, below: scores by curvature, by inter-layer dependencies and by both", _scores
    ),
    "figure4": Experiment(
        "accuracy against latency, curvature alone and augmented", _of_trials(PAIR, BISECTED)
    ),
    "figure5": Experiment("bits of every layer, curvature alone and augmented, 98 % and 99.99 %", _bits),
    "error-bars": Experiment("supplement: mean and deviation over five draws", _error_bars),
    "greedy": Experiment(
        "supplement: progressive search against bisection, also in random order",
        _of_trials((*PAIR, "random"), ("bisection", "progressive"), ("97.5%", "99%", "99.9%", "99.99%")),
    ),
    "interlayer": Experiment(
        "supplement: bisection by inter-layer dependencies alone", _of_trials(("interlayer",), BISECTED)
    ),
    "thresholds": Experiment(
        "supplement: layers and scores at which each bit-width ends", _thresholds, ("scores",)
    ),
    "evaluations": Experiment("supplement: evaluations of the bisection by bit-width", _evaluations),
}
