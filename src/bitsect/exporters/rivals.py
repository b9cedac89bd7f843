"""Files that a runtime's own tools make of a float file: candidates beside those of bitsect.

Each tool runs in a process of its own, for a bounded time: they print, leak and may fail, and then there is
no candidate of theirs. The same float file and samples make the same files.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import BitsectError
from ..files import first_line
from ..names import python_command
from ..sources.data import Samples
from .runtimes.foreign import ForeignModel

CALIBRATION = 128  # samples that ranges are taken from
MOST_SECONDS = 600.0  # of one tool
PROGRAM = "from bitsect.exporters.rivals import main; main()"
ABOUT_PLAN = ("bitsect.plan", "bitsect.program", "bitsect.placement", "bitsect.destination")


@dataclass(frozen=True)
class Rival:
    """A file of another tool, or why there is none."""

    name: str
    tool: str  # whose it is, in words
    path: Path | None
    why: str = ""


@dataclass(frozen=True)
class Tool:
    """A call of another library that quantises a file."""

    name: str
    words: str
    package: str
    ending: str
    run: Callable[[Path, Sequence[Path], Path], None]


def candidates(
    float_file: str | Path,
    samples: Samples,
    runtime: str,
    folder: str | Path,
    *,
    names: Sequence[str] | None = None,
    seconds: float = MOST_SECONDS,
) -> list[Rival]:
    """What the tools of `runtime` make of the ONNX file `float_file`, written to `folder`.

    `samples` are those to calibrate on, of which the first few are taken; `names` the tools, by default those
    of TOOLS. A tool that is not installed is left out; one that fails is a rival without a file.
    """
    folder, found = Path(folder), []
    known = [*TOOLS.get(runtime, []), *(OTHERS if names is not None and runtime == "onnxruntime" else [])]
    asked = [tool for tool in known if names is None or tool.name in names]
    asked = [tool for tool in asked if find_spec(tool.package) is not None]
    with tempfile.TemporaryDirectory(prefix="bitsect-rivals-") as name:
        feeds = list(_feeds(Path(float_file), samples, Path(name))) if asked else []
        for tool in asked:
            found.append(_made(tool, Path(float_file), feeds, folder, seconds))
    return found


def _feeds(float_file: Path, samples: Samples, folder: Path) -> Iterator[Path]:
    """The inputs of each sample in a file: lengths may differ."""
    model = ForeignModel(float_file, runtime="onnxruntime", threads=1)
    try:
        for index in range(min(CALIBRATION, len(samples))):
            yield model.feed(samples.inputs(slice(index, index + 1)), folder / f"{index:03}.npz")
    finally:
        model.close()


def _made(tool: Tool, float_file: Path, feeds: Sequence[Path], folder: Path, seconds: float) -> Rival:
    path = folder / f"{tool.name}{tool.ending}"
    with (
        tempfile.TemporaryDirectory(prefix=".bitsect-", dir=folder) as name,
        tempfile.TemporaryFile() as said,
    ):
        request = {
            "tool": tool.name,
            "float": str(float_file.resolve()),
            "feeds": [str(each) for each in feeds],
            "out": str(Path(name).resolve() / path.name),
        }
        # What a tool leaves behind goes with the folder.
        env = {**os.environ, "TMPDIR": str(Path(name).resolve())}
        try:
            done = subprocess.run(
                python_command(PROGRAM),
                input=json.dumps(request).encode(),
                stdout=said,
                stderr=said,
                env=env,
                timeout=seconds,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return Rival(tool.name, tool.words, None, f"it took more than {seconds:g} s")
        made = sorted(each for each in Path(name).iterdir() if each.stem == path.stem and each.is_file())
        if done.returncode or not made:
            said.seek(0)
            lines = said.read()[-4_000:].decode(errors="replace").strip().splitlines()
            why = first_line(BitsectError(lines[-1])) if lines else f"it ended with code {done.returncode}"
            return Rival(tool.name, tool.words, None, why)
        for each in made:
            each.replace(folder / each.name)
    return Rival(tool.name, tool.words, path)


# ---- in the process of a tool --------------------------------------------------------------------


def _dynamic(float_file: Path, feeds: Sequence[Path], out: Path) -> None:
    from onnxruntime.quantization import quantize_dynamic

    quantize_dynamic(str(_ready(float_file, out)), str(out), per_channel=True)


def _static(method: str) -> Callable[[Path, Sequence[Path], Path], None]:
    def make(float_file: Path, feeds: Sequence[Path], out: Path) -> None:
        from onnxruntime.quantization import CalibrationMethod, QuantFormat, QuantType, quantize_static

        quantize_static(
            str(_ready(float_file, out)),
            str(out),
            _FeedReader(feeds),
            QuantFormat.QDQ,
            per_channel=True,
            activation_type=QuantType.QUInt8,  # for which rectifiers become part of integer kernels
            weight_type=QuantType.QInt8,
            calibrate_method=CalibrationMethod[method],
        )

    return make


def _nncf(float_file: Path, feeds: Sequence[Path], out: Path) -> None:
    # It would send word of its use over the network.
    sys.modules["openvino_telemetry"] = None  # type: ignore[assignment]
    import nncf
    import openvino

    model = openvino.Core().read_model(_bare(float_file, out))
    kinds = {node.get_type_name() for node in model.get_ordered_ops()}
    transformer = nncf.ModelType.TRANSFORMER if kinds & {"Softmax", "MVN"} else None
    data = nncf.Dataset([_arrays(each) for each in feeds])
    made = nncf.quantize(model, data, model_type=transformer, subset_size=max(len(feeds), 1))
    openvino.save_model(made, out, compress_to_fp16=False)


class _FeedReader:
    """The samples as ONNX Runtime's calibration asks for them."""

    def __init__(self, feeds: Sequence[Path]) -> None:
        self.feeds, self.left = feeds, iter(feeds)

    def get_next(self) -> Any:
        path = next(self.left, None)
        return None if path is None else _arrays(path)

    def rewind(self) -> None:
        self.left = iter(self.feeds)

    def __len__(self) -> int:
        return len(self.feeds)

    def set_range(self, start_index: int, end_index: int) -> None:
        self.left = iter(self.feeds[start_index:end_index])


def _arrays(path: Path) -> dict[str, Any]:
    with np.load(path, allow_pickle=False) as file:
        return {name: file[name] for name in file.files}


def _bare(float_file: Path, out: Path) -> Path:
    """The file without what it says of values inside, which the tools check against shapes of their own."""
    import onnx

    model = onnx.load(float_file)
    del model.graph.value_info[:]
    kept = [each for each in model.metadata_props if each.key not in ABOUT_PLAN]
    del model.metadata_props[:]
    model.metadata_props.extend(kept)
    bare = out.with_name("bare.onnx")
    onnx.save(model, bare)
    return bare


def _ready(float_file: Path, out: Path) -> Path:
    """The file as ONNX Runtime's own preparation leaves it; where that fails, without."""
    from onnxruntime.quantization.shape_inference import quant_pre_process

    bare, ready = _bare(float_file, out), out.with_name("ready.onnx")
    try:
        quant_pre_process(str(bare), str(ready), skip_symbolic_shape=True)
    except Exception as error:  # of shape inference or of the optimiser, which a graph may not suit
        print(f"prepared without quant_pre_process: {error}")
        return bare
    return ready


_STATIC = "ONNX Runtime quantize_static, per channel, {}"
ONNX_TOOLS = [
    Tool("quantize_dynamic", "ONNX Runtime quantize_dynamic, per channel", "onnxruntime", ".onnx", _dynamic),
    Tool("quantize_static", _STATIC.format("MinMax"), "onnxruntime", ".onnx", _static("MinMax")),
]
NNCF = Tool("nncf", "NNCF quantize", "nncf", ".xml", _nncf)
TOOLS = {"onnxruntime": ONNX_TOOLS, "openvino": [NNCF]}
# What takes longer or more memory, and is better now and then.
OTHERS = [
    Tool("quantize_static_entropy", _STATIC.format("Entropy"), "onnxruntime", ".onnx", _static("Entropy")),
    Tool(
        "quantize_static_percentile",
        _STATIC.format("Percentile"),
        "onnxruntime",
        ".onnx",
        _static("Percentile"),
    ),
]


def main() -> None:
    request = json.load(sys.stdin)
    every = {tool.name: tool for tools in (*TOOLS.values(), OTHERS) for tool in tools}
    every[request["tool"]].run(
        Path(request["float"]), [Path(each) for each in request["feeds"]], Path(request["out"])
    )
