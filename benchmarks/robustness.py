"""What damaged files do to the real commands: a clear error, the right answer, or something worse.

    python benchmarks/robustness.py [--cases 2000] [--seed 0] [--only WORD] [--json FILE]
    python benchmarks/robustness.py --seed S --case N    # one case again, with everything it said

Every case damages one file, of a run folder or one that a command is given, and runs one command in a forked
process. Counted are clear errors (exit code 1 or 2 and one line), right answers (the same figures as with the
whole file), other inputs (a file without a checksum that is still valid: it is an input, and so are other
figures), and what must never be: tracebacks, hangs, crashes, and figures that are silently wrong.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.numpy import save_file
from torch import nn

from damage import damage

SECONDS = 60  # that a case may take
VOLATILE = ("seconds", "evaluations", "latency_ms", "runtime", "effort")  # differ between equal runs
BAD = ("traceback", "hang", "crash", "wrong")
VERDICTS = ("clear error", "right", "other input", *BAD)

RUN_COMMANDS = (
    ("evaluate", "run", "--json"),
    ("search", "run", "--target", "60%", "--metric", "single", "--json"),
    ("sensitivity", "run", "--metric", "single", "--json"),
    ("layers", "run", "--json"),
)
JUDGE = ("evaluate", "net.pt2", "--threads", "1", "--json", "--data")


def never(path: Path) -> bool:
    return False


def always(path: Path) -> bool:
    return True


def is_image(path: Path) -> bool:
    """A folder without one image, or with another whole one, is another folder."""
    from PIL import Image

    if not path.exists():
        return True
    try:
        with Image.open(path) as image:
            image.verify()  # compares checksums
    except Exception:
        return False
    return True


def is_plan(path: Path) -> bool:
    """A plan is there to be edited: one that still is a plan asks for something else."""
    from bitsect.errors import BitsectError
    from bitsect.values import Layer, Plan

    try:
        Plan.read(path, [Layer(name, "linear", (1, 1), ()) for name in ("1", "3")])
    except BitsectError:
        return not path.exists()  # without one, every layer is judged in int8
    return True


@dataclass(frozen=True)
class Target:
    """A kind of file, the commands that read it, and when other figures are no fault."""

    name: str
    pattern: str  # of its files, in the folder of a case
    commands: tuple[tuple[str, ...], ...]
    excused: Callable[[Path], bool] = never


# What has no checksum, and is given by the user, is another input once it is changed. A run checks its own.
TARGETS = (
    *(
        Target(
            f"run: {pattern}", f"run/{pattern}", RUN_COMMANDS, is_plan if pattern == "plan.json" else never
        )
        for pattern in (
            *("run.json", "ranges.json", "plan.json", "result.json", "scores-*.json", "effort.json"),
            *("journals/*", "model.pt2", "samples.safetensors"),
        )
    ),
    Target("input: .pt2", "net.pt2", (("layers", "net.pt2", "--json"), (*JUDGE, "data.npz"))),
    Target("input: .npz", "data.npz", ((*JUDGE, "data.npz"),)),
    Target("input: .safetensors", "data.safetensors", ((*JUDGE, "data.safetensors"),), always),
    Target("input: images", "images/*/*.png", ((*JUDGE, "images"),), is_image),
    Target("input: plan", "plan.json", ((*JUDGE, "data.npz", "--plan", "plan.json"),), is_plan),
    Target(
        "input: latency table",
        "table.json",
        (("latency", "net.pt2", "--table", "table.json", "--json"),),
        always,
    ),
    Target(
        "input: CUTLASS csv",
        "*.gemm.csv",
        (("import-latency", "mine.gemm.csv", "--out", "made.json"),),
        always,
    ),
    Target(
        "input: ONNX",
        "net.onnx",
        (("evaluate", "net.onnx", "--data", "data.npz", "--runtime", "reference", "--json"),),
        always,
    ),
)


def prepare(folder: Path) -> None:
    """A run and one file of every kind that is read, all tiny and whole."""
    import bitsect
    from bitsect.pipeline.export import export

    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 3)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
    x = torch.rand(24, 1, 4, 4, generator=generator)
    y = model(x).argmax(1)
    y[::5] = (y[::5] + 1) % 3
    arrays = {"x": x.numpy(), "y": y.numpy()}
    np.savez(folder / "data.npz", **arrays)
    save_file(arrays, folder / "data.safetensors")
    _write_images(folder / "images", x, y)
    batch = torch.export.Dim("batch")
    torch.export.save(torch.export.export(model, (x[:2],), dynamic_shapes=({0: batch},)), folder / "net.pt2")
    run = folder / "run"
    options = {"metric": "single", "threads": 1, "batch_size": 8}
    found = bitsect.quantize(model, (x, y), target="60%", destination="bits", out=run, **options)
    shutil.copy(run / "plan.json", folder / "plan.json")
    _write_latencies(folder, [layer.places[0] for layer in found.run.program.layers])
    export(run, folder / "net.onnx")


def _write_images(folder: Path, x: torch.Tensor, y: torch.Tensor) -> None:
    from PIL import Image

    for number, (image, label) in enumerate(zip(x, y, strict=True)):
        path = folder / str(int(label)) / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray((image[0] * 255).byte().numpy()).save(path)


def _write_latencies(folder: Path, places: list[Any]) -> None:
    from bitsect.values.latency_table import gemm_shape, place_key

    rows = {place_key(place): {"float": 2.0, "int8": 1.0, "int4": 0.5} for place in places}
    table = {"bitsect": "latency-table", "version": 1, "device": "toy", "source": "made up", "batch": 1}
    content = {**table, "formats": ["float", "int8", "int4"], "rows": rows}
    (folder / "table.json").write_text(json.dumps(content, indent=1))
    lines = ["OperationKind,Disposition,Status,Runtime,m,n,k,A"]
    for place in places:
        m, n, k, _ = gemm_shape(place)
        lines += [
            f"gemm,passed,success,{ms},{m},{n},{k},{kind}:row" for kind, ms in (("f16", 2), ("s8", 1.5))
        ]
    (folder / "mine.gemm.csv").write_text("\n".join(lines) + "\n")


# Cases


@dataclass(frozen=True)
class Ran:
    """How a command ended."""

    code: int  # negative: the signal that ended it
    out: str
    err: str
    made: str | None  # the file that it wrote, where it writes one

    def figures(self) -> Any:
        """What it found out, without what differs between equal runs."""
        return _steady(json.loads(self.made if self.made is not None else self.out))


def _steady(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _steady(item) for key, item in value.items() if key not in VOLATILE}
    return [_steady(item) for item in value] if isinstance(value, list) else value


def execute(folder: Path, arguments: tuple[str, ...]) -> Ran:
    """`bitsect ARGUMENTS` in `folder`, in a process of its own that has everything imported already."""
    sys.stdout.flush()
    sys.stderr.flush()
    with tempfile.TemporaryDirectory() as kept:
        out, err = Path(kept) / "out", Path(kept) / "err"
        child = os.fork()
        if child == 0:
            _become(folder, arguments, out, err)
        _, status = os.waitpid(child, 0)
        made = folder / "made.json"
        return Ran(
            os.waitstatus_to_exitcode(status),
            out.read_text(errors="replace"),
            err.read_text(errors="replace"),
            made.read_text() if made.exists() else None,
        )


def _become(folder: Path, arguments: tuple[str, ...], out: Path, err: Path) -> None:
    """Never returns: this process is the command from now on."""
    code = 70
    try:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(SECONDS)
        os.chdir(folder)
        sys.stdout, sys.stderr = out.open("w"), err.open("w")
        os.dup2(sys.stderr.fileno(), 2)
        sys.argv = ["bitsect", *arguments]
        from bitsect.cli import main

        try:
            main()
            code = 0
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else int(end.code is not None)
        except BaseException:
            traceback.print_exc()
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(code)


@dataclass(frozen=True)
class Case:
    number: int
    target: str
    file: str
    kind: str
    command: str
    verdict: str
    said: str


class Bench:
    """Whole files, what each command says of them, and cases that damage a copy."""

    def __init__(self, folder: Path, seed: int, only: str = "") -> None:
        self.whole, self.work, self.seed = folder / "whole", folder / "work", seed
        self.targets = [target for target in TARGETS if only in target.name]
        self.whole.mkdir()
        prepare(self.whole)
        self.answers: dict[tuple[str, ...], Any] = {}

    def _copy(self) -> None:
        shutil.rmtree(self.work, ignore_errors=True)
        shutil.copytree(self.whole, self.work)

    def answer(self, command: tuple[str, ...]) -> Any:
        """The figures with whole files."""
        if command not in self.answers:
            self._copy()
            ran = execute(self.work, command)
            if ran.code != 0:
                raise RuntimeError(f"{' '.join(command)} fails with whole files: {ran.err}")
            self.answers[command] = ran.figures()
        return self.answers[command]

    def case(self, number: int) -> tuple[Case, Ran]:
        """The case of this number: the same damage for the same seed."""
        chance = random.Random(f"{self.seed}/{number}")
        target = self.targets[number % len(self.targets)]
        command = chance.choice(target.commands)
        answer = self.answer(command)
        self._copy()
        files = sorted(path for path in self.work.rglob("*") if path.is_file() and path.stat().st_size)
        path = chance.choice([path for path in files if path in set(self.work.glob(target.pattern))])
        kind = damage(path, [other for other in files if other != path], chance)
        # Looked at before a command writes it anew. A whole file in the place of another is another input.
        replaced = target.name.startswith("input: ") and kind == "swapped"
        excused = replaced or target.excused(path)
        ran = execute(self.work, command)
        name = path.relative_to(self.work).as_posix()
        verdict = self._verdict(ran, answer, excused)
        said = " ".join(ran.err.split())[-300:]
        return Case(number, target.name, name, kind, " ".join(command), verdict, said), ran

    def _verdict(self, ran: Ran, answer: Any, excused: bool) -> str:
        if ran.code == -signal.SIGALRM:
            return "hang"
        if ran.code < 0:
            return "crash"
        errors = [line for line in ran.err.splitlines() if line.startswith("error: ")]
        if ran.code in (1, 2) and "Traceback" not in ran.err and len(errors) == 1:
            return "clear error"
        if ran.code != 0:
            return "traceback"
        if ran.figures() == answer:
            return "right"
        return "other input" if excused else "wrong"


def tabulate(cases: list[Case]) -> dict[str, Counter[str]]:
    """Verdicts counted for each kind of file."""
    counts: dict[str, Counter[str]] = {}
    for case in cases:
        counts.setdefault(case.target, Counter())[case.verdict] += 1
    return counts


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cases", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="kinds of files whose name has this in it")
    parser.add_argument("--case", type=int, help="run this case alone and show all that it says")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the counts and the bad cases there")
    given = parser.parse_args()
    say = partial(print, file=sys.stderr, flush=True)
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(Path(folder), given.seed, given.only)
        if given.case is not None:
            case, ran = bench.case(given.case)
            print(f"{case}\n--- stdout\n{ran.out}\n--- stderr\n{ran.err}")
            return
        start, cases = time.monotonic(), []
        for number in range(given.cases):
            case, _ = bench.case(number)
            cases.append(case)
            if case.verdict in BAD:
                only = f" --only '{given.only}'" if given.only else ""
                say(f"{case.verdict}: {case.file} {case.kind}, bitsect {case.command}: {case.said}")
                say(f"  again: python {sys.argv[0]} --seed {given.seed}{only} --case {number}")
        seconds = time.monotonic() - start
    counts = tabulate(cases)
    counts["all"] = sum(counts.values(), Counter())
    print(f"{'':28}" + "".join(f"{verdict:>13}" for verdict in VERDICTS))
    for name, row in counts.items():
        print(f"{name:28}" + "".join(f"{row[verdict]:>13}" for verdict in VERDICTS))
    if given.json:
        bad = [vars(case) for case in cases if case.verdict in BAD]
        report = {"seed": given.seed, "cases": len(cases), "seconds": round(seconds, 1), "counts": counts}
        given.json.write_text(json.dumps({**report, "bad": bad}, indent=2, ensure_ascii=False) + "\n")
    sys.exit(any(counts["all"][verdict] for verdict in BAD))


if __name__ == "__main__":
    main()
