"""A run in the terminal: one screen at every width, names whole, nothing that steers the terminal."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console
from typer.testing import CliRunner

import bitsect
from bitsect.cli import app
from bitsect.reports.story import (
    BAD,
    GOOD,
    OPEN,
    Blamed,
    BlameStory,
    LayerStory,
    Scored,
    Seen,
    ShownRow,
    ShownVerdict,
    Story,
)
from bitsect.reports.terminal.screen import screen
from bitsect.values import Format, Scores
from bitsect.values.layer import Skipped
from bitsect.values.shown import Interaction

LONG = "bert.encoder.layer.{i}.attention.self.query"
WIDTHS = (40, 60, 80, 100, 130, 200)
FORMATS = ("int8", "int4", "w4a16g128", "w8a16")


def story(layers: int = 50, name: str = LONG, **others: Any) -> Story:
    random = np.random.default_rng(0)
    names = tuple(name.format(i=i) for i in range(layers))
    shown = tuple(
        LayerStory(
            each, "linear", 100, 1000, (10, 10), "float" if i == 0 else FORMATS[i % 4], reason="why not"
        )
        for i, each in enumerate(names)
    )
    rows = tuple(
        ShownRow(
            row, Seen.of(0.9, 100), 1e6, 0.5, None, Seen.of(1.0, 300), Seen.of(0.8, 200), 3.0, 0.4, 2.9, 0.5
        )
        for row in ("float", "all int8", "all int4 where allowed", "all w4a16g128", "plan")
    )
    scores = Scores(
        "damage", Format(4, 4), names, tuple(random.random(layers)), tuple(random.random(layers)), 0.9
    )
    table = random.normal(size=(layers, layers))
    blamed = Blamed(names[0], "int4", 0.3, 0.04, None, None, ("an outlier channel",), ())
    known: dict[str, Any] = {
        "verdict": ShownVerdict(GOOD, "It keeps 99% of its accuracy", "proven on 300 samples"),
        "rows": rows,
        "layers": shown,
        "skipped": (Skipped("norm", "layer_norm", "no multiply"),),
        "scored": (Scored(scores, None, True),),
        "pairs": (Interaction("excess", "int4", names, table + table.T),),
        "blame": BlameStory(256, 0.3, (blamed,), ()),
        "notes": ("a note that takes more than forty columns to be said in full words",),
        "seconds": {"capture": 2.0, "search": 3.0},
        "evaluations": 7,
        "command": "bitsect quantize model.pt2 --data samples.npz --target 99% --out runs/mine",
    }
    return Story("runs/mine", "model.pt2", "samples.npz", "classification", **{**known, **others})


def text_of(story: Story, width: int) -> str:
    return "\n".join(line.plain for line in screen(story, width))


@pytest.mark.parametrize("layers", [1, 20, 193])
@pytest.mark.parametrize("width", WIDTHS)
def test_no_line_is_wider_than_the_screen_and_no_name_is_cut(width: int, layers: int) -> None:
    told = story(layers)
    lines = screen(told, width)
    assert max(line.cell_len for line in lines) <= width
    assert "…" not in text_of(told, width)
    joined = "".join(text_of(told, width).split())
    for name in told.scored[0].scores.order()[-8:]:
        assert name in joined  # whole, if need be over two lines
    if width >= 60:  # where a name has room it is on one line
        assert all(name in text_of(told, width) for name in told.scored[0].scores.order()[-8:])


@pytest.mark.parametrize("width", WIDTHS)
def test_every_layer_has_its_sign(width: int) -> None:
    told = story(193)
    legend = {"f": "float", "8": "int8", "4": "int4"}
    plain = text_of(told, width)
    for letter, name in zip("ab", ("w8a16", "w4a16g128"), strict=True):
        assert f"{letter} {name}:" in " ".join(plain.split())
        legend[letter] = name
    half = (width - 3) // 2 if width >= 130 else width
    rows = [line.plain[:half] for line in screen(told, width)]
    start = rows.index(next(row for row in rows if row.startswith("   1 ")))
    count = -(-193 // (10 * ((half - 5) // 11)))
    signs = "".join(row[5:].replace(" ", "") for row in rows[start : start + count])
    assert [legend[sign] for sign in signs] == [layer.format for layer in told.layers]


def test_colour_says_nothing_that_is_not_said_without() -> None:
    lines = screen(story(), 100)
    plain, coloured = (
        Console(
            file=io.StringIO(), width=100, force_terminal=colour, color_system="truecolor" if colour else None
        )
        for colour in (False, True)
    )
    for console in (plain, coloured):
        for line in lines:
            console.print(line, soft_wrap=True)
    text = plain.file.getvalue()  # type: ignore[attr-defined]
    assert "\x1b" not in text
    assert "\x1b[" in coloured.file.getvalue()  # type: ignore[attr-defined]
    assert text.splitlines() == [line.plain.rstrip() for line in lines]


def test_names_that_would_steer_a_terminal_are_spelt_out() -> None:
    hostile = "\x1b[2J\r[bold red]{i}\n<script>"
    for width in WIDTHS:
        plain = text_of(replace(story(12, hostile), network=hostile), width)
        assert not [each for each in plain if not each.isprintable() and each != "\n"]
        assert "[bold red]" in plain.replace("\n", "")


def test_wide_characters_take_two_columns() -> None:
    for width in WIDTHS:
        lines = screen(story(12, "層{i}" + "の名前" * 20), width)
        assert max(line.cell_len for line in lines) <= width


def test_what_is_not_known_is_left_out() -> None:
    bare = Story("runs/mine", "model.pt2", "samples.npz", "classification")
    assert "This run is not finished" in text_of(bare, 60)
    assert "latency" not in text_of(story(rows=(ShownRow("plan", Seen(3.5, 1), 1.0, 0.5),)), 80)
    assert "3.5" in text_of(story(rows=(ShownRow("plan", Seen(3.5, 1), 1.0, 0.5),)), 80)
    missed = replace(
        story(), verdict=ShownVerdict(BAD, "It does not", "on few"), faults=("ranges.json is damaged",)
    )
    assert "✘ It does not" in text_of(missed, 60)
    assert "ranges.json is damaged" in text_of(missed, 60)
    odd = replace(story(), verdict=ShownVerdict(OPEN, "The most accurate plan", "within 3 ms"))
    assert "… The most accurate plan" in text_of(odd, 60)


def test_a_real_run_is_shown(tmp_path: Path) -> None:
    out = tmp_path / "run"
    options: dict[str, Any] = {"draw": 32, "target": 0.9, "metric": "random", "method": "paper", "threads": 1}
    bitsect.quantize("zoo:fashion-resnet", out=out, **options)
    for width in ("60", "100", "200"):
        said = CliRunner().invoke(app, ["show", str(out), "--width", width])
        assert said.exit_code == 0, said.output
        assert "zoo:fashion-resnet" in said.output
        assert max(map(len, said.output.splitlines())) <= int(width)
        assert "random" in said.output
    told = json.loads(CliRunner().invoke(app, ["show", str(out), "--json"]).output)
    assert told["rows"][0]["name"] == "float"
    assert len(told["layers"]) == 22
    assert told["scored"][0]["scores"]["metric"] == "random"
    with pytest.raises(bitsect.RunError, match="not a run"):
        CliRunner().invoke(app, ["show", str(tmp_path)], catch_exceptions=False)
