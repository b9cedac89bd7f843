"""What does an answer cost, in passes of the samples through the float network?

    python benchmarks/passes.py FOLDER NETWORK… [--target 99%] [--for onnxruntime] [--out passes.csv]

FOLDER and NETWORK are those of `files.py`. A pass is what the float network takes for all samples that were
given, in CPU seconds of this machine; every stage of `quantize` is counted in such passes, processes that it
starts included, and so is the whole.
"""

from __future__ import annotations

import argparse
import resource
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import bitsect
from bitsect.latency.machine import processor
from bitsect.runs.opening import open_run
from bitsect.runs.progress import Advance, Progress
from bitsect.values import Resources, Settings
from files import NETWORKS, append, found

PASSED = 256  # samples that a pass is measured on
FIELDS = ["network", "for", "target", "outcome", "stage", "cpu_s", "passes", "samples", "processor"]


def cpu_seconds() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


class Counted(Progress):
    """CPU seconds of every stage; those of a process are known when it has ended."""

    def __init__(self) -> None:
        super().__init__()
        self.cpu: dict[str, float] = {}

    @contextmanager
    def shown(self, name: str, total: int | None) -> Iterator[Advance]:
        start = cpu_seconds()
        yield lambda count: None
        self.cpu[name] = self.cpu.get(name, 0.0) + cpu_seconds() - start


def pass_seconds(model: str, data: str, options: dict[str, object]) -> tuple[float, int]:
    """CPU seconds of the float network on all samples, and how many these are."""
    with open_run(model, data, Settings(**options), Resources()) as run:
        few = min(PASSED, len(run.samples))
        batches = list(run.samples.batches(run.batch_size))
        start, seen = 0.0, 0
        for number, batch in enumerate(batches):
            if number == 1 or len(batches) == 1:  # the first one warms up
                start, seen = cpu_seconds(), 0
            run.program.run(batch.inputs)
            seen += len(batch.indices)
            if number and seen >= few:
                break
        return (cpu_seconds() - start) / seen * len(run.samples), len(run.samples)


def rows(folder: str, name: str, target: str, runtime: str) -> list[dict[str, Any]]:
    network = found(folder, name)
    once, samples = pass_seconds(network.model, network.data, network.options)
    counted, start = Counted(), cpu_seconds()
    with tempfile.TemporaryDirectory() as out:
        result = bitsect.quantize(
            network.model,
            network.data,
            target=target,
            destination=runtime,
            out=Path(out) / "run",
            progress=counted,
            **network.options,
        )
        outcome = "the cheapest plan" if result.scores is None else "searched"
    cpu = counted.cpu | {"the whole": cpu_seconds() - start}
    same = {"network": name, "for": runtime, "target": target, "outcome": outcome, "samples": samples}
    return [
        same
        | {"stage": stage, "cpu_s": round(seconds, 2), "passes": round(seconds / once, 2)}
        | {"processor": processor()}
        for stage, seconds in cpu.items()
    ]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder")
    parser.add_argument("networks", nargs="+", choices=[*NETWORKS, "all"])
    parser.add_argument("--for", dest="runtime", default="onnxruntime")
    parser.add_argument("--target", default="99%")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    for name in NETWORKS if "all" in arguments.networks else arguments.networks:
        table = rows(arguments.folder, name, arguments.target, arguments.runtime)
        for row in table:
            print(f"{name:20} {row['stage']:18} {row['cpu_s']:>8} s {row['passes']:>8} passes", flush=True)
        if arguments.out is not None:
            append(arguments.out, FIELDS, table)


if __name__ == "__main__":
    main()
