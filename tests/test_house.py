"""The house is what its plan says: rooms, their lines, the sizes of files and signatures."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import bitsect

PACKAGE = Path(bitsect.__file__).parent
PLAN = PACKAGE.parents[1] / "docs" / "architecture.md"
FILES = sorted(PACKAGE.rglob("*.py"))
MOST_ENTRIES, MOST_LINES, MOST_PARAMETERS = 18, 400, 8
BUDGET = 39_200  # lines of the whole package, rounded up to the next hundred
PUBLIC = {"cli", "pipeline"}  # whose functions are the options of a command or of a public call

pytestmark = pytest.mark.skipif(not PLAN.exists(), reason="the plan is beside the sources, not in a wheel")


def rooms() -> dict[str, str]:
    """The rooms that the plan names, each with its line."""
    rows = re.findall(r"^\| `([\w./]+)` \| (.+) \|$", PLAN.read_text(), re.MULTILINE)
    return {name: line for name, line in rows if (PACKAGE / name).exists()}


def test_the_package_is_seen_at_a_glance() -> None:
    made = {"__pycache__", "__init__.pyi"}
    entries = [item.name for item in PACKAGE.iterdir() if item.name not in made]
    assert len(entries) <= MOST_ENTRIES
    named = {name.rstrip("/") for name in rooms()}
    assert {name for name in entries if not name.startswith("__") and name != "py.typed"} == named


@pytest.mark.parametrize("room", sorted(rooms()))
def test_a_room_says_what_the_plan_says(room: str) -> None:
    path = PACKAGE / room
    source = (path / "__init__.py" if path.is_dir() else path).read_text()
    docstring = ast.get_docstring(ast.parse(source))
    assert docstring is not None
    assert docstring.partition("\n")[0] == rooms()[room]


def test_the_whole_stays_within_its_budget() -> None:
    """A new feature pays for itself in lines elsewhere, or a reviewed commit raises the budget."""
    lines = sum(len(path.read_text().splitlines()) for path in FILES)
    assert lines <= BUDGET


def test_no_class_name_means_two_things() -> None:
    homes: dict[str, list[str]] = {}
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                homes.setdefault(node.name, []).append(str(path.relative_to(PACKAGE)))
    assert {name: files for name, files in homes.items() if len(files) > 1} == {}


def test_no_file_is_too_long_to_read() -> None:
    long = {str(path.relative_to(PACKAGE)): len(path.read_text().splitlines()) for path in FILES}
    assert {name: lines for name, lines in long.items() if lines > MOST_LINES} == {}


def test_no_function_but_the_public_ones_takes_many_parameters() -> None:
    found = []
    for path in FILES:
        if path.relative_to(PACKAGE).parts[0] in PUBLIC:
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef):
                arguments = node.args
                count = len(arguments.posonlyargs) + len(arguments.args) + len(arguments.kwonlyargs)
                if (
                    count - (arguments.args[:1] != [] and arguments.args[0].arg in ("self", "cls"))
                    > MOST_PARAMETERS
                ):
                    found.append(f"{path.relative_to(PACKAGE)}:{node.name} ({count})")
    assert found == []


def test_every_room_file_and_public_function_has_a_docstring() -> None:
    bare = [
        str(path.relative_to(PACKAGE)) for path in FILES if not ast.get_docstring(ast.parse(path.read_text()))
    ]
    assert set(bare) <= {"__main__.py"}
    for name in bitsect.__all__:
        if not name.startswith("_") and callable(getattr(bitsect, name)):
            assert getattr(bitsect, name).__doc__, name
