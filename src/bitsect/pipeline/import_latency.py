"""import_latency: a latency table of what others measured."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ..errors import OptionError
from ..latency.cutlass import import_cutlass
from ..latency.profiles import import_profiles
from ..values import Format, LatencyTable
from .layers import layers


def import_latency(
    files: Sequence[str],
    out: str | Path,
    *,
    model: str | None = None,
    device: str | None = None,
    trust: bool = False,
) -> LatencyTable:
    """The latency table of measured files, which is written to `out`.

    Arguments:
        files: CUTLASS profiler files, NAME.csv, or FORMAT=FILE.json: profiles of ONNX Runtime or of
            `trtexec --exportProfile`, of the network with all layers in that format.
        out: the table to write.
        model: the network that was profiled, for FORMAT=FILE.json.
        device: what the files were measured on.
        trust: as for `quantize`.
    """
    named = [file.partition("=")[::2] for file in files if "=" in file and not Path(file).exists()]
    if named and len(named) < len(files):
        raise OptionError("pass either CUTLASS files or FORMAT=FILE.json, not both")
    if named and model is None:
        raise OptionError("a profile names the nodes of a network: pass [model=MODEL] too")
    if named:
        profiles = {Format.parse(format): Path(path) for format, path in named}
        table = import_profiles(profiles, layers(model, trust=trust).layers, device)
    else:
        table = import_cutlass([Path(file) for file in files], device=device or "NVIDIA GPU")
    table.write(Path(out))
    return table
