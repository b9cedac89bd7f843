"""bitsect sensitivity: which layers suffer most."""

from __future__ import annotations

from typing import Annotated

import typer

from .app import JsonOption, ModelOrRunArgument
from .options import SENSITIVITY, FreshOption, Measuring, Opening, OutOption, command, run_of, zoo_data


@command
def sensitivity(
    model: ModelOrRunArgument,
    opening: Opening,
    measuring: Measuring,
    format: Annotated[
        str, typer.Option(help="The format that layers are tried in.", rich_help_panel=SENSITIVITY)
    ] = "int8",
    until_stable: Annotated[
        bool,
        typer.Option(
            "--until-stable",
            help="Double samples and probes until two halves agree on the order.",
            rich_help_panel=SENSITIVITY,
        ),
    ] = False,
    agreement: Annotated[
        float,
        typer.Option(
            min=0, max=1, help="How well, for --until-stable: rank agreement.", rich_help_panel=SENSITIVITY
        ),
    ] = 0.9,
    out: OutOption = None,
    fresh: FreshOption = False,
    json: JsonOption = False,
) -> None:
    """Score the layers of MODEL by how much rounding them hurts, with error bars."""
    from ..pipeline.quantize import sensitivity as measure
    from .bars import ShownProgress
    from .output import note, print_json, stdout, working
    from .tables import table_of

    with working(run_of(model, out)):
        scores = measure(
            model,
            zoo_data(model, opening.data),
            format=format,
            until_stable=agreement if until_stable else None,
            out=out,
            fresh=fresh,
            progress=ShownProgress(),
            **measuring.arguments(opening.seed),
            **opening.arguments(),
        )
    errors = scores.standard_error or (None,) * len(scores.layers)
    rows = list(zip(scores.layers, scores.values, errors, strict=True))
    if json:
        return print_json(
            {
                "metric": scores.metric,
                "format": scores.format.name,
                "layers": [
                    {"name": name, "score": value, "standard_error": error} for name, value, error in rows
                ],
                "split_half": scores.split_half,
                "samples": scores.samples,
                "probes": scores.probes,
                "traces": None if scores.probing is None else scores.probing.to_json(),
            }
        )
    table = table_of(
        "layer",
        "score",
        "± error",
        "",
        title=", ".join(filter(None, [f"{scores.metric} at {format}", scores.draws])),
    )
    largest = max((abs(value) for value in scores.values), default=0.0) or 1.0
    for name, value, error in sorted(rows, key=lambda row: -row[1]):
        bar = "█" * round(30 * max(0.0, value) / largest)
        table.add_row(name, f"{value:.4g}", "–" if error is None else f"{error:.2g}", bar)
    stdout.print(table)
    if scores.split_half is not None:
        note(f"Two halves of them agree on this order to {scores.split_half:.2f} (rank correlation).")
    if scores.probing is not None:
        for line in (*scores.probing.meaning(), *scores.probing.doubts()):
            note(line)
    if until_stable:
        reached = scores.split_half is not None and scores.split_half >= agreement
        note(f"{'Stable' if reached else 'Not stable'} at {agreement:g} with {scores.draws}.")
    return None
