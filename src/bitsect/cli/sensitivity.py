"""bitsect sensitivity: which layers suffer most."""

from __future__ import annotations

from typing import Annotated

import typer

from .app import (
    BatchOption,
    DataOption,
    DeviceOption,
    EmbeddingsOption,
    FreshOption,
    InputShapeOption,
    JsonOption,
    LossOption,
    MeanOption,
    ModelOrRunArgument,
    OutOption,
    PairsOption,
    PercentileOption,
    PlacementOption,
    ProbesOption,
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
def sensitivity(
    model: ModelOrRunArgument,
    data: DataOption = None,
    metric: Annotated[
        str,
        typer.Option(
            help="aughessian, hessian, interlayer, single, sqnr, fisher, hawq, random or package.module:name."
        ),
    ] = "aughessian",
    format: Annotated[str, typer.Option(help="The format that layers are tried in.")] = "int8",
    pairs: PairsOption = "exact",
    loss: LossOption = "task",
    clip: Annotated[str, typer.Option(help="Clip excess loss at zero by pair or by sum.")] = "pair",
    trace: Annotated[str, typer.Option(help="mean_trace (per weight) or trace.")] = "mean_trace",
    size_penalty: Annotated[float, typer.Option(help="λ of the penalty on a layer's weights.")] = 0.0,
    probes: ProbesOption = 64,
    until_stable: Annotated[
        bool, typer.Option("--until-stable", help="Double the samples until two halves agree.")
    ] = False,
    agreement: Annotated[float, typer.Option(help="How well, for --until-stable.")] = 0.9,
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
    out: OutOption = None,
    fresh: FreshOption = False,
    json: JsonOption = False,
) -> None:
    """Score the layers of MODEL by how much rounding them hurts, with error bars."""
    from ..metrics import Options
    from ..pipeline import sensitivity as measure
    from .bars import ShownProgress
    from .output import note, print_json, stdout
    from .tables import table_of

    scores, count = measure(
        model,
        zoo_data(model, data),
        metric=metric,
        format=format,
        options=Options(clip=clip, trace=trace, size_penalty=size_penalty, seed=seed),
        until_stable=agreement if until_stable else None,
        measuring={"pairs": pairs, "loss": loss, "probes": probes},
        out=out,
        fresh=fresh,
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
    if json:
        return print_json(scores.to_json() | {"samples": count})
    table = table_of("layer", "score", "± standard error", "", title=f"{metric} at {format}, {count} samples")
    errors = scores.standard_error or (None,) * len(scores.values)
    rows = sorted(zip(scores.layers, scores.values, errors, strict=True), key=lambda row: -row[1])
    largest = max((abs(value) for value in scores.values), default=0.0) or 1.0
    for name, value, error in rows:
        bar = "█" * round(24 * max(0.0, value) / largest) if value > 0 else ""
        table.add_row(name, f"{value:.4g}", "–" if error is None else f"{error:.2g}", f"{bar:<24}")
    stdout.print(table)
    if scores.split_half is not None:
        note(f"Two halves of the samples agree on this order to {scores.split_half:.2f} (rank correlation).")
    return None
