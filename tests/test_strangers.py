"""A folder of other people's files: no command imports anything from there unless a user names it."""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from bitsect import names
from bitsect.errors import BitsectError, OptionError
from bitsect.names import choose, python_command, resolve, user_folders

# Optional modules that libraries try to import, installed here or not.
OPTIONAL = (
    "av",
    "IPython",
    "openvino_telemetry",
    "pandas",
    "sklearn",
    "tensorflow",
    "torchao",
    "torchvision",
)
STUB = (
    "open(r'{mark}', 'a').write('imported ' + __name__ + chr(10))\nraise SystemExit('a stub was imported')\n"
)
# Known to every process that is started, whatever starts it: it writes down which code is run from elsewhere
# than the paths on which the interpreter starts.
WATCH = """
import os, sys
own = [each for each in {{*sys.path, sys.prefix, sys.base_prefix, {roots}}} if each]
def say(what):
    with open(r'{log}', 'a') as file:
        file.write(f"{{os.getpid()}} {{what}}\\n")
def hook(event, arguments):
    if event == 'exec':
        name = getattr(arguments[0], 'co_filename', '<text>')
        if not name.startswith('<') and not any(name.startswith(each) for each in own):
            say('ran ' + name)
say('began')
sys.addaudithook(hook)
"""
# Several commands in one process, as the console script runs them.
COMMANDS = """
import sys
from bitsect.cli import main
for line in sys.stdin.read().splitlines():
    sys.argv = ["bitsect", *line.split()]
    try:
        main()
    except SystemExit as end:
        assert not end.code or (line.startswith("judge") and end.code == 3), (line, end.code)
print("all done")
"""


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.head = nn.Conv2d(1, 4, 3), nn.Linear(4 * 36, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.relu(self.conv(x)).flatten(1))


@pytest.fixture(autouse=True)
def named_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other tests' folders, in which users named modules, are not looked in."""
    monkeypatch.setattr(names, "_user_folders", [])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A network, samples, and stubs of every module of Python and of every package that is installed."""
    folder = tmp_path / "downloads"
    folder.mkdir()
    torch.manual_seed(0)
    x = torch.randn(96, 1, 8, 8)
    model = Small().eval()
    np.savez(folder / "data.npz", x=x.numpy(), y=model(x).argmax(1).numpy())
    batch = torch.export.Dim("batch")
    torch.export.save(
        torch.export.export(model, (x[:2],), dynamic_shapes={"x": {0: batch}}), folder / "net.pt2"
    )
    (folder / "mine.toml").write_text('targets = ["50%"]\n[goal]\nformats = "int8"\n')
    (folder / "mine.gemm.csv").write_text(
        "OperationKind,Disposition,Status,Runtime,m,n,k,A\n"
        "gemm,passed,success,2.0,2,5,144,f16:row\ngemm,passed,success,1.0,2,5,144,s8:row\n"
    )
    for label in range(5) if find_spec("PIL") else ():
        from PIL import Image

        (folder / "images" / str(label)).mkdir(parents=True)
        Image.new("L", (8, 8), 50 * label).save(folder / "images" / str(label) / "one.png")
    installed = importlib.metadata.packages_distributions()
    names = {*sys.stdlib_module_names, *installed, *OPTIONAL, "sitecustomize", "usercustomize"}
    for number, name in enumerate(sorted(name for name in names if name.isidentifier())):
        path = folder / name / "__init__.py" if number % 2 else folder / f"{name}.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text(STUB.format(mark=tmp_path / "mark"))
    return folder


def watched(tmp_path: Path, program: list[str], *, lines: str = "") -> tuple[str, list[str]]:
    """What `program` printed in the folder, and what was seen in all processes that it started."""
    log, site = tmp_path / "log", tmp_path / "site"
    site.mkdir(exist_ok=True)
    roots = ", ".join(repr(each) for each in sys.path if each)
    (site / "sitecustomize.py").write_text(WATCH.format(log=log, roots=roots))
    home = Path(choose.__code__.co_filename).parents[1]
    env = {**os.environ, "PYTHONPATH": f"{site}{os.pathsep}{home}", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        program,
        cwd=tmp_path / "downloads",
        input=lines,
        capture_output=True,
        text=True,
        env=env,
        timeout=3000,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert not (tmp_path / "mark").exists(), (tmp_path / "mark").read_text()
    return done.stdout, log.read_text().splitlines()


def test_no_command_runs_code_of_the_current_folder(folder: Path, tmp_path: Path) -> None:
    """As `python -X importtime` would show it, of every process: only the interpreter's own paths."""
    script = tmp_path / "bin" / "bitsect"
    script.parent.mkdir()
    script.write_text(COMMANDS)
    lines = [
        "layers net.pt2",
        "quantize net.pt2 --data data.npz --target 50% --for bits --out run --workers 2 --threads 1",
        "show run",
        "report run",
        "search run --target 60%",
        "frontier run --targets 50%,60%",
        "sensitivity run",
        "compare run --metrics damage,random --draws 1 --targets 50%",
        "blame run",
        "export run --out small.onnx",
        "evaluate small.onnx --data data.npz",
        "evaluate run --data data.npz",
        "export run --out small.pt2",
        "export run --out small.safetensors",
        "judge small.onnx small.pt2 --data data.npz --target 50%",
        "latency run --for a100",
        "import-latency mine.gemm.csv --out table.json",
        "recipe list",
        "quantize net.pt2 --recipe mine.toml --data data.npz --out run3",
    ]
    if find_spec("transformers"):
        from hf_models import distilbert

        _, data = distilbert(folder / "bert")
        lines += ["layers hf:bert", f"evaluate hf:bert --data {data.relative_to(folder)}"]
    if find_spec("PIL"):
        lines.append("evaluate net.pt2 --data images --plan run/plan.json")
    if find_spec("onnxruntime"):
        lines.append(
            "quantize net.pt2 --data data.npz --target 50% --formats int8 --out run2 --for onnxruntime "
            "--objective latency"
        )
    if find_spec("openvino"):
        lines.append("evaluate small.onnx --data data.npz --runtime openvino")
    said, seen = watched(tmp_path, [sys.executable, str(script)], lines="\n".join(lines))
    assert said.endswith("all done\n")
    assert (folder / "run" / "report.html").is_file()
    assert [line for line in seen if " ran " in line and str(script) not in line] == []
    # This process, two workers, and those in which runtimes ran.
    assert len({line.split()[0] for line in seen if line.endswith("began")}) >= 3 + bool(
        find_spec("openvino")
    )


def test_neither_does_python_m(folder: Path, tmp_path: Path) -> None:
    """But for what Python itself imports before anything of ours is run."""
    first = "import runpy, pkgutil, sys; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-P", "-c", first], capture_output=True, text=True, check=True)
    for name in done.stdout.split():
        for path in (folder / f"{name}.py", folder / name / "__init__.py"):
            path.unlink(missing_ok=True)
    assert (folder / "json").exists() or (folder / "json.py").exists()
    command = [sys.executable, "-m", "bitsect", "layers", "net.pt2"]
    _, seen = watched(tmp_path, command)
    assert [line for line in seen if " ran " in line] == []


def test_an_entry_of_a_table_is_never_looked_for_in_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "late_module.py").write_text("found = 1\n")
    monkeypatch.chdir(tmp_path)
    before = list(sys.path)
    with pytest.raises(ModuleNotFoundError):
        choose("constant", "late", {"late": "late_module:found"})
    assert choose("constant", "tau", {"tau": "math:tau"}) > 6
    assert sys.path == before
    with pytest.raises(OptionError, match=r"unknown constant 'late_module:found': use late$"):
        choose("constant", "late_module:found", {"late": 1})
    assert choose("constant", "late_module:found", {"late": 2}, own=True) == 1
    assert sys.path == before


def test_what_a_user_names_is_found_after_what_is_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also what it imports later, and in children, where the folder comes last."""
    (tmp_path / "own_network.py").write_text(
        "import own_helper, json\n"
        "def made():\n    import own_late\n    return own_late.value, json.__file__\n"
    )
    (tmp_path / "own_helper.py").touch()
    (tmp_path / "own_late.py").write_text("value = 5\n")
    (tmp_path / "colorsys.py").write_text("mine = 1\n")
    (tmp_path / "json.py").write_text("mine = 1\n")
    monkeypatch.chdir(tmp_path)
    before = list(sys.path)
    made = resolve("own_network:made", "model")
    assert sys.path == before
    with user_folders():
        assert made() == (5, importlib.import_module("json").__file__)
    for hidden in ("colorsys", "json"):
        with pytest.raises(
            BitsectError, match=f"'{hidden}' in .* is hidden by an installed module .*: rename it"
        ):
            resolve(f"{hidden}:mine", "model")
    program = "import json, sys, own_network; print(json.__file__, sys.path[-1], own_network.__file__)"
    said = subprocess.run(python_command(program), capture_output=True, text=True, check=True).stdout.split()
    assert said == [importlib.import_module("json").__file__, str(tmp_path), str(tmp_path / "own_network.py")]


@pytest.mark.parametrize("first", ["", "."])
def test_children_of_a_session_in_a_folder_find_its_modules_last(
    first: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A notebook has the current folder first on its path: its children find what lies there, and no more."""
    (tmp_path / "beside_it.py").touch()
    (tmp_path / "json.py").write_text("raise SystemExit(1)\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(first)
    subprocess.run(python_command("import json, beside_it"), check=True)
