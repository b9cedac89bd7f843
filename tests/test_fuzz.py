"""A small part of benchmarks/fuzz.py: mutated .pt2 archives, each in a process that is watched."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent.parent / "benchmarks"))
ARCHIVES = 120
fuzz = pytest.importorskip("fuzz")


@pytest.mark.filterwarnings("ignore")
def test_mutated_archives_are_refused_or_load_and_do_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    bench = fuzz.Fuzz(tmp_path, seed=5, networks=1)
    ended = [each for first in range(0, ARCHIVES, 20) for each in bench.ended(range(first, first + 20))]
    assert [each.number for each in ended] == list(range(ARCHIVES))
    assert [each for each in ended if fuzz.is_bad(each)] == []
    assert {"refused", "loaded"} <= {each.how for each in ended}


SEEN = """
import os, subprocess, sys, pathlib
sys.path.append({benchmarks!r})
import fuzz
watch = fuzz.Watch()
sys.addaudithook(watch)
def did(kind, code, more={{}}):
    before = len(watch.noticed)
    try:
        exec(compile(code, "<quiet>", "exec"), more)
    except ImportError:
        pass
    print(kind, len(watch.noticed) > before)
did("nothing", "1 + 1")
did("file", "open('made', 'w')")
did("remove", "import os; os.remove('made')")
did("process", "import os; os.system('true')")
did("pickle", "import pickle; pickle.loads(b'cos\\\\ngetcwd\\\\n.')")
did("text", "exec('zq_of_a_file = 1')")
did("import", "import other")
"""


def test_what_must_not_be_is_noticed(tmp_path: Path) -> None:
    (tmp_path / "other.py").touch()
    code = SEEN.format(benchmarks=str(Path(fuzz.__file__).parent))
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONSAFEPATH": ""}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, env=env, check=True
    )
    kinds = ["file", "remove", "process", "pickle", "text", "import"]
    assert done.stdout.splitlines() == ["nothing False", *(f"{kind} True" for kind in kinds)]
