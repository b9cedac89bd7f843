"""Is the file that bitsect ends with better than what two lines of a runtime's own tool give?

    python benchmarks/files.py FOLDER NETWORK… [--for onnxruntime|openvino] [--target 99%] [--out files.csv]

FOLDER holds `models/` and `data/`; NETWORK is a name of NETWORKS below, or `all`. A float file is written
plainly; every tool makes its file in a process of its own, whose CPU seconds and peak memory are counted
(ours counts everything from the start of the command: capture, search, proof, timing); `bitsect.judge` then
runs all files on the same test samples and times them in turns, in one thread. Times and sizes are over those
of the float file.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import resource
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import bitsect
from bitsect.exporters.onnx.write import write_onnx
from bitsect.exporters.rivals import candidates
from bitsect.exporters.subject import Subject
from bitsect.latency.machine import processor
from bitsect.rounding.rounder import Rounder
from bitsect.runs.opening import open_run
from bitsect.values import PAPER, Plan, Resources, Settings


@dataclass(frozen=True)
class Network:
    """What a network and its samples are called on the command line."""

    model: str
    data: str
    test: str
    options: dict[str, Any] = field(default_factory=dict)  # The command and Settings name them alike.


LITE = {"mean": [127.0], "std": [128.0], "scale": 1.0}
IMAGENET = ("{data}/imagenet-val-a", "{data}/imagenet-val-b")
ZOO = ("zoo:fashion-calibration", "zoo:fashion-test")
NETWORKS = {
    "minilm-sst2": Network(
        "hf:{models}/minilm-sst2", "{data}/sst2-calibration.tsv", "{data}/sst2-test.tsv", {"draw": 2048}
    ),
    "minilm-squad": Network(
        "hf:{models}/minilm-squad", "{data}/xquad-en.json", "{data}/xquad-en.json", {"draw": 800}
    ),
    "resnet20": Network(
        "{models}/resnet20-cifar10.pt2", "{data}/cifar10-calibration.npz", "{data}/cifar10-test.npz"
    ),
    "mobilenetv2": Network("hf:{models}/mobilenetv2-imagenet", *IMAGENET),
    "resnet50": Network("hf:{models}/resnet50", *IMAGENET),
    "efficientnet-lite0": Network("{models}/efficientnet-lite0-imagenet.pt2", *IMAGENET, LITE),
    "zoo-resnet": Network("zoo:fashion-resnet", *ZOO),
    "zoo-mobilenet": Network("zoo:fashion-mobilenet", *ZOO),
    "zoo-transformer": Network("zoo:fashion-transformer", *ZOO),
    "stories15m": Network(
        "hf:{models}/stories15m",
        "{data}/tinystories-calibration.txt",
        "{data}/tinystories-test.txt",
        {"draw": 400, "max_length": 128},
    ),
}
DYNAMIC, STATIC = "quantize_dynamic", "quantize_static"
TOOLS = {
    "onnxruntime": [DYNAMIC, STATIC, f"{STATIC}_entropy", f"{STATIC}_percentile"],
    "openvino": ["nncf"],
}
CALIBRATION = 300  # samples for the tools of the runtimes
ENDINGS = (".onnx", ".xml")


@dataclass(frozen=True)
class Made:
    """A file, and what it took to make it."""

    name: str
    path: Path | None
    note: str
    cpu_s: float
    peak_mb: float


def float_file(network: Network, path: Path) -> Path:
    """The network in float, without any operator that only one runtime has."""
    settings = Settings(**{**network.options, "draw": 8})
    with open_run(network.model, network.data, settings, Resources()) as run:
        rounder = Rounder(run.program, None, PAPER, "nearest")
        plan = Plan.uniform(run.layers)
        return write_onnx(Subject(run.program, rounder, plan, run.task), path, "portable").path


def tools_file(network: Network, float_path: Path, runtime: str, tool: str) -> None:
    """Print what `tool` makes of the float file, as JSON; called in a process of its own."""
    settings = Settings(**{**network.options, "draw": CALIBRATION})
    with open_run(network.model, network.data, settings, Resources()) as run:
        made = candidates(float_path, run.samples, runtime, float_path.parent, names=[tool])
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    path = made[0].path if made else None
    print(
        json.dumps(
            {
                "path": None if path is None else str(path),
                "note": made[0].why if made else "it is not installed",
                "cpu_s": used.ru_utime + used.ru_stime,
                "peak_mb": used.ru_maxrss / 1024,
            }
        )
    )


def by_tool(arguments: argparse.Namespace, name: str, float_path: Path, tool: str) -> Made:
    call = [sys.executable, __file__, arguments.folder, name, "--for", arguments.runtime]
    done = subprocess.run(
        [*call, "--tool", tool, "--float", str(float_path)], stdout=subprocess.PIPE, text=True, check=True
    )
    found = json.loads(done.stdout.splitlines()[-1])
    path = None if found["path"] is None else Path(found["path"])
    return Made(tool, path, found["note"], found["cpu_s"], found["peak_mb"])


def by_bitsect(arguments: argparse.Namespace, network: Network, folder: Path) -> Made:
    """The file that the command ends with."""
    call = [sys.executable, "-m", "bitsect", "quantize", network.model, "--data", network.data]
    call += ["--target", arguments.target, "--for", arguments.runtime, "--out", str(folder / "run")]
    for option, value in network.options.items():
        for each in value if isinstance(value, list) else [value]:
            call += [f"--{option.replace('_', '-')}", str(each)]
    process = subprocess.Popen(call, stdout=sys.stderr)
    _, status, used = os.wait4(process.pid, 0)
    path, code = folder / "run" / "model.onnx", os.waitstatus_to_exitcode(status)
    cpu = used.ru_utime + used.ru_stime
    return Made("bitsect", path if path.exists() else None, f"exit code {code}", cpu, used.ru_maxrss / 1024)


def rows(arguments: argparse.Namespace, name: str) -> list[dict[str, Any]]:
    network, folder = found(arguments.folder, name), Path(tempfile.mkdtemp(prefix=f"bitsect-{name}-"))
    reference = float_file(network, folder / "float.onnx")
    made = [by_tool(arguments, name, reference, tool) for tool in TOOLS[arguments.runtime]]
    made.append(by_bitsect(arguments, network, folder))
    files = [each for each in made if each.path is not None]
    options = {key: value for key, value in network.options.items() if key != "draw"}
    verdict = bitsect.judge(
        reference,
        [each.path for each in files],
        network.test,
        target=arguments.target,
        runtime=arguments.runtime,
        threads=1,
        processor=network.model if network.model.startswith("hf:") else None,
        **options,
    )
    float_ms = verdict.reference.ms.get(1)
    table: list[dict[str, Any]] = []
    judged = dict(zip([each.name for each in files], verdict.files, strict=True))
    for each in made:
        file = judged.get(each.name)
        row = {"network": name, "for": arguments.runtime, "target": arguments.target, "file": each.name}
        row |= {"cpu_s": round(each.cpu_s, 1), "peak_mb": round(each.peak_mb), "note": each.note}
        if file is not None:
            time = verdict.ratio(file, 1)
            row |= {"outcome": file.outcome, "kept": file.kept, "bound": file.bound, "changed": file.changed}
            row |= {"time": time, "size": file.size_bytes / verdict.reference.size_bytes}
            row |= {"float_ms": float_ms, "float_mb": verdict.reference.size_bytes / 1e6}
            if file.kernels is not None:
                row |= {"float_kernels": file.kernels.floats, "integer_kernels": file.kernels.integer}
        row |= {"samples": verdict.samples, "processor": processor()}
        table.append(row)
        print({key: value for key, value in row.items() if key != "processor"}, flush=True)
    return table


def found(folder: str, name: str) -> Network:
    places = {"models": f"{folder}/models", "data": f"{folder}/data"}
    known = NETWORKS[name]
    model, data, test = (each.format(**places) for each in (known.model, known.data, known.test))
    return Network(model, data, test, known.options)


FIELDS = [
    "network",
    "for",
    "target",
    "file",
    "outcome",
    "kept",
    "bound",
    "changed",
    "time",
    "size",
    "cpu_s",
    "peak_mb",
    "float_ms",
    "float_mb",
    "float_kernels",
    "integer_kernels",
    "samples",
    "note",
    "processor",
]


def append(path: Path, fields: list[str], rows: list[dict[str, Any]]) -> None:
    """Add rows to a file of comma-separated values, which begins with the names of its fields."""
    new = not path.exists()
    with path.open("a", newline="") as file:
        writer = csv.DictWriter(file, fields)
        if new:
            writer.writeheader()
        writer.writerows(rows)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder")
    parser.add_argument("networks", nargs="+", choices=[*NETWORKS, "all"])
    parser.add_argument("--for", dest="runtime", default="onnxruntime", choices=list(TOOLS))
    parser.add_argument("--target", default="99%")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--tool", help=argparse.SUPPRESS)
    parser.add_argument("--float", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.tool is not None:
        tools_file(
            found(arguments.folder, arguments.networks[0]), arguments.float, arguments.runtime, arguments.tool
        )
        return
    names = list(NETWORKS) if "all" in arguments.networks else arguments.networks
    for name in names:
        table = rows(arguments, name)
        if arguments.out is not None:
            append(arguments.out, FIELDS, table)


if __name__ == "__main__":
    main()
