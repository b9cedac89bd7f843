"""bitsect evaluate: how accurate a network is under a plan."""

from __future__ import annotations

from typing import Annotated

import typer

from .app import (
    BatchOption,
    DataOption,
    DeviceOption,
    EmbeddingsOption,
    InputShapeOption,
    JsonOption,
    MeanOption,
    ModelOrRunArgument,
    PercentileOption,
    PlacementOption,
    RangeOption,
    RoundingOption,
    SamplesOption,
    ScaleOption,
    SeedOption,
    SignOption,
    StdOption,
    TaskOption,
    ThreadsOption,
    TrustOption,
    app,
    data_options,
    settings,
    zoo_data,
)


@app.command()
def evaluate(
    model: ModelOrRunArgument,
    data: DataOption = None,
    calibration: Annotated[str | None, typer.Option(help="Samples that ranges come from.")] = None,
    plan: Annotated[str | None, typer.Option(help="plan.json: a format for each layer.")] = None,
    format: Annotated[str | None, typer.Option(help="One format for all layers; default int8.")] = None,
    samples: SamplesOption = None,
    seed: SeedOption = 0,
    mean: MeanOption = None,
    std: StdOption = None,
    scale: ScaleOption = None,
    task: TaskOption = None,
    placement: PlacementOption = None,
    rounding: RoundingOption = None,
    range: RangeOption = None,
    percentile: PercentileOption = None,
    sign: SignOption = None,
    batch_size: BatchOption = None,
    threads: ThreadsOption = None,
    embeddings: EmbeddingsOption = False,
    input_shape: InputShapeOption = None,
    trust: TrustOption = False,
    device: DeviceOption = None,
    json: JsonOption = False,
) -> None:
    """Judge MODEL in float and under a plan: accuracy, loss, size."""
    from ..errors import DataError
    from ..pipeline import evaluate as judge
    from .bars import ShownProgress
    from .output import note, print_json, stdout
    from .tables import accuracy_cell, table_of

    data = zoo_data(model, data, "test")
    if data is None:
        raise DataError("samples are needed: pass --data FILE, a folder of images, or zoo:fashion-test")
    if calibration is None and model.startswith("zoo:"):
        calibration = zoo_data(model, None)
    float_row, plan_row, agreement = judge(
        model,
        data,
        calibration=calibration,
        plan=plan,
        format=format,
        task=task,
        settings=settings(
            placement=placement,
            rounding=rounding,
            range=range,
            percentile=percentile,
            sign=sign,
            batch_size=batch_size,
            threads=threads,
            embeddings=embeddings,
        ),
        draw=samples,
        seed=seed,
        data_options=data_options(mean, std, scale),
        input_shape=input_shape,
        trust=trust,
        device=device,
        progress=ShownProgress(),
    )
    notes = []
    if calibration is None:
        notes.append("ranges come from the judged samples themselves: pass --calibration for others")
    if agreement:
        notes.append("no labels: accuracy is agreement with the float network's own answers")
    if json:
        return print_json(
            {
                "float": float_row.to_json(),
                "plan": plan_row.to_json() | {"formats": plan_row.plan.counts},
                "agreement": agreement,
                "notes": notes,
            }
        )
    table = table_of("", "accuracy", "loss", "size")
    for row in (float_row, plan_row):
        formats = ", ".join(f"{count} {name}" for name, count in row.plan.counts.items() if count)
        loss = "–" if row.evaluation.loss is None else f"{row.evaluation.loss:.4f}"
        size = f"{row.cost.size_bytes / 1e6:.3f} MB"
        table.add_row(f"{row.name} ({formats})", accuracy_cell(row.evaluation), loss, size)
    stdout.print(table)
    for line in notes:
        note(line)
    return None
