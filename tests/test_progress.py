"""Progress: one bar for the whole, an honest time left, in terminals, pipes and notebooks."""

from __future__ import annotations

import io
import sys
import types
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import bitsect
from bitsect.cli.bars import ShownProgress
from bitsect.runs.bar import Bar, in_notebook
from bitsect.runs.forecast import Forecast
from bitsect.runs.progress import Progress


class Clock:
    """Time that passes when it is told to."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


def worked(forecast: Forecast, clock: Clock, stage: str, seconds: float, total: int | None = None) -> None:
    forecast.begin(stage, total)
    clock.now += seconds
    forecast.end()


class Watch(Progress):
    """Keeps what was expected, and what was left whenever a stage began."""

    def __init__(self) -> None:
        super().__init__()
        self.expected: list[dict[str, float]] = []
        self.begun: list[tuple[str | None, bool]] = []  # stages, each with whether the whole was known

    def expect(self, passes: Any) -> None:
        self.expected.append({name: count for name, count in passes.items() if count})
        super().expect(passes)

    @contextmanager
    def shown(self, name: str, total: int | None) -> Iterator[Any]:
        assert self.forecast.stage == name
        self.begun.append((name, self.forecast.left() is not None))
        yield lambda count: None


# ---- forecasts -----------------------------------------------------------------------------------


def test_nothing_is_said_before_anything_is_known() -> None:
    clock = Clock()
    forecast = Forecast(clock)
    forecast.expect({"float": 10, "search": 100})
    forecast.begin("float", 10)
    clock.now += 1
    assert forecast.left() is None
    assert forecast.share() is None


def test_where_work_is_as_expected_the_whole_is_known_from_the_first_stage_on() -> None:
    clock = Clock()
    forecast = Forecast(clock)
    passes = {"float": 10.0, "damage": 50.0, "search": 100.0, "test": 40.0}
    forecast.expect(passes)
    for stage, count in passes.items():
        forecast.begin(stage, 10)
        for _ in range(10):
            clock.now += 0.2 * count / 10
            forecast.advance(1)
            if stage != "float":
                assert forecast.elapsed + (forecast.left() or 0.0) == pytest.approx(40.0)
        forecast.end()
    assert forecast.left() == 0
    assert forecast.share() == 1


def test_a_stage_that_takes_longer_is_seen_while_it_is_on() -> None:
    clock = Clock()
    forecast = Forecast(clock)
    forecast.expect({"float": 10, "search": 10})
    worked(forecast, clock, "float", 1.0)
    forecast.begin("search", 10)
    clock.now += 3.0
    forecast.advance(1)
    assert forecast.left() == pytest.approx(27.0)


def test_work_that_was_done_before_does_not_make_the_rest_look_short() -> None:
    """A run that is continued: its first stages find everything done."""
    clock = Clock()
    forecast = Forecast(clock)
    forecast.expect({"float": 100, "calibrate": 100, "search": 100, "test": 100})
    worked(forecast, clock, "float", 0.001)
    worked(forecast, clock, "calibrate", 0.001)
    worked(forecast, clock, "search", 10.0)
    assert forecast.left() == pytest.approx(10.0)


def test_a_share_never_goes_back() -> None:
    clock = Clock()
    forecast = Forecast(clock)
    forecast.expect({"float": 10, "search": 10, "test": 10})
    worked(forecast, clock, "float", 1.0)
    before = forecast.share() or 0.0
    forecast.begin("search", 100)
    clock.now += 50
    forecast.advance(10)
    assert (forecast.left() or 0.0) > 400
    assert forecast.share() == before


def test_stages_that_nobody_expected_and_that_come_again_are_no_trouble() -> None:
    clock = Clock()
    forecast = Forecast(clock)
    forecast.expect({"float": 10, "damage": 10})
    worked(forecast, clock, "capture", 5.0)
    worked(forecast, clock, "float", 1.0)
    worked(forecast, clock, "damage", 1.0)
    worked(forecast, clock, "damage", 1.0)
    forecast.begin("damage", 4)
    clock.now += 1.0
    forecast.advance(1)
    assert forecast.left() == pytest.approx(3.0)
    forecast.end()
    assert forecast.left() == 0


def test_a_stage_that_fails_is_ended() -> None:
    progress = Progress()
    with pytest.raises(ValueError, match="broken"), progress.stage("search", 3):
        raise ValueError("broken")
    assert progress.forecast.stage is None
    assert "search" in progress.seconds


def test_quantize_expects_the_stages_that_it_has() -> None:
    linear = {"method": "paper", "metric": "interlayer", "pairs": "linear"}
    fisher = {"method": "paper", "metric": "fisher"}
    for options in ({"destination": "bits"}, {"method": "paper", "probes": 2}, fisher, linear):
        watch = Watch()
        bitsect.quantize("zoo:fashion-resnet", draw=24, target=0.5, threads=1, progress=watch, **options)
        expected = {stage for each in watch.expected for stage in each}
        done = set(watch.seconds)
        assert done - {"capture", "report"} <= {*expected, "float"}, (done, expected)
        assert watch.forecast.left() == pytest.approx(0, abs=0.5)  # what was not needed


def test_compare_and_blame_tell_the_time_of_the_whole(tmp_path: Path) -> None:
    run, options = tmp_path / "run", {"threads": 1, "method": "paper", "metric": "random"}
    bitsect.sensitivity("zoo:fashion-resnet", draw=24, out=run, **options)
    watch = Watch()
    asked: dict[str, Any] = {"metrics": "sqnr,random", "targets": "80%,95%", "draws": 2}
    bitsect.compare(run, test_data="zoo:fashion-test", test_draw=16, progress=watch, **asked)
    assert len(watch.expected) == 8
    later = [passes.get("later", 0.0) for passes in watch.expected]
    assert later == sorted(later, reverse=True)
    assert later[-1] == 0
    assert [name in watch.expected[0] for name in ("singles", "search", "test")] == [True] * 3
    assert "singles" not in watch.expected[1]  # measured once on a draw
    assert "singles" in watch.expected[4]
    assert ("search", True) in watch.begun
    assert {name for name, _ in watch.begun} - {"capture"} <= {
        name for each in watch.expected for name in each
    }
    assert watch.forecast.left() == 0
    watch = Watch()
    bitsect.blame(run, format="int4", samples=8, progress=watch)
    (expected,) = watch.expected
    assert {name for name, _ in watch.begun} - {"capture", "ranges"} == set(expected)
    assert watch.forecast.left() == 0


# ---- what is seen --------------------------------------------------------------------------------


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def run_stages(progress: Progress) -> None:
    progress.expect({"float": 10, "search": 10})
    with progress.stage("float", 10) as advance:
        advance(10)
    with progress.stage("search", 40) as advance:
        advance(20)


def test_in_a_terminal_there_is_one_bar_and_nothing_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    bar = Bar()
    assert bar.watched
    run_stages(bar)
    shown = terminal.getvalue()
    assert "float" in shown
    assert "search" in shown
    assert shown.count("\x1b[?25h") == 2  # the cursor is back after each stage
    assert shown.rstrip().endswith("\x1b[2K")  # and the line is wiped


def test_in_a_pipe_python_is_silent_and_the_command_says_each_stage(
    capsys: pytest.CaptureFixture[str],
) -> None:
    run_stages(Bar())
    assert capsys.readouterr().err == ""
    run_stages(ShownProgress())
    said = capsys.readouterr().err
    assert said == "" or said.split("\n")[:2] == ["float …", "search …"]


def test_words_say_what_is_known() -> None:
    bar = Bar()
    with bar.stage("pairs", 1000) as advance:
        assert bar.words() == "pairs 0/1,000"
        bar.forecast._stage_begun -= 30
        advance(250)
        assert bar.words() == "pairs 250/1,000 · about 90 s left of this stage"
    with bar.stage("traces"):
        assert bar.words() == "traces"
    bar.expect({"float": 10, "search": 1000})
    with bar.stage("float", 10) as advance:
        bar.forecast._stage_begun -= 2
        advance(10)
    with bar.stage("search") as advance:
        assert bar.words().endswith("% · search · about 3 min left")


@pytest.fixture
def notebook(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A kernel as IPython has it, whose displays are kept."""
    shown: list[str] = []

    class Handle:
        def update(self, page: str) -> None:
            shown.append(page)

    def display(page: str, display_id: bool) -> Handle:
        assert display_id
        shown.append(page)
        return Handle()

    shell = type("ZMQInteractiveShell", (), {})()
    package = types.ModuleType("IPython")
    package.get_ipython = lambda: shell  # type: ignore[attr-defined]
    inside = types.ModuleType("IPython.display")
    inside.display, inside.HTML = display, str  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython", package)
    monkeypatch.setitem(sys.modules, "IPython.display", inside)
    return shown


def test_in_a_notebook_a_bar_of_html_is_drawn_and_wiped(
    notebook: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bitsect.runs.bar.OFTEN", 0.0)
    assert in_notebook()
    bar = Bar()
    run_stages(bar)
    with bar.stage("<b>", 2):
        pass
    assert notebook[0].startswith("<progress max='1'></progress>")
    assert any("value='" in page for page in notebook)
    assert "&lt;b&gt;" in "".join(notebook)
    assert notebook[-1] == ""


def test_other_shells_are_no_notebooks(monkeypatch: pytest.MonkeyPatch) -> None:
    package = types.ModuleType("IPython")
    package.get_ipython = lambda: None  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython", package)
    assert not in_notebook()
