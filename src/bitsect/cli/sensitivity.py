"""bitsect sensitivity: which layers suffer most."""

from __future__ import annotations

from ..values import Resources, Scoring, Settings
from .app import JsonOption, ModelOrRunArgument, TrustOption
from .options import DataOption, FreshOption, MethodOption, OutOption, command, run_of


@command
def sensitivity(
    model: ModelOrRunArgument,
    scoring: Scoring,
    settings: Settings,
    resources: Resources,
    method: MethodOption = None,
    data: DataOption = None,
    out: OutOption = None,
    fresh: FreshOption = False,
    trust: TrustOption = False,
    json: JsonOption = False,
) -> None:
    """Score the layers of MODEL by how much rounding them hurts, with error bars.

    bitsect sensitivity runs/first --metric hessian
    """
    from ..errors import in_command
    from ..pipeline.sensitivity import sensitivity as measure
    from .bars import ShownProgress
    from .output import note, print_json, stdout, working
    from .tables import table_of

    with working(run_of(model, out)):
        scores = measure(
            model,
            data,
            settings=settings,
            scoring=scoring,
            resources=resources,
            method=method,
            out=out,
            fresh=fresh,
            trust=trust,
            progress=ShownProgress(),
        )
    errors = scores.standard_error or (None,) * len(scores.layers)
    rows = list(zip(scores.layers, scores.values, errors, strict=True))
    if json:
        listed = [{"name": name, "score": value, "standard_error": error} for name, value, error in rows]
        return print_json(scores.to_json() | {"layers": listed})
    title = ", ".join(filter(None, [f"{scores.called} at {scores.format}", scores.draws]))
    table = table_of("layer", "score", "± error", "", title=title)
    largest = max((abs(value) for value in scores.values), default=0.0) or 1.0
    for name, value, error in sorted(rows, key=lambda row: -row[1]):
        bar = "█" * round(30 * max(0.0, value) / largest)
        table.add_row(name, f"{value:.4g}", "–" if error is None else f"{error:.2g}", bar)
    stdout.print(table)
    if scores.split_half is not None:
        note(f"Two halves of them agree on this order to {scores.split_half:.2f} (rank correlation).")
    if scores.probing is not None:
        for line in (*scores.probing.meaning(), *scores.probing.doubts()):
            note(in_command(line))
    if scoring.until_stable is not None:
        reached = (scores.split_half or 0.0) >= scoring.until_stable
        note(f"{'Stable' if reached else 'Not stable'} at {scoring.until_stable:g} with {scores.draws}.")
    return None
