"""The rows of the paper's figures and tables, made in an open run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..latency import latency_table
from ..measure.context import Context
from ..measure.tables import Measuring
from ..runs.run import Run
from ..solve.costs import cost
from ..sources.data import Samples
from ..values import FLOAT, INT8, Format, Goal, Plan, Scores, Scoring
from ..values.format import FLOAT_BITS
from ..values.method import BITSECT, PAPER, Method
from ..values.trial import EVERY, Compared, Trial
from .compare import Request, compare_in, drawn

TARGETS = ("95%", "97.5%", "98%", "99%", "99.9%", "99.99%")  # of the paper's tables
TWO, THREE = ("99%", "99.9%"), ("99%", "99.9%", "99.99%")
PAIR = ("hessian", "aughessian")
Rows = list[dict[str, Any]]


@dataclass(frozen=True)
class Asked:
    """What an experiment may be asked besides the run."""

    targets: tuple[str, ...] | None  # None: the paper's own
    draws: int | None
    latency: Any
    pairs: str
    methods: tuple[str, ...]  # whose rows stand in the tables


@dataclass(frozen=True)
class Desk:
    """An open run, the method it was made with, and what its experiments were asked."""

    run: Run
    own: Method
    asked: Asked
    test: Samples | None

    def compared(self, **setups: Any) -> Compared:
        """Trials under the paper's rounding, or under another method's."""
        targets = self.asked.targets or setups.pop("targets", TARGETS)
        draws = self.asked.draws or setups.pop("draws", 1)
        names = {"metrics": None, "searches": None, "methods": PAPER.name} | setups
        request = Request.of(
            self.own,
            names["metrics"],
            names["searches"],
            names["methods"],
            targets,
            Scoring(pairs=self.asked.pairs),
            Goal(latency=self.asked.latency),
        )
        return compare_in(self.run, self.own, request, draws, self.test)

    @contextmanager
    def rounded(self) -> Iterator[Run]:
        """The run under the paper's rounding."""
        with drawn(self.run, PAPER, self.own, self.run.settings.seed) as draw:
            yield draw


@dataclass(frozen=True)
class Experiment:
    """One figure or table of the paper: what it shows, how its rows come about, what is drawn beside them."""

    words: str
    rows: Callable[[Desk], Rows]
    beside: tuple[str, ...] = ()


def _of_trials(names: Sequence[str], searches: Sequence[str], targets: Sequence[str] = TARGETS) -> Any:
    """An experiment whose rows are trials, one for each draw."""

    def rows(desk: Desk) -> Rows:
        compared = desk.compared(metrics=names, searches=searches, targets=targets)
        return [trial.row() for trial in compared.trials]

    return rows


def _orders(desk: Desk) -> Rows:
    """By the Hessian bisection and progressive search, in random order progressive search alone."""
    asked = [("hessian", "bisection"), ("hessian", "progressive"), ("random", "progressive")]
    found = [desk.compared(metrics=[metric], searches=[search]) for metric, search in asked]
    return [trial.row() for compared in found for trial in compared.trials]


def _table(desk: Desk) -> Rows:
    """Rows in the columns of the paper's Tables 1 – 3, in per cent as there."""
    trials: list[Trial] = []
    for name in desk.asked.methods:
        own = {"metrics": PAIR, "searches": BISECTED} if name == PAPER.name else {"methods": name}
        trials += desk.compared(**own, targets=THREE).trials
    first = [trial for trial in trials if trial.draw == desk.run.settings.seed]
    targets = list(dict.fromkeys(trial.setup.target for trial in first))
    first.sort(key=lambda trial: (trial.setup.method != PAPER.name, targets.index(trial.setup.target)))
    layers = desk.run.layers
    table = latency_table(desk.asked.latency, layers)
    spent = cost(Plan.uniform(layers), layers, table)
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
                **_names(trial),
                "accuracy_percent": 100 * after,
                "kept_percent": 100 * after / before if before else None,
                "size_mb": size * spent.size_bytes / 1e6,
                "size_percent": 100 * size,
                "latency_ms": None
                if spent.latency_ms is None or latency is None
                else latency * spent.latency_ms,
                "latency_percent": None if latency is None or spent.latency_ms is None else 100 * latency,
                **_precision(trial, desk),
                "marks": _marks(trial, on_test),
                **_counts(trial),
            }
        )
    return rows


def _names(trial: Trial | None) -> dict[str, Any]:
    if trial is None:
        return {"name": "Baseline", "method": "", "metric": "", "target": "", "no_fine_tuning": ""}
    called = {"hessian": "Hessian", "aughessian": "AugHessian"}
    setup = trial.setup
    name = called.get(setup.metric, setup.metric) if setup.method == PAPER.name else setup.method
    return {
        "name": f"{name} {setup.target.replace('%', ' %')}",
        "method": setup.method,
        "metric": setup.metric,
        "target": setup.target,
        "no_fine_tuning": "yes",
    }


def _precision(trial: Trial | None, desk: Desk) -> dict[str, Any]:
    """Bits of weights, activations and embeddings where all layers agree; else MP, as the paper says."""
    formats = {} if trial is None else {name: Format.parse(text) for name, text in trial.layers.items()}
    bits: dict[str, set[int]] = {"weights": set(), "activations": set(), "embeddings": set()}
    for layer in desk.run.layers:
        format = formats.get(layer.name, FLOAT)
        if layer.weight_shape is not None:
            bits["embeddings" if layer.kind == "embedding" else "weights"].add(format.stored_bits)
        bits["activations"].add(format.activation_bits or FLOAT_BITS)
    shown = {name: str(*found) if len(found) == 1 else "MP" for name, found in bits.items() if found}
    return {"weights": "–", "activations": "–", "embeddings": str(FLOAT_BITS)} | shown


def _marks(trial: Trial | None, on_test: bool) -> str:
    refitted = trial is not None and trial.setup.method == BITSECT.name
    missed = trial is not None and not trial.met
    return ("§" if refitted else "") + ("×" if missed else "") + ("" if on_test else "¶")


def _counts(trial: Trial | None) -> dict[str, int]:
    return {} if trial is None else {f"layers_{name}": count for name, count in trial.formats.items()}


def _error_bars(desk: Desk) -> Rows:
    """Means and standard deviations, with paired differences to the Hessian."""
    compared = desk.compared(metrics=PAIR, searches=BISECTED, draws=5)
    return [each.row() for each in compared.standings if each.setup.target != EVERY]


def _bits(desk: Desk) -> Rows:
    compared = desk.compared(metrics=PAIR, searches=BISECTED, targets=("98%", "99.99%"))
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


def _evaluations(desk: Desk) -> Rows:
    compared = desk.compared(metrics=PAIR, searches=BISECTED, targets=TWO)
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


def _scores(desk: Desk) -> Rows:
    with desk.rounded() as run:
        return [row for scores in _scored(run, desk) for row in _score_rows(scores)]


def _scored(
    run: Run, desk: Desk, names: Iterable[str] = ("hessian", "interlayer", "aughessian")
) -> list[Scores]:
    return [run.score(Scoring(metric=name, pairs=desk.asked.pairs), INT8) for name in names]


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


def _pair_matrix(desk: Desk) -> Rows:
    """L_ij − max(L_i, L_j) of every pair, with its standard error over samples."""
    with desk.rounded() as run:
        measuring = Measuring(Context(run.evaluator((INT8,))), run.folder.journal, run.progress.stage)
        scoring = Scoring(pairs=desk.asked.pairs)
        losses = measuring.tables({"pair", "single", "base"}, INT8, scoring).losses[INT8.name]
    assert losses.pair is not None
    names = [layer.name for layer in desk.run.layers]
    single = losses.single.mean(axis=1)
    rows: Rows = []
    for row, (i, j) in enumerate(zip(*np.triu_indices(len(names), 1), strict=True)):
        worse = i if single[i] >= single[j] else j
        excess = losses.pair[row] - losses.single[worse]
        error = float(excess.std(ddof=1)) / len(excess) ** 0.5 if len(excess) > 1 else None
        rows.append(
            {
                "first": names[i],
                "second": names[j],
                "first_place": int(i),
                "second_place": int(j),
                "excess": float(excess.mean()),
                "standard_error": error,
                "together": float(losses.pair[row].mean()),
                "first_alone": float(single[i]),
                "second_alone": float(single[j]),
                "float": float(losses.base.mean()),
            }
        )
    return rows


def _thresholds(desk: Desk) -> Rows:
    """For each format, how many layers took it or less, and the score of the most sensitive of them."""
    compared = desk.compared(metrics=PAIR, searches=BISECTED)
    with desk.rounded() as run:
        scored = {scores.metric: scores for scores in _scored(run, desk, PAIR)}
    return [
        row
        for trial in compared.trials
        if trial.draw == desk.run.settings.seed  # whose scores are those of the run
        for row in _threshold_rows(trial, scored[trial.setup.metric])
    ]


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
                FLOAT.name: sum(each == FLOAT_BITS for each in bits.values()),
            }
        )
    return rows


BISECTED = ("bisection",)
EXPERIMENTS = {
    "table": Experiment("Tables 1 – 3: accuracy, size and latency in the paper's columns", _table),
    "figure2": Experiment("bisection and progressive search by the Hessian, and in random order", _orders),
    "figure3": Experiment("excess loss of every pair of layers at 8 bits", _pair_matrix, ("scores",)),
    "scores": Experiment("figure 3, below: scores by Hessian, inter-layer and augmented Hessian", _scores),
    "figure4": Experiment("accuracy against latency, Hessian and augmented", _of_trials(PAIR, BISECTED)),
    "figure5": Experiment("bits of every layer, Hessian and augmented, 98 % and 99.99 %", _bits),
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
