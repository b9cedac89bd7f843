"""What a command will have to do, stage by stage, in passes of one sample through the float network.

The figures are what stages took beside a float pass in `studies/progress.py`, rounded; the forecast mends
them as stages end.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence

from ..rounding.rounder import is_fitted
from ..runs.run import Run
from ..solve.allowed import Allowed, allowed_formats
from ..solve.metrics import metric_named
from ..sources.data import Samples
from ..values import Format, Goal, LatencyTable, Scoring, Settings
from ..values.trial import Setup
from .methods import FRONTIER
from .problem import DAMAGE_SAMPLES

ROUNDED = 1.0  # a pass through rounded layers
BACKWARD = 3.0  # a pass forth and back
CALIBRATED = {"mse": 10.0}  # ranges of least squared error; others take less
FITTED = 10.0  # second-order rounding, for each format: between 2 and 40, by the size of the layers
PROBES = 24  # of the Hessian, until its traces are known well enough
JUDGED = {FRONTIER: 12}  # plans that a search by damage judges; the others bisect
OBSERVED = 4.0  # two passes whose values are looked at
AGAIN = 0.3  # of a search, where one for another target has judged many of its plans
LATER = "later"  # no stage, but all those of other trials
RUNGS = 2  # plans that a promise asks about


def passes_of_cheapest(
    run: Run, goal: Goal, held_out: Samples | None, unseen: Samples | None
) -> dict[str, float]:
    """Passes of every stage where the cheapest plan is the answer."""
    first = _rounding(run, run.settings, goal.formats) | {"cheapest": ROUNDED * len(run.samples)}
    return first | _afterwards(run, held_out, unseen)


def passes_of_search(
    run: Run, scoring: Scoring, goal: Goal, allowed: Allowed, held_out: Samples | None, unseen: Samples | None
) -> dict[str, float]:
    """Passes of every stage where layers are scored and plans searched."""
    return _searching(run, run.settings, scoring, goal, allowed) | _afterwards(run, held_out, unseen)


def _afterwards(run: Run, held_out: Samples | None, unseen: Samples | None) -> dict[str, float]:
    """Passes of what follows once there is a plan."""
    return {
        "promise": 0.0 if held_out is None else (1.0 + ROUNDED * RUNGS) * held_out.count,
        "compare": ROUNDED * len(run.samples),
        "test": 0.0 if unseen is None else (1.0 + ROUNDED) * len(unseen),
        "values": 4.0 * run.batch_size,
    }


def passes_of_trials(
    run: Run,
    settings: Settings,
    setups: Iterable[tuple[Setup, Scoring, Goal]],
    table: LatencyTable | None,
    test: Samples | None,
) -> list[dict[str, float]]:
    """Passes of every trial on a draw with `settings`; what one measures serves those that come later."""
    measured: dict[str, float] = {}
    ordered: set[tuple[str, str]] = set()  # metrics and searches that had another target before
    found = []
    for _, scoring, goal in setups:
        passes = _searching(run, settings, scoring, goal, allowed_formats(run.layers, goal, table))
        search = passes.pop("search")
        new = {stage: max(0.0, count - measured.get(stage, 0.0)) for stage, count in passes.items()}
        measured |= {stage: max(count, measured.get(stage, 0.0)) for stage, count in passes.items()}
        contender = scoring.metric, goal.search
        search *= AGAIN if contender in ordered else 1.0
        tested = 0 if test is None else len(test) * (1 if ordered else 2)  # the float network once
        ordered.add(contender)
        found.append(new | {"search": search, "test": ROUNDED * tested})
    return found


def with_later(trials: Sequence[dict[str, float]]) -> Iterator[dict[str, float]]:
    """Of each trial its passes, and those of all that come after it."""
    for place, passes in enumerate(trials, 1):
        yield passes | {LATER: sum(sum(each.values()) for each in trials[place:])}


def passes_of_blame(samples: int, layers: int, paired: int, remedies: int) -> dict[str, float]:
    """Passes of every stage of `blame`; on average a change to a layer runs half of the network again."""
    return {
        "float": 1.0 * samples,
        "layers": ROUNDED * samples * (2 + 3 * layers / 2),
        "facts": OBSERVED * samples,
        "pairs": ROUNDED * samples * (1 + paired / 2 + paired * (paired - 1) / 6),
        "remedies": ROUNDED * samples * (2 + remedies / 2),
    }


def _steps(allowed: Allowed) -> int:
    return len(allowed.steps or allowed.wanted) or 1


def _searching(
    run: Run, settings: Settings, scoring: Scoring, goal: Goal, allowed: Allowed
) -> dict[str, float]:
    """What is measured for a search, and the search."""
    samples, layers, formats = len(run.samples), len(run.layers), _steps(allowed)
    passes = _rounding(run, settings, allowed.all)
    if goal.search == FRONTIER:
        passes["damage"] = ROUNDED * min(samples, DAMAGE_SAMPLES) * layers * formats / 2
        judged = JUDGED[FRONTIER]
    else:
        passes |= _scoring(scoring, samples, layers)
        judged = formats * math.ceil(math.log2(layers + 1)) + formats
        judged = layers * formats if goal.search.endswith("progressive") else judged
    passes["search"] = ROUNDED * judged * samples
    return passes


def _rounding(run: Run, settings: Settings, formats: Iterable[Format]) -> dict[str, float]:
    """What ranges and fitted weights take."""
    samples = len(run.samples)
    few = [format for format in formats if is_fitted(settings.rounding, format)]
    return {
        "calibrate": CALIBRATED.get(settings.range, 3.0) * samples,
        "gptq": FITTED * min(samples, 1024) * len(few),
    }


def _scoring(scoring: Scoring, samples: int, layers: int) -> dict[str, float]:
    """What the metric needs measured."""
    needs = metric_named(scoring.metric).needs
    passes: dict[str, float] = {}
    if "traces" in needs:
        passes["traces"] = BACKWARD * samples * min(scoring.probes, PROBES)
    if "pair" in needs and scoring.pairs == "exact":
        passes["pairs"] = ROUNDED * samples * layers * (layers + 1) / 6
    elif needs & {"pair", "single", "base", "signal", "noise"}:  # linear pairs hold the single losses too
        passes["linear pairs" if "pair" in needs else "singles"] = ROUNDED * samples * layers / 2
    if "fisher" in needs:
        passes["fisher"] = BACKWARD * samples
    if "damage" in needs:
        passes["damage"] = ROUNDED * samples * layers / 2
    return passes
