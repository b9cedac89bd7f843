"""Every example runs as it is, and prints what it promises."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"
SAYS = {
    "quick_start": "of the size",
    "own_model": "of the samples like the float one",
    "own_metric": "",
    "own_task": "int",
    "texts": "of the size",
    "language_model": "perplexity",
}


def test_every_example_is_listed() -> None:
    assert {path.stem for path in EXAMPLES.glob("*.py")} == set(SAYS)
    listed = (EXAMPLES / "README.md").read_text()
    assert all(f"`{name}.py`" in listed for name in SAYS)


@pytest.mark.parametrize("name", sorted(SAYS))
def test_an_example_runs(name: str, tmp_path: Path) -> None:
    arguments = [str(tmp_path / "mine.onnx")] if name == "own_model" else []
    path = os.pathsep.join([str(EXAMPLES), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / f"{name}.py"), *arguments],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": path},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
    assert SAYS[name] in done.stdout
    assert all(Path(argument).is_file() for argument in arguments)
