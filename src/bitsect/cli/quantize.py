"""bitsect quantize and bitsect search: a target in, a plan out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

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

if TYPE_CHECKING:
    from ..result import Result

TestDataOption = Annotated[str | None, typer.Option("--test-data", help="Samples the search does not see.")]
TargetOption = Annotated[str | None, typer.Option("--target", help="Share of the float accuracy, as 99.9%.")]
MaxDropOption = Annotated[
    float | None, typer.Option("--max-drop", help="Or: percentage points that may be lost.")
]
FormatsOption = Annotated[str, typer.Option("--formats", help="Formats to choose from, besides float.")]
MetricOption = Annotated[
    str, typer.Option("--metric", help="What orders the layers; see `bitsect sensitivity`.")
]
SearchOption = Annotated[str, typer.Option("--search", help="bisection, literal or progressive.")]
ScoreFormatOption = Annotated[
    str | None,
    typer.Option("--score-format", help="Format the layers are scored in, or `each`: each step in its own."),
]
KeepOption = Annotated[
    list[str] | None,
    typer.Option(
        "--keep", help="PATTERN=FORMAT[,FORMAT…]; patterns: names, globs, first, last, kind:depthwise."
    ),
]
LatencyOption = Annotated[str | None, typer.Option("--latency", help="Latency table: a100 or FILE.json.")]
ObjectiveOption = Annotated[
    str, typer.Option("--objective", help="latency: no layer takes a format that is slower; or size.")
]
BudgetOption = Annotated[
    str | None, typer.Option("--budget", help="Latency at most: 0.8x of 16 bit, or 3ms.")
]
MaxSizeOption = Annotated[
    str | None, typer.Option("--max-size", help="Size at most: 12MB, or 0.5x of 16 bit.")
]


@app.command()
def quantize(
    model: ModelOrRunArgument,
    data: DataOption = None,
    test_data: TestDataOption = None,
    target: TargetOption = None,
    max_drop: MaxDropOption = None,
    formats: FormatsOption = "int8,int4",
    metric: MetricOption = "aughessian",
    search: SearchOption = "bisection",
    score_format: ScoreFormatOption = None,
    keep: KeepOption = None,
    latency: LatencyOption = None,
    objective: ObjectiveOption = "latency",
    budget: BudgetOption = None,
    max_size: MaxSizeOption = None,
    pairs: PairsOption = "exact",
    loss: LossOption = "task",
    probes: ProbesOption = 64,
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
    """Find the format of each layer that keeps the target, and write it as a plan."""
    from ..data import load_samples
    from ..pipeline import quantize as find
    from .bars import ShownProgress

    options = data_options(mean, std, scale)
    test = zoo_data(model, test_data, "test")
    result = find(
        model,
        zoo_data(model, data),
        target=_target(target, max_drop),
        test=load_samples(test, **options) if test is not None else None,
        formats=_formats(formats),
        metric=metric,
        search=search,
        keep=keep or (),
        score_format=score_format,
        measuring={"pairs": pairs, "loss": loss, "probes": probes},
        latency=latency,
        objective=objective,
        budget=budget,
        max_size=max_size,
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
        data_options=options,
        input_shape=input_shape,
        trust=trust,
        device=device,
        progress=ShownProgress(),
    )
    _show(result, json, kept=out is not None)


@app.command()
def search(
    run: Annotated[str, typer.Argument(metavar="RUN", help="The folder of a run.")],
    target: TargetOption = None,
    max_drop: MaxDropOption = None,
    test_data: TestDataOption = None,
    formats: FormatsOption = "int8,int4",
    metric: MetricOption = "aughessian",
    search: SearchOption = "bisection",
    score_format: ScoreFormatOption = None,
    keep: KeepOption = None,
    latency: LatencyOption = None,
    objective: ObjectiveOption = "latency",
    budget: BudgetOption = None,
    max_size: MaxSizeOption = None,
    pairs: PairsOption = "exact",
    loss: LossOption = "task",
    probes: ProbesOption = 64,
    mean: MeanOption = None,
    std: StdOption = None,
    scale: ScaleOption = None,
    trust: TrustOption = False,
    json: JsonOption = False,
) -> None:
    """Solve a run again for another target, metric or budget; nothing is measured twice."""
    from pathlib import Path

    from ..data import load_samples
    from ..errors import RunError
    from ..pipeline import quantize as find
    from .bars import ShownProgress

    if not Path(run).is_dir():
        raise RunError(f"{run} is not the folder of a run: `bitsect quantize MODEL --out {run}` makes one")
    test = load_samples(test_data, **data_options(mean, std, scale)) if test_data is not None else None
    result = find(
        run,
        target=_target(target, max_drop),
        test=test,
        formats=_formats(formats),
        metric=metric,
        search=search,
        keep=keep or (),
        score_format=score_format,
        measuring={"pairs": pairs, "loss": loss, "probes": probes},
        latency=latency,
        objective=objective,
        budget=budget,
        max_size=max_size,
        trust=trust,
        progress=ShownProgress(),
    )
    _show(result, json, kept=True)


def _target(target: str | None, max_drop: float | None) -> Any:
    from ..values import Target

    if target is not None and max_drop is not None:
        raise typer.BadParameter("pass --target or --max-drop, not both")
    return Target.drop(max_drop) if max_drop is not None else target


def _formats(names: str) -> list[str]:
    return [name.strip() for name in names.split(",") if name.strip()]


def _show(result: Result, json: bool, kept: bool) -> None:
    from .output import note, print_json, stdout
    from .tables import accuracy_cell, table_of

    if json:
        return print_json(result.to_json())
    timed = result.rows[0].cost.latency_ms is not None
    tested = result.test is not None
    headings = ["accuracy", *(["on test"] if tested else []), "size", *(["latency"] if timed else [])]
    table = table_of("", *headings, "multiply-adds")
    for row in result.rows:
        cells = [accuracy_cell(row.evaluation, counts=False)]
        if result.test is not None:
            cells.append(accuracy_cell(result.test.rows[row.name], counts=False))
        cells.append(f"{row.cost.size_bytes / 1e6:.3f} MB ({row.cost.size_ratio:.1%})")
        if timed:
            ms, ratio = row.cost.latency_ms, row.cost.latency_ratio
            cells.append("–" if ms is None or ratio is None else f"{ms:.3f} ms ({ratio:.1%})")
        macs = row.plan.macs(result.run.program.layers)
        shares = ", ".join(
            f"{name} {count / sum(macs.values()):.1%}" for name, count in macs.items() if count
        )
        table.add_row(row.name, *cells, shares, end_section=row.name == "float")
    stdout.print(table)
    counts = ", ".join(f"{count} {name}" for name, count in result.plan.counts.items() if count)
    goal = f"Target {result.target}: " if result.target is not None else ""
    verdict = "kept" if result.target_met else "NOT kept"
    stdout.print(
        f"\n{goal}{verdict} on the calibration samples; {counts} layers. {result.reason}.", soft_wrap=True
    )
    if result.test is not None and result.target is not None:
        held = "kept" if result.test.target_met else "missed"
        stdout.print(f"On the test samples the target is {held}.")
    if result.agreement:
        note("No labels: accuracy is agreement with the float network's own answers.")
    seconds = ", ".join(f"{name} {value:.1f} s" for name, value in result.seconds.items())
    note(f"{result.evaluations} plans judged by the search; {seconds}.")
    if kept:
        note(f"Plan: {result.run.folder.path / 'plan.json'}")
    return None
