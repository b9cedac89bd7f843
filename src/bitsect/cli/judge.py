"""bitsect judge: quantised files of any tool beside their float file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..values import Settings
from ..values.goal import GOAL
from ..values.settings import MACHINE
from .app import MODEL, JsonOption, TrustOption
from .options import DataOption, command

if TYPE_CHECKING:
    from ..values.verdict import JudgedFile, Verdict

SHOWN = 4  # layers, kernels and answers that a line names


@command
def judge(
    float_file: Annotated[str, typer.Argument(metavar="FLOAT", help=f"The float FILE.onnx; or {MODEL}.")],
    files: Annotated[
        list[str],
        typer.Argument(metavar="FILE…", help="Quantised files: .onnx, .xml, .pt2, .tflite or .pte."),
    ],
    settings: Settings,
    data: DataOption = None,
    target: Annotated[
        str | None,
        typer.Option(help="Share of the float accuracy to keep; default: 99%.", rich_help_panel=GOAL),
    ] = None,
    max_drop: Annotated[
        float | None, typer.Option(help="Or: percentage points that may be lost.", rich_help_panel=GOAL)
    ] = None,
    confidence: Annotated[
        str, typer.Option(help="With which a target is called kept; default: 95%.", rich_help_panel=GOAL)
    ] = "95%",
    runtime: Annotated[
        str,
        typer.Option(
            help="Where .onnx files run: onnxruntime (default) or openvino.", rich_help_panel=MACHINE
        ),
    ] = "onnxruntime",
    timed: Annotated[
        bool, typer.Option("--time/--no-time", help="Time the files and list their kernels.")
    ] = True,
    page: Annotated[str | None, typer.Option(help="Write the verdict as an HTML page, too.")] = None,
    trust: TrustOption = False,
    json: JsonOption = False,
) -> None:
    """Judge quantised files of any tool: do they keep the target, how fast and how large are they?

    bitsect judge float.onnx int8.onnx --data test.npz --target 99%

    The exit code is 0 where all files are proven to keep the target, 3 where some are not proven, and 1
    where some miss it or do not run.
    """
    from ..pipeline.referee import judge as decide
    from .bars import ShownProgress
    from .output import note, print_json, working

    with working():
        verdict = decide(
            float_file,
            files,
            data,
            settings=settings,
            target=target,
            max_drop=max_drop,
            confidence=confidence,
            runtime=runtime,
            timed=timed,
            page=page,
            trust=trust,
            progress=ShownProgress(),
        )
    print_json(verdict.to_json()) if json else _show(verdict)
    if page is not None:
        note(f"Page written to {page}")
    if verdict.exit_code:
        raise typer.Exit(verdict.exit_code)


def _show(verdict: Verdict) -> None:
    from ..errors import in_command
    from .output import stdout
    from .tables import table_of

    threads = sorted(verdict.reference.ms)
    times = ["1 thread" if count == 1 else f"{count} threads" for count in threads]
    drop = verdict.target.startswith("max drop")
    table = table_of("", "accuracy", "lost" if drop else "kept", "changed", *times, "size", "int + float")
    for row in (verdict.reference, *verdict.files):
        table.add_row(row.name, *_cells(verdict, row, threads))
    stdout.print(table)
    length = "" if verdict.length is None else f", times at length {verdict.length}"
    about = f"{verdict.samples:,} samples, each run alone, task {verdict.task}{length}"
    stdout.print(f"{about}; int + float: kernels that multiply.\n", style="dim", soft_wrap=True)
    for file in verdict.files:
        stdout.print(f"{file.name}: {_words(verdict, file)}.", markup=False, soft_wrap=True)
    for line in verdict.notes:
        stdout.print(f"Note: {in_command(line)}.", markup=False, soft_wrap=True)


def _cells(verdict: Verdict, row: JudgedFile, threads: list[int]) -> list[str]:
    from ..values import megabytes

    cells: list[Any] = ["–" if row.accuracy is None else f"{row.accuracy:.2%}"]
    cells.append("–" if row.kept is None else f"{row.kept:.2%}")
    cells.append("–" if row.changed is None else f"{row.changed:,}")
    for count in threads:
        ratio = verdict.ratio(row, count)
        own = ratio is None or row is verdict.reference
        shown = f"{row.ms[count]:.3g} ms" if own and count in row.ms else f"× {ratio:.2f}"
        cells.append("–" if count not in row.ms else shown)
    cells.append(megabytes(row.size_bytes) if row.size_bytes else "–")
    cells.append("–" if row.kernels is None else f"{row.kernels.integer} + {row.kernels.floats}")
    return cells


def _words(verdict: Verdict, file: JudgedFile) -> str:
    """What is to be said of a file, in a line."""
    parts = [file.verdict]
    if file.bound is not None:
        drop = verdict.target.startswith("max drop")
        parts.append(f"at {'most' if drop else 'least'} {file.bound:.2%} {'lost' if drop else 'kept'}")
    if file.difference is not None:
        mean, low, high = (100 * value for value in file.difference)
        parts.append(f"accuracy {mean:+.2f} points ({low:+.2f} to {high:+.2f})")
    if file.suspects:
        layers = "; ".join(f"{each.layer} ({each.why})" for each in file.suspects)
        parts.append(f"look first at {layers}")
    if file.kernels is not None and file.kernels.floats:
        names = ", ".join(file.kernels.float_names[:SHOWN])
        more = " …" if file.kernels.floats > SHOWN else ""
        parts.append(f"{file.kernels.float_share:.0%} of the time in float kernels: {names}{more}")
    if file.first_changed:
        more = " …" if (file.changed or 0) > SHOWN else ""
        parts.append(f"answers changed: {', '.join(file.first_changed[:SHOWN])}{more}")
    return "; ".join(parts)
