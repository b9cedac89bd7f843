"""Where it will run: kernels timed twice, plans predicted and measured, files against float and all int8.

    python benchmarks/destinations.py kernels MODEL… [--for onnxruntime]
    python benchmarks/destinations.py predict MODEL… [--for openvino] [--plans 6]
    python benchmarks/destinations.py files MODEL --data CALIBRATION [--test-data TEST] [--draw N] [--mean …]

MODEL is what `bitsect` takes; `shape:resnet50`, `shape:mobilenetv2` and `shape:bert4` are architectures with
random weights; `hf:FOLDER` is a Hugging Face sequence classifier, whose data are TSV files with the columns
sentence and label. `--data random:N` takes N random samples without labels. `kernels` makes the table by
kind of layer twice, from nothing, and says how many of the rows agree within the spread that both state.
`predict` draws plans of float and int8 that the table has not seen, writes them and times them in turns.
`files` quantises for the destination at 99 % and times the file of the plan beside float, all int8 and what
ONNX Runtime's own static quantisation makes of the float file.
`--json` prints one JSON object. Files and tables are kept nowhere unless XDG_CACHE_HOME names a folder.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import io
import json
import logging
import os
import pickle
import random
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

import bitsect
from bitsect.exporters.onnx.pieces import empty_model
from bitsect.exporters.onnx.write import write_onnx
from bitsect.exporters.runtimes.apart import Apart, Fault, Model
from bitsect.exporters.runtimes.onnxruntime import feed_of
from bitsect.exporters.subject import Subject
from bitsect.latency.clock import Clock, time_wholes
from bitsect.latency.fit import kind_of
from bitsect.latency.machine import Machine, processor
from bitsect.latency.timed import EMPTY, Timer, timed_table
from bitsect.latency.timings import Timings
from bitsect.latency.written import TimingModel
from bitsect.network.capture import capture
from bitsect.network.program import Program
from bitsect.pipeline.latency import _first, _with_random_weights
from bitsect.rounding.boundaries import boundaries
from bitsect.runs.progress import Progress
from bitsect.solve.costs import latency_ms
from bitsect.sources.models import load_model
from bitsect.values import FLOAT, INT8, Format, LatencyTable, Plan
from bitsect.values.destination import CPU_FORMATS, DESTINATIONS

TOKENS = 64


class Said(Progress):
    def say(self, what: str) -> None:
        print(what, file=sys.stderr)


def text_samples(folder: str, path: str) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """Sentences as tokens, all of one length."""
    import transformers

    with Path(path).open(newline="") as file:
        rows = list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    made = tokenizer(
        [row["sentence"] for row in rows],
        padding="max_length",
        truncation=True,
        max_length=TOKENS,
        return_tensors="pt",
    )
    inputs = {name: made[name] for name in ("input_ids", "attention_mask", "token_type_ids")}
    return inputs, torch.tensor([int(row["label"]) for row in rows])


def network(spec: str) -> tuple[nn.Module | Any, Any]:
    """A network and an example."""
    import transformers

    kind, _, name = spec.partition(":")
    tokens = {
        "input_ids": torch.randint(5, 900, (2, TOKENS), generator=torch.Generator().manual_seed(0)),
        "attention_mask": torch.ones(2, TOKENS, dtype=torch.long),
        "token_type_ids": torch.zeros(2, TOKENS, dtype=torch.long),
    }
    if kind == "hf":
        load = transformers.AutoModelForSequenceClassification.from_pretrained
        return load(name, dtype=torch.float32, attn_implementation="eager").eval(), tokens
    if spec == "shape:bert4":
        torch.manual_seed(0)
        config = transformers.BertConfig(num_hidden_layers=4, attn_implementation="eager")
        return transformers.BertForSequenceClassification(config).eval(), tokens
    found = load_model(spec)
    return found.model, found.example


def program_of(spec: str) -> Program:
    if spec in ("shape:resnet50", "shape:mobilenetv2"):
        return _with_random_weights(spec.partition(":")[2])
    return capture(*network(spec))


def random_data(spec: str, count: int) -> tuple[Any, Any]:
    """A network with random weights and as many random samples, without labels: agreement is judged."""
    generator = torch.Generator().manual_seed(1)

    def like(value: torch.Tensor) -> torch.Tensor:
        shape = (count, *value.shape[1:])
        if value.is_floating_point():
            return torch.randn(shape, generator=generator)
        if value.unique().numel() > 2:
            return torch.randint(5, 900, shape, generator=generator)
        return value[:1].expand(shape).clone()

    program = program_of(spec)
    example = program.example
    if isinstance(example, dict):
        return program.exported, {name: like(value) for name, value in example.items()}
    return program.exported, like(example[0] if isinstance(example, tuple) else example)


def table_of(given: argparse.Namespace, program: Program, formats: tuple[Format, ...]) -> LatencyTable:
    table, notes = timed_table(
        given.destination,
        program,
        _first(program.example),
        formats,
        threads=given.runtime_threads,
        progress=Said(),
    )
    for note in notes:
        print(note, file=sys.stderr)
    return table


# Kernels, timed twice


def kernels(given: argparse.Namespace, spec: str) -> dict[str, Any]:
    """Write the pieces, which takes long; or time them where they are written, on a quiet machine."""
    folder, twice = Path(given.pieces) / spec.replace(":", "-").replace("/", "-"), []
    if not (folder / "layers.pickle").exists():
        return {"pieces": write_pieces(given, spec, folder)}
    layers, groups = pickle.loads((folder / "layers.pickle").read_bytes())  # our own, written before
    for _ in range(2):
        with tempfile.TemporaryDirectory() as name, Apart(given.destination) as apart:
            timings = Timings(Machine(given.destination, apart.version, processor(), given.runtime_threads))
            timer = Timer(apart, timings, None, (), CPU_FORMATS, Said())  # type: ignore[arg-type]
            clock = Clock.made(apart, given.runtime_threads, Path(name))
            timer._time(groups, clock, lambda count: None)
            twice.append(timings)
    for timings in twice:  # as two that are kept in one file
        timings.at_best(min(each.reference_ms for each in twice))
    twice = [each.rows for each in twice]
    agree, count, worst = 0, 0, 0.0
    for key, row in twice[0].items():
        for format, first in row.items():
            second = twice[1][key][format]
            if first.ms is None or second.ms is None:
                continue
            count += 1
            agree += abs(first.ms - second.ms) <= first.spread_ms + second.spread_ms
            worst = max(worst, abs(first.ms - second.ms) / (first.spread_ms + second.spread_ms))
    load = os.getloadavg()[0]
    return {"rows": count, "agree": agree, "worst": worst, "load": load, "kinds": by_kind(layers, twice[0])}


def write_pieces(given: argparse.Namespace, spec: str, folder: Path) -> int:
    """Cut every kernel of a network out of written models, once for each format."""
    folder.mkdir(parents=True, exist_ok=True)
    program = program_of(spec)
    written = TimingModel.of(program, _first(program.example))
    timings = Timings(Machine(given.destination, "", processor(), given.runtime_threads))
    timer = Timer(Apart(given.destination), timings, program, boundaries(program), CPU_FORMATS, Said())
    feed = feed_of(written.write(timer.uniform(FLOAT), folder / "whole.onnx"), written.inputs)
    groups = timer._kernel_groups(written, feed, folder)
    np.savez(folder / "empty.npz", **empty_model(folder / "empty.onnx"))  # type: ignore[arg-type]
    groups = [[Model(EMPTY, folder / "empty.onnx", folder / "empty.npz")], *groups]
    (folder / "layers.pickle").write_bytes(pickle.dumps((program.layers, groups)))
    return len(groups) - 1


def by_kind(layers: Any, rows: Any) -> dict[str, Any]:
    """Milliseconds of all layers of a kind alone, by format, and how many times faster than float."""
    from bitsect.values.latency_table import gemm_shape, place_key

    found: dict[str, dict[str, float]] = {}
    for layer in layers:
        kind, (place, *_) = kind_of(layer), layer.places
        if kind == "convolution":
            kind = f"convolution {'×'.join(map(str, place.signature.operand[2:]))}"
        elif kind == "product":
            m, *_ = gemm_shape(place)
            kind = f"{layer.kind}, {'one row' if m == 1 else 'many rows'}"
        row = rows[place_key(place)]
        ms = found.setdefault(kind, {"layers": 0.0})
        ms["layers"] += 1
        for format, time in row.items():
            if time.ms is not None:
                ms[format.name] = ms.get(format.name, 0.0) + time.ms
    return found


# Plans, predicted and measured


def predict(given: argparse.Namespace, spec: str) -> dict[str, Any]:
    program = program_of(spec)
    table = table_of(given, program, (INT8,))
    names, draw = [layer.name for layer in program.layers], random.Random(given.seed)
    base = Plan.uniform(program.layers, INT8)
    best = {
        layer.name: min((INT8, FLOAT), key=lambda f, layer=layer: table.ms(layer, f))  # type: ignore[misc]
        for layer in program.layers
    }
    plans = {"float": Plan.uniform(program.layers), "all int8": base}
    plans["first and last in float"] = base.replace([names[0], names[-1]], FLOAT)
    plans["each layer's faster format"] = Plan(best)
    for number in range(given.plans):
        share = (0.05, 0.1, 0.15, 0.3, 0.5, 0.7)[number % 6]
        chosen = [name for name in names if draw.random() < share]
        plans[f"{share:.0%} in float"] = base.replace(chosen, FLOAT)
    measured = timed(given, program, plans)
    predicted = {name: latency_ms(plan, program.layers, table) for name, plan in plans.items()}
    rows = {}
    for name in plans:
        p, m = predicted[name] / predicted["float"], measured[name] / measured["float"]
        rows[name] = {"ms": measured[name], "predicted": p, "measured": m, "off": p / m - 1}
    return {"plans": rows, "worst": max(abs(row["off"]) for row in rows.values())}


def timed(given: argparse.Namespace, program: Program, plans: dict[str, Plan]) -> dict[str, float]:
    written = TimingModel.of(program, _first(program.example))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        paths = {n: written.write(plan, folder / f"{i}.onnx") for i, (n, plan) in enumerate(plans.items())}
        return times_of(given, paths, written.inputs, folder)


def times_of(
    given: argparse.Namespace, paths: dict[str, Path], inputs: Any, folder: Path
) -> dict[str, float]:
    feed = folder / "feed.npz"
    np.savez(feed, **feed_of(next(iter(paths.values())), inputs))  # type: ignore[arg-type]
    with Apart(given.destination) as apart:
        clock = Clock.made(apart, given.runtime_threads, folder)
        found = time_wholes(clock, [Model(n, path, feed) for n, path in paths.items()])
        for n, times in found.items():
            if isinstance(times, Fault):
                print(f"{n}: {times.why}", file=sys.stderr)
        return {n: clock.ms([times]) for n, times in found.items() if not isinstance(times, Fault)}


# Files


def files(given: argparse.Namespace, spec: str) -> dict[str, Any]:
    from onnxruntime.quantization import QuantFormat, QuantType, quantize_static
    from onnxruntime.quantization.shape_inference import quant_pre_process

    from export import Feed  # beside this file

    options: dict[str, Any] = {"target": given.target, "destination": given.destination}
    model: Any = spec
    data, test = given.data, given.test_data
    if spec.startswith("hf:"):
        model, _ = network(spec)
        data, test = (text_samples(spec[3:], path) for path in (data, test))
    elif str(data).startswith("random:"):
        model, data = random_data(spec, int(data.partition(":")[2]))
        test = None
    pixels = {n: v for n in ("mean", "std", "scale") if (v := getattr(given, n)) is not None}
    if given.draw is not None:
        options["draw"] = given.draw
    if given.batch_size is not None:
        options["batch_size"] = given.batch_size
    progress = Said()
    result = bitsect.quantize(
        model,
        data,
        test_data=test,
        progress=progress,
        runtime_threads=given.runtime_threads,
        **pixels,
        **options,
    )
    run = result.run
    with tempfile.TemporaryDirectory() as name, run.reopened() as opened:
        folder = Path(name)
        plans = {"float": Plan.uniform(opened.layers), "all int8": Plan.uniform(opened.layers, INT8)}
        plans["plan"] = result.plan
        paths = {}
        for label, plan in plans.items():
            rounder = opened.calibrate(set(plan.values()))
            subject = Subject(opened.program, rounder, plan, opened.task)
            paths[label] = write_onnx(subject, folder / f"{label}.onnx", given.destination).path
        prepared, own = folder / "prepared.onnx", folder / "own.onnx"
        logging.disable(logging.WARNING)
        with contextlib.redirect_stdout(io.StringIO()):
            quant_pre_process(str(paths["float"]), str(prepared), skip_symbolic_shape=True)
            quantize_static(
                str(prepared),
                str(own),
                Feed(list(feed_of(paths["float"], opened.samples.inputs(slice(0, 1)))), opened.samples),
                quant_format=QuantFormat.QDQ,
                per_channel=True,
                activation_type=QuantType.QUInt8,
                weight_type=QuantType.QInt8,
            )
        paths["onnxruntime static"] = own
        measured = times_of(given, paths, opened.samples.inputs(slice(0, 1)), folder)
    predicted = None if result.timing is None else result.timing.ratios(result.plan)[0]
    better = min(measured["float"], measured["all int8"])
    return {
        "formats": result.plan.counts,
        "ms": measured,
        "predicted": predicted,
        "measured": measured["plan"] / measured["float"],
        "against_better": measured["plan"] / better,
        "verdict": result.verdict,
        "kept_on_test": None
        if result.test is None
        else result.test.plan.accuracy / result.test.float.accuracy,
        "reason": result.reason,
        "seconds": dict(result.seconds),
    }


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("kernels", "predict", "files"))
    parser.add_argument("models", nargs="+", metavar="MODEL")
    parser.add_argument(
        "--for", dest="destination", default="onnxruntime", choices=("onnxruntime", "openvino")
    )
    parser.add_argument("--runtime-threads", type=int, default=1)
    parser.add_argument("--pieces", default="pieces", help="folder of the pieces that kernels are timed in")
    parser.add_argument("--plans", type=int, default=6, help="to draw at random")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--data")
    parser.add_argument("--test-data")
    parser.add_argument("--draw", type=int)
    parser.add_argument("--batch-size", type=int)
    parser.add_argument("--target", default="99%")
    parser.add_argument("--mean", type=float)
    parser.add_argument("--std", type=float)
    parser.add_argument("--scale", type=float)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    given = parser.parse_args()
    assert given.destination in DESTINATIONS
    return given


def main() -> None:
    given = parsed()
    torch.set_flush_denormal(True)
    found = {
        spec: {"kernels": kernels, "predict": predict, "files": files}[given.what](given, spec)
        for spec in given.models
    }
    if given.json:
        print(json.dumps({"for": given.destination, given.what: found}))
        return
    for spec, result in found.items():
        print(f"{spec} for {given.destination}")
        if "pieces" in result:
            print(f"  {result['pieces']} kernels are written: the same command times them")
        elif given.what == "kernels":
            share = f"{result['agree']} of {result['rows']}"
            print(f"  {share} rows agree within the spread of both (worst {result['worst']:.2f} of it)")
            for kind, row in result["kinds"].items():
                times = ", ".join(f"{name} {ms:.3f} ms" for name, ms in row.items() if name != "layers")
                print(f"  {kind:28} {row['layers']:3.0f} layers: {times}")
        elif given.what == "predict":
            for name, row in result["plans"].items():
                print(
                    f"  {name:28} {row['ms']:8.3f} ms, predicted {row['predicted']:.3f}, "
                    f"measured {row['measured']:.3f}, off {row['off']:+.1%}"
                )
            offs = [abs(row["off"]) for row in result["plans"].values()]
            print(f"  off by {result['worst']:.1%} at most, {statistics.median(offs):.1%} in the middle")
        else:
            for name, ms in result.pop("ms").items():
                print(f"  {name:28} {ms:8.3f} ms")
            for name, value in result.items():
                print(f"  {name}: {value}")


if __name__ == "__main__":
    main()
