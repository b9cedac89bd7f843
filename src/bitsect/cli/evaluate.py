"""bitsect evaluate: how accurate a network is under a plan."""

from __future__ import annotations

from typing import Annotated

import typer

from .app import JsonOption, ModelOrRunArgument
from .options import SAMPLES, Opening, command, zoo_data


@command
def evaluate(
    model: ModelOrRunArgument,
    opening: Opening,
    plan: Annotated[str | None, typer.Option(help="plan.json: a format for each layer.")] = None,
    format: Annotated[str | None, typer.Option(help="One format for all layers; default: int8.")] = None,
    calibration: Annotated[
        str | None, typer.Option(help="Samples that ranges come from.", rich_help_panel=SAMPLES)
    ] = None,
    json: JsonOption = False,
) -> None:
    """Judge MODEL in float and under a plan: accuracy, loss, size."""
    from ..pipeline import NO_LABELS
    from ..pipeline import evaluate as judge
    from ..run import is_folder
    from .bars import ShownProgress
    from .output import layers_by_format, megabytes, note, print_json, stdout, working
    from .tables import accuracy_cell, table_of

    calibration = zoo_data(model, calibration)
    with working():
        float_row, plan_row, agreement = judge(
            model,
            zoo_data(model, opening.data, "test"),
            calibration=calibration,
            plan=plan,
            format=format,
            progress=ShownProgress(),
            **opening.arguments(),
        )
    notes = [NO_LABELS] if agreement else []
    if calibration is None and not is_folder(model):
        notes.append("ranges come from the judged samples themselves; --calibration takes others")
    if json:
        return print_json(
            {
                "float": float_row.to_json(),
                "plan": plan_row.to_json() | {"formats": plan_row.plan.counts},
                "agreement": agreement,
                "notes": notes,
            }
        )
    table = table_of("", "accuracy", "loss", "size", "")
    for row in (float_row, plan_row):
        loss = "–" if row.evaluation.loss is None else f"{row.evaluation.loss:.4f}"
        size = f"{megabytes(row.cost.size_bytes)} {row.cost.size_ratio:4.0%}"
        table.add_row(row.name, accuracy_cell(row.evaluation), loss, size, layers_by_format(row.plan))
    stdout.print(table)
    for line in notes:
        note(line)
    return None
