"""The report: a run's story as values, and the page that is made of them."""

from __future__ import annotations

import itertools
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import bitsect
from bitsect.cli import app
from bitsect.errors import MissingExtraError, RunError
from bitsect.reports.html import page as html_page
from bitsect.reports.html.figures import curve_figure, scores_figure, strongest
from bitsect.reports.html.page import excerpt, json_text, page
from bitsect.reports.html.strip import strip_of
from bitsect.reports.order import seriated
from bitsect.reports.reading import read_story
from bitsect.reports.story import BAD, GOOD, OPEN, UNSURE, Story
from bitsect.values.shown import Interaction
from run_folders import HOSTILE, Written, key_of, promise, row

NAMES = ["stem", "blocks.0.conv1", "blocks.0.conv2", "head"]
MOST_BYTES = 5_000_000


class Seen(HTMLParser):
    """The elements and the texts of a page, as a browser reads them."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.texts.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.texts).split())


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> Any:
    out = tmp_path_factory.mktemp("report") / "run"
    return bitsect.quantize("zoo:fashion-resnet", target="98%", draw=256, destination="a100", out=out)


@pytest.fixture(scope="module")
def story(result: Any) -> Story:
    return read_story(result.run.folder.path)


def data_of(text: str) -> Any:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)
    assert found is not None
    return json.loads(found[1])


def test_the_story_says_what_the_result_says(result: Any, story: Story) -> None:
    assert story.finished
    assert story.target == "98%"
    assert [row.name for row in story.rows] == [row.name for row in result.rows]
    assert [row.searched.accuracy for row in story.rows] == [r.evaluation.accuracy for r in result.rows]
    assert [row.latency_ms for row in story.rows] == [row.cost.latency_ms for row in result.rows]
    assert {layer.name: layer.format for layer in story.layers} == {n: f.name for n, f in result.plan.items()}
    assert story.counts == {name: count for name, count in result.plan.counts.items() if count}
    assert sum(layer.weights for layer in story.layers) * 2 == result.rows[0].cost.size_bytes
    assert story.device == "A100"
    assert story.seconds == dict(result.seconds)
    assert story.versions["torch"] == torch.__version__
    held = result.promise.accuracy
    assert (story.rows[0].held_out.accuracy, story.rows[-1].held_out.accuracy) == (
        held["float"],
        held["plan"],
    )
    assert story.faults == ()


def test_the_scores_the_pairs_and_the_curve_are_those_of_the_search(result: Any, story: Story) -> None:
    (own, *_) = [each for each in story.scored if each.scores.format == result.scores.format]
    assert own.own
    assert own.scores.values == result.scores.values
    assert own.scores.standard_error == result.scores.standard_error
    (found, *_) = [each for each in story.pairs if each.format == "int8"]
    assert np.allclose(found.table.diagonal(), own.scores.values, rtol=1e-3)
    assert story.curve is not None
    (plan,) = (point for point in story.curve.points if point.is_plan)
    assert plan.accuracy == result.accuracy
    curve = result.frontier()
    assert {point.key for point in curve} == {point.key for point in story.curve.points}


def test_histograms_count_the_values_and_their_clip_is_the_range(result: Any, story: Story) -> None:
    name = "blocks.0.conv1"
    with result.run.reopened() as run:
        (multiply,) = (each for each in run.program.multiplies if each.layer == name)
        weight = run.program.constant(multiply.weight.node).numpy()
        ranges = run.ranges()
    found, bits = story.values[name], result.plan[name].activation_bits
    counts, _ = np.histogram(weight, len(found.weights.counts), (found.weights.low, found.weights.high))
    assert sum(found.weights.counts) == weight.size
    assert np.abs(counts - np.array(found.weights.counts)).sum() <= 4  # a value on an edge falls either way
    known = ranges[multiply.activations[0].tensor, bits]
    assert found.inputs.clip[1] == pytest.approx(known.amax, rel=1e-5)
    assert found.inputs.bits == bits
    assert 0 <= found.inputs.beyond < 0.2


def test_quantize_writes_the_page_and_the_same_story_makes_the_same_bytes(result: Any, story: Story) -> None:
    path = result.run.folder.path / "report.html"
    text = path.read_text()
    assert text == page(story) == page(read_story(result.run.folder.path))
    assert len(text) < MOST_BYTES
    seen = Seen(text)
    assert story.verdict.headline in seen.text
    assert not [value for _, attrs in seen.tags for key, value in attrs.items() if key in ("src", "srcset")]
    links = [attrs.get("href", "#") for tag, attrs in seen.tags if tag in ("a", "link")]
    assert all(str(link).startswith("#") for link in links)
    ids = [attrs["id"] for _, attrs in seen.tags if "id" in attrs]
    assert len(ids) == len(set(ids))
    assert {str(link)[1:] for link in links} <= set(ids)


def test_the_command_makes_the_run_again(result: Any, story: Story) -> None:
    first, *words = shlex.split(story.command)
    assert first == "bitsect"
    done = CliRunner().invoke(app, [*words, "--json"])
    assert done.exit_code in (0, 3), done.output
    again = json.loads(done.stdout)
    assert again["plan_key"] == result.plan.key
    assert again["evaluations"] == 0  # it is the same run: nothing had to be judged again


def test_what_the_user_asked_for_is_in_the_command(tmp_path: Path) -> None:
    from bitsect.reports.again import command_of
    from bitsect.values import Goal, Scoring, Settings
    from bitsect.values.options import to_json

    settings = Settings(
        draw=64, range="max", mean=(0.5, 0.4), refit=False, rounding="gptq", sign="auto", threads=2
    )
    run = {
        **to_json(settings),
        "model": "my net.pt2",
        "data": "x.npz",
        "method": "bitsect",
        "destination": "a100",
    }
    goal = Goal(target="98%", latency="a100", keep=["first=float"], search="frontier", guide="expected")
    known = {"goal": to_json(goal), "scoring": to_json(Scoring(metric="damage"))}
    words = shlex.split(command_of(tmp_path, {**run, "files": {}}, known))
    assert words[:3] == ["bitsect", "quantize", "my net.pt2"]
    pairs = list(itertools.pairwise(words))
    wanted = (
        "--data x.npz --target 98% --for a100 --keep first=float --draw 64 --range max --mean 0.5 --mean 0.4"
    )
    wanted += " --threads 2 --confidence none"
    given = wanted.split()
    for pair in zip(given[::2], given[1::2], strict=True):
        assert pair in pairs
    assert "--no-refit" in words
    assert "--rounding" not in words  # as the method has it
    assert command_of(tmp_path, {**run, "files": {"model.pt2": "…"}}, known).startswith("bitsect search ")
    assert command_of(tmp_path, {**run, "files": {}}, {**known, "judge": "mine"}) == ""


def test_notebooks_show_the_beginning_of_the_page_without_scripts(result: Any, story: Story) -> None:
    shown = result._repr_html_()
    seen = Seen(shown)
    assert "script" not in {tag for tag, _ in seen.tags}
    assert len(shown) < 60_000
    assert story.verdict.headline in seen.text
    assert sum(tag == "rect" for tag, _ in seen.tags) == len(result.plan)


@pytest.mark.parametrize(
    ("changes", "tone", "words"),
    [
        ({"promise": promise()}, GOOD, "It keeps 99% of its accuracy proven on 1,536 held-out samples"),
        (
            {"promise": promise(False), "target_met": None},
            UNSURE,
            "It may keep 99% of its accuracy not proven",
        ),
        (
            {"promise": promise(False, verdict="not kept", kept=0.9, bound=0.88), "target_met": False},
            BAD,
            "It does not keep 99% of its accuracy on 1,536 held-out",
        ),
        (
            {"test": {"float": row(0.93, 1), "plan": row(0.9, 1), "target_met": False}},
            BAD,
            "It does not keep 99% of its accuracy on 512 test samples",
        ),
        ({}, UNSURE, "It keeps 99% of its accuracy on the samples that were searched on; no others"),
        ({"agreement": True}, UNSURE, "It agrees with the float network on 99% of the samples"),
        ({"judge": "mine"}, UNSURE, "It keeps 99% of your own figure"),
        (
            {
                "target": "max drop 0.5 points",
                "promise": promise(kept=None, lost=0.001, bound=0.004),
            },
            GOOD,
            "It loses at most 0.5 points of accuracy proven on 1,536 held-out samples that the search has "
            "not seen: 0.10 points lost, at most 0.40",
        ),
        (
            {"target": None, "target_met": None, "goal": {"budget": "0.5x"}},
            OPEN,
            "The most accurate plan within 0.5x no target was asked for",
        ),
    ],
)
def test_the_verdict_says_what_was_proven_and_on_what(
    tmp_path: Path, changes: dict[str, Any], tone: str, words: str
) -> None:
    story = read_story(Written(tmp_path / "run", NAMES).layers().answer(**changes).done())
    assert story.verdict.tone == tone
    assert f"{story.verdict.headline} {story.verdict.evidence}".startswith(words)
    assert story.verdict.headline in Seen(page(story)).text


def test_hostile_names_are_text_everywhere(tmp_path: Path) -> None:
    names = list(HOSTILE)
    written = Written(tmp_path / "run", names, model="zoo:<script>window.hacked = 5</script>")
    story = read_story(written.all(notes=[names[0]], judge=names[1], reason=names[2]).done())
    assert story.faults == ()
    text = page(story)
    seen = Seen(text)
    scripts = [attrs.get("type") for tag, attrs in seen.tags if tag == "script"]
    assert scripts == ["application/json", "text/plain", None]
    assert not [tag for tag, _ in seen.tags if tag in ("img", "b2")]
    assert not [key for _, attrs in seen.tags for key in attrs if key.startswith("on")]
    assert data_of(text)["names"] == names
    rows = [attrs for tag, attrs in seen.tags if tag == "tr" and "data-place" in attrs]
    assert len(rows) == len(names)
    assert "window.hacked" in seen.text  # shown, not run
    assert "&lt;script&gt;" in data_of(text)["scores"][0]["network"]["layout"]["xaxis"]["ticktext"][0]
    assert "<img" not in excerpt(story)


@pytest.mark.parametrize("state", ["begun", "captured", "calibrated", "scored"])
def test_an_unfinished_run_is_shown_as_far_as_it_came(tmp_path: Path, state: str) -> None:
    written = Written(tmp_path / "run", NAMES)
    if state != "begun":
        written.layers()
    if state == "calibrated":
        written.values()
    if state == "scored":
        written.scores().pairs()
    story = read_story(written.done())
    assert not story.finished
    assert story.verdict.tone == OPEN
    seen = Seen(page(story))
    assert "This run is not finished" in seen.text
    assert "The command that goes on" in seen.text
    assert ("How sensitive each layer is" in seen.text) == (state == "scored")
    assert ("One layer, as its format sees it" in seen.text) == (state == "calibrated")
    assert strip_of(story) is None


def test_a_run_that_was_killed_is_reported_from_its_folder(result: Any, tmp_path: Path) -> None:
    """Killed in the search, a real run has scores, pairs and evaluated plans, and no answer."""
    out = tmp_path / "run"
    shutil.copytree(result.run.folder.path, out)
    for name in ("result.json", "plan.json", "effort.json", "choices.json", "curve.json", "values.json"):
        (out / name).unlink()
    path = bitsect.report(out, out=tmp_path / "page.html")
    story = read_story(out)
    assert not story.finished
    assert set(story.values) == set(result.plan)  # measured for the page, of the float network
    assert all(each.inputs is None or each.inputs.clip is None for each in story.values.values())
    assert "This run is not finished" in path.read_text()


class One(nn.Module):
    """A network of one layer."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.fc = nn.Linear(6, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.fc(x)
        return made


def test_one_layer_no_latency_no_test_no_labels(tmp_path: Path) -> None:
    out = tmp_path / "run"
    bitsect.quantize(One(), torch.randn(40, 6), target="50%", confidence=None, destination="bits", out=out)
    story = read_story(out)
    assert story.agreement
    assert story.title == "a network given in Python"
    assert story.command.startswith("bitsect search ")
    seen = Seen((out / "report.html").read_text())
    assert "not timed" in seen.text
    assert "Which layers hurt together" not in seen.text  # there is no pair
    assert "1 layer" in seen.text


def test_numbers_that_are_none_and_no_finite_ones_leave_the_page_whole(tmp_path: Path) -> None:
    written = Written(tmp_path / "run", NAMES)
    odd = {"accuracy": 1.0, "loss": None, "samples": 1, "size_mb": 0.0, "size_ratio": 1.0}
    written.all(float=odd, plan={**odd, "accuracy": 12.5}, uniform={}, notes=[], judge="perplexity")
    table = np.full((4, 4), np.nan)
    pairs = Interaction("excess damage", "int8", tuple(NAMES), table)
    written.folder.write_json("pairs-excess-damage-int8.json", pairs.to_json())
    story = read_story(written.done())
    assert story.faults == ()
    text = page(story)
    assert "NaN" not in json_text(data_of(text))
    assert "nan" not in Seen(text).text.lower().split()
    assert story.rows[-1].searched.low is None  # no share of samples, so no interval


def test_json_in_a_script_has_no_nan_and_no_tags() -> None:
    made = json_text({"a": float("nan"), "b": [float("inf"), "</script>\u2028&"]})
    assert json.loads(made) == {"a": None, "b": [None, "</script>\u2028&"]}
    assert not set("<>&\u2028") & set(made)


@pytest.mark.parametrize("name", ["values.json", "scores-damage-int8-1.json"])
def test_a_damaged_file_is_named_and_the_rest_is_shown(tmp_path: Path, name: str) -> None:
    path = Written(tmp_path / "run", NAMES).all().done()
    (path / name).write_text('{"layers": 5}')
    story = read_story(path)
    assert len(story.faults) == 1
    assert name in story.faults[0]
    assert name in Seen(page(story)).text


@pytest.mark.parametrize("name", ["result.json", "layers.json", "plan.json"])
def test_without_what_its_verdict_rests_on_a_run_is_not_shown(tmp_path: Path, name: str) -> None:
    def exchange(path: Path) -> None:
        other = path.with_name("values.json")
        kept = path.read_bytes()
        path.write_bytes(other.read_bytes())
        other.write_bytes(kept)

    def link(path: Path) -> None:
        path.rename(tmp_path / "elsewhere")
        path.symlink_to(tmp_path / "elsewhere")

    def pipe(path: Path) -> None:
        path.unlink()
        os.mkfifo(path)

    ways: dict[str, Callable[[Path], Any]] = {
        "damaged": lambda path: path.write_text('{"layers": 5}'),
        "exchanged": exchange,
        "link": link,
        "pipe": pipe,
        "folder": lambda path: (path.unlink(), path.mkdir()),
        "large": lambda path: path.write_bytes(b" " * 70_000_000),
    }
    for way, spoil in ways.items():
        path = Written(tmp_path / way, NAMES).all().done()
        spoil(path / name)
        with pytest.raises(RunError, match=rf"{name}\b") as found:
            read_story(path)
        assert "\n" not in str(found.value)
        assert len(str(found.value)) < 400


def test_a_plan_that_is_gone_is_told(tmp_path: Path) -> None:
    path = Written(tmp_path / "run", NAMES).all().done()
    (path / "plan.json").unlink()
    with pytest.raises(RunError, match=r"plan\.json is gone.*`bitsect search .*run --target 99%` finds it"):
        read_story(path)


def test_a_file_of_the_right_checksum_and_the_wrong_contents_is_named_too(tmp_path: Path) -> None:
    written = Written(tmp_path / "run", NAMES).all()
    for name in ("curve.json", "blame.json", "choices.json", "values.json"):
        written.folder.write_json(name, {"plan": key_of(NAMES), "points": [1], "layers": [2], "allowed": 3})
    story = read_story(written.done())
    assert len(story.faults) == 4
    assert page(story)


def test_a_plan_that_was_edited_after_its_verdict_is_told(tmp_path: Path) -> None:
    written = Written(tmp_path / "run", NAMES).layers().answer()
    assert read_story(written.done()).faults == ()
    (written.path / "plan.json").write_text(json.dumps({"layers": dict.fromkeys(NAMES, "int4")}))
    verdict = read_story(written.path).verdict
    assert verdict is not None
    assert verdict.headline == "plan.json was edited after it was judged"


def test_blame_of_another_plan_is_not_shown(tmp_path: Path) -> None:
    written = Written(tmp_path / "run", NAMES).all(plan_key="f" * 16)
    assert read_story(written.done()).blame is None


def test_the_threshold_parts_the_layers_that_were_lowered(tmp_path: Path) -> None:
    written = Written(tmp_path / "run", NAMES).all()
    plan = {"stem": "int4", "blocks.0.conv1": "int4", "blocks.0.conv2": "int4", "head": "int8"}
    written.plan(plan)
    story = read_story(written.done())
    by_name = {each.name: each for each in story.scored}
    values = by_name["damage at int4"].scores.values
    assert by_name["damage at int4"].threshold == pytest.approx((values[2] + values[3]) / 2)
    assert by_name["damage at int8"].threshold is None  # all went that low
    assert story.scored[0].name == "damage at int4"  # what shows a threshold comes first


def test_200_layers_stay_under_5_megabytes(tmp_path: Path) -> None:
    names = [f"encoder.layer.{i // 8}.attention.self.part{i % 8}" for i in range(200)]
    written = Written(tmp_path / "run", names).all()
    written.scores("aughessian").scores("hessian").scores("interlayer").pairs("w4a16")
    text = page(read_story(written.done()))
    assert len(text.encode()) < MOST_BYTES


def test_every_figure_is_one_that_plotly_knows(tmp_path: Path) -> None:
    go = pytest.importorskip("plotly.graph_objects")
    story = read_story(Written(tmp_path / "run", NAMES).all().done())
    assert story.curve is not None
    colours = html_page.formats_shown(story)
    formats = {layer.name: str(layer.format) for layer in story.layers}
    made = [curve_figure(story.curve, axis) for axis in ("latency_ratio", "size_ratio")]
    made += [scores_figure(each, formats, colours, by) for each in story.scored for by in (False, True)]

    def painted(value: Any) -> Any:
        if isinstance(value, str):
            return "#123456" if value.startswith("@") else value
        if isinstance(value, dict):
            return {key: painted(each) for key, each in value.items()}
        return [painted(each) for each in value] if isinstance(value, list) else value

    for figure in made:
        go.Figure(**painted(figure))  # which refuses what it does not know
        assert figure["data"]


def test_scores_stand_in_graph_order_or_by_score(tmp_path: Path) -> None:
    story = read_story(Written(tmp_path / "run", NAMES).all().done())
    (scored,) = (each for each in story.scored if each.scores.metric == "sqnr")
    along, sorted_ = (
        scores_figure(scored, {}, {}, by)["layout"]["xaxis"]["ticktext"] for by in (False, True)
    )
    assert along == NAMES
    assert sorted_ == list(scored.scores.order())
    assert scores_figure(scored, {}, {}, False)["layout"]["yaxis"]["type"] == "linear"  # decibels


def test_like_layers_stand_together() -> None:
    rng = np.random.default_rng(0)
    group = np.array([0, 1] * 6)
    table = (group[:, None] == group) * 5.0 + rng.random((12, 12)) * 0.1
    order = seriated(table + table.T)
    assert sorted(order) == list(range(12))
    assert len({int(group[i]) for i in order[:6]}) == 1


def test_pairs_survive_the_file_and_only_the_strongest_are_drawn() -> None:
    rng = np.random.default_rng(1)
    table = rng.normal(size=(5, 5))
    found = Interaction("excess loss", "int8", tuple("abcde"), table + table.T)
    again = Interaction.from_json(json.loads(json.dumps(found.to_json())))
    assert np.allclose(again.table, found.table, rtol=1e-3)
    assert again.layers == found.layers
    (first, second, value), *_ = found.worst(10)
    upper = found.table[np.triu_indices(5, 1)]
    assert value == upper.max() == found.table["abcde".index(first), "abcde".index(second)]
    kept = strongest(found, 2)
    total = np.abs(found.table).sum(axis=1)
    assert set(kept.layers) == {"abcde"[i] for i in np.argsort(-total)[:2]}


def test_without_the_extra_nothing_is_written_and_the_error_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(html_page, "find_spec", lambda name: None)
    out = tmp_path / "run"
    result = bitsect.quantize(
        One(), torch.randn(40, 6), target="50%", confidence=None, destination="bits", out=out
    )
    assert not (out / "report.html").exists()
    assert result._repr_html_() is None
    with pytest.raises(MissingExtraError, match=r"bitsect\[report\]"):
        bitsect.report(out)


def test_what_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"no run\.json"):
        bitsect.report(tmp_path)
    done = CliRunner().invoke(app, ["report", str(tmp_path / "none")])
    assert isinstance(done.exception, RunError)


def test_the_page_is_made_where_network_and_samples_are_gone(tmp_path: Path) -> None:
    path = Written(tmp_path / "run", NAMES).layers().answer().done()
    done = CliRunner().invoke(app, ["report", str(path), "-o", str(tmp_path / "page.html"), "--json"])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["bytes"] == (tmp_path / "page.html").stat().st_size
    assert "no histograms or scores of the layers" in done.stderr


def test_stories_are_read_without_torch() -> None:
    code = "import sys, bitsect.reports.reading, bitsect.reports.html.page; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_formats_have_colours_by_their_bits(tmp_path: Path) -> None:
    written = Written(tmp_path / "run", NAMES).layers().answer()
    plan = dict(zip(NAMES, ("float", "w4a16g128", "w8a16", "int8"), strict=True))
    written.plan(plan)
    story = read_story(written.done())
    colours = html_page.formats_shown(story)
    assert len(set(colours.values())) == 4
    assert colours["int8"] == "int8"
    strip = strip_of(story)
    assert strip is not None
    heights = [piece.height for piece in strip.pieces]
    assert heights == [1.0, 10 / 16, 12 / 16, 0.5]
    for measure in strip.measures:
        last = strip.pieces[-1].spans[measure]
        assert sum(last) == pytest.approx(1000, abs=0.01)


def test_a_format_that_is_none_is_named(tmp_path: Path) -> None:
    written = Written(tmp_path / "run", NAMES).layers().scores().answer()
    plan = dict.fromkeys(NAMES, "<b>int9000</b>")
    written.plan(plan)
    with pytest.raises(RunError, match=r"plan\.json: unknown format '<b>int9000</b>'"):
        read_story(written.done())
