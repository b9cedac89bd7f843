"""A run that does everything, and work that ends the process that does it: for workers of every kind."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import numpy as np

from bitsect.measure.evaluator import Evaluator
from bitsect.measure.work import Work, shared
from bitsect.runs.run import Run
from bitsect.solve.metrics import METRICS
from bitsect.sources.tasks.task import SampleError
from bitsect.values import INT4, INT8, Plan, Scoring, Settings
from bitsect.values.pieces import Piece
from tiny import Residual, images, refill

SETTINGS = Settings(batch_size=4, threads=1, rounding="gptq", range="mse")


def opened(**more: Any) -> dict[str, Any]:
    return {"model": refill(Residual()), "data": images(22), "settings": SETTINGS, **more}


def do_everything(run: Run) -> list[Any]:
    """All that is measured and judged: traces, pairs, noise, damage, plans and what is expected of them."""
    assert {"traces", "pair", "fisher", "damage"} <= {
        need for each in METRICS.values() for need in each.needs
    }
    found: list[Any] = [
        run.score(Scoring(metric="aughessian", probes=3), INT8).values,
        run.score(Scoring(metric="interlayer", pairs="linear"), INT4).values,
        run.score(Scoring(metric="fisher"), INT4).values,
        run.score(Scoring(metric="damage"), INT4).values,
        run.score(Scoring(metric="hessian", estimator="hutchinson", probes=2), INT8).values,
    ]
    evaluator = run.evaluator((INT8, INT4))
    for format in (INT8, INT4):
        plan = Plan.uniform(run.layers, format)
        found += [
            evaluator.expected(plan),
            evaluator(plan, evaluator(plan).exact / 2),
            evaluator.scores(plan),
        ]
    return found


@shared
def deadly(evaluator: Evaluator, names: tuple[str, ...], mark: str | None = None) -> Work:
    """Pieces of which one ends its process, only once if it can leave a mark; and some cannot be done."""

    def do(name: str) -> Piece:
        if name == "dead" and not (mark is not None and Path(mark).exists()):
            if mark is not None:
                Path(mark).touch()
            os.kill(os.getpid(), signal.SIGKILL)
        if name == "wrong":
            raise SampleError(3, "is wrong")
        if name == "fault":
            raise ZeroDivisionError("a fault of a worker")
        return {"value": np.array([len(name)])}

    return Work(names, do)
