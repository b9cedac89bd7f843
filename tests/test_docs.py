"""The documentation: every page is in its place, and the reference is made from the program as it is."""

from __future__ import annotations

import importlib.util
import re
import runpy
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import bitsect
from bitsect.cli import app

ROOT = Path(__file__).parent.parent
CONFIG = ROOT / "mkdocs.yml"

pytestmark = pytest.mark.skipif(
    not CONFIG.exists(), reason="the pages are beside the sources, not in a wheel"
)


def tool(name: str) -> ModuleType:
    pytest.importorskip("mkdocstrings", reason="bitsect[docs] is not installed")
    spec = importlib.util.spec_from_file_location(name, ROOT / "tools" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_page_is_in_the_menu() -> None:
    menu = set(re.findall(r": ([\w/-]+\.md)$", CONFIG.read_text(), re.MULTILINE))
    written = {str(path.relative_to(ROOT / "docs")) for path in (ROOT / "docs").rglob("*.md")}
    assert menu == written | {"reference/commands.md", "reference/python.md", "reference/names.md"}


def test_the_reference_has_every_command_option_and_name() -> None:
    reference = tool("reference")
    commands = reference.commands_page()
    for each in app.registered_commands:
        name = (each.name or getattr(each.callback, "__name__", "")).replace("_", "-")
        assert f"## bitsect {name}\n" in commands
    assert "## bitsect recipe list\n" in commands
    for option in ("--target", "--hold-out", "--until-stable", "--placement", "--draws"):
        assert f"| {option}" in commands
    python = reference.python_page()
    for name in bitsect.__all__:
        thing = getattr(bitsect, name)
        if (
            callable(thing)
            and not name.startswith("_")
            and getattr(thing, "__module__", "").startswith("bitsect")
        ):
            assert f"heading: bitsect.{name}\n" in python
    names = reference.names_page()
    for name in ("aughessian", "frontier", "squant", "onnxruntime", "question-answering", "resnet50"):
        assert f"{name}" in names


def test_docstrings_become_markdown() -> None:
    text = "What it is.\n\n>>> 1 + 1\n2\n\nArguments:\n    trust, run: as before.\n    x: [1, 2].\n"
    shown = tool("docstrings").as_markdown(text)
    assert "```pycon\n>>> 1 + 1\n2\n```" in shown
    assert "**Arguments**" in shown
    assert "- `trust`, `run`: as before." in shown


def test_the_site_is_built_without_a_warning(tmp_path: Path) -> None:
    pytest.importorskip("mkdocstrings", reason="bitsect[docs] is not installed")
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "mkdocs",
            "build",
            "--strict",
            "--quiet",
            "--site-dir",
            str(tmp_path / "site"),
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    page = (tmp_path / "site" / "reference" / "python" / "index.html").read_text()
    assert "until_stable" in page  # options are keyword arguments only once the package is loaded
    home = (tmp_path / "site" / "index.html").read_text()
    assert "https://fonts" not in home  # it is read without a network


@pytest.mark.parametrize("page", ["README.md", "docs/results.md"])
def test_every_table_of_results_is_what_its_files_say(page: str) -> None:
    script = runpy.run_path(str(ROOT / "tools" / "results.py"))
    text = (ROOT / page).read_text()
    assert script["PLACE"].search(text)
    assert script["rendered"](text) == text, "run python tools/results.py"


def test_results_stay_short_enough_to_be_kept_true() -> None:
    assert len((ROOT / "docs" / "results.md").read_text().split()) <= 2500
