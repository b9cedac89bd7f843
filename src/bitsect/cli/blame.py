"""bitsect blame: what a plan loses and to whom."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from ..values import Resources
from .app import JsonOption, TrustOption
from .options import CsvOption, RunArgument, TaskOption, command, run_folder

if TYPE_CHECKING:
    from ..values.blame import Blame, Gain, LayerBlame

STRONG = 2.0  # times beyond the ordinary, from which on a fact explains something
SHOWN = 10  # layers and pairs that the terminal shows; --json and --csv hold all


@command
def blame(
    run: RunArgument,
    resources: Resources,
    plan: Annotated[
        str | None, typer.Option(help="Another plan than the run's own: a file, or its name in the run.")
    ] = None,
    format: Annotated[str | None, typer.Option(help="Or: one format for all layers.")] = None,
    layer: Annotated[
        str | None, typer.Option(help="Look at this layer alone, or at those of a pattern as blocks.*.")
    ] = None,
    samples: Annotated[int, typer.Option(help="How many of the run's samples to look at.")] = 256,
    destination: Annotated[
        str | None,
        typer.Option(
            "--for",
            "--destination",
            help="Where it will run, for what remedies cost, as for quantize; default: the run's.",
        ),
    ] = None,
    latency: Annotated[
        str | None, typer.Option(help="Or a latency table: a100, onnxruntime, openvino or FILE.json.")
    ] = None,
    csv: CsvOption = None,
    task: TaskOption = None,
    trust: TrustOption = False,
    json: JsonOption = False,
) -> None:
    """Say what a plan loses and to whom: layers, their weights or inputs, pairs; why, and what helps.

    bitsect blame runs/first
    """
    from ..pipeline.blame import blame as blamed
    from .bars import ShownProgress
    from .output import print_json, working, write_rows

    run_folder(run)
    with working(run):
        found = blamed(
            run,
            plan=plan,
            format=format,
            layer=layer,
            samples=samples,
            latency=latency,
            destination=destination,
            resources=resources,
            task=task,
            trust=trust,
            progress=ShownProgress(),
        )
    if csv is not None:
        write_rows(csv, [each.row() for each in found.layers])
    print_json(found.to_json()) if json else _show(found)


def _show(found: Blame) -> None:
    from .output import stdout
    from .tables import table_of

    whole = found.damage
    stdout.print(
        f"A plan of {found.plan.counted} layers. Accuracy {found.float_accuracy:.2%} → {found.accuracy:.2%} "
        f"on {found.samples:,} samples, damage {whole.mean:.3g} ± {whole.error:.1g}. "
        "With one layer back in float, or only its weights or activations, so many per cent of it go:\n",
        soft_wrap=True,
    )
    table = table_of("layer", "format", "gone", "by weights", "by activations", "accuracy")
    for each in found.layers[:SHOWN]:
        points = f"{100 * each.accuracy.mean:+.1f}±{100 * each.accuracy.error:.1f}"
        shares = [_share(gain, whole) for gain in (each.gain, each.weights, each.activations)]
        table.add_row(each.name, str(each.format), *shares, points)
    stdout.print(table)
    if len(found.layers) > SHOWN:
        stdout.print(f"{len(found.layers) - SHOWN} more layers: --json and --csv hold all.", style="dim")
    pairs = [pair for pair in found.pairs[:SHOWN] if pair.excess.mean > 2 * pair.excess.error]
    if pairs:
        table = table_of("pair", "together", "alone", "more than both", title="\nWorse together")
        for pair in pairs[:5]:
            alone = f"{pair.alone[0]:.3g} + {pair.alone[1]:.3g}"
            table.add_row(
                f"{pair.first}, {pair.second}",
                f"{pair.together:.3g}",
                alone,
                f"{pair.excess.mean:.2g}±{pair.excess.error:.1g}",
            )
        stdout.print(table)
    for each in found.layers[:SHOWN]:
        if each.remedies or any(cause.times >= STRONG for cause in each.causes):
            _explain(each)
    for line in found.notes:
        stdout.print(f"Note: {line}.", markup=False, soft_wrap=True)


def _explain(blamed: LayerBlame) -> None:
    """Why, and what helps: a few lines."""
    from .output import stdout

    stdout.print(f"\n{blamed.name} ({blamed.format})", markup=False)
    for cause in blamed.causes:
        word = "why" if cause.times >= STRONG else "also"
        stdout.print(f"  {word}: {cause.words}", markup=False, soft_wrap=True)
    for each in sorted(blamed.remedies, key=lambda remedy: -remedy.recovers):
        mark = "→" if each is blamed.remedy else " "
        spent = f"size {100 * each.size_ratio:+.2f} points"
        if each.latency_ratio is not None:
            spent += f", latency {100 * each.latency_ratio:+.2f}"
        won = f"{each.recovers:.0%} of it won back"
        stdout.print(f"  {mark} {each.words}: {won}, {spent}", markup=False, soft_wrap=True)


def _share(gain: Gain | None, whole: Gain) -> str:
    if gain is None or not whole.mean:
        return "–"
    return f"{100 * gain.mean / whole.mean:.0f}±{100 * gain.error / whole.mean:.0f}"
