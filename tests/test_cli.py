"""The commands as a user meets them: output, errors, exit codes, help."""

from __future__ import annotations

import inspect
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import bitsect
from bitsect import Settings
from bitsect.cli import app, main
from bitsect.cli.help import ABOUT, ORDER
from bitsect.cli.verbs import NEEDED, verb
from bitsect.runs.disk import fingerprint_json
from bitsect.runs.folder import RunFolder
from bitsect.solve.metrics import METRICS
from bitsect.solve.search import SEARCHES
from bitsect.sources.tasks import TASKS
from bitsect.values import PLACEMENTS
from bitsect.values.options import names_of

COMMANDS = (
    "blame",
    "compare",
    "evaluate",
    "export",
    "frontier",
    "import-latency",
    "judge",
    "latency",
    "layers",
    "quantize",
    "report",
    "search",
    "sensitivity",
    "show",
)

MINE = """
import os, signal
import torch
from torch import nn
from torch.nn import functional as F
from bitsect import metric
from bitsect.solve.search.bisection import bisection

print("a module that talks")

def network():
    torch.manual_seed(1)
    layers = nn.Conv2d(1, 6, 3, bias=False), nn.ReLU(), nn.Conv2d(6, 6, 3, bias=False), nn.ReLU()
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(96, 5, bias=False))

def shaped():
    return network(), torch.zeros(2, 1, 8, 8)

class Pair(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.left, self.right = nn.Linear(64, 5), nn.Linear(64, 5)

    def forward(self, x):
        return {"left": self.left(x.flatten(1)), "right": self.right(x.flatten(1))}

class Branching(nn.Module):
    def forward(self, x):
        return x.flatten(1) if x.sum() > 0 else -x.flatten(1)

def branching():
    return Branching()

def broken():
    raise RuntimeError("no weights here")

def interrupted():
    raise KeyboardInterrupt

def ended():
    os.kill(os.getpid(), signal.SIGTERM)

@metric("single")
def doubled(means, options):
    print("a metric that talks")
    return 2 * means["single"]

def plain(means, options):
    return means["single"]

def task(outputs, labels):
    print("a task that talks")
    return F.cross_entropy(outputs, labels, reduction="none"), (outputs.argmax(1) == labels).float()

def search(problem):
    return bisection(problem)

def lost(problem):
    return None
"""


@dataclass(frozen=True)
class Said:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """The one object on stdout, which holds no NaN."""
        assert self.code == 0, self.err

        def refuse(constant: str) -> None:
            raise AssertionError(constant)

        return json.loads(self.out, parse_constant=refuse)

    @property
    def error(self) -> str:
        """The one line of an error, which with --json is the message of the one object on stdout too."""
        assert self.code == 1
        line = self.err.rstrip("\n").splitlines()[-1]
        assert line.startswith("error: "), self.err
        assert "Traceback" not in self.err
        told = line.removeprefix("error: ")
        assert self.out == "" or json.loads(self.out)["error"]["message"] == told
        return told


Call = Callable[..., Said]


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a module, samples good and bad, and plans."""
    path = tmp_path_factory.mktemp("desk")
    (path / "my_own.py").write_text(MINE)
    sys.path.insert(0, str(path))
    import my_own

    rng = np.random.default_rng(0)
    x = rng.normal(size=(32, 1, 8, 8)).astype(np.float32)
    with torch.no_grad():
        y = my_own.network()(torch.from_numpy(x)).argmax(1).numpy()
    y[:2] = (y[:2] + 1) % 5  # two that the float network gets wrong
    np.savez(path / "good.npz", x=x, y=y)
    with torch.no_grad():
        np.savez(path / "right.npz", x=x, y=my_own.Pair()(torch.from_numpy(x))["right"].argmax(1).numpy())
    np.savez(path / "unlabelled.npz", x=x)
    np.savez(path / "shape.npz", x=x[:, :, :5], y=y)
    np.savez(path / "empty.npz", x=x[:0], y=y[:0])
    np.savez(path / "nan.npz", x=np.where(np.arange(32)[:, None, None, None] == 7, np.nan, x), y=y)
    np.savez(path / "label.npz", x=x, y=np.where(np.arange(32) == 9, 12, y))
    (path / "text.npz").write_text("no archive")
    (path / "cut.json").write_text('{"bitsect": "plan",')
    (path / "strange.json").write_text('{"bitsect": "plan", "version": 1, "layers": {"conv9": "int8"}}')
    sys.path.remove(str(path))
    return path


@pytest.fixture
def call(desk: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Call:
    monkeypatch.chdir(desk)
    monkeypatch.setenv("COLUMNS", "80")

    def run(*arguments: object) -> Said:
        monkeypatch.setattr(sys, "argv", ["bitsect", *map(str, arguments)])
        capfd.readouterr()
        with pytest.raises(SystemExit) as end:
            main()
        return Said(int(end.value.code or 0), *capfd.readouterr())

    return run


def edit_json(path: Path, **change: Any) -> None:
    """Change a file of a run as someone would who knows how it is protected."""
    data = json.loads(path.read_text()) | change
    del data["checksum"]
    path.write_text(json.dumps({**data, "checksum": fingerprint_json({path.name: data})}))


MODEL = ("my_own:network", "--data", "good.npz")
PAPER = ("--method", "paper")
FEW = (*PAPER, "--probes", 8)


@pytest.fixture(scope="module")
def made(desk: Path) -> Path:
    """A finished run that no test may write to."""
    home = Path.cwd()
    os.chdir(desk)
    try:
        bitsect.quantize(
            "my_own:network", "good.npz", method="paper", target=0.9, probes=8, out=desk / "made"
        )
    finally:
        os.chdir(home)
    return desk / "made"


@pytest.fixture
def run(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "run"))


# ---- help and usage ------------------------------------------------------------------------------


def test_the_commands_are_these(call: Call) -> None:
    from typer.main import get_command

    assert sorted(get_command(app).commands) == sorted((*COMMANDS, "recipe"))  # type: ignore[attr-defined]
    said = call("--help")
    assert said.code == 0
    assert all(name in said.out for name in COMMANDS)
    assert call("--version").out == f"bitsect {bitsect.__version__}\n"


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_and_option_has_help(name: str, call: Call) -> None:
    from typer.main import get_command

    command = get_command(app).commands[name]  # type: ignore[attr-defined]
    assert command.help
    for option in command.params:
        assert option.help, f"{name}: {option.name}"
        assert (
            option.help.rstrip()[-1] in ".)" or option.param_type_name == "argument" or "NAME" in option.help
        )
    said = call(name, "--help")
    assert said.code == 0
    assert said.err == ""
    assert max(map(len, said.out.splitlines())) <= 80
    assert "--json" in said.out


@pytest.mark.parametrize("name", COMMANDS)
def test_everyday_help_fits_a_screen(name: str, call: Call) -> None:
    shown = call(name, "-h").out
    assert shown == call(name, "--help").out
    assert len(shown.splitlines()) <= 40


@pytest.mark.parametrize("name", ABOUT)
def test_all_of_help_has_every_option_by_subject_and_examples_have_no_other(name: str, call: Call) -> None:
    from typer.main import get_command

    params = get_command(app).commands[name].params  # type: ignore[attr-defined]
    shown = call(name, "--help-all")
    assert (shown.code, shown.err) == (0, "")
    known = {flag for each in params for flag in (*each.opts, *each.secondary_opts)}
    flags = {flag for flag in known if flag.startswith("-")}
    assert flags <= set(re.findall(r"(?<![\w-])--?[a-z][\w-]*", shown.out))
    assert max(map(len, shown.out.splitlines())) <= 80
    for example in ABOUT[name].examples:
        assert example.startswith(f"bitsect {name} ")
        assert {word for word in example.split() if word.startswith("-")} <= known


def test_nothing_but_the_name_shows_where_to_begin(call: Call) -> None:
    said = call()
    assert (said.code, said.err) == (2, "")
    assert len(said.out.splitlines()) <= 40
    assert said.out == call("--help").out
    assert all(f"\n{heading}\n" in said.out for heading in ORDER)
    assert {about.wanted for about in ABOUT.values()} == {*ORDER}


def test_help_lists_what_the_tables_hold(call: Call) -> None:
    words = set(re.findall(r"[\w-]+", call("quantize", "--help-all").out))
    assert {*METRICS, *SEARCHES, *TASKS, *PLACEMENTS} <= words


@pytest.mark.parametrize("name", ABOUT)
def test_a_command_offers_what_its_verb_takes_and_nothing_that_it_refuses(name: str) -> None:
    """The source that a command is made from says what the function itself says."""
    from typer.main import get_command

    module = {"judge": "referee"}.get(name, name.replace("-", "_"))
    function = getattr(import_module(f"bitsect.pipeline.{module}"), name.replace("-", "_"))
    read = verb(f"{module}:{name.replace('-', '_')}")
    own = inspect.signature(inspect.unwrap(function)).parameters
    groups = getattr(function, "option_groups", {})
    assert [each.name for each in read.parameters] == [each for each in own if each not in groups]
    assert read.groups == tuple(groups.values())
    for each in read.parameters:
        default = own[each.name].default
        assert each.default is NEEDED if default is inspect.Parameter.empty else each.default == default
    offered = {each.name for each in get_command(app).commands[name].params}  # type: ignore[attr-defined]
    taken = {each.name for each in read.parameters}.union(*map(names_of, read.groups))
    assert taken - {*read.refused, "progress", "evaluate", "example"} <= offered
    assert offered & {*read.refused} <= {each.name for each in read.parameters}


def test_a_new_setting_says_whether_files_are_judged_by_it() -> None:
    """What a file cannot be judged by is refused by name: a new setting is in one of two lists."""
    applied = {"draw", "seed", "mean", "std", "scale", "columns", "max_length", "stride", "processor"}
    applied |= {"task", "output", "batch_size", "threads"}
    assert applied == {*names_of(Settings)} - {*verb("referee:judge").refused}


def test_a_run_is_shown_as_wide_as_one_asks_whatever_the_terminal(run: Path, call: Call) -> None:
    widest = max(map(len, call("show", run, "--width", 150).out.splitlines()))
    assert 80 < widest <= 150


def test_quiet_says_the_answer_alone_and_verbose_says_more(run: Path, call: Call) -> None:
    ask = ("search", run, "--target", "90%", "--metric", "random")
    quiet, usual, verbose = call(*ask, "-q"), call(*ask), call(*ask, "-v")
    assert quiet.err == ""
    assert quiet.out.splitlines()[:6] == usual.out.splitlines()[:6]
    assert "capture …" in usual.err
    assert re.search(r"^capture: \d+\.\d s$", verbose.err, re.MULTILINE)
    assert call("show", "nowhere", "--quiet").error
    assert "Traceback" in call("show", "nowhere", "--verbose").err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("quantize", *MODEL, "--max-drop", "much"), "--max-drop"),
        (("quantize", *MODEL, "--target", "99%", "--probes", "0"), "--probes"),
        (("quantize", "--target", "99%"), "MODEL"),
        (("quantize", *MODEL, "--tarket", "99%"), "--tarket"),
        (("sensitivity", *MODEL, "--until-stable", "-1"), "--until-stable"),
        (("evaluate", *MODEL, "--batch-size", "0"), "--batch-size"),
        (("evaluate", *MODEL, "--input-shape", "8"), "--input-shape"),
        (("quantize", *MODEL, "--target", "99%", "--size-penalty", "-1"), "--size-penalty"),
        (("quantise", *MODEL), "quantise"),
        (("export", "run"), "--out"),
        (("evaluate", *MODEL, "--runtime", "onnxruntime"), "--runtime"),
        (("evaluate", "model.onnx", "--data", "good.npz", "--format", "int8"), "--format"),
    ],
)
def test_wrong_usage_exits_with_two(arguments: tuple[str, ...], message: str, call: Call) -> None:
    said = call(*arguments)
    assert (said.code, said.out) == (2, "")
    assert message in said.err


# ---- errors --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "options", "message"),
    [
        ("my_own:network", {"data": "nowhere.npz"}, "nowhere.npz: no such file or folder: give"),
        ("my_own:network", {"data": "text.npz"}, "text.npz: not a numpy archive"),
        ("my_own:network", {"data": "my_own.py"}, "my_own.py: unknown kind of data: give"),
        ("my_own:network", {"data": "empty.npz"}, "empty.npz: holds no samples"),
        ("my_own:network", {"data": "nan.npz"}, "nan.npz: sample 7 has NaN"),
        (
            "my_own:network",
            {"data": "label.npz"},
            "label.npz: sample 9 has label 12, but the network has 5 classes",
        ),
        ("my_own:network", {"data": "shape.npz"}, "cannot be captured"),
        ("my_own:shaped", {"data": "shape.npz"}, "(32, 1, 5, 8); the network takes batch × 1 × 8 × 8"),
        ("my_own:network", {"data": "good.npz", "draw": "99"}, "99 samples asked for, it has 32"),
        ("my_own:network", {}, "samples are needed: pass --data"),
        ("my_own:nothing", {"data": "good.npz"}, "'my_own' has no 'nothing'"),
        ("my_own:broken", {"data": "good.npz"}, "raised RuntimeError: no weights here"),
        ("my_own:branching", {"data": "good.npz"}, "cannot be captured at"),
        ("not_mine:network", {"data": "good.npz"}, "no module 'not_mine'"),
        ("gone.pt2", {"data": "good.npz"}, "gone.pt2: no such file"),
        ("my_own.py", {"data": "good.npz"}, "is not a .pt2 file"),
        ("resnet", {"data": "good.npz"}, "unknown model 'resnet': use hf:FOLDER, zoo:NAME"),
        ("zoo:resnet", {}, "the zoo has no network 'resnet'; it has fashion-resnet"),
        (
            "my_own:network",
            {"data": "good.npz", "plan": "strange.json"},
            "strange.json: unknown layer 'conv9'",
        ),
        ("my_own:network", {"data": "good.npz", "plan": "cut.json"}, "cut.json: line 1: not JSON"),
        ("my_own:network", {"data": "good.npz", "plan": "none.json"}, "none.json: no such plan"),
        ("my_own:network", {"data": "good.npz", "plan": "."}, "cannot be read"),
        ("my_own:network", {"data": "good.npz", "format": "int99"}, "format bits must be 2 to 8"),
        (
            "my_own:network",
            {"data": "good.npz", "format": "eight"},
            "unknown format 'eight': use float, int8",
        ),
        (
            "my_own:network",
            {"data": "good.npz", "placement": "x"},
            "unknown placement 'x': use paper or onnx",
        ),
        (
            "my_own:network",
            {"data": "good.npz", "rounding": "x"},
            "unknown rounding 'x': use squant, nearest or gptq",
        ),
        (
            "my_own:network",
            {"data": "good.npz", "range": "x"},
            "unknown range 'x': use percentile, mse or max",
        ),
        ("my_own:network", {"data": "good.npz", "sign": "x"}, "unknown sign 'x': use signed or auto"),
        ("my_own:network", {"data": "good.npz", "task": "x"}, "unknown task 'x': use classification"),
        (
            "my_own:network",
            {"data": "good.npz", "percentile": "0"},
            "percentile 0 is not above 0 and up to 100",
        ),
    ],
)
def test_bad_models_samples_and_plans_are_one_line(
    model: str, options: dict[str, str], message: str, call: Call
) -> None:
    given = [part for name, value in options.items() for part in (f"--{name}", value)]
    assert message in call("evaluate", model, *given, "--json").error


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ((), "what must be kept? pass --target"),
        (("--target", "99%", "--max-drop", "1"), "pass one of --target 99.9%, --max-drop 0.5 and"),
        (("--target", "99%", "--until-stable", "7"), "until stable 7.0 is not an agreement from 0 to 1"),
        (("--target", "good"), "target 'good' is not a share above 0 and up to 1, such as 99.9%"),
        (("--target", "0%"), "target '0%'"),
        (("--target", "101%"), "target '101%'"),
        (("--target", "99"), "target '99'"),
        (("--max-drop", "-1"), "largest drop '-1.0'"),
        (("--target", "99%", "--formats", ","), "no format to try besides float: name one"),
        (("--target", "99%", "--formats", "int8,int1"), "format bits must be 2 to 8"),
        (("--target", "99%", "--metric", "hesian"), "unknown metric 'hesian': did you mean 'hessian'?"),
        (("--target", "99%", "--metric", "my_own:plain"), "does not say what it needs"),
        (
            ("--target", "99%", "--search", "x"),
            "unknown search 'x': use bisection, frontier, literal, literal-progressive, progressive or "
            "package.module:function",
        ),
        (("--target", "99%", "--search", "my_own:nothing"), "'my_own' has no 'nothing'"),
        (("--target", "99%", "--objective", "x"), "unknown objective 'x': use latency or size"),
        (("--target", "99%", "--pairs", "x"), "unknown pairs 'x': use exact or linear"),
        (("--target", "99%", "--loss", "x"), "unknown loss 'x': use task or kl"),
        (("--target", "99%", "--clip", "x"), "unknown clip 'x': use pair or sum"),
        (("--target", "99%", "--trace", "x"), "unknown trace 'x': use mean_trace or trace"),
        (("--target", "99%", "--score-format", "x"), "unknown format 'x'"),
        (("--for", "bits", "--budget", "3ms"), "needs a latency table: pass --latency"),
        (("--budget", "3", "--latency", "a100"), "latency budget '3' is not"),
        (("--max-size", "12"), "size budget '12' is not a number and a unit such as 12MB"),
        (("--target", "99%", "--out", "good.npz"), "good.npz is a file: a run needs a folder"),
        (("--target", "99%", "--out", "."), "something else than a run"),
    ],
)
def test_bad_questions_are_one_line_before_any_work(
    options: tuple[str, ...], message: str, call: Call
) -> None:
    said = call("quantize", *MODEL, *options, "--json")
    assert message in said.error
    assert "calibrate" not in said.err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--keep", "conv*=int8"), "pin 'conv*=int8': no layer matches 'conv*'"),
        (("--keep", "first"), "pin 'first': expected PATTERN=FORMAT"),
        (
            ("--keep", "*=int2", "--target", "100%"),
            "--keep *=int2: the target cannot be kept: with '0' (int2)",
        ),
        (
            ("--latency", "none.json"),
            "none.json: no such latency table: use a100, onnxruntime, openvino, or a file",
        ),
        (("--latency", "cut.json"), "cut.json: line 1"),
        (("--search", "my_own:lost"), "returned a NoneType: expected a bitsect.Found"),
        (("--max-size", "1B"), "budget 1B: no plan fits; the nearest (3 int4) takes"),
        (("--max-size", "0.2x"), "allow lower formats or raise the budget"),
    ],
)
def test_what_a_network_cannot_do_is_one_line(
    options: tuple[str, ...], message: str, run: Path, call: Call
) -> None:
    target = () if "--target" in options else ("--target", "90%")
    assert message in call("search", run, *FEW, *target, *options).error


@pytest.mark.parametrize("data", ["shape.npz", "nowhere.npz"])
def test_test_samples_are_wanted_last_and_refused_first(data: str, call: Call) -> None:
    said = call("quantize", *MODEL, "--target", "90%", "--test-data", data)
    assert "takes batch × 1 × 8 × 8" in said.error or "nowhere.npz: no such file" in said.error
    assert "calibrate" not in said.err


def test_runs_that_are_none_in_use_or_of_something_else(run: Path, tmp_path: Path, call: Call) -> None:
    target = ("--target", "90%")
    assert "`bitsect quantize MODEL --out nowhere` makes one" in call("search", "nowhere", *target).error
    assert "is not a run" in call("search", tmp_path, *target).error
    changed = call("quantize", *MODEL, *target, "--out", run, *PAPER, "--rounding", "nearest").error
    assert "rounding squant, not nearest: quantize starts it anew with --fresh, or makes another" in changed
    folder = RunFolder(run)
    assert "another bitsect is working in this run" in call("search", run, *target).error
    assert call("show", run).code == 0  # which only reads
    folder.close()
    (run / "run.json").write_text("{")
    assert "pass --fresh" in call("search", run, *target).error


def test_what_the_system_refuses_is_one_line(call: Call) -> None:
    error = call("import-latency", "good.npz", "--out", "/dev/null/table.json").error
    assert "good.npz" in error or "/dev/null" in error
    assert call("quantize", *MODEL, "--target", "9%", "--out", "/dev/null/run").error


@pytest.mark.parametrize(
    ("model", "code", "said"),
    [
        ("interrupted", 130, "interrupted; nothing is kept: --out names a folder that keeps it"),
        ("ended", 128 + signal.SIGTERM, ""),
    ],
)
def test_what_is_ended_without_a_folder_leaves_none_and_speaks_of_none(
    model: str, code: int, said: str, call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    ended = call("quantize", f"my_own:{model}", "--data", "good.npz", "--target", "90%")
    assert ended.code == code
    assert said in ended.err
    assert "run folder" not in ended.err
    assert list(tmp_path.iterdir()) == []


def test_interrupted_with_a_folder_says_where_the_work_is(run: Path, call: Call) -> None:
    ask = ("quantize", "my_own:interrupted", "--data", "good.npz", "--target", "90%", "--out", str(run))
    for ended in (call(*ask), call(*ask, "--fresh")):  # what would go on must not start anew
        said = " ".join(ended.err.split())
        assert f"interrupted; {run} keeps what was found so far: go on with `bitsect {' '.join(ask)}`" in said


def test_fresh_removes_nothing_before_the_request_is_in_order(run: Path, call: Call) -> None:
    (run / "my-notes.txt").write_text("mine")
    before = {item: item.read_bytes() for item in run.rglob("*") if item.is_file()}
    ask = ("quantize", "my_own:network", "--target", "90%", "--out", run, "--fresh", "--metric", "random")
    assert "typo.npz: no such file" in call(*ask, "--data", "typo.npz").error
    assert "unknown rounding" in call(*ask, "--data", "good.npz", "--rounding", "typo").error
    assert {item: item.read_bytes() for item in run.rglob("*") if item.is_file()} == before
    assert call(*ask, "--data", "good.npz", "--json").code == 0
    assert (run / "my-notes.txt").read_text() == "mine"
    assert not (run / "scores-aughessian-int8.json").exists()


def test_a_run_imports_no_task_that_was_not_named_or_trusted(run: Path, desk: Path, call: Call) -> None:
    (desk / "evilmod.py").write_text("open('executed', 'w')\nfrom my_own import task as judge\n")
    asked = ("--target", "90%", "--metric", "random", "--confidence", "none")
    made = ("quantize", *MODEL, *asked, "--task", "my_own:task")
    assert call(*made, "--out", run / "own").code == 0
    edit_json(run / "own" / "run.json", task="evilmod:judge")
    ask = ("search", run / "own", *asked)
    said = call(*ask).error
    assert (
        "judged by evilmod:judge, which is code to import: pass --task evilmod:judge if it is yours" in said
    )
    assert "or --trust" in said
    assert not (desk / "executed").exists()
    edit_json(run / "own" / "run.json", task="my_own:task")
    for naming in (("--trust",), ("--task", "my_own:task")):
        assert call(*ask, *naming).code == 0


def test_data_that_moved_is_known_again(run: Path, desk: Path, tmp_path: Path, call: Call) -> None:
    edit_json(run / "run.json", data=str(tmp_path / "old.npz"))
    ask = ("search", run, "--target", "90%", "--metric", "random")
    gone = call(*ask).error
    assert f"made with the samples of {tmp_path / 'old.npz'}, which are not there any more" in gone
    assert "those of" in call("evaluate", run, "--data", "unlabelled.npz").error
    for way in (
        ("evaluate", run, "--data", "good.npz"),
        ("evaluate", run, "--calibration", "good.npz"),
        (*ask, "--data", "good.npz"),
        ("quantize", run, "--target", "90%", "--metric", "random", "--data", "good.npz"),
        ("quantize", *MODEL, "--target", "90%", "--metric", "random", "--out", run),
    ):
        edit_json(run / "run.json", data=str(tmp_path / "old.npz"))
        assert call(*way).code == 0
        assert json.loads((run / "run.json").read_text())["data"] == str(desk / "good.npz")
    assert call(*ask).code == 0


def test_a_search_keeps_earlier_answers_and_the_test_set(
    run: Path, desk: Path, tmp_path: Path, call: Call
) -> None:
    shutil.copy(desk / "good.npz", tmp_path / "test.npz")
    ask = ("search", run, "--metric", "random", "--json")
    first = json.loads((run / "plan.json").read_text())
    call(*ask, "--target", "50%", "--test-data", tmp_path / "test.npz")
    again = call(*ask, "--target", "100%").json
    assert again["test"]["data"] == str(tmp_path / "test.npz")
    assert {item.stem for item in (run / "plans").iterdir()} == {"90-percent", "50-percent", "100-percent"}
    assert json.loads((run / "plans" / "90-percent.json").read_text()) == first
    assert (run / "plans" / "100-percent.json").read_bytes() == (run / "plan.json").read_bytes()
    # The same question with another answer has another name; the same answer has not.
    call(*ask, "--target", "50%", "--keep", "*=float")
    call(*ask, "--target", "50%", "--keep", "*=float")
    call(*ask, "--max-size", "0.5x", "--keep", "none")
    names = {item.stem for item in (run / "plans").iterdir()}
    assert names == {"90-percent", "50-percent", "50-percent-2", "100-percent", "0.5x-size"}
    assert {item.stem for item in (run / "results").iterdir()} == names
    np.savez(tmp_path / "test.npz", x=np.load(desk / "good.npz")["x"])
    assert "which have changed since: pass test samples again" in call(*ask, "--target", "50%").error
    (tmp_path / "test.npz").unlink()
    assert "was tested on the samples of" in call(*ask, "--target", "50%").error
    assert call(*ask, "--target", "50%", "--test-data", "good.npz").code == 0


@pytest.mark.parametrize(
    "change",
    [
        {"threads": "abc"},
        {"batch_size": "8"},
        {"percentile": "x"},
        {"draw": []},
        {"seed": {"foo": 1}},
        {"task": None},
        {"model": 5},
        {"placement": []},
        {"files": None},
        {"embeddings": 3},
    ],
)
def test_a_run_json_of_wrong_types_is_one_line(change: dict[str, Any], run: Path, call: Call) -> None:
    text = (run / "run.json").read_text()
    edit_json(run / "run.json", **change)
    error = call("search", run, "--target", "90%").error
    assert error.startswith(f"{run / 'run.json'}")
    assert "pass --fresh" in error
    (run / "run.json").write_text(text.replace('"device": "cpu"', '"device": "gpu"'))
    assert "run.json is damaged, or was edited" in call("search", run, "--target", "90%").error


def test_a_folder_that_cannot_be_written_is_one_line(run: Path, call: Call) -> None:
    (run / ".bitsect.lock").unlink()
    (run / ".bitsect.lock").mkdir()  # as root, no permission is ever missing
    assert "a run keeps its files in its own folder" in call("search", run, "--target", "90%").error


# ---- evaluate ------------------------------------------------------------------------------------


def test_evaluate(call: Call) -> None:
    shown = call("evaluate", *MODEL, "--format", "int4", "--json").json
    assert {"float", "plan"} <= shown.keys()
    for row in (shown["float"], shown["plan"]):
        assert {"accuracy", "loss", "samples", "size_mb"} <= row.keys()
        assert row["samples"] == 32
    assert shown["float"]["accuracy"] == 30 / 32
    assert shown["float"]["size_mb"] == pytest.approx((6 * 9 + 36 * 9 + 96 * 5) * 2 / 1e6)
    assert shown["plan"]["size_mb"] == shown["float"]["size_mb"] / 4
    assert "ranges come from the judged samples themselves" in shown["notes"][0]
    said = call("evaluate", *MODEL)
    assert "93.75% (30/32)" in said.out
    assert "3 int8" in said.out
    assert "judged samples themselves" in said.err


def test_evaluate_without_labels_is_agreement(call: Call) -> None:
    shown = call("evaluate", "my_own:network", "--data", "unlabelled.npz", "--json").json
    assert shown["agreement"] is True
    assert shown["float"]["accuracy"] == 1
    assert "no labels" in shown["notes"][0]
    assert "no labels" in call("evaluate", "my_own:network", "--data", "unlabelled.npz").err


def test_evaluate_takes_every_setting(call: Call) -> None:
    options = ("--placement", "onnxruntime", "--rounding", "nearest", "--range", "mse", "--sign", "signed")
    options += ("--batch-size", "5", "--threads", "1", "--task", "my_own:task", "--draw", "20")
    said = call("evaluate", *MODEL, *options, "--calibration", "unlabelled.npz", "--json")
    assert said.json["plan"]["samples"] == 20
    assert said.json["notes"] == []
    assert "a task that talks" in said.err


def test_evaluate_fits_weights_where_gptq_is_asked_for(call: Call) -> None:
    options = ("--format", "int4", "--range", "mse", "--threads", "1", "--json")
    losses = {
        rounding: call("evaluate", *MODEL, *options, "--rounding", *rounding).json["plan"]["loss"]
        for rounding in (("gptq",), ("gptq", "--no-refit", "--no-bias-correction"))
    }
    assert len(set(losses.values())) == 2
    refused = call("evaluate", *MODEL, *PAPER, "--no-refit").error
    assert "--no-refit is for --rounding gptq, not squant: leave it out" in refused


# ---- sensitivity ---------------------------------------------------------------------------------


def test_sensitivity(run: Path, call: Call) -> None:
    shown = call("sensitivity", run, *FEW, "--json").json
    assert shown["metric"] == "aughessian"
    assert [layer["name"] for layer in shown["layers"]] == ["0", "2", "5"]
    assert all(layer.keys() == {"name", "score", "standard_error"} for layer in shown["layers"])
    assert -1 <= shown["split_half"] <= 1
    said = call("sensitivity", run, *FEW)
    scores = [float(line.split()[1]) for line in said.out.splitlines() if re.match(r"[025] ", line)]
    assert scores == sorted(scores, reverse=True)
    assert "Two halves of them agree" in said.err
    assert call("sensitivity", run, "--metric", "random", "--json").json["split_half"] is None


def test_sensitivity_says_when_its_traces_are_not_known_well_enough(run: Path, call: Call) -> None:
    ask = ("sensitivity", run, "--metric", "hessian")
    shown = call(*ask, "--probes", 1, "--json").json
    assert (shown["traces"]["estimator"], shown["traces"]["relative_error"]) == ("gauss-newton", None)
    assert "takes two probes to tell: raise --probes" in " ".join(call(*ask, "--probes", 1).err.split())
    said = call(*ask, "--estimator", "hutchinson", "--probes", 2)
    assert "(standard error, median layer), not to 5 %: raise --probes" in " ".join(said.err.split())
    assert (
        "unknown estimator 'newton': did you mean 'gauss-newton'?" in call(*ask, "--estimator", "newton").err
    )


def test_until_stable_says_how_many_samples_it_took(call: Call) -> None:
    ask = ("sensitivity", *MODEL, "--metric", "single", "--loss", "kl", "--batch-size", "4", "--until-stable")
    said = call(*ask, "0")
    count = int(re.findall(r"Stable at 0 with (\d+) samples", said.err)[0])
    assert f"{count} samples" in said.out
    assert call(*ask, "1", "--json").json["samples"] <= 32


def test_ones_own_metric_task_and_search_from_the_current_folder(call: Call) -> None:
    """In a process that knows nothing of the folder yet, and with parts that print."""
    ask = ("quantize", *MODEL, "--metric", "my_own:doubled", "--search", "my_own:search")
    asked = ("--target", "90%", "--confidence", "none", "--test-data", "good.npz", "--json")
    said = call(*ask, "--task", "my_own:task", *asked)
    assert said.json["scoring"]["metric"] == "my_own:doubled"
    assert said.json["test"]["target_met"] is True
    assert "a metric that talks" in said.err


# ---- quantize and search -------------------------------------------------------------------------


def test_quantize(call: Call, tmp_path: Path) -> None:
    ask = ("quantize", *MODEL, *FEW, "--target", "90%", "--test-data", "good.npz", "--out", tmp_path / "run")
    shown = call(*ask, "--json").json
    assert shown["target_met"] is True
    assert shown["test"]["target_met"] is True
    for row in (shown["float"], shown["plan"], shown["test"]["float"], shown["test"]["plan"]):
        assert {"accuracy", "loss", "samples", "size_mb"} <= row.keys()
        assert "latency_ms" not in row
    assert "float" in shown["formats"]
    assert sum(shown["formats"].values()) == 3
    assert shown["evaluations"] > 0
    assert {"capture", "calibrate", "traces", "pairs", "search"} <= shown["seconds"].keys()
    plan = json.loads((tmp_path / "run" / "plan.json").read_text())
    assert plan["bitsect"] == "plan"
    assert list(plan["layers"]) == ["0", "2", "5"]

    again = call(*ask)
    assert "Plans judged by the search: 0." in again.out
    assert "Target 90%: kept on the calibration samples, kept on the test samples." in again.out
    assert [line.split()[0] for line in again.out.splitlines()[3:5]] == ["float", "all"]
    assert max(map(len, again.out.splitlines())) <= 80
    assert f"Plan written to {tmp_path / 'run' / 'plan.json'}" in again.err
    judged = call("evaluate", *MODEL, *PAPER, "--plan", tmp_path / "run" / "plan.json", "--json").json
    assert judged["plan"]["accuracy"] == shown["plan"]["accuracy"]
    assert judged["plan"]["loss"] == shown["plan"]["loss"]


def test_the_float_network_is_said_before_the_work(call: Call) -> None:
    said = call("quantize", *MODEL, *PAPER, "--target", "97%", "--metric", "random")
    lines = said.err.splitlines()
    assert lines.index("float network: 93.75% (30 of 32 samples)") < lines.index("calibrate …")
    note = "the target of 97% lets none of the 30 samples that are right be lost: about 36 samples, not 32"
    assert note in said.err
    assert note in " ".join(said.out.split())


def test_an_output_is_named_once_and_kept_with_run_and_file(call: Call, tmp_path: Path) -> None:
    pair, run, file = ("my_own:Pair", "--data", "right.npz"), tmp_path / "run", tmp_path / "model.onnx"
    several = (
        "task outputs: several outputs could be the logits (left, right), of which --output NAME takes one"
    )
    assert several in call("evaluate", *pair).err
    asked = call("quantize", *pair, "--output", "right", "--target", "90%", "--metric", "random", "-o", run)
    assert "Note: output 'right' is what is judged, not left: --output NAME takes another." in " ".join(
        asked.out.split()
    )
    assert (
        call("search", run, "--target", "90%", "--metric", "random", "--json").json["float"]["accuracy"] == 1
    )
    call("export", run, "-o", file, "--format", "int8", "--json").json  # noqa: B018
    ran = call("evaluate", file, "--data", "right.npz", "--json").json
    assert ran["output"] == "right"
    assert ran["accuracy"] > 0.9
    other = call("evaluate", file, "--data", "right.npz", "--output", "left", "--json").json
    assert (other["output"], other["accuracy"] < 0.9) == ("left", True)
    assert "no output 'middle'" in call("evaluate", file, "--data", "right.npz", "--output", "middle").error


def test_search_knows_more_than_one_random_order(run: Path, call: Call) -> None:
    ask, kept = ("search", run, "--metric", "random", "--target", "90%", "--json"), []
    for seed in (0, 0, 1):
        assert call(*ask, "--probe-seed", seed).json["scoring"]["probe_seed"] == seed
        kept.append({file.name: file.read_bytes() for file in run.glob("scores-random-int8-*.json")})
    assert kept[0] == kept[1]
    assert kept[1].items() < kept[2].items()
    scores = [json.loads(data)["layers"] for data in kept[2].values()]
    assert len({json.dumps(each) for each in scores}) == len(scores) == 2


def test_search_solves_again_and_measures_nothing(run: Path, call: Call) -> None:
    before = {file.name: file.stat().st_size for file in (run / "journals").iterdir()}
    shown = call("search", run, *FEW, "--target", "99%", "--metric", "hessian", "--json").json
    assert shown["scoring"]["metric"] == "hessian"
    assert shown["test"] is None
    after = {file.name: file.stat().st_size for file in (run / "journals").iterdir()}
    assert {name for name in after if after[name] != before.get(name)} <= {"evaluated.journal"}
    assert (
        call("search", run, *FEW, "--target", "99%", "--metric", "hessian", "--json").json["evaluations"] == 0
    )


def test_latency_columns_appear_with_a_table(run: Path, call: Call) -> None:
    ask = ("search", run, *FEW, "--latency", "a100", "--test-data", "good.npz")
    shown = call(*ask, "--target", "90%", "--json").json
    for row in (shown["float"], shown["plan"], shown["test"]["plan"]):
        assert {"latency_ms", "latency_ratio", "size_ratio"} <= row.keys()
    assert shown["float"]["latency_ratio"] == 1
    said = call(*ask, "--target", "90%")
    assert said.out.startswith("For bits: ")
    assert "latency" in said.out.splitlines()[1]
    assert max(map(len, said.out.splitlines())) <= 80
    ratio = call(*ask, "--budget", "0.8x", "--json").json
    assert ratio["plan"]["latency_ratio"] <= 0.8
    assert ratio["target"] is None


def test_a_target_that_is_missed_ends_with_an_exit_code_and_keeps_everything(run: Path, call: Call) -> None:
    """Within a budget that leaves no plan for the target: a script must not go on with this one."""
    ask = ("search", run, *FEW, "--target", "100%", "--max-size", "0.13x", "--formats", "int2")
    said = call(*ask)
    assert said.code == 1
    assert said.err.rstrip().endswith("Target 100% is not kept, so the exit code is 1")
    assert "Target 100%: NOT kept on the calibration samples" in said.out
    again = call(*ask, "--json")
    assert again.code == 1
    assert json.loads(again.out)["target_met"] is False
    assert (run / "plan.json").exists()
    assert call("search", run, *FEW, "--max-size", "0.13x", "--formats", "int2").code == 0  # no target


def test_the_two_ends_and_the_largest_drop(run: Path, call: Call) -> None:
    none = call("search", run, "--metric", "random", "--target", "100%", "--formats", "int2")
    assert "Plan: 3 float layers." in none.out
    assert "nothing lower keeps the target of 100%" in " ".join(none.out.split())
    every = call("search", run, "--metric", "random", "--max-drop", "99", "--formats", "int8,int4")
    assert "Plan: 3 int4 layers." in every.out
    assert "the lowest format already keeps the target" in " ".join(every.out.split())
    assert call("search", run, "--metric", "random", "--max-drop", "0.5", "--json").json["target_met"] is True


def test_pins_and_formats(run: Path, call: Call) -> None:
    ask = ("search", run, "--metric", "single", "--target", "50%", "--json")
    pins = ("--keep", "kind:conv2d=int8", "--keep", "last=float", "--keep", "[2]=float,int4")
    call(*ask, *pins).json  # noqa: B018
    plan = json.loads((run / "plan.json").read_text())["layers"]
    assert (plan["0"], plan["5"]) == ("int8", "float")
    assert plan["2"] in ("float", "int4")
    shown = call(*ask, "--formats", "w8a16, w4a16", "--score-format", "each", "--keep", "none").json
    assert shown["formats"].keys() <= {"float", "w8a16", "w4a16"}
    assert shown["uniform"].keys() == {"w8a16", "w4a16"}
    assert list(run.glob("scores-single-w4a16-*.json"))


def test_a_run_of_python_objects_is_searched_from_the_command_line(tmp_path: Path, call: Call) -> None:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 3)).eval()
    result = bitsect.quantize(
        network,
        torch.randn(16, 1, 8, 8),
        target=0.9,
        metric="single",
        destination="bits",
        settings=Settings(threads=1, rounding="nearest"),
        out=tmp_path / "run",
    )
    said = call("search", tmp_path / "run", "--target", "90%", "--metric", "single", "--json")
    assert said.code == 3  # so few samples prove nothing
    shown = json.loads(said.out)
    assert shown["evaluations"] == 0
    assert shown["agreement"] is True
    assert shown["plan"] == result.to_json()["plan"]
    assert call("evaluate", tmp_path / "run", "--json").json["plan"]["loss"] == shown["plan"]["loss"]


# ---- latency -------------------------------------------------------------------------------------


def test_a_run_is_exported_and_its_file_judged_without_the_users_code(
    run: Path, desk: Path, tmp_path: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # where no my_own is found
    monkeypatch.delitem(sys.modules, "my_own", raising=False)
    said = call("export", run, "-o", "model.onnx", "--data", desk / "good.npz", "--json")
    assert said.json["proven"] is True
    assert said.json["proof"]["samples"] == 32
    assert said.json["judged"].keys() == {"paper", "onnxruntime"}
    ran = call("evaluate", "model.onnx", "--data", desk / "good.npz", "--json").json
    assert ran["accuracy"] == said.json["proof"]["runtime_accuracy"]
    assert ran.keys() == {"accuracy", "samples", "latency_ms", "runtime", "output"}
    assert "on 32 samples" in call("evaluate", "model.onnx", "--data", desk / "good.npz").out
    assert "model.onnx exists" in call("export", run, "-o", "model.onnx").error
    said = call("export", run, "-o", "model.onnx", "--force", "--draw", 16)
    assert said.out.startswith(("faster than float", "SLOWER than float"))
    assert "0 of 16 predictions differ" in said.out
    assert "Target 90%: kept" in said.out
    assert "Written to model.onnx" in said.err


def test_settings_do_not_apply_to_a_file(desk: Path, call: Call) -> None:
    said = call("evaluate", "model.onnx", "--data", "good.npz", "--placement", "paper")
    assert said.error == "--placement does not apply to an ONNX file, whose formats and ranges are fixed"


def test_files_that_do_not_run_are_one_line(desk: Path, call: Call) -> None:
    (desk / "text.onnx").write_text("no model")
    assert call("evaluate", "nowhere.onnx", "--data", "good.npz").error == "nowhere.onnx: no such ONNX model"
    assert "not a ONNX model, or a damaged one" in call("evaluate", "text.onnx", "--data", "good.npz").error
    assert "samples are needed" in call("evaluate", "text.onnx").error
    other = call("evaluate", "text.onnx", "--data", "good.npz", "--runtime", "tvm")
    assert other.error == "unknown runtime 'tvm': use onnxruntime, openvino or reference"
    assert "is not the folder of a run" in call("export", "nowhere", "-o", "model.onnx").error


def test_layers_and_latency_of_a_run(run: Path, call: Call) -> None:
    assert call("layers", run, "--json").json["totals"]["layers"] == 3
    assert call("latency", run, "--json").json["baseline_ms"] > 0


def test_latency_by_layer_and_format(call: Call) -> None:
    ask = ("latency", "my_own:shaped", "--table", "a100")
    shown = call(*ask, "--json").json
    assert [layer["name"] for layer in shown["layers"]] == ["0", "2", "5"]
    assert shown["ratio"].keys() == {"int8", "int4", "int4_first_last_int8"}
    said = call(*ask)
    assert f"16 bit: {shown['baseline_ms']:.3f} ms" in said.out
    assert "fitted" in said.err
    assert "did you mean 'a100'?" in call("latency", "my_own:shaped", "--table", "v100").error
    assert "no such latency table" in call("latency", "my_own:shaped", "--table", "v100.json").error
    assert "gives no example input: pass --input-shape" in call("latency", "my_own:network").error


# ---- a process of its own ------------------------------------------------------------------------


def test_modules_of_the_current_folder_are_found(tmp_path: Path) -> None:
    """As a user has it: no module was named before, and the network is not theirs."""
    (tmp_path / "mylab.py").write_text(MINE)
    command = [sys.executable, "-m", "bitsect", "quantize", "zoo:fashion-mobilenet", "--target", "9%"]
    command += ["--metric", "mylab:doubled", "--search", "mylab:search", "--data", "nothing.npz"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (1, "")
    where, talk, stage, error = done.stderr.splitlines()
    assert "for onnxruntime: " in where
    assert (talk, stage) == ("a module that talks", "capture …")
    assert error.startswith("error: nothing.npz: no such file or folder: give")


# ---- the curve, comparisons, blame ---------------------------------------------------------------


@pytest.fixture(scope="module")
def drawn(desk: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that takes some of the samples, in which nothing was searched."""
    import my_own

    path = tmp_path_factory.mktemp("drawn") / "run"
    options: dict[str, Any] = {"draw": 16, "threads": 1, "metric": "random", "method": "paper"}
    bitsect.sensitivity(my_own.network(), str(desk / "good.npz"), out=path, **options)
    return path


def test_a_curve_is_shown_written_and_exported_by_name(drawn: Path, call: Call, tmp_path: Path) -> None:
    table = tmp_path / "curve.csv"
    said = call("frontier", drawn, "--targets", "80%,99%", "--csv", table)
    assert said.code == 0, said.err
    assert "--plan frontier-99-percent" in said.out.replace("\n", " ")
    assert [line.split(",")[0] for line in (tmp_path / "curve-targets.csv").read_text().splitlines()] == [
        "target",
        "80%",
        "99%",
    ]
    curve = call("frontier", drawn, "--json").json
    assert len(curve["points"]) == len(table.read_text().splitlines()) - 1
    known = call("evaluate", drawn, "--plan", "frontier-80-percent", "--json").json
    assert known["plan"]["accuracy"] >= 0.8 * known["float"]["accuracy"]
    refused = call("frontier", drawn, "--target", "99%")
    assert refused.code == 2
    assert "--targets" in refused.err


def test_a_comparison_is_shown_and_written(drawn: Path, call: Call, tmp_path: Path) -> None:
    asked = ("compare", drawn, "--metrics", "sqnr,random", "--targets", "80%,95%", "--draws", 2)
    said = call(*asked, "--test-data", "good.npz", "-o", tmp_path / "c.csv")
    assert said.code == 0, said.err
    for words in ("Target 80%", "Mean over all targets", "sqnr", "Student's t"):
        assert words in said.out
    assert len((tmp_path / "c.csv").read_text().splitlines()) == 1 + 2 * 3
    assert len((tmp_path / "c-draws.csv").read_text().splitlines()) == 1 + 2 * 2 * 2
    found = call(*asked, "--test-data", "good.npz", "--json").json
    assert {each["setup"]["metric"] for each in found["trials"]} == {"sqnr", "random"}


def test_blame_is_shown_and_written(drawn: Path, call: Call, tmp_path: Path) -> None:
    said = call("blame", drawn, "--format", "int4", "--csv", tmp_path / "b.csv", "--latency", "a100")
    assert said.code == 0, said.err
    for words in ("accuracy", "won back", "latency"):
        assert words in said.out
    layers = call("blame", drawn, "--format", "int4", "--json").json["layers"]
    assert [layer["name"] for layer in layers] == [
        line.split(",")[0] for line in (tmp_path / "b.csv").read_text().splitlines()[1:]
    ]
    assert "nobody to blame" in call("blame", drawn, "--format", "float").error
