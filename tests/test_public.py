"""The public names, what they load, and the words of values that people write by hand."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from decimal import Decimal
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import bitsect
from bitsect.errors import BitsectError, PlanError
from bitsect.names import resolve
from bitsect.values import FLOAT, INT4, INT8, Evaluation, Format, Layer, Plan, Range, Ranges, Target

FUNCTIONS = {
    "blame",
    "capture",
    "compare",
    "evaluate",
    "evaluate_file",
    "export",
    "frontier",
    "import_cutlass",
    "judge",
    "layers",
    "load",
    "load_samples",
    "quantize",
    "report",
    "run_recipe",
    "sensitivity",
}
OPTIONS = {"Goal", "Resources", "Scoring", "Settings"}
# What the functions return, and what is in it.
ANSWERS = {
    "Blame",
    "Compared",
    "Curve",
    "Delivery",
    "Evaluation",
    "Judgement",
    "Proof",
    "Result",
    "Row",
    "Scores",
    "Tested",
    "Verdict",
}
VALUES = {"Format", "LatencyTable", "Layer", "Plan", "Program", "Samples", "Target"}
# For users who bring a metric, search, task or progress bar of their own.
OWN = {"Array", "Found", "Means", "Metric", "Outcome", "Problem", "Progress", "Task", "Trials", "metric"}
ERRORS = {
    "BitsectError",
    "CaptureError",
    "DataError",
    "ExportError",
    "MissingExtraError",
    "OptionError",
    "PlanError",
    "RunError",
    "TargetError",
}
NAMES = {*FUNCTIONS, *OPTIONS, *ANSWERS, *VALUES, *OWN, *ERRORS, "__version__"}
ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "bitsect"
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "examples").glob("*.py"))]
LAYERS = tuple(Layer(name, "conv2d", (2, 2, 3, 3), ()) for name in ("stem", "body.0", "body.1", "head"))


def python(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.strip()


# ---- names ---------------------------------------------------------------------------------------


def test_the_public_names_are_these() -> None:
    assert set(bitsect.__all__) == NAMES
    assert sorted(bitsect.__all__) == bitsect.__all__
    assert dir(bitsect) == bitsect.__all__
    for name in bitsect.__all__:
        assert getattr(bitsect, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'quantise'"):
        bitsect.quantise  # noqa: B018


def is_module(path: str) -> bool:
    """Whether the dotted `path` begins with a module of this package."""
    first = SOURCE / path.split(".")[1]
    return first.is_dir() or first.with_suffix(".py").is_file()


def private_names(text: str) -> list[str]:
    """What `text` calls `bitsect.X`, or imports from bitsect, though it is not public."""
    paths = re.findall(r"(?<![\w./:])bitsect(?:\.\w+)+", text)
    for imported in re.findall(r"from bitsect import ([\w, ]+)", text):
        paths += [f"bitsect.{name.split()[0]}" for name in imported.split(",")]
    return [path for path in paths if path.split(".")[1] not in bitsect.__all__]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_pages_and_examples_name_only_what_is_public(page: Path) -> None:
    private = private_names(page.read_text())
    if page.name == "architecture.md":  # which is about the modules
        private = [path for path in private if not is_module(path)]
    assert private == []


def messages(path: Path) -> Iterator[tuple[int, str]]:
    """Every text in a source file with its line; what an f-string fills in is shown as `…`."""
    inside: set[ast.AST] = set()
    for node in ast.walk(ast.parse(path.read_text())):  # from the outside in
        if isinstance(node, ast.JoinedStr):
            inside |= set(node.values)
            yield (
                node.lineno,
                "".join(part.value if isinstance(part, ast.Constant) else "…" for part in node.values),
            )
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in inside:
            yield node.lineno, node.value


def test_docstrings_and_messages_name_only_what_is_public() -> None:
    private = []
    for path in sorted(SOURCE.rglob("*.py")):
        for line, text in messages(path):
            if re.fullmatch(r"bitsect(\.\w+)+(:\w+)?", text):
                continue  # not a sentence: an entry of a table, or a key in a written model
            found = [name for name in private_names(text) if not is_module(name)]
            private += [f"{path.relative_to(ROOT)}, line {line}: {name}" for name in found]
    assert private == []


def test_messages_mention_options_for_python_and_the_command_line() -> None:
    """Outside the command's own modules an option is [name=value], unless within a whole `command`."""
    one_sided = []
    for path in sorted(set(SOURCE.rglob("*.py")) - {SOURCE / "errors.py", *(SOURCE / "cli").rglob("*.py")}):
        for line, text in messages(path):
            if re.search(r"(^|\s)--[a-z]", re.sub("`[^`]*`", "", text)):
                one_sided.append(f"{path.relative_to(ROOT)}, line {line}: {text}")
    assert one_sided == []


def test_references_in_the_source_lead_somewhere() -> None:
    for path in sorted(SOURCE.rglob("*.py")):
        for reference in re.findall(r'"(bitsect(?:\.\w+)+:\w+)"', path.read_text()):
            assert resolve(reference, path.name) is not None


@pytest.mark.parametrize(
    "code",
    [
        "import bitsect; bitsect.BitsectError, bitsect.Plan, bitsect.Format, bitsect.Target\n"
        "bitsect.Settings(), bitsect.Scoring(), bitsect.Goal()",
        "import bitsect.solve.search, bitsect.solve.search.within_budget, bitsect.solve.metrics\n"
        "import bitsect.values, bitsect.latency, bitsect.runs.folder",
        "import sys; sys.argv = ['bitsect', 'quantize', '--help']; sys.stdout = sys.stderr\n"
        "from bitsect.cli import main\n"
        "try: main()\nexcept SystemExit as end: assert end.code == 0",
    ],
    ids=["names", "numbers", "help"],
)
def test_torch_stays_unloaded(code: str) -> None:
    assert python(f"{code}\nimport sys; print('torch' in sys.modules, file=sys.__stdout__)") == "False"


def test_functions_are_not_hidden_by_modules_of_their_name() -> None:
    code = "import bitsect.pipeline.evaluate, bitsect; print(bitsect.capture.__name__, bitsect.evaluate)"
    assert python(code).startswith("capture <function evaluate")


# ---- plans ---------------------------------------------------------------------------------------


def test_a_plan_survives_its_file(tmp_path: Path) -> None:
    plan = Plan.uniform(LAYERS, INT8).replace(["head"], FLOAT).replace(["body.1"], Format.parse("w4a16g32"))
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(plan.to_json()))
    assert Plan.read(path, LAYERS) == plan
    assert plan.counts == {"float": 1, "int8": 2, "w4a16g32": 1}
    assert json.loads(path.read_text())["layers"]["body.1"] == "w4a16g32"


def test_layers_that_a_plan_does_not_name_stay_in_float() -> None:
    data = {"bitsect": "plan", "version": 1, "layers": {"head": "int4"}}
    assert Plan.from_json(data, LAYERS) == Plan.uniform(LAYERS).replace(["head"], INT4)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "line 1: not JSON"),
        ("[]", "not a plan"),
        ('{"layers": {}}', "not a plan"),
        ('{"bitsect": "plan", "version": 1, "layers": []}', "not a plan"),
        ('{"bitsect": "plan", "version": 9, "layers": {}}', "plan version 9 is not 1"),
        (
            '{"bitsect": "plan", "version": 1, "layers": {"body.2": "int8"}}',
            "unknown layer 'body.2'; did you",
        ),
        (
            '{"bitsect": "plan", "version": 1, "layers": {"zzz": "int8"}}',
            "unknown layer 'zzz'; `bitsect layers`",
        ),
        (
            '{"bitsect": "plan", "version": 1, "layers": {"head": 8}}',
            "layer 'head': the format must be a name",
        ),
        (
            '{"bitsect": "plan", "version": 1, "layers": {"head": "int1"}}',
            "layer 'head': format bits must be",
        ),
        (
            '{"bitsect": "plan", "version": 1, "layers": {"head": "int8", "head": "int4"}}',
            "'head' stands there",
        ),
        ("\udcff", "cannot be read"),
    ],
)
def test_a_bad_plan_is_named_with_the_place(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(PlanError, match=message) as caught:
        Plan.read(path, LAYERS)
    assert str(caught.value).startswith(str(path))


def test_equal_plans_are_one_key() -> None:
    one, other = Plan({"a": INT8, "b": INT4}), Plan({"b": INT4, "a": INT8})
    assert one == other
    assert {one: 1}[other] == 1


# ---- formats, targets, evaluations, ranges -------------------------------------------------------


@pytest.mark.parametrize("name", ["float", "int8", "int4", "int2", "w4a16", "w4a8", "w8a16", "w4a16g128"])
def test_formats_keep_their_names(name: str) -> None:
    assert Format.parse(name).name == name
    assert eval(repr(Format.parse(name))) == Format.parse(name)


@pytest.mark.parametrize(
    "name", ["", "int", "int1", "int9", "int16", "INT8", "w4", "w4a", "w16a8", "w4a16g0", "8"]
)
def test_what_is_no_format_is_refused(name: str) -> None:
    with pytest.raises(PlanError, match=r"format|activations|group|bits"):
        Format.parse(name)


@pytest.mark.parametrize(
    ("text", "threshold"),
    [
        ("99.9%", "8991/10000"),
        ("0.999", "8991/10000"),
        (0.999, "8991/10000"),
        (1, "9/10"),
        (" 100 % ", "9/10"),
    ],
)
def test_targets_are_exact(text: str | float, threshold: str) -> None:
    assert Target.parse(text).threshold(Fraction(9, 10)) == Fraction(threshold)


@given(st.decimals("0.0001", "99.9999", places=7))
def test_what_a_target_prints_is_that_target(number: Decimal) -> None:
    for target in (Target.parse(f"{number}%"), Target.drop(str(number))):
        assert Target.parse(str(target)) == target


@pytest.mark.parametrize(
    "text", ["", "abc", "%", "0%", "-1%", "101%", "99", "nan", "inf", "1e999999999", 99.9, True]
)
def test_what_is_no_target_is_refused(text: str | float) -> None:
    with pytest.raises(BitsectError, match=f"target '{text}'.* 99.9%"):
        Target.parse(text)


def test_the_largest_drop_is_in_percentage_points() -> None:
    assert Target.drop(0.5).threshold(Fraction(9, 10)) == Fraction(895, 1000)
    assert Target.drop(50).threshold(Fraction(1, 10)) == 0
    assert str(Target.drop("0.5")) == "max drop 0.5 points"
    for points in (-1, 100, "nan", "many"):
        with pytest.raises(BitsectError, match="drop"):
            Target.drop(points)


def test_a_target_is_one_of_two() -> None:
    for both in ({}, {"relative": Fraction(1), "max_drop": Fraction(0)}, {"relative": Fraction(2)}):
        with pytest.raises(BitsectError, match="target"):
            Target(**both)


def test_an_evaluation_decides_as_soon_as_it_can() -> None:
    assert Evaluation(0, 0, 0).accuracy == 0
    assert Evaluation(5, 9, 10).reaches(Fraction(5, 10)) is True
    assert Evaluation(4, 9, 10).reaches(Fraction(5, 10)) is None
    assert Evaluation(3, 9, 10).reaches(Fraction(5, 10)) is False


def test_ranges_survive_json() -> None:
    ranges = Ranges("mse", "auto", 99.9, 64, {"x": {8: Range(1.5), 4: Range(0.1, unsigned=True)}})
    assert Ranges.from_json(json.loads(json.dumps(ranges.to_json()))) == ranges
