"""bitsect latency and bitsect import-latency: what a plan would cost on a device."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .app import EmbeddingsOption, InputShapeOption, JsonOption, ModelOrRunArgument, TrustOption, app


@app.command()
def latency(
    model: ModelOrRunArgument,
    table: Annotated[
        str,
        typer.Option(
            "--for", "--table", help="a100, onnxruntime or openvino (timed on this machine), or FILE.json."
        ),
    ] = "a100",
    formats: Annotated[
        str | None,
        typer.Option("--formats", help="Formats to show, besides float; default: those that run there."),
    ] = None,
    threads: Annotated[int, typer.Option("--threads", min=1, help="Threads to time a runtime in.")] = 1,
    embeddings: EmbeddingsOption = False,
    input_shape: InputShapeOption = None,
    trust: TrustOption = False,
    json: JsonOption = False,
) -> None:
    """Latency of MODEL by layer and format, and of uniform plans."""
    from ..errors import OptionError
    from ..pipeline.latency import latency as read_latency
    from ..solve.costs import describe
    from ..values import FLOAT, INT4, INT8
    from ..values.destination import destination_named
    from ..values.goal import parse_formats
    from .bars import ShownProgress
    from .output import note, print_json, stdout, working
    from .tables import table_of

    known = destination_named(table)
    if known.latency is None:
        raise OptionError(f"nothing is timed for {known.name}: pass a100, onnxruntime, openvino or a file")
    shown_formats = (known.formats or (INT8, INT4)) if formats is None else parse_formats(formats)
    with working():
        program, chosen, notes = read_latency(
            model,
            known.latency,
            shown_formats,
            threads=threads,
            input_shape=input_shape,
            embeddings=embeddings,
            trust=trust,
            progress=ShownProgress(),
        )
    wanted = (FLOAT, *shown_formats)
    described = describe(program.layers, chosen, wanted)
    if json:
        return print_json({"model": model, **described, "notes": list(notes)})
    names = [format.name for format in wanted]
    shown = table_of("layer", "kind", *(f"{name}, ms" for name in names), title=f"{model} on {chosen.device}")
    for layer in described["layers"]:
        cells = ["–" if layer["ms"].get(name) is None else f"{layer['ms'][name]:.4f}" for name in names]
        shown.add_row(layer["name"], layer["kind"], *cells)
    stdout.print(shown)
    base = "float" if chosen.boundaries else "16 bit"
    stdout.print(f"\n{base}: {described['baseline_ms']:.3f} ms")
    if chosen.boundaries:
        stdout.print(f"besides the layers: {chosen.rest_ms:.3f} ms, and what rounding between them takes")
    for name, ratio in described["ratio"].items():
        if ratio is not None:
            stdout.print(f"{name.replace('_', ' ')}: {ratio:.2%} of {base}")
    note(f"Source: {chosen.source}")
    for line in notes:
        note(line)
    return None


@app.command("import-latency")
def import_latency(
    files: Annotated[
        list[str],
        typer.Argument(
            metavar="FILES",
            help="CUTLASS profiler files, NAME.csv; or FORMAT=FILE.json: profiles of ONNX Runtime or trtexec "
            "--exportProfile of the network with all layers in that format.",
        ),
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="The table to write.")],
    model: Annotated[
        str | None, typer.Option(help="The network that was profiled, for FORMAT=FILE.json.")
    ] = None,
    device: Annotated[str | None, typer.Option(help="What the files were measured on.")] = None,
    trust: TrustOption = False,
    json: JsonOption = False,
) -> None:
    """Make a latency table of what others measured: CUTLASS, ONNX Runtime or TensorRT profiles.

    bitsect import-latency float=a.json int8=b.json --model net.pt2 --out table.json
    """
    from ..errors import OptionError
    from ..latency.cutlass import import_cutlass
    from ..latency.profiles import import_profiles
    from ..pipeline.layers import layers as read_layers
    from ..values import Format
    from .output import print_json, stdout, working

    named = [file.partition("=")[::2] for file in files if "=" in file and not Path(file).exists()]
    if named and len(named) < len(files):
        raise OptionError("pass either CUTLASS files or FORMAT=FILE.json, not both")
    if named:
        if model is None:
            raise OptionError("a profile names the nodes of a network: pass [model=MODEL] too")
        profiles = {Format.parse(format): Path(path) for format, path in named}
        with working():
            program = read_layers(model, trust=trust)
        table = import_profiles(profiles, program.layers, device)
    else:
        table = import_cutlass([Path(file) for file in files], device=device or "NVIDIA GPU")
    table.write(out)
    formats = [format.name for format in table.formats]
    if json:
        return print_json(
            {"table": str(out), "rows": len(table.rows), "formats": formats, "device": table.device}
        )
    stdout.print(f"{out}: {len(table.rows)} shapes in {', '.join(formats)}")
    return None
