"""frontier: accuracy against latency and size, and the plan for any target."""

from __future__ import annotations

from ...values.curve import Curve, CurvePoint
from .lines import Lines, add_row, layers_by_format, table_of, wrapped


def curve_lines(curve: Curve, run: str) -> Lines:
    """The plans on the hull, and those that were read off for targets; `run` as a shell reads it."""
    timed = curve.device is not None
    costs = ["size", *(["latency"] if timed else [])]
    table = table_of("plan", "accuracy", *costs, "", title="Plans on the hull")
    for point in curve.hull:
        cells = [point.evaluation.shown, *_costs(point, timed), layers_by_format(point.plan)]
        add_row(table, ", ".join([point.key, *point.names]), *cells)
    yield table
    judged = f", {curve.evaluations} judged now" if curve.evaluations else ""
    yield wrapped(f"{len(curve)} plans evaluated{judged}, {len(curve.hull)} on the hull.\n")
    if not curve.read_off:
        yield wrapped("[targets=98%,99%] reads off the plan for each; [csv=FILE] holds every point.")
        return
    tested = any(each.test_kept is not None for each in curve.read_off)
    heads = ["kept", *(["on test"] if tested else []), *costs]
    table = table_of("target", *heads, "plan", "", title="Read off")
    for each in curve.read_off:
        cells = [f"{each.kept:.2%}", *([f"{each.test_kept or 0:.2%}"] if tested else [])]
        cells += [*_costs(each.point, timed), each.point.key, layers_by_format(each.point.plan)]
        add_row(table, str(each.target), *cells)
    yield table
    yield (
        "Kept on the samples that were searched on. "
        f"`bitsect export {run} --plan {curve.read_off[-1].name} -o FILE.onnx` exports a plan by name."
    )


def _costs(point: CurvePoint, timed: bool) -> list[str]:
    ratio = point.cost.latency_ratio
    return [f"{point.cost.size_ratio:.1%}", *(["–" if ratio is None else f"{ratio:.1%}"] if timed else [])]
