"""What `quantize` will have to do, stage by stage, in passes of one sample through the float network.

The figures are what stages took beside a float pass in `benchmarks/progress.py`, rounded; the forecast mends
them as stages end.
"""

from __future__ import annotations

import math

from ..rounding.rounder import is_fitted
from ..runs.run import Run
from ..solve.allowed import Allowed
from ..solve.metrics import metric_named
from ..sources.data import Samples
from ..values import Goal, Scoring
from .methods import FRONTIER
from .problem import DAMAGE_SAMPLES

ROUNDED = 1.0  # a pass through rounded layers
BACKWARD = 3.0  # a pass forth and back
CALIBRATED = {"mse": 10.0}  # ranges of least squared error; others take less
FITTED = 10.0  # second-order rounding, for each format: between 2 and 40, by the size of the layers
PROBES = 24  # of the Hessian, until its traces are known well enough
JUDGED = {FRONTIER: 12}  # plans that a search by damage judges; the others bisect
RUNGS = 10  # of the ladder that a promise is proven on


def expected_passes(
    run: Run, scoring: Scoring, goal: Goal, allowed: Allowed, held_out: Samples | None, unseen: Samples | None
) -> dict[str, float]:
    """Passes of every stage that is to come, in their order."""
    samples, layers, formats = len(run.samples), len(run.layers), len(allowed.steps or allowed.wanted) or 1
    few = [format for format in allowed.all if is_fitted(run.settings.rounding, format)]
    passes = {
        "float": 1.0 * samples,
        "calibrate": CALIBRATED.get(run.settings.range, 3.0) * samples,
        "gptq": FITTED * min(samples, 1024) * len(few),
    }
    if goal.search == FRONTIER:
        passes["damage"] = ROUNDED * min(samples, DAMAGE_SAMPLES) * layers * formats / 2
        judged = JUDGED[FRONTIER]
    else:
        passes |= _scoring(scoring, samples, layers)
        judged = formats * math.ceil(math.log2(layers + 1)) + formats
        judged = layers * formats if goal.search == "progressive" else judged
    passes["search"] = ROUNDED * judged * samples
    if held_out is not None:
        passes["promise"] = ROUNDED * RUNGS * held_out.count
    passes["compare"] = ROUNDED * samples
    passes["test"] = ROUNDED * (2 + formats) * len(unseen) if unseen is not None else 0.0
    passes["values"] = 4.0 * run.batch_size
    return passes


def _scoring(scoring: Scoring, samples: int, layers: int) -> dict[str, float]:
    """What the metric needs measured."""
    needs = metric_named(scoring.metric).needs
    passes: dict[str, float] = {}
    if "traces" in needs:
        passes["traces"] = BACKWARD * samples * min(scoring.probes, PROBES)
    if "pair" in needs and scoring.pairs == "exact":
        passes["pairs"] = ROUNDED * samples * layers * (layers + 1) / 6
    elif needs & {"pair", "single", "base", "signal", "noise"}:
        passes["singles"] = ROUNDED * samples * layers / 2
        passes["linear pairs"] = samples * layers / 10 if "pair" in needs else 0.0
    if "fisher" in needs:
        passes["fisher"] = BACKWARD * samples
    if "damage" in needs:
        passes["damage"] = ROUNDED * samples * layers / 2
    return passes
