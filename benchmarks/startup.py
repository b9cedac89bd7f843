"""How soon a command begins, and how soon Ctrl-C ends it (Linux).

`python benchmarks/startup.py MODEL --data DATA [--mean …] [--std …] [--scale …] [--repeats N] [--json]`

`version_cpu_seconds`: user and system time of `bitsect --version`, the best of ten. `first_line` and
`float_network`: seconds, and those of the processor, until `quantize` has said its first line, and how
accurate the float network is; the best. `ctrl_c`: the command is interrupted with its whole group, as a
terminal does, in the middle of measuring; seconds until it has ended, the worst, with how many processes it
had started, and how many of them were left a tenth of a second later.
"""

from __future__ import annotations

import argparse
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from shown import show  # beside this file

TICKS = os.sysconf("SC_CLK_TCK")
KEPT = 2000  # bytes of a journal: the command is in the middle of it
LONG = ("--method=paper", "--metric=aughessian", "--threads=1", "--tolerance=0.0001")
WAYS = {
    "one process": (),
    "two workers": ("--workers=2",),
    "ray": ("--ray=auto", "--workers=2"),
}
COMMAND = [sys.executable, "-m", "bitsect"]


def processor_seconds(pid: int) -> float:
    words = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    return (int(words[11]) + int(words[12])) / TICKS


def version() -> float:
    """User and system time of `bitsect --version`."""

    def spent() -> float:
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        return used.ru_utime + used.ru_stime

    before = spent()
    subprocess.run([*COMMAND, "--version"], stdout=subprocess.DEVNULL, check=True)
    return spent() - before


def first_lines(quantize: list[str]) -> dict[str, tuple[float, float]]:
    """When `quantize` says its first line, and how accurate the float network is."""
    start, found = time.perf_counter(), {}
    with subprocess.Popen(
        [*COMMAND, *quantize], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        for line in process.stderr:
            now = time.perf_counter() - start, processor_seconds(process.pid)
            found.setdefault("first_line", now)
            if line.startswith("float network"):
                found["float_network"] = now
                break
        process.kill()
    return found


def interrupted(quantize: list[str], folder: Path) -> tuple[float, int, int]:
    """Seconds from Ctrl-C to the end, processes that were started, and those that are left then."""
    process = subprocess.Popen(
        [*COMMAND, *quantize, *LONG, f"--out={folder}"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        # Shells let jobs in the background ignore Ctrl-C, and what they start with them.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    while sum(each.stat().st_size for each in folder.glob("journals/traces*")) < KEPT:
        if process.poll() is not None:
            raise SystemExit(process.communicate()[1])
        time.sleep(0.05)
    below = started_by(process.pid)
    start = time.perf_counter()
    os.killpg(process.pid, signal.SIGINT)
    process.wait()
    took = time.perf_counter() - start
    time.sleep(0.1)
    left = [pid for pid in below if is_there(pid)]
    said = process.communicate()[1]
    assert process.returncode == 130, said
    assert "go on with `bitsect quantize" in said.replace("\n", " "), said
    return took, len(below), len(left)


def started_by(process: int) -> list[int]:
    listed = subprocess.run(["ps", "-eo", "pid=,ppid="], capture_output=True, text=True, check=True).stdout
    parents = dict(map(int, line.split()) for line in listed.splitlines())
    found = [process]
    for each in found:  # grows on the way
        found += [pid for pid, parent in parents.items() if parent == each]
    return found[1:]


def is_there(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] != "Z"
    except OSError:
        return False


def ctrl_c(quantize: list[str], way: str, repeats: int) -> dict[str, Any]:
    found = []
    for _ in range(repeats):
        with tempfile.TemporaryDirectory() as folder:
            found.append(interrupted([*quantize, *WAYS[way]], Path(folder) / "run"))
    seconds, started, left = zip(*found, strict=True)
    return {"seconds": round(max(seconds), 2), "processes": max(started), "left": max(left)}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model")
    parser.add_argument("--data", required=True)
    parser.add_argument("--draw", type=int, default=1024)
    parser.add_argument("--mean", type=float, nargs="+", default=[])
    parser.add_argument("--std", type=float, nargs="+", default=[])
    parser.add_argument("--scale", type=float, nargs=1, default=[])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    arguments = parser.parse_args()
    quantize = ["quantize", arguments.model, f"--data={arguments.data}", f"--draw={arguments.draw}"]
    quantize.append("--target=99%")
    for name in ("mean", "std", "scale"):
        quantize += [f"--{name}={value}" for value in getattr(arguments, name)]
    lines = [first_lines(quantize) for _ in range(arguments.repeats)]
    report: dict[str, Any] = {
        "model": Path(arguments.model).name,
        "version_cpu_seconds": round(min(version() for _ in range(10)), 3),
    }
    for name in ("first_line", "float_network"):
        wall, processor = (min(each[name][place] for each in lines) for place in (0, 1))
        report[name] = {"seconds": round(wall, 2), "cpu_seconds": round(processor, 2)}
    report["ctrl_c"] = {}
    for way in WAYS:
        report["ctrl_c"][way] = ctrl_c(quantize, way, arguments.repeats)
        print(f"{way}: {report['ctrl_c'][way]}", file=sys.stderr, flush=True)
    report["load_average"] = round(os.getloadavg()[0], 2)
    show(report, arguments.json)


if __name__ == "__main__":
    main()
