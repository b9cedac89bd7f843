"""The types of the front door: what editors and type checkers say of a user's own script."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import bitsect

ROOT = Path(__file__).parent.parent
STUB = Path(bitsect.__file__).with_name("__init__.pyi")

RIGHT = """
from pathlib import Path
import bitsect
result = bitsect.quantize("zoo:fashion-resnet", target="99%", formats="int8", out=Path("run"), draw=64)
found: bitsect.Result = bitsect.quantize("x", target=0.99, settings=bitsect.Settings(draw=2))
formats: bitsect.Plan = result.plan
scores: bitsect.Scores = bitsect.sensitivity("x", metric="damage", workers=2)
curve: bitsect.Curve = bitsect.frontier("run", targets="98%,99%")
print(bitsect.evaluate("x", format="int8", placement="paper").plan, bitsect.__version__)
"""

WRONG = {
    'bitsect.quantize("x", tarrget=0.99)': 'Unexpected keyword argument "tarrget".*did you mean "target"',
    'bitsect.quantize("x", target=["99%"])': 'Argument "target".*incompatible type "list',
    'bitsect.quantize("x", draw="64")': 'Argument "draw".*incompatible type "str"',
    'bitsect.quantize("x", target=0.99).nothing': '"Result" has no attribute "nothing"',
    'bitsect.sensitivity("x", target=0.99)': 'Unexpected keyword argument "target"',
    'bitsect.frontier("run", draw=2)': 'Unexpected keyword argument "draw"',
    "bitsect.quantise": 'Module has no attribute "quantise"',
}


def said_of(script: str, folder: Path) -> list[str]:
    """What mypy says of each line of a user's script."""
    path = folder / "script.py"
    path.write_text(script)
    options = ["--config-file", str(ROOT / "pyproject.toml"), "--cache-dir", str(ROOT / ".mypy_cache")]
    run = subprocess.run(
        [sys.executable, "-m", "mypy", *options, str(path)], capture_output=True, text=True, cwd=ROOT
    )
    assert run.returncode in (0, 1), run.stderr
    return [line for line in run.stdout.splitlines() if "script.py" in line]


@pytest.mark.skipif(not (ROOT / "pyproject.toml").exists(), reason="the settings of mypy are not in a wheel")
def test_a_right_script_passes_and_a_wrong_line_is_named(tmp_path: Path) -> None:
    script = RIGHT + "\n".join(WRONG) + "\n"
    first = RIGHT.count("\n") + 1
    said = said_of(script, tmp_path)
    for number, message in enumerate(WRONG.values(), start=first):
        found = [line for line in said if f"script.py:{number}: " in line]
        assert any(re.search(message, line) for line in found), (message, said)
        said = [line for line in said if line not in found]
    assert said == []


def test_the_stub_is_what_its_script_writes() -> None:
    script = ROOT / "tools" / "stubs.py"
    if not script.exists():
        pytest.skip("the script is beside the sources, not in a wheel")
    code = f"import runpy; print(runpy.run_path({str(script)!r})['stub']())"
    written = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert ast.dump(ast.parse(written)) == ast.dump(ast.parse(STUB.read_text())), "run python tools/stubs.py"


def test_what_a_notebook_shows_is_short() -> None:
    """The `repr` of whatever a call returns fits three lines."""
    result = bitsect.quantize(
        "zoo:fashion-resnet", target=0.9, draw=64, metric="sqnr", formats="int8", destination="bits"
    )
    shown = [result, result.plan, *result.rows, result.test, result.promise, result.scores]
    shown += [result.frontier(), result.run.program, result.run.samples, result.rows[0].evaluation]
    shown += [bitsect.evaluate("zoo:fashion-resnet", format="int8", draw=64)]
    for each in map(repr, shown):
        assert len(each) <= 240
        assert each.count("\n") <= 2
        assert " object at 0x" not in each
