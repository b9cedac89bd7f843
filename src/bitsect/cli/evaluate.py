"""bitsect evaluate: how accurate a network is under a plan."""

from __future__ import annotations

from typing import Annotated

import typer

from ..values import Resources, Settings
from ..values.settings import MACHINE, SAMPLES
from .app import MODEL, JsonOption, TrustOption
from .options import DataOption, MethodOption, command, run_of


@command
def evaluate(
    model: Annotated[
        str,
        typer.Argument(metavar="MODEL|RUN|FILE.onnx", help=f"{MODEL}; the folder of a run; or an ONNX file"),
    ],
    settings: Settings,
    resources: Resources,
    method: MethodOption = None,
    data: DataOption = None,
    calibration: Annotated[
        str | None, typer.Option(help="Samples that ranges come from.", rich_help_panel=SAMPLES)
    ] = None,
    plan: Annotated[str | None, typer.Option(help="plan.json: a format for each layer.")] = None,
    format: Annotated[str | None, typer.Option(help="One format for all layers; default: int8.")] = None,
    runtime: Annotated[
        str | None,
        typer.Option(
            help="Where FILE.onnx runs: onnxruntime (default), openvino or reference.",
            rich_help_panel=MACHINE,
        ),
    ] = None,
    trust: TrustOption = False,
    json: JsonOption = False,
) -> None:
    """Judge MODEL in float and under a plan: accuracy, loss, size; or an ONNX file as it is.

    bitsect evaluate runs/first --data test.npz
    """
    if model.endswith(".onnx"):
        for name, value in (
            ("plan", plan),
            ("format", format),
            ("calibration", calibration),
            ("method", method),
        ):
            if value is not None:
                raise typer.BadParameter(
                    "does not apply to an ONNX file, whose formats and ranges are fixed",
                    param_hint=f"--{name}",
                )
        return _file(model, data, settings, runtime or "onnxruntime", json)
    if runtime is not None:
        raise typer.BadParameter("is for an ONNX file", param_hint="--runtime")
    from ..errors import in_command
    from ..pipeline.evaluate import evaluate as judge
    from ..values import megabytes
    from .bars import ShownProgress
    from .output import layers_by_format, note, print_json, stdout, working
    from .tables import accuracy_cell, table_of

    with working(run_of(model)):
        judgement = judge(
            model,
            data,
            settings=settings,
            resources=resources,
            method=method,
            calibration=calibration,
            plan=plan,
            format=format,
            trust=trust,
            progress=ShownProgress(),
        )
    if json:
        return print_json(judgement.to_json())
    table = table_of("", "accuracy", "loss", "size", "")
    for row in (judgement.float, judgement.plan):
        loss = "–" if row.evaluation.loss is None else f"{row.evaluation.loss:.4f}"
        size = f"{megabytes(row.cost.size_bytes)} {row.cost.size_ratio:4.0%}"
        table.add_row(row.name, accuracy_cell(row.evaluation), loss, size, layers_by_format(row.plan))
    stdout.print(table)
    for line in judgement.notes:
        note(in_command(line))
    return None


def _file(path: str, data: str | None, settings: Settings, runtime: str, json: bool) -> None:
    """The model in an ONNX file, as it is."""
    from ..errors import DataError
    from ..pipeline.evaluate import evaluate_file
    from .bars import ShownProgress
    from .output import print_json, stdout, working

    if data is None:
        raise DataError("samples are needed: pass [data=FILE], a folder of images, or zoo:fashion-test")
    with working():
        ran = evaluate_file(path, data, settings=settings, runtime=runtime, progress=ShownProgress())
    if json:
        return print_json(ran.to_json())
    speed = "" if ran.latency_ms is None else f", {ran.latency_ms:.2f} ms for one sample in one thread"
    judged = "" if ran.output is None else f" by output '{ran.output}'"
    found = f"accuracy {ran.accuracy:.2%}{judged} on {ran.samples:,} samples{speed} ({ran.runtime})"
    stdout.print(found, soft_wrap=True)
    return None
