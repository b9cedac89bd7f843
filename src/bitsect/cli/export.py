"""bitsect export: a plan becomes a file that runs, and is proven to be the model that was judged."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from ..values.settings import SAMPLES
from .app import JsonOption, TrustOption
from .options import DATA, RunArgument, command, run_folder

if TYPE_CHECKING:
    from ..exporters.deliver import Delivery


@command
def export(
    run: RunArgument,
    out: Annotated[
        str,
        typer.Option(
            "--out",
            "-o",
            metavar="FILE",
            help="The file to write: .onnx for runtimes; .pt2, which torch.export.load loads; .safetensors, "
            "codes and scales that bitsect.load reads; without an ending, a folder as of transformers.",
        ),
    ],
    destination: Annotated[
        str | None,
        typer.Option(
            "--for",
            "--destination",
            help="For .onnx: onnxruntime, openvino: their integer kernels; portable: plain ONNX, 4-bit "
            "tensors packed; default: what the run was made for, else onnxruntime.",
        ),
    ] = None,
    plan: Annotated[str | None, typer.Option(help="Another plan.json than the run's own.")] = None,
    format: Annotated[str | None, typer.Option(help="Or: one format for all layers.")] = None,
    force: Annotated[
        bool,
        typer.Option("--force", help="Overwrite FILE, and keep it where a check fails (exit code 1 still)."),
    ] = False,
    require_speedup: Annotated[
        bool, typer.Option("--require-speedup", help="Fail if the model is slower than the float one.")
    ] = False,
    data: Annotated[
        str | None,
        typer.Option(
            help=f"Prove on these samples; default: the run's test samples, else its own. {DATA}.",
            rich_help_panel=SAMPLES,
        ),
    ] = None,
    draw: Annotated[
        int | None, typer.Option(help="Draw so many samples; default: all.", rich_help_panel=SAMPLES)
    ] = None,
    task: Annotated[
        str | None,
        typer.Option(
            help="The run's own task again, if that is a function of yours.", rich_help_panel=SAMPLES
        ),
    ] = None,
    trust: TrustOption = False,
    json: JsonOption = False,
) -> None:
    """Write a run's model to a file, run it there, and prove that it is the one that was judged.

    bitsect export runs/first --out first.onnx
    """
    from ..errors import ExportError
    from ..pipeline.export import export as write
    from .bars import ShownProgress
    from .output import print_json, working

    run_folder(run)
    with working(run):
        delivery = write(
            run,
            out,
            destination=destination,
            plan=plan,
            format=format,
            data=data,
            draw=draw,
            force=force,
            require_speedup=require_speedup,
            task=task,
            trust=trust,
            progress=ShownProgress(),
        )
    print_json(delivery.to_json()) if json else _show(delivery)
    if delivery.failures:
        raise ExportError(delivery.complaint)


def _show(delivery: Delivery) -> None:
    from ..errors import in_command
    from .output import note, stdout

    for line in str(delivery.proof).splitlines():
        stdout.print(line, soft_wrap=True)
    accuracies = [f"{each.shown} under placement {name}" for name, each in delivery.judged.items()]
    judged = ", ".join([f"float {delivery.float.shown}", *accuracies])
    stdout.print(f"On the {delivery.judged_on}: {judged}.", soft_wrap=True)
    if delivery.target is not None:
        missed = "NOT kept" if delivery.missed else "missed on these samples, by no more than chance explains"
        stdout.print(f"Target {delivery.target}: {'kept' if delivery.target_kept else missed}.")
    else:
        stdout.print("No target is known that the model would have to keep.")
    for remark in delivery.remarks:
        stdout.print(f"Note: {in_command(remark)}.", soft_wrap=True)
    for each in delivery.written.notes:
        stdout.print(f"Note: {each.shortened()}.", soft_wrap=True)
    if delivery.kept:
        note(f"Written to {delivery.path}")
