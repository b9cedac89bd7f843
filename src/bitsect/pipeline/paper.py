"""paper: the data of the paper's figures and tables, for the network of a run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import OptionError
from ..measure.context import Context
from ..measure.tables import Measuring
from ..names import check_name
from ..runs.opening import open_run
from ..runs.progress import Progress
from ..runs.run import Run
from ..values import FLOAT, INT8, Format, Scores, Scoring
from ..values.format import FLOAT_BITS
from ..values.method import PAPER
from ..values.trial import EVERY, Compared, Trial
from .compare import compare, drawn
from .methods import method_of
from .plans import same_task

TARGETS = ("95%", "97.5%", "98%", "99%", "99.9%", "99.99%")  # of the paper's tables
TWO = ("99%", "99.9%")
PAIR = ("hessian", "aughessian")
Rows = list[dict[str, Any]]


@dataclass(frozen=True)
class Options:
    """What an experiment may be asked besides the run."""

    targets: tuple[str, ...] | None
    draws: int | None
    latency: Any
    test_data: Any
    pairs: str
    task: Any
    trust: bool
    progress: Progress | None

    @contextmanager
    def open(self, run: str | Path) -> Iterator[Run]:
        """The run under the paper's rounding."""
        own = method_of(run, None, None)
        settings = same_task(self.task)
        with (
            open_run(run, settings=settings, trust=self.trust, progress=self.progress) as opened,
            drawn(opened, PAPER, own, opened.settings.seed) as draw,
        ):
            yield draw


@dataclass(frozen=True)
class Experiment:
    """One figure or table of the paper: what it shows, and how its rows come about."""

    words: str
    rows: Callable[[str | Path, Options], Rows]


@dataclass(frozen=True)
class Data:
    """The rows of a figure or table, ready for CSV."""

    name: str
    words: str
    rows: tuple[dict[str, Any], ...]

    def to_json(self) -> dict[str, Any]:
        return {"name": self.name, "words": self.words, "rows": list(self.rows)}


def paper(
    name: str,
    run: str | Path,
    *,
    targets: str | Sequence[str] | None = None,
    draws: int | None = None,
    latency: Any = "a100",
    test_data: Any = None,
    pairs: str = "exact",
    task: Any = None,
    trust: bool = False,
    progress: Progress | None = None,
) -> Data:
    """The data of one of the paper's figures or tables, made for the network of a run.

    Everything is under the paper's rounding, whatever the run's own is, and rests on `sensitivity` and
    `compare`: what the run has measured already is used, and what is measured now is kept in it.

    Arguments:
        name: which one, such as `figure2`; EXPERIMENTS lists them.
        run: the folder of a run.
        targets: others than the paper's.
        draws: how many draws of the samples; default: 5 for the error bars, 1 for all else.
        latency: a latency table.
        test_data: samples that no search sees.
        pairs: exact, or linear for large networks.
        task: the run's own task again, where that is a function of yours.
        trust, progress: as for `quantize`.
    """
    check_name("experiment", name, EXPERIMENTS)
    if draws is not None and draws < 1:
        raise OptionError(f"draws {draws} is not at least 1")
    listed = [part.strip() for part in targets.split(",")] if isinstance(targets, str) else targets
    chosen = None if listed is None else tuple(map(str, listed))
    options = Options(chosen, draws, latency, test_data, pairs, task, trust, progress)
    experiment = EXPERIMENTS[name]
    return Data(name, experiment.words, tuple(experiment.rows(run, options)))


def _compared(run: str | Path, options: Options, **asked: Any) -> Compared:
    own = {"targets": asked.pop("targets", TARGETS), "draws": asked.pop("draws", 1)}
    for name, value in (("targets", options.targets), ("draws", options.draws)):
        own[name] = value or own[name]
    return compare(
        run,
        methods=PAPER.name,
        latency=options.latency,
        test_data=options.test_data,
        pairs=options.pairs,
        task=options.task,
        trust=options.trust,
        progress=options.progress,
        **asked,
        **own,
    )


def _of_trials(names: Sequence[str], searches: Sequence[str], targets: Sequence[str] = TARGETS) -> Any:
    """An experiment whose rows are trials, one for each draw."""

    def rows(run: str | Path, options: Options) -> Rows:
        compared = _compared(run, options, metrics=names, searches=searches, targets=targets)
        return [trial.row() for trial in compared.trials]

    return rows


def _error_bars(run: str | Path, options: Options) -> Rows:
    """Means and standard deviations, with paired differences to the Hessian."""
    compared = _compared(run, options, metrics=PAIR, searches=["bisection"], draws=5)
    return [each.row() for each in compared.standings if each.setup.target != EVERY]


def _bits(run: str | Path, options: Options) -> Rows:
    compared = _compared(run, options, metrics=PAIR, searches=["bisection"], targets=("98%", "99.99%"))
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


def _evaluations(run: str | Path, options: Options) -> Rows:
    compared = _compared(run, options, metrics=PAIR, searches=["bisection"], targets=TWO)
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


def _scores(run: str | Path, options: Options) -> Rows:
    with options.open(run) as opened:
        return [row for scores in _scored(opened, options) for row in _score_rows(scores)]


def _scored(
    run: Run, options: Options, names: Iterable[str] = ("hessian", "interlayer", "aughessian")
) -> list[Scores]:
    return [run.score(Scoring(metric=name, pairs=options.pairs), INT8) for name in names]


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


def _pair_matrix(run: str | Path, options: Options) -> Rows:
    """L_ij − max(L_i, L_j) of every pair, with its standard error over samples."""
    with options.open(run) as opened:
        measuring = Measuring(
            Context(opened.evaluator((INT8,))), opened.folder.journal, opened.progress.stage
        )
        scoring = Scoring(pairs=options.pairs)
        losses = measuring.tables({"pair", "single", "base"}, INT8, scoring).losses[INT8.name]
    assert losses.pair is not None
    names = [layer.name for layer in opened.layers]
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


def _thresholds(run: str | Path, options: Options) -> Rows:
    """For each format, how many layers took it or less, and the score of the most sensitive of them."""
    compared = _compared(run, options, metrics=PAIR, searches=["bisection"])
    with options.open(run) as opened:
        scored = {scores.metric: scores for scores in _scored(opened, options, PAIR)}
        own = opened.settings.seed
    return [
        row
        for trial in compared.trials
        if trial.draw == own  # whose scores are those of the run
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


SEARCHED = ("bisection",)
EXPERIMENTS = {
    "figure2": Experiment("scores of all layers by Hessian, inter-layer and augmented Hessian", _scores),
    "figure3": Experiment("excess loss of every pair of layers at 8 bits", _pair_matrix),
    "figure4": Experiment("accuracy against latency, Hessian and augmented", _of_trials(PAIR, SEARCHED)),
    "figure5": Experiment("bits of every layer, Hessian and augmented, 98 % and 99.99 %", _bits),
    "error-bars": Experiment("supplement: mean and deviation over five draws", _error_bars),
    "greedy": Experiment(
        "supplement: progressive search against bisection, also in random order",
        _of_trials((*PAIR, "random"), ("bisection", "progressive"), ("97.5%", "99%", "99.9%", "99.99%")),
    ),
    "interlayer": Experiment(
        "supplement: bisection by inter-layer dependencies alone", _of_trials(("interlayer",), SEARCHED)
    ),
    "thresholds": Experiment("supplement: layers and scores at which each bit-width ends", _thresholds),
    "evaluations": Experiment("supplement: evaluations of the bisection by bit-width", _evaluations),
}
