"""What a run is shown by: facts that only the open network knows, kept as plain numbers."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version

from .. import __version__
from ..measure.context import Context
from ..measure.histograms import value_histograms
from ..runs.run import Run
from ..solve.allowed import Allowed
from ..solve.curve import curve_points
from ..solve.search.problem import Found
from ..values import FLOAT, Evaluation, LatencyTable, Plan
from ..values.curve import Curve
from ..values.shown import Choices
from .frontier import evaluated_points, keep_curve
from .judge import Judge
from .rows import Row

VALUES = "values.json"


def keep_shown(
    run: Run,
    judge: Judge,
    allowed: Allowed,
    table: LatencyTable | None,
    found: Found,
    rows: tuple[Row, ...],
) -> None:
    """Keep what the answer is shown by, once it has its name: choices and times of layers, and the curve."""
    run.folder.write_json("choices.json", _choices(run, allowed, table).to_json())
    float_network = rows[0].evaluation
    if judge.function is None:
        points = evaluated_points(run, judge, float_network, allowed, table)
    else:  # whose figures no journal tells apart from samples
        evaluated: dict[Plan, Evaluation] = {row.plan: row.evaluation for row in rows} | dict(found.evaluated)
        points = curve_points(evaluated, run.layers, table, {row.plan.key: [row.name] for row in rows})
    device = None if table is None else table.device
    keep_curve(run, Curve(points, float_network.accuracy, device=device))


def keep_values(run: Run, plan: Plan) -> None:
    """Keep histograms of what `plan` rounds in every layer, from one batch."""
    with run.progress.stage("values"):
        found = value_histograms(Context(run.evaluator(set(plan.values()))), plan)
    layers = {name: each.to_json() for name, each in found.items()}
    run.folder.write_json(VALUES, {"plan": plan.key, "layers": layers})


def versions() -> dict[str, str]:
    """What a run was made with."""
    found = {"bitsect": __version__, "Python": platform.python_version()}
    for name in ("torch", "numpy", "onnxruntime", "openvino"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def _choices(run: Run, allowed: Allowed, table: LatencyTable | None) -> Choices:
    ms: dict[str, dict[str, float]] = {}
    for layer in run.layers if table is not None else ():
        assert table is not None
        formats = dict.fromkeys((FLOAT, *allowed.possible[layer.name]))
        ms[layer.name] = {f.name: table.ms(layer, f) for f in formats if table.supports(f, layer)}
    return Choices(
        {name: tuple(map(str, ladder)) for name, ladder in allowed.formats.items()},
        ms,
        None if table is None else table.device,
        0.0 if table is None else table.rest_ms,
        tuple(name for name, ladder in allowed.possible.items() if set(ladder) == {FLOAT}),
    )
