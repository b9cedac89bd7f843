"""Every way out of a network: proven, as large as it is on disk, and as fast in OpenVINO as NNCF's own int8.

    python benchmarks/ways_out.py MODEL --data CALIBRATION --test-data TEST [--draw N] [--mean …] [--json]

A short search (formats int8 and int4, 99 %) makes a run. Its plan is written as `.safetensors` and `.pt2`,
all int4 as `.safetensors` once more, and all int8 as `.onnx` for OpenVINO; each file is proven on `--prove`
test samples, whether it keeps the target or not. Then the OpenVINO files of float, of all int8 and of what
NNCF's post-training quantisation makes of the float file (at most 300 samples, its defaults) are timed in
turns, one sample in one thread.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

import bitsect
from bitsect.exporters.onnx.write import write_onnx
from bitsect.exporters.runtimes.apart import Apart, Fault, Model
from bitsect.exporters.runtimes.onnxruntime import feed_of
from bitsect.exporters.subject import Subject
from bitsect.latency.clock import Clock, time_wholes
from bitsect.runs.opening import open_run
from bitsect.values import INT8, Plan

NNCF_SAMPLES = 300


def exported(run: Path, folder: Path, given: argparse.Namespace) -> dict[str, Any]:
    """What came of each way out."""
    rows = {}
    for name, file, options in [
        ("plan, packed", "plan.safetensors", {}),
        ("plan, .pt2", "plan.pt2", {}),
        ("all int4, packed", "int4.safetensors", {"format": "int4"}),
        ("all int8, packed", "int8.safetensors", {"format": "int8"}),
        ("all int8, OpenVINO", "int8.onnx", {"format": "int8", "destination": "openvino"}),
    ]:
        print(name, file=sys.stderr)
        delivery = bitsect.export(
            run, folder / file, draw=given.prove, data=given.test_data, force=True, **options
        )
        proof = delivery.proof
        rows[name] = {
            "proven": proof.holds,
            "samples": proof.samples,
            "identical": proof.identical,
            "differing": len(proof.differing),
            "accuracy": proof.runtime_accuracy,
            "judged": proof.judged_accuracy,
            "size_bytes": proof.size_bytes,
            "float_size_bytes": proof.float_size_bytes,
            "failures": list(proof.failures),
        }
    return rows


def in_openvino(run: Path, folder: Path) -> dict[str, float]:
    """Milliseconds of float, of all int8, and of NNCF's int8, in turns."""
    import nncf
    import openvino

    logging.disable(logging.WARNING)
    with open_run(run) as opened, opened.under("onnxruntime") as there:
        paths = {}
        for name, plan in (
            ("float", Plan.uniform(opened.layers)),
            ("int8", Plan.uniform(opened.layers, INT8)),
        ):
            subject = Subject(opened.program, there.calibrate(set(plan.values())), plan, opened.task)
            paths[name] = write_onnx(subject, folder / f"{name}-timed.onnx", "openvino").path
        sample = opened.samples.typical()
        feeds = []
        for batch in opened.samples.batches(1):
            feeds.append(feed_of(paths["float"], batch.inputs))
            if len(feeds) >= NNCF_SAMPLES:
                break
        kind = nncf.ModelType.TRANSFORMER if opened.program.any_length else None
        model = openvino.Core().read_model(paths["float"])
        quantised = nncf.quantize(
            model,
            nncf.Dataset(feeds),
            subset_size=len(feeds),
            model_type=kind,
            target_device=nncf.TargetDevice.CPU,
        )
        openvino.save_model(quantised, folder / "nncf.xml", compress_to_fp16=False)
        paths["nncf"] = folder / "nncf.xml"
        np.savez(folder / "feed.npz", **feed_of(paths["float"], sample))  # type: ignore[arg-type]
    with Apart("openvino") as apart:
        clock = Clock.made(apart, 1, folder)
        found = time_wholes(
            clock, [Model(name, path.resolve(), folder / "feed.npz") for name, path in paths.items()]
        )
    return {name: clock.ms([times]) for name, times in found.items() if not isinstance(times, Fault)}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", metavar="MODEL")
    parser.add_argument("--data")
    parser.add_argument("--test-data")
    parser.add_argument("--draw", type=int, default=128)
    parser.add_argument("--prove", type=int, default=128)
    parser.add_argument("--batch-size", type=int)
    for name in ("mean", "std", "scale"):
        parser.add_argument(f"--{name}", type=float)
    parser.add_argument("--run", help="the folder of the run; else nothing is kept")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    given = parser.parse_args()
    options = {n: v for n in ("mean", "std", "scale", "batch_size") if (v := getattr(given, n)) is not None}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        run = Path(given.run) if given.run else folder / "run"
        result = bitsect.quantize(
            given.model,
            given.data,
            draw=given.draw,
            target="99%",
            formats="int8,int4",
            metric="sqnr",
            confidence=None,
            threads=1,
            out=run,
            **options,
        )
        rows = exported(run, folder, given)
        ms = in_openvino(run, folder)
    found = {
        "model": Path(given.model).name,
        "plan": result.plan.counts,
        "files": rows,
        "openvino_ms": ms,
        "load": os.getloadavg()[0],
    }
    if given.json:
        print(json.dumps(found))
        return
    print(f"{given.model}: plan of {result.plan.counts}, load average {found['load']:.1f}")
    for label, row in rows.items():
        share = row["size_bytes"] / row["float_size_bytes"]
        print(
            f"  {label:20} {'proven' if row['proven'] else 'NOT PROVEN'}, {row['identical']} of "
            f"{row['samples']} bit-identical, {row['size_bytes']:,} bytes ({share:.2f} of float)"
        )
    print("  OpenVINO: " + ", ".join(f"{label} {value:.3f} ms" for label, value in ms.items()))


if __name__ == "__main__":
    main()
