"""Workers: the same bytes in one process and in two, whatever dies on the way."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import bitsect
from bitsect.errors import BitsectError, OptionError, RunError
from bitsect.measure.context import Context
from bitsect.measure.pairs import exact_pairs
from bitsect.measure.work import Work, fill, in_order
from bitsect.network.capture import capture
from bitsect.runs.opening import open_run
from bitsect.runs.packing import Shelf, pack, pack_program, unpack, unpack_program
from bitsect.runs.run import Run
from bitsect.runs.worker import computed
from bitsect.runs.workers import MOST_DEATHS
from bitsect.values import INT8, Resources, Settings
from bitsect.values.pieces import Piece
from journals import contents
from shared_work import deadly, do_everything, opened
from tiny import Residual, images, refill, seeded

TWO = Resources(workers=2)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    """A run with two workers, which the tests of this file share: to start them takes seconds."""
    folder = tmp_path_factory.mktemp("two") / "run"
    with open_run(**opened(resources=TWO, out=folder)) as run:
        yield run


def test_two_processes_leave_the_bytes_that_one_leaves(run: Run, tmp_path: Path) -> None:
    found = do_everything(run)
    with open_run(**opened(out=tmp_path / "alone")) as alone:
        expected = do_everything(alone)
    assert repr(found) == repr(expected)
    assert contents(run.folder.path) == contents(tmp_path / "alone")


# ---- faults --------------------------------------------------------------------------------------


class Counted(dict[str, Piece]):
    """Keeps pieces, and calls a function once there are enough."""

    def __init__(self, enough: int, then: Callable[[], None]) -> None:
        super().__init__()
        self.enough, self.then = enough, then

    def __setitem__(self, name: str, piece: Piece) -> None:
        super().__setitem__(name, piece)
        if len(self) == self.enough:
            self.then()


def pids(run: Run) -> list[int]:
    assert run.workers is not None
    return [hand.line.pid for hand in run.workers._hands]  # type: ignore[attr-defined]


def as_bytes(done: dict[str, Piece]) -> dict[str, dict[str, bytes]]:
    return {name: {key: array.tobytes() for key, array in piece.items()} for name, piece in done.items()}


def test_a_worker_that_is_killed_is_replaced_and_its_piece_done_again(run: Run) -> None:
    work = exact_pairs(Context(run.evaluator((INT8,))), INT8)
    expected: dict[str, Piece] = {}
    fill(expected, Work(work.pieces, work.do))
    before = pids(run)
    done = Counted(5, lambda: os.kill(before[0], signal.SIGKILL))
    fill(done, work)
    assert as_bytes(done) == as_bytes(expected)
    assert before[0] not in pids(run)
    assert before[1] in pids(run)


def test_a_piece_that_ends_every_worker_is_named_and_the_rest_is_kept(run: Run) -> None:
    done: dict[str, Piece] = {}
    with pytest.raises(RunError, match=rf"piece 'dead' of deadly ended {MOST_DEATHS} workers .*SIGKILL"):
        fill(done, deadly(run.evaluator((INT8,)), ("a", "b", "dead", "c", "d")))
    assert {"a", "b", "c", "d"} <= done.keys()


def test_what_goes_wrong_in_a_worker_goes_wrong_here(run: Run) -> None:
    evaluator = run.evaluator((INT8,))
    with pytest.raises(BitsectError, match="row 3 is wrong"):
        fill({}, deadly(evaluator, ("a", "wrong")))
    with pytest.raises(ZeroDivisionError) as error:
        fill({}, deadly(evaluator, ("a", "fault")))
    assert any("shared_work.py" in note for note in error.value.__notes__)


def test_in_order_means_in_order_and_may_be_left_early(run: Run) -> None:
    names = tuple("a" * (length + 1) for length in range(9))
    work = deadly(run.evaluator((INT8,)), names)
    assert [int(piece["value"][0]) for piece in in_order(work, names)] == list(range(1, 10))
    coming = in_order(work, names)
    assert int(next(coming)["value"][0]) == 1
    coming.close()
    done: dict[str, Piece] = {}
    fill(done, work)  # whoever still did something for nobody is asked again
    assert sorted(done) == sorted(names)


# ---- what travels --------------------------------------------------------------------------------


def test_what_is_packed_is_the_same_and_shares_its_memory(tmp_path: Path) -> None:
    whole = torch.randn(64, 300)
    value = {
        "view": whole[3:9],
        "turned": whole.t(),
        "half": whole.to(torch.bfloat16),
        "parameter": nn.Parameter(torch.randn(100, 100)),
        "array": np.arange(9000.0).reshape(90, 100)[:, ::2],
        "small": torch.ones(3),
    }
    shelf = Shelf(tmp_path / "shelf")
    for found in (unpack(pack(value)), shelf.put(value)(), shelf.put(value)()):
        assert found.keys() == value.keys()
        for name, one in value.items():
            other = found[name]
            assert type(other) is type(one)
            same = np.array_equal if isinstance(one, np.ndarray) else torch.equal
            assert same(one, other)
            assert isinstance(one, np.ndarray) or one.stride() == other.stride()
        assert found["view"].untyped_storage().data_ptr() == found["turned"].untyped_storage().data_ptr()
    stored = shelf.put(value)
    stored()["turned"].zero_()  # who writes, writes into memory of his own
    assert torch.equal(stored()["turned"], whole.t())
    shelf.close()
    assert not list(tmp_path.iterdir())


class Tied(nn.Module):
    """One weight under two names, and a buffer that is no parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(80, 80), nn.Linear(80, 80)
        self.b.weight = self.a.weight
        self.register_buffer("shift", torch.randn(80))

    def forward(self, x: Tensor) -> Tensor:
        return self.b(self.a(x).relu() + self.shift) + x


@pytest.mark.parametrize(("model", "example"), [(Residual(), seeded(2, 3, 8, 8)), (Tied(), seeded(2, 80))])
def test_a_packed_program_computes_the_same_bits_on_shared_weights(model: nn.Module, example: Tensor) -> None:
    program = capture(refill(model), example)
    packed = pack_program(program)
    again = unpack_program(unpack(pack(packed)))
    assert computed(again) == computed(program)
    assert again.layers == program.layers
    assert len(packed.graph) < 400_000


def test_what_cannot_travel_is_refused_with_the_way_out() -> None:
    def mine(outputs: Tensor, labels: Tensor) -> Tensor:
        return (outputs.argmax(1) == labels).float()

    settings = Settings(batch_size=4, threads=1, task=mine)
    with (
        open_run(refill(Residual()), images(8), settings, TWO) as opened,
        pytest.raises(OptionError, match=r"workers cannot import: put it into a module .* leave workers out"),
    ):
        opened.evaluator(None).scores(bitsect.Plan.uniform(opened.layers))
    with pytest.raises(OptionError, match="ray 'here' is no cluster"):
        Resources(ray="here")
    with pytest.raises(OptionError, match="is not a whole number of at least 1"):
        Resources(workers=0)


# ---- whoever asks --------------------------------------------------------------------------------

NETWORK = """
import torch
from torch import nn

def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 5))
"""
OPTIONS = {"target": 0.5, "method": "paper", "metric": "aughessian", "batch_size": 2, "threads": 1}
OPTIONS |= {"probes": 40, "tolerance": 0.0}  # long enough to be stopped on the way
# No `if __name__ == "__main__"`, and nothing but what a user would write.
SCRIPT = """
import bitsect
bitsect.quantize("mine:network", "some.npz", workers=2, out="run", **OPTIONS)
"""


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "mine.py").write_text(NETWORK)
    (tmp_path / "script.py").write_text(SCRIPT.replace("OPTIONS", repr(OPTIONS)))
    random = np.random.default_rng(0)
    np.savez(tmp_path / "some.npz", x=random.normal(size=(48, 1, 8, 8)).astype("f4"), y=np.arange(48) % 5)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    return tmp_path


def begun(command: list[str]) -> tuple[subprocess.Popen[str], list[int]]:
    """A process that has kept some pieces, and the workers that it has."""
    kept = Path("run/journals/traces-gauss-newton-0.journal")
    before = kept.stat().st_size if kept.exists() else 0
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # Shells let jobs in the background ignore Ctrl-C, and what they start with them.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    while not (kept.exists() and kept.stat().st_size > before + 2000):
        assert process.poll() is None, process.communicate()
        time.sleep(0.02)
    listed = subprocess.run(["ps", "-o", "pid=", "--ppid", str(process.pid)], capture_output=True, text=True)
    return process, [int(pid) for pid in listed.stdout.split()]


def gone(workers: list[int]) -> bool:
    """Whether all of them end soon."""

    def is_there(pid: int) -> bool:
        try:
            return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] != "Z"
        except OSError:
            return False

    deadline = time.monotonic() + 300
    while any(map(is_there, workers)) and time.monotonic() < deadline:
        time.sleep(0.02)
    return not any(map(is_there, workers))


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="processes are looked up in /proc")
def test_stopped_and_killed_it_leaves_no_worker_and_ends_with_the_same_bytes(desk: Path) -> None:
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in OPTIONS.items()]
    command = ["quantize", "mine:network", "--data=some.npz", "--out=run", "--workers=2", *flags]
    process, workers = begun([sys.executable, "-m", "bitsect", *command, "--fresh"])
    process.send_signal(signal.SIGINT)  # Ctrl-C
    _, said = process.communicate()
    assert process.returncode == 130
    assert f"go on with `bitsect {' '.join(command)}`" in said.replace("\n", " ")
    assert len(workers) == 2
    assert gone(workers)
    process, workers = begun([sys.executable, "script.py"])
    process.kill()
    process.communicate()
    assert len(workers) == 2
    assert gone(workers)
    assert not Path("run/result.json").exists()
    assert Path("run").joinpath(f".workers.{process.pid}.tmp").exists()
    done = subprocess.run([sys.executable, "script.py"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert not list(Path("run").glob(".*.tmp"))
    bitsect.quantize("mine:network", "some.npz", out="whole", **OPTIONS)
    assert contents(desk / "run") == contents(desk / "whole")


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="processes are looked up in /proc")
def test_ctrl_c_ends_a_cluster_of_ones_own_with_all_of_its_processes(
    desk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("ray", reason="the extra ray is not installed")
    monkeypatch.setenv("RAY_ADDRESS", "local")  # never the cluster of another test
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in OPTIONS.items()]
    command = [
        "quantize",
        "mine:network",
        "--data=some.npz",
        "--out=run",
        "--ray=auto",
        "--workers=1",
        *flags,
    ]
    process, _ = begun([sys.executable, "-m", "bitsect", *command])
    below = all_below(process.pid)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate()
    assert process.returncode == 130
    assert f"go on with `bitsect {' '.join(command)}`" in said.replace("\n", " ")
    assert len(below) > 5  # servers, agents and the worker
    assert gone(below)


def all_below(process: int) -> list[int]:
    """What a process has started, and what that has started."""
    listed = subprocess.run(["ps", "-eo", "pid=,ppid="], capture_output=True, text=True).stdout.splitlines()
    parents = dict(map(int, line.split()) for line in listed)
    found = [process]
    for each in found:  # grows on the way
        found += [pid for pid, parent in parents.items() if parent == each]
    return found[1:]


def test_pieces_of_a_fixture_are_plain(run: Run) -> None:
    """What workers give back is what this process would have made: arrays it may write to."""
    done: dict[str, Piece] = {}
    fill(done, exact_pairs(Context(run.evaluator((INT8,)), 4), INT8))
    arrays: list[Any] = [array for piece in done.values() for array in piece.values()]
    assert all(type(array) is np.ndarray and array.flags.writeable for array in arrays)
