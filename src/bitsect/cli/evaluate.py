"""bitsect evaluate: how accurate a network is under a plan."""

from __future__ import annotations

from typing import Annotated

import typer

from .app import MACHINE, MODEL, JsonOption
from .options import SAMPLES, Opening, command, run_of, zoo_data


@command
def evaluate(
    model: Annotated[
        str,
        typer.Argument(metavar="MODEL|RUN|FILE.onnx", help=f"{MODEL}; the folder of a run; or an ONNX file"),
    ],
    opening: Opening,
    plan: Annotated[str | None, typer.Option(help="plan.json: a format for each layer.")] = None,
    format: Annotated[str | None, typer.Option(help="One format for all layers; default: int8.")] = None,
    calibration: Annotated[
        str | None, typer.Option(help="Samples that ranges come from.", rich_help_panel=SAMPLES)
    ] = None,
    runtime: Annotated[
        str | None,
        typer.Option(
            help="Where FILE.onnx runs: onnxruntime (default) or reference.", rich_help_panel=MACHINE
        ),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Judge MODEL in float and under a plan: accuracy, loss, size; or an ONNX file as it is."""
    if model.endswith(".onnx"):
        return _file(model, opening, runtime, json, plan=plan, format=format, calibration=calibration)
    if runtime is not None:
        raise typer.BadParameter("is for an ONNX file", param_hint="--runtime")
    from ..pipeline.notes import NO_LABELS
    from ..pipeline.quantize import evaluate as judge
    from ..runs.opening import is_folder
    from ..values import megabytes
    from .bars import ShownProgress
    from .output import layers_by_format, note, print_json, stdout, working
    from .tables import accuracy_cell, table_of

    calibration = zoo_data(model, calibration)
    with working(run_of(model)):
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


def _file(path: str, opening: Opening, runtime: str | None, json: bool, **of_plans: str | None) -> None:
    """The model in an ONNX file: it has its formats and ranges in it."""
    from ..errors import DataError
    from ..pipeline.quantize import evaluate_file
    from .bars import ShownProgress
    from .output import print_json, stdout, working

    asked = opening.arguments()
    for name, value in (of_plans | asked["settings"]).items():
        if value is not None and name not in ("batch_size", "threads"):
            option = f"--{name.replace('_', '-')}"
            raise typer.BadParameter("an ONNX file has this in it", param_hint=option)
    if opening.data is None:
        raise DataError("samples are needed: pass --data FILE, a folder of images, or zoo:fashion-test")
    with working():
        ran = evaluate_file(
            path,
            opening.data,
            task=opening.task,
            output=opening.output,
            runtime=runtime or "onnxruntime",
            batch_size=opening.batch_size or 64,
            threads=opening.threads,
            draw=opening.samples,
            seed=opening.seed,
            data_options=asked["data_options"],
            progress=ShownProgress(),
        )
    if json:
        return print_json(ran.to_json())
    speed = "" if ran.latency_ms is None else f", {ran.latency_ms:.2f} ms for one sample in one thread"
    judged = "" if ran.output is None else f" by output '{ran.output}'"
    found = f"accuracy {ran.accuracy:.2%}{judged} on {ran.samples:,} samples{speed} ({ran.runtime})"
    stdout.print(found, soft_wrap=True)
    return None
