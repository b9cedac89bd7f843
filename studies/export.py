"""What a written model is worth: float, ONNX Runtime's own static int8, and ours, all int8 and mixed.

    python studies/export.py MODEL --data TEST --calibration CALIBRATION [--plan plan.json] [--json]
    python studies/export.py paper:resnet50 --speed-only

All files come from one network and one set of calibration samples. ONNX Runtime's own tool gets the float
file that ours is compared with, and quantises it per channel with QuantizeLinear and DequantizeLinear nodes:
weights in int8, activations once unsigned and once signed, ranges from minimum and maximum. The files take
turns in one thread, one sample at a time; what counts is the least of many runs. Without a plan the mixed
one leaves the first and the last layer in float and has every fourth of the others in int4. With
`--speed-only` samples are random and nothing is judged; `paper:` networks get random weights.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import logging
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static
from onnxruntime.quantization.shape_inference import quant_pre_process
from torch import nn

from bitsect.exporters.onnx.write import write_onnx
from bitsect.exporters.proof import INTEGER_KERNELS
from bitsect.exporters.runtimes.onnxruntime import OnnxModel, kernels, latencies_ms
from bitsect.exporters.subject import Subject
from bitsect.network.capture import capture
from bitsect.network.program import Program
from bitsect.rounding.ranges import calibrate
from bitsect.rounding.rounder import Rounder
from bitsect.sources.data import Samples, load_samples
from bitsect.sources.models import load_model
from bitsect.sources.models.paper import paper_network
from bitsect.sources.tasks.task import task_named
from bitsect.values import FLOAT, INT4, INT8, ONNXRUNTIME, Plan, Settings

COUNTED = (*INTEGER_KERNELS, "QLinearAdd", "QLinearGlobalAveragePool", "QLinearAveragePool", "QLinearMul")
FLOAT_COUNTED = ("Conv", "FusedConv", "Gemm", "FusedGemm", "MatMul", "FusedMatMul", "Add")
CALIBRATION_BATCH = 16


class Feed(CalibrationDataReader):
    """Calibration samples as ONNX Runtime's own tool asks for them."""

    def __init__(self, names: list[str], samples: Samples) -> None:
        self.batches = self._batches(names, samples)

    def _batches(self, names: list[str], samples: Samples) -> Iterator[dict[str, Any]]:
        for batch in samples.batches(CALIBRATION_BATCH):
            given = batch.inputs if isinstance(batch.inputs, dict) else {names[0]: batch.inputs}
            yield {name: value.numpy() for name, value in given.items()}

    def get_next(self) -> dict[str, Any] | None:
        return next(self.batches, None)


def quantised_by_onnxruntime(source: Path, calibration: Samples, activations: QuantType, path: Path) -> Path:
    prepared = path.with_suffix(".prepared.onnx")
    logging.disable(logging.WARNING)
    with contextlib.redirect_stdout(io.StringIO()):
        quant_pre_process(str(source), str(prepared), skip_symbolic_shape=True)
        quantize_static(
            str(prepared),
            str(path),
            Feed(list(OnnxModel(source).inputs), calibration),
            quant_format=QuantFormat.QDQ,
            per_channel=True,
            activation_type=activations,
            weight_type=QuantType.QInt8,
        )
    prepared.unlink()
    return path


def mixed_plan(program: Program) -> Plan:
    names = [layer.name for layer in program.layers]
    ends = {names[0], names[-1]}
    return Plan(
        {
            name: FLOAT if name in ends else INT4 if number % 4 == 3 else INT8
            for number, name in enumerate(names)
        }
    )


def network_of(spec: str) -> Program:
    if not spec.startswith("paper:"):
        network = load_model(spec)
        return capture(network.model, network.example)
    torch.manual_seed(0)
    model, example = paper_network(spec.partition(":")[2], device="cpu")
    for module in model.modules():
        if isinstance(module, nn.Conv2d):  # so that values neither vanish nor overflow
            nn.init.kaiming_normal_(module.weight)
    return capture(model, example)


def random_samples(program: Program, count: int) -> Samples:
    """Normal values in the shape of the example's images."""
    example = program.example
    generator = torch.Generator().manual_seed(0)

    def drawn(value: torch.Tensor) -> torch.Tensor:
        return torch.randn(count, *value.shape[1:], generator=generator)

    if isinstance(example, dict):
        return load_samples({name: drawn(value) for name, value in example.items()})
    return load_samples(drawn(example[0] if isinstance(example, tuple) else example))


def accuracy(path: Path, samples: Samples, batch_size: int) -> float:
    model, task = OnnxModel(path), task_named("classification")
    scores = [
        task.score(model.run(batch.inputs), batch.labels)
        for batch in samples.batches(batch_size)
        if batch.labels is not None
    ]
    return task.score_all(torch.cat(scores))


def write_all(
    program: Program, calibration: Samples, plan: Plan | None, folder: Path, batch_size: int
) -> dict[str, Path]:
    settings = Settings(sign=ONNXRUNTIME.sign, batch_size=batch_size)
    rounder = Rounder(program, calibrate(program, calibration, settings), ONNXRUNTIME)
    task = task_named("classification")
    plans = {
        "float": Plan.uniform(program.layers),
        "bitsect int8": Plan.uniform(program.layers, INT8),
        "bitsect mixed": plan or mixed_plan(program),
    }
    paths = {}
    for name, each in plans.items():
        paths[name] = write_onnx(Subject(program, rounder, each, task), folder / f"{name}.onnx").path
    for name, kind in (("uint8", QuantType.QUInt8), ("int8", QuantType.QInt8)):
        own = folder / f"onnxruntime {name}.onnx"
        paths[f"onnxruntime, {name} activations"] = quantised_by_onnxruntime(
            paths["float"], calibration, kind, own
        )
    return paths


def counted(path: Path) -> dict[str, int]:
    found = Counter(operator for _, operator in kernels(path))
    return {name: found[name] for name in (*COUNTED, *FLOAT_COUNTED) if found[name]}


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", help="zoo:NAME, paper:NAME, FILE.pt2 or package.module:function")
    parser.add_argument("--data")
    parser.add_argument("--calibration")
    parser.add_argument("--plan", type=Path, help="the mixed plan")
    parser.add_argument("--samples", type=int, help="judge on so many; all if left out")
    parser.add_argument("--calibration-samples", type=int, default=256)
    parser.add_argument("--speed-only", action="store_true", help="random samples, no accuracy")
    parser.add_argument("--mean", type=float, nargs="+")
    parser.add_argument("--std", type=float, nargs="+")
    parser.add_argument("--scale", type=float)
    parser.add_argument("--batch-size", type=int, default=50)
    parser.add_argument("--seconds", type=float, default=10.0, help="of timing, for each file")
    parser.add_argument(
        "--threads", type=int, default=1, help="for everything but the timing, which takes one"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    given = parser.parse_args()
    if not given.speed_only and (given.data is None or given.calibration is None):
        parser.error("give --data and --calibration, or --speed-only")
    return given


def main() -> None:
    given = parsed()
    torch.set_num_threads(given.threads)
    torch.set_flush_denormal(True)
    program = network_of(given.model)
    pixels = {"mean": given.mean, "std": given.std, "scale": given.scale}
    if given.speed_only:
        calibration = test = random_samples(program, 8)
    else:
        calibration = load_samples(given.calibration, draw=given.calibration_samples, **pixels)
        test = load_samples(given.data, draw=given.samples, **pixels)
    plan = None if given.plan is None else Plan.read(given.plan, program.layers)
    with tempfile.TemporaryDirectory() as folder:
        paths = write_all(program, calibration, plan, Path(folder), given.batch_size)
        print("written; timing", file=sys.stderr)
        times = latencies_ms(list(paths.values()), test.inputs(slice(0, 1)), seconds=given.seconds)
        rows = {
            name: {
                "latency_ms": round(time, 3),
                "of_float": round(time / times[0], 3),
                "size_mb": round(path.stat().st_size / 1e6, 2),
                "kernels": counted(path),
            }
            for (name, path), time in zip(paths.items(), times, strict=True)
        }
        if not given.speed_only:
            for name, path in paths.items():
                rows[name]["accuracy"] = accuracy(path, test, given.batch_size)
    if given.json:
        about = {"model": Path(given.model).name, "samples": len(test), "calibration": len(calibration)}
        print(json.dumps({**about, "files": rows}))
        return
    print(f"{Path(given.model).name}, calibrated on {len(calibration)}, judged on {len(test)} samples")
    for name, row in rows.items():
        speed = f"{row['latency_ms']:8.2f} ms {row['of_float']:6.2f}"
        judged = f"{row['accuracy']:8.2%}" if "accuracy" in row else ""
        nodes = ", ".join(f"{count} {kernel}" for kernel, count in row["kernels"].items())
        print(f"{name:32} {speed} {judged} {row['size_mb']:8.2f} MB  {nodes}")


if __name__ == "__main__":
    main()
