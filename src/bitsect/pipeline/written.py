"""The file that a search ends with: written, proven and timed while the run is still open."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch

from ..exporters.deliver import Request, deliver
from ..runs.run import Run
from ..sources.data import Samples
from ..values.destination import Destination
from .promise import is_vouched_by_others, judged_before
from .prover import Prover
from .result import Result
from .rivals import Other, others, others_of

OWN, KEPT = "model.onnx", "export.json"  # in a run: the file where no other is named, and what came of it
PROVEN = 256  # samples that the file is run on, at most: it has to be the model that was judged on all


def request_for(run: Run, export: str | Path | None, destination: Destination) -> Request | None:
    """The file to end with: the one asked for, else the run's own where a runtime will run it.

    What the run wrote before under that name may be replaced.
    """
    if export is None and (run.temporary or destination.runtime is None):
        return None
    path = run.folder.inside(OWN) if export is None else Path(export)
    before = (run.folder.read_json(KEPT) or {}).get("path")
    request = Request(path, made_for=destination.name, replaces=before == str(path.resolve()))
    request.check()
    return request


def written(
    result: Result, request: Request | None, test: Samples | None, prover: Prover | None = None
) -> Result:
    """The result with its file; where that fails a check, with what is wrong, and no file in its place.

    With a prover, files that the runtime's own tools make are tried beside it.
    """
    if request is None:
        return result
    run, target = result.run, result.target if result.judge is None else None
    vouched = is_vouched_by_others(None if result.promise is None else result.verdict, run)
    before = None if result.promise is None else judged_before(result.promise.to_json())
    samples = _few(run, test)
    delivery = deliver(run, result.plan, request, target, samples, vouched=vouched, before=before)
    if delivery.failures and request.replaces:
        request.path.unlink(missing_ok=True)  # of another answer
    known = run.folder.read_json(KEPT) or {}
    asked = {
        "target": None if target is None else str(target),
        "plan_key": result.plan.key,
        "path": str(request.path.resolve()),
    }
    beside: tuple[Other, ...] = ()
    if prover is not None and delivery.kept:
        # What was proven for one target says nothing of a harder one.
        same = asked.items() <= known.items()
        beside = (others_of(known) if same else ()) or others(run, prover, result.goal, delivery.path)
    shown = [each.to_json() for each in beside]
    run.folder.write_json(KEPT, {**delivery.to_json(), **asked, "others": shown})
    return replace(result, delivery=delivery, others=beside)


def _few(run: Run, test: Samples | None) -> Samples:
    """Some of the test samples, at random; else of those held out or searched on, whose order is random."""
    samples = test or run.held_out or run.samples
    if len(samples) <= PROVEN or samples.groups is not None:
        return samples
    few = run.load(test, draw=PROVEN) if test else samples.select(torch.arange(PROVEN))
    return replace(few, spec=samples.spec)
