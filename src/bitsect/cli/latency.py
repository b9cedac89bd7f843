"""bitsect latency and bitsect import-latency: what a plan would cost on a device."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .app import EmbeddingsOption, InputShapeOption, JsonOption, ModelOrRunArgument, TrustOption, app


@app.command()
def latency(
    model: ModelOrRunArgument,
    table: Annotated[str, typer.Option("--table", help="a100 or FILE.json.")] = "a100",
    formats: Annotated[str, typer.Option("--formats", help="Formats to show, besides float.")] = "int8,int4",
    embeddings: EmbeddingsOption = False,
    input_shape: InputShapeOption = None,
    trust: TrustOption = False,
    json: JsonOption = False,
) -> None:
    """Latency of MODEL by layer and format, and of uniform plans."""
    from ..latency import latency_table
    from ..pipeline.layers import layers as read_layers
    from ..solve.costs import describe
    from ..values import FLOAT, Format
    from .output import note, print_json, stdout
    from .tables import table_of

    wanted = (FLOAT, *(Format.parse(name.strip()) for name in formats.split(",") if name.strip()))
    program = read_layers(model, input_shape=input_shape, trust=trust, embeddings=embeddings)
    chosen = latency_table(table, program.layers)
    assert chosen is not None
    described = describe(program.layers, chosen, wanted)
    if json:
        return print_json({"model": model, **described})
    names = [format.name for format in wanted]
    shown = table_of("layer", "kind", *(f"{name}, ms" for name in names), title=f"{model} on {chosen.device}")
    for layer in described["layers"]:
        cells = ["–" if layer["ms"].get(name) is None else f"{layer['ms'][name]:.4f}" for name in names]
        shown.add_row(layer["name"], layer["kind"], *cells)
    stdout.print(shown)
    stdout.print(f"\n16 bit: {described['baseline_ms']:.3f} ms")
    for name, ratio in described["ratio"].items():
        if ratio is not None:
            stdout.print(f"{name.replace('_', ' ')}: {ratio:.2%} of 16 bit")
    note(f"Source: {chosen.source}")
    return None


@app.command("import-latency")
def import_latency(
    files: Annotated[list[Path], typer.Argument(metavar="FILES.csv", help="CUTLASS profiler files.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="The table to write.")],
    device: Annotated[str, typer.Option(help="What the files were measured on.")] = "NVIDIA GPU",
    json: JsonOption = False,
) -> None:
    """Make a latency table of CUTLASS profiler files (gemm and conv2d)."""
    from ..latency import import_cutlass
    from .output import print_json, stdout

    table = import_cutlass(files, device=device)
    table.write(out)
    formats = [format.name for format in table.formats]
    if json:
        return print_json({"table": str(out), "rows": len(table.rows), "formats": formats, "device": device})
    stdout.print(f"{out}: {len(table.rows)} shapes in {', '.join(formats)}")
    return None
