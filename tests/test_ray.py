"""Workers on a Ray cluster: the same bytes, and a worker that is killed there."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from bitsect.errors import MissingExtraError, OptionError
from bitsect.measure.work import fill
from bitsect.runs.opening import open_run
from bitsect.runs.ray import _ctrl_c_waits
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
