"""What mutated .pt2 archives make the reader do: nothing but to be refused in a line or to load.

    python benchmarks/fuzz.py [--archives 20000] [--seed 0] [--processes 1] [--json FILE]
    python benchmarks/fuzz.py --seed S --archive N    # one archive again, with everything it led to

Each archive is loaded, captured as every command captures it, run on its example and called as
`bitsect.load` gives it, in a process apart with limits of time and memory and an audit hook. Noticed are
files opened for writing, removed or renamed, processes, sockets and libraries that are opened, what is
unpickled, code that is run from elsewhere than the interpreter's own paths, and text of the file in what is
compiled or executed.
"""

from __future__ import annotations

import argparse
import ast
import gc
import io
import json
import os
import random
import resource
import signal
import sys
import tempfile
import time
import traceback
import zipfile
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import chdir, redirect_stderr
from dataclasses import asdict, dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from types import CodeType
from typing import Any, BinaryIO

import torch
from torch import Tensor, nn

from bitsect.errors import BitsectError
from bitsect.network.capture import capture
from bitsect.sources.models.pt2 import load_pt2
from mutations import PROGRAM, Entries, archive, mutated
from odd_json import MARK

SECONDS, LONGEST = 20, 120  # of the processor and of the clock, for one archive
MEMORY = 2 * 2**30  # bytes beyond those that an idle process has
TOGETHER = 20  # archives that one process reads, unless one of them ends it
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
FORBIDDEN = (
    *("subprocess.", "os.system", "os.exec", "os.posix_spawn", "os.spawn", "os.fork", "os.startfile", "pty."),
    *("socket.", "urllib.", "ftplib.", "http.", "pickle.find_class", "ctypes.dlopen", "os.kill"),
    *("os.remove", "os.rename", "os.mkdir", "os.rmdir", "os.link", "os.symlink", "os.truncate", "os.chmod"),
    *("os.chown", "os.utime", "os.putenv", "shutil.", "tempfile.", "mmap.", "code.__new__", "webbrowser."),
)
OFTEN = (12, 4, 1)  # how often each network is taken: the less, the longer it takes
FINE = ("refused", "loaded", "loaded, does not run")


class Plain(nn.Module):
    """Two layers and an open batch."""

    def __init__(self) -> None:
        super().__init__()
        self.zqfirst, self.zqsecond = nn.Linear(4, 8), nn.Linear(8, 3)

    def forward(self, zqimage: Tensor) -> Tensor:
        return self.zqsecond(self.zqfirst(zqimage).relu())


class Picture(nn.Module):
    """Convolutions and what stands around them, with a text and a number as inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.zqconv, self.zqnorm = nn.Conv2d(2, 4, 3, padding=1, groups=2), nn.BatchNorm2d(4)
        self.zqhead, self.zqtable = nn.Linear(16, 3), nn.Embedding(5, 4)

    def forward(self, zqimage: Tensor, zqmode: str, zqplaces: dict[str, Tensor]) -> dict[str, Tensor]:
        x = nn.functional.max_pool2d(self.zqnorm(self.zqconv(zqimage)), 2)
        x = nn.functional.interpolate(x, scale_factor=2.0, mode="nearest")
        x = nn.functional.adaptive_avg_pool2d(x, 2).flatten(1)
        picked = x.index_select(1, zqplaces["zqcolumns"]) + self.zqtable(zqplaces["zqrows"]).sum(1)
        picked = picked + x.gather(1, zqplaces["zqcolumns"].expand(x.shape[0], -1))
        return {"zqlogits": self.zqhead(x) + picked[:, :3], "zqfeatures": x if zqmode == "relu" else x.tanh()}


class Steps(nn.Module):
    """A recurrent layer and an attention."""

    def __init__(self) -> None:
        super().__init__()
        self.zqcells, self.zqhead = nn.LSTM(4, 4, batch_first=True), nn.Linear(4, 3)

    def forward(self, zqsteps: Tensor) -> tuple[Tensor, Tensor]:
        x, (_, last) = self.zqcells(zqsteps)
        x = nn.functional.scaled_dot_product_attention(x, x, x)
        return self.zqhead(x[:, -1]), last


def seeds() -> list[Entries]:
    """The archives that are mutated."""
    torch.manual_seed(0)
    batch = torch.export.Dim("batch")
    places = {"zqcolumns": torch.tensor([0, 3, 5, 7]), "zqrows": torch.tensor([[1, 2]])}
    shapes = {"zqimage": {0: batch}, "zqmode": None, "zqplaces": {"zqcolumns": None, "zqrows": None}}
    cases: list[tuple[nn.Module, tuple[Any, ...], Any]] = [
        (Plain(), (torch.randn(2, 4),), {"zqimage": {0: batch}}),
        (Picture(), (torch.randn(2, 2, 8, 8), "relu", places), shapes),
        (Steps(), (torch.randn(2, 3, 4),), {"zqsteps": {0: batch}}),
    ]
    return [_seed(model.eval(), args, dims) for model, args, dims in cases]


def _seed(model: nn.Module, args: tuple[Any, ...], shapes: Any) -> Entries:
    buffer = io.BytesIO()
    torch.export.save(torch.export.export(model, args, dynamic_shapes=shapes), buffer)
    with zipfile.ZipFile(buffer) as file:
        members = ((name.partition("/")[2], file.read(name)) for name in file.namelist())
        entries = {name.replace("/archive/", "/model/"): data for name, data in members}
    for name in [
        name for name in entries if name.startswith(("models/", "data/")) and "/weight_" not in name
    ]:
        folder, _, short = name.rpartition("/")
        entries[f"{folder}/model{short[short.find('_' if '_' in short else '.') :]}"] = entries.pop(name)
    program = json.loads(entries[PROGRAM])
    names = program["graph_module"]["graph"]["tensor_values"].keys()
    entries[PROGRAM] = json.dumps(_marked(program, names)).encode()
    return entries


def _marked(data: Any, names: Any, is_value: bool = False) -> Any:
    """`data` with every value of the graph called something that code can be searched for."""
    if isinstance(data, list):
        return [_marked(each, names, is_value) for each in data]
    if not isinstance(data, dict):
        return data
    made = {}
    for key, value in data.items():
        if key == "tensor_values":
            value = {f"{MARK}_{name}": each for name, each in value.items()}
        elif key == "name" and is_value:
            value = f"{MARK}_{value}"
        made[key] = _marked(value, names, key in ("as_tensor", "as_tensors", "arg"))
    return made


@dataclass(frozen=True)
class Ended:
    """What one archive led to."""

    number: int
    changed: str
    how: str  # refused, loaded, or what must not be
    said: str
    noticed: list[str]
    seconds: float
    bytes: int  # beyond those of the process before


def attempt(path: Path) -> tuple[str, str]:
    """How `path` is read: refused, or loaded, and what was said."""
    try:
        saved = load_pt2(path)
        program = capture(saved)
    except BitsectError as error:
        told = str(error)
        return ("refused" if told.isprintable() and len(told) < 1500 else "refused at length"), told[:300]
    except Exception:
        return "traceback", traceback.format_exc()[-1500:]
    try:
        with torch.no_grad():
            program.run(program.example)
            args, kwargs = saved.example
            saved.network()(*args, **kwargs)
    except (Exception, SystemExit) as error:
        return "loaded, does not run", f"{type(error).__name__}: {error}"[:300]
    return "loaded", ""


class Watch:
    """An audit hook that writes down what a reader of files must not do."""

    def __init__(self) -> None:
        self.noticed: list[str] = []
        self.own = [str(Path(each).resolve()) for each in (*sys.path, sys.prefix, sys.base_prefix) if each]
        self.own += [str(Path(__file__).parent), str(Path(sys.modules["bitsect"].__file__ or "").parent)]
        self.busy = False

    def __call__(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self.busy:
            return
        self.busy = True
        try:
            said = self._said(event, arguments)
        finally:
            self.busy = False
        if said and len(self.noticed) < 20:
            self.noticed.append(f"{event}: {said[:200]}")

    def _said(self, event: str, arguments: tuple[Any, ...]) -> str:
        if event == "open":
            path, mode, flags = arguments
            writes = flags & WRITING if mode is None else set("wax+") & set(mode)
            return f"{path} {mode}" if writes else ""
        if event == "compile":
            source = arguments[0]
            text = ast.dump(source) if isinstance(source, ast.AST) else source
            text = bytes(text).decode(errors="replace") if isinstance(text, bytes | bytearray) else str(text)
            return text if MARK in text else ""
        if event == "exec":
            code = arguments[0]
            if not isinstance(code, CodeType):
                return str(code)
            name = code.co_filename
            foreign = not name.startswith("<") and not name.startswith(tuple(self.own))
            return name if foreign else next((text for text in _texts(code) if MARK in text), "")
        return str(arguments) if event.startswith(FORBIDDEN) else ""


def _texts(code: CodeType) -> Iterator[str]:
    """Every name and text in a piece of code."""
    yield from (*code.co_names, *code.co_varnames, code.co_name)
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield from _texts(each)
        else:
            yield repr(each)


def _child(paths: list[Path], answers: BinaryIO) -> None:
    """Reads one of the `paths` after the other within limits, and writes a line of what came of each."""
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    most = _pages(0) + MEMORY
    for limit, bound in ((resource.RLIMIT_CORE, 0), (resource.RLIMIT_AS, most)):
        resource.setrlimit(limit, (bound, bound))
    watch = Watch()
    sys.addaudithook(watch)
    for path in paths:
        used, start, before = resource.getrusage(resource.RUSAGE_SELF), time.monotonic(), _pages(1)
        spent = int(used.ru_utime + used.ru_stime)
        resource.setrlimit(resource.RLIMIT_CPU, (spent + SECONDS, resource.RLIM_INFINITY))
        signal.alarm(LONGEST)
        watch.noticed.clear()
        with redirect_stderr(io.StringIO()):
            how, said = attempt(path)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        more = peak * 1024 - before if peak > used.ru_maxrss else 0
        line = [how, said, watch.noticed, time.monotonic() - start, more]
        answers.write(json.dumps(line).encode() + b"\n")
        answers.flush()


def _pages(field: int) -> int:
    """The bytes that this process takes: in address space (0) or in memory (1)."""
    return int(Path("/proc/self/statm").read_text().split()[field]) * resource.getpagesize()


class Fuzz:
    """Archives by number; the same number is the same archive."""

    def __init__(self, folder: Path, seed: int = 0, networks: int = 3) -> None:
        self.seed, self.whole, self.folder = seed, seeds()[:networks], folder
        (self.folder / "zqcanary.py").write_text("open('zqowned', 'w')\nclass Kind: pass\n")
        for entries in self.whole:  # everything is imported before the first child
            for _ in range(2):
                (folder / "net.pt2").write_bytes(archive(entries))
                how = attempt(folder / "net.pt2")
                assert how[0] == "loaded", how
        gc.freeze()  # so that children need not copy what the collector looks through

    def mutated(self, number: int) -> tuple[bytes, str]:
        chance = random.Random(f"{self.seed}/{number}")
        (whole,) = chance.choices(self.whole, OFTEN[: len(self.whole)])
        return mutated(whole, self.whole, chance)

    def ended(self, numbers: Sequence[int]) -> Iterator[Ended]:
        """What these archives lead to; where one ends its process, the next has a new one."""
        waiting = list(numbers)
        while waiting:
            changed, paths = {}, []
            for number in waiting:
                data, changed[number] = self.mutated(number)
                paths.append(self.folder / f"{number}.pt2")
                paths[-1].write_bytes(data)
            before = sorted(self.folder.iterdir())
            lines, code = _together(paths)
            if len(lines) < len(waiting):
                late = code in (-signal.SIGXCPU, -signal.SIGALRM, -signal.SIGKILL)
                lines.append(["too long" if late else "crash", f"ended by {code}", [], SECONDS, MEMORY])
            if sorted(self.folder.iterdir()) != before:
                lines[-1][2].append("files: " + " ".join(each.name for each in self.folder.iterdir()))
            for number, (how, said, noticed, seconds, more) in zip(waiting, lines, strict=False):
                yield Ended(number, changed[number], how, said, noticed, seconds, more)
            for path in paths:
                path.unlink(missing_ok=True)
            waiting = waiting[len(lines) :]


def _together(paths: list[Path]) -> tuple[list[Any], int]:
    """What a process that reads the `paths` wrote of each, and how it ended."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(reading)
            with open(writing, "wb") as answers:  # noqa: PTH123, for it has no path
                _child(paths, answers)
            os._exit(0)
        finally:
            os._exit(70)
    os.close(writing)
    with open(reading, "rb") as answers:  # noqa: PTH123
        lines = [json.loads(line) for line in answers if line.endswith(b"\n")]
    return lines, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def is_bad(ended: Ended) -> bool:
    """Whether this must not be."""
    return ended.how not in FINE or bool(ended.noticed)


def _many(numbers: range, seed: int) -> list[Ended]:
    torch.set_num_threads(1)
    found = []
    with tempfile.TemporaryDirectory(prefix="fuzz-") as folder, chdir(folder):
        fuzz = Fuzz(Path(folder), seed)
        for start in range(0, len(numbers), TOGETHER):
            for ended in fuzz.ended(numbers[start : start + TOGETHER]):
                found.append(ended)
                if is_bad(ended):
                    print(json.dumps(asdict(ended)), file=sys.stderr, flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--archives", type=int, default=20_000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--archive", type=int, help="this one alone, in this process")
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="write the counts and what must not be there"
    )
    given = parser.parse_args()
    if given.archive is not None:
        (ended,) = _many(range(given.archive, given.archive + 1), given.seed)
        print(json.dumps(asdict(ended), indent=1))
        return
    numbers = range(given.first, given.first + given.archives)
    parts = [numbers[start :: given.processes] for start in range(given.processes)]
    start, context = time.monotonic(), get_context("spawn")
    json_file = given.json and given.json.absolute()
    with ProcessPoolExecutor(given.processes, mp_context=context) as pool:
        ended = [each for part in pool.map(partial(_many, seed=given.seed), parts) for each in part]
    counts, bad = Counter(each.how for each in ended), [asdict(each) for each in ended if is_bad(each)]
    slowest, largest = (max(ended, key=key) for key in (lambda each: each.seconds, lambda each: each.bytes))
    report = {
        "archives": len(ended),
        "seed": given.seed,
        "seconds": round(time.monotonic() - start),
        "ended": dict(counts),
        "noticed": sum(bool(each.noticed) for each in ended),
        "slowest": {"archive": slowest.number, "seconds": round(slowest.seconds, 2)},
        "most memory": {"archive": largest.number, "megabytes": round(largest.bytes / 2**20)},
        "bad": bad,
    }
    print(json.dumps({**report, "bad": len(bad)}, indent=1))
    if json_file:
        json_file.write_text(json.dumps(report, indent=1) + "\n")
    sys.exit(bool(bad))


if __name__ == "__main__":
    main()
