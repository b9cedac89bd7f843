"""How near the estimate of a stage's memory comes to what it takes.

`python benchmarks/memory.py MODEL --data DATA [--memory 500MB …] [--batch-size N …] [--stages …] [--json]`

Every stage runs on its first pieces in a process of its own, with freed memory given back before; its peak is
the largest resident size of that process while the stage ran, above the size when it began (Linux).
`ratio` is the estimate over the peak. With `--memory`, the batch is the one that a new run chooses under
that limit, and `within` says whether the peak stays below it. `search` judges many plans, which may keep what
they share in all that the other stages leave: there the estimate is an upper bound. A stage that does
not fit into the limit is refused, as in a run.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

from bitsect.errors import RunError
from bitsect.measure.context import Context
from bitsect.measure.damage import damage_work
from bitsect.measure.evaluator import judged
from bitsect.measure.pairs import exact_pairs, linear_pairs
from bitsect.measure.traces import gauss_newton, hutchinson, probe_work
from bitsect.measure.work import Work
from bitsect.runs.estimate import SCATTERED, STAGES, Needs, spare_bytes
from bitsect.runs.memory import give_memory_back
from bitsect.runs.opening import open_run
from bitsect.runs.run import Run
from bitsect.values import FLOAT, INT8, Plan, Resources, Settings

FIRST = 4  # pieces of a stage that are done: the first hold most
SEARCH, PLANS = "search", 12  # plans that are judged there


def status(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith(name))


def works_of(run: Run, stage: str) -> list[Work]:
    context = Context(run.evaluator((INT8,)))
    _ = context.evaluator.labels
    if stage == SEARCH:
        return [judged(context.evaluator, plan) for plan in plans(run)]
    context.evaluator.prefixes = None  # what plans share is not needed, and is told apart
    return [first(work_of(run, context, stage), 1 if stage == "damage" else FIRST)]


def work_of(run: Run, context: Context, stage: str) -> Work:
    if stage == "evaluate":
        return judged(context.evaluator, Plan.uniform(run.layers, INT8))
    if stage == "damage":
        return damage_work(context, tuple((layer.name, INT8) for layer in run.layers))
    if stage in ("traces", "hutchinson"):
        return probe_work(context, gauss_newton if stage == "traces" else hutchinson(), 0, 0)
    return (exact_pairs if stage == "exact" else linear_pairs)(context, INT8)


def first(work: Work, count: int) -> Work:
    return Work(work.pieces[:count], work.do)


def plans(run: Run) -> list[Plan]:
    """Plans that begin unlike each other, so that much is kept of them."""
    names = [layer.name for layer in run.layers]
    whole = Plan.uniform(run.layers, INT8)
    return [whole.replace([names[place]], FLOAT) for place in range(min(PLANS, len(names)))]


def measure(arguments: argparse.Namespace, stage: str, batch_size: int | None, memory: str | None) -> None:
    """One stage in this process: prints an object."""
    names = ("mean", "std", "scale")
    pixels = {name: getattr(arguments, name) for name in names if getattr(arguments, name)}
    given = {} if batch_size is None else {"batch_size": batch_size}
    settings = Settings(draw=arguments.samples, threads=1, **given, **pixels)
    with open_run(arguments.model, arguments.data, settings, Resources(memory=memory)) as run:
        needs, works = Needs.of(run.program), works_of(run, stage)
        estimate = needs.bytes("evaluate" if stage == SEARCH else stage, run.batch_size)
        if stage == SEARCH:
            estimate += SCATTERED * spare_bytes(needs, run.batch_size, Resources(memory=memory))
        report: dict[str, Any] = {
            "stage": stage,
            "batch_size": run.batch_size,
            "estimate_mb": round(estimate / 1e6),
        } | ({} if memory is None else {"memory": memory})
        try:
            run.check_memory("evaluate" if stage == SEARCH else stage)
        except RunError:
            print(json.dumps(report | {"refused": True}))
            return
        give_memory_back()
        Path("/proc/self/clear_refs").write_text("5")  # the peak is counted anew
        start = status("VmRSS")
        for work in works:
            for name in work.pieces:
                work.do(name)
        peak = status("VmHWM") - start
        report |= {"peak_mb": round(peak / 1e6), "ratio": round(estimate / peak, 3)}
        if memory is not None:
            limit = Resources(memory=memory).memory_bytes
            assert limit is not None
            report["within"] = peak <= limit
    print(json.dumps(report))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model")
    parser.add_argument("--data", required=True)
    parser.add_argument("--samples", type=int, default=64)
    parser.add_argument("--mean", type=float, nargs="+")
    parser.add_argument("--std", type=float, nargs="+")
    parser.add_argument("--scale", type=float)
    parser.add_argument("--batch-size", type=int, nargs="*", default=[])
    parser.add_argument("--memory", nargs="*", default=[])
    parser.add_argument("--stages", default=",".join([*STAGES, SEARCH]))
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--one", help=argparse.SUPPRESS)  # a stage, in a process of its own
    arguments = parser.parse_args()
    if arguments.one:
        memory = arguments.memory[0] if arguments.memory else None
        return measure(arguments, arguments.one, *(arguments.batch_size or [None])[:1], memory)
    found = []
    cases = [("--batch-size", str(size)) for size in arguments.batch_size]
    cases += [("--memory", memory) for memory in arguments.memory]
    common = [arguments.model, "--data", arguments.data, "--samples", str(arguments.samples)]
    for name in ("mean", "std"):
        if getattr(arguments, name):
            common += [f"--{name}", *map(str, getattr(arguments, name))]
    common += ["--scale", str(arguments.scale)] if arguments.scale else []
    for case in cases or [()]:
        for stage in arguments.stages.split(","):
            command = [sys.executable, __file__, *common, *case, "--one", stage]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            found.append(json.loads(done.stdout.splitlines()[-1]))
            if not arguments.json:
                print(found[-1], flush=True)
    if arguments.json:
        ratios = [each["ratio"] for each in found if each["stage"] != SEARCH and "ratio" in each]
        print(json.dumps({"stages": found, "ratio": [min(ratios), max(ratios)]}))
    return None


if __name__ == "__main__":
    main()
