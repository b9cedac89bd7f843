"""Workers on a Ray cluster: the same bytes, and a worker that is killed there."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from bitsect.errors import MissingExtraError, OptionError
from bitsect.measure.work import fill
from bitsect.runs.opening import open_run
from bitsect.runs.ray import Cluster, _ctrl_c_waits
from bitsect.runs.run import Run
from bitsect.values import INT8, Resources
from bitsect.values.pieces import Piece
from journals import contents
from shared_work import deadly, do_everything, opened

ray = pytest.importorskip("ray", reason="the extra ray is not installed")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    """A run with two workers on a cluster that the tests of this file share: to start it takes seconds."""
    folder = tmp_path_factory.mktemp("ray")
    # Sockets have short names, and those of pytest's folders are long.
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory(prefix="ray") as short:
        patch.setenv("RAY_worker_niceness", "0")
        patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))
        ray.init(
            num_cpus=2,
            include_dashboard=False,
            log_to_driver=False,
            object_store_memory=10**8,
            _temp_dir=short,
        )
        try:
            with open_run(**opened(resources=Resources(ray="auto"), out=folder / "run")) as run:
                yield run
        finally:
            ray.shutdown()


def test_a_cluster_leaves_the_bytes_that_one_process_leaves(run: Run, tmp_path: Path) -> None:
    assert run.workers is not None
    assert run.workers.size == 2
    found = do_everything(run)
    with open_run(**opened(out=tmp_path / "alone")) as alone:
        expected = do_everything(alone)
    assert repr(found) == repr(expected)
    assert contents(run.folder.path) == contents(tmp_path / "alone")


def test_a_worker_of_a_cluster_that_is_killed_is_replaced(run: Run, tmp_path: Path) -> None:
    done: dict[str, Piece] = {}
    fill(done, deadly(run.evaluator((INT8,)), ("a", "b", "dead", "c"), str(tmp_path / "mark")))
    assert sorted(done) == ["a", "b", "c", "dead"]
    assert (tmp_path / "mark").exists()


def test_more_workers_than_the_cluster_has_processors_are_refused(run: Run, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="need more than the 2 processors of the cluster"):
        open_run(**opened(resources=Resources(ray="auto", workers=3), out=tmp_path / "run"))


OWN = """
import os, re, subprocess, sys
from pathlib import Path
from bitsect.runs.ray import Cluster

def listening(children):
    inodes = set()
    for pid in children:
        for link in Path(f"/proc/{pid}/fd").iterdir():
            try:
                inodes |= set(re.findall(r"socket:.(\\d+)", os.readlink(link)))
            except OSError:
                pass
    rows = [line.split() for name in ("tcp", "tcp6") for line in Path(f"/proc/net/{name}").open()]
    return {row[1].partition(":")[0] for row in rows if row[3] == "0A" and row[9] in inodes}

cluster = Cluster("auto", 1, 1)
print(cluster.which)
hand = cluster.hire()
hand.ask("start")
listed = subprocess.run(["ps", "-eo", "pid=,ppid="], capture_output=True, text=True).stdout.splitlines()
parents = dict(map(int, line.split()) for line in listed)
found = [os.getpid()]
for each in found:
    found += [pid for pid, parent in parents.items() if parent == each and Path(f"/proc/{pid}/fd").exists()]
print({each[-8:] for each in listening(found)})
print(os.environ["RAY_AUTH_MODE"], len(os.environ["RAY_AUTH_TOKEN"]))

import ray

@ray.remote
def path():
    import sys
    return sys.path

print(os.getcwd() in ray.get(path.remote()))
cluster.close()
print(os.environ["RAY_AUTH_MODE"], "RAY_AUTH_TOKEN" in os.environ)
"""


@pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="sockets are looked up in /proc")
def test_a_cluster_of_ones_own_is_reached_by_nobody_else(tmp_path: Path) -> None:
    """Whatever a file says that runs on this machine, and whatever else was switched off before."""
    (tmp_path / "ray").mkdir()
    (tmp_path / "ray" / "ray_current_cluster").write_text("127.0.0.1:1")  # a stranger's
    env = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    env |= {"RAY_TMPDIR": str(tmp_path), "RAY_AUTH_MODE": "disabled", "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-P", "-c", OWN], cwd=tmp_path, env=env, capture_output=True, text=True
    )
    assert done.stdout.splitlines() == [
        "a Ray cluster of our own, on this machine alone",
        "{'0100007F'}",  # 127.0.0.1, also written as ::ffff:127.0.0.1
        "token 64",
        "False",
        "disabled False",
    ], done.stderr


def test_a_cluster_that_was_named_is_joined_or_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = {}

    def init(**options: object) -> None:
        asked.update(options)
        raise ConnectionError("nobody answers\nat length")

    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", init)
    monkeypatch.setattr(ray, "shutdown", lambda: None)
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.7:6379")
    with pytest.raises(OptionError, match=r"no Ray cluster at ray='10.0.0.7:6379' \(nobody answers\)$"):
        Cluster("auto", None, 1)
    assert asked["address"] == "10.0.0.7:6379"
    with pytest.raises(OptionError, match="no Ray cluster at ray='ray://other:10001'"):
        Cluster("ray://other:10001", None, 1)
    assert asked["address"] == "ray://other:10001"
    monkeypatch.setenv("RAY_ADDRESS", "auto")  # Ray's own word for whatever it finds
    with pytest.raises(OptionError, match="no Ray cluster at ray='auto'"):
        Cluster("auto", None, 1)
    assert asked["address"] == "local"


def test_without_the_extra_one_line_names_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'bitsect\[ray\]'"):
        open_run(**opened(resources=Resources(ray="auto"), out=tmp_path / "run"))


def test_ctrl_c_waits_for_a_cluster_that_is_being_started() -> None:
    done = []

    def start() -> None:
        with _ctrl_c_waits():
            signal.raise_signal(signal.SIGINT)
            done.append("started")

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            start()
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)
    assert done == ["started"]
