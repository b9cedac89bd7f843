"""The recipes end to end on tiny stand-ins: only size separates them from the paper's runs."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

import bitsect
from bitsect.cli import app
from bitsect.errors import BitsectError
from bitsect.sources.recipes import RECIPES, read_recipe, recipe_text

pytest.importorskip("transformers")
from hf_models import bert_questions, mobilenetv2, resnet

SMALL = {"draw": 6, "threads": 1, "batch_size": 3, "probes": 2, "pairs": "linear"}


def test_a_recipe_is_the_papers_set_up() -> None:
    for name in RECIPES:
        recipe = read_recipe(name)
        assert list(map(str, recipe.targets)) == ["99%", "99.9%", "99.99%"]
        assert recipe.searches == ("bisection", "literal")
        assert (recipe.settings.draw, recipe.settings.percentile) == (4096, 99.999)
        assert (recipe.scoring.score_format, recipe.scoring.pairs) == ("int8", "exact")
        assert recipe.scoring.size_penalty == (1.0 if name == "mobilenetv2" else 0.0)


def test_every_target_with_every_search(tmp_path: Path) -> None:
    model, data = resnet(tmp_path / "resnet")
    options = {"model": f"hf:{model}", "out": tmp_path / "run", "test_data": str(data)}
    results = bitsect.run_recipe("resnet50", str(data), **options, **{**SMALL, "pairs": "exact"})
    asked = [(result.goal.search, str(result.target)) for result in results]
    assert asked == [(s, t) for s in ("bisection", "literal") for t in ("99%", "99.9%", "99.99%")]
    assert all(result.test is not None and result.rows[-1].cost.latency_ms is not None for result in results)
    assert {path.stem for path in (tmp_path / "run" / "plans").iterdir()} >= {"99-percent", "99.9-percent"}


@pytest.mark.parametrize(
    ("name", "make"), [("mobilenetv2", mobilenetv2), ("bert-large-squad", bert_questions)]
)
def test_the_other_recipes(name: str, make: object, tmp_path: Path) -> None:
    """By the command; every target, with bisection alone, which is what `--search` leaves."""
    model, data = make(tmp_path / name)
    options = {"out": tmp_path / "run", "search": "bisection", "test-data": data, **SMALL}
    if name == "bert-large-squad":
        options |= {"max-length": 32, "stride": 8}
    given = [part for key, value in options.items() for part in (f"--{key.replace('_', '-')}", str(value))]
    ran = CliRunner().invoke(app, ["quantize", f"hf:{model}", "--recipe", name, "--data", str(data), *given])
    assert ran.exit_code in (0, 1), ran.output  # 1 where a target is missed
    for target in ("99-percent", "99.9-percent", "99.99-percent"):
        result = json.loads((tmp_path / "run" / "results" / f"{target}.json").read_text())
        assert result["method"] == "paper"
        assert result["scoring"].get("size_penalty", 0.0) == (1.0 if name == "mobilenetv2" else 0.0)


def test_a_copy_can_be_changed(tmp_path: Path) -> None:
    shown = CliRunner().invoke(app, ["recipe", "show", "resnet50"])
    assert shown.output == recipe_text("resnet50")
    mine = tmp_path / "mine.toml"
    mine.write_text(shown.output.replace("draw = 4096", "draw = 12"))
    assert read_recipe(mine).settings.draw == 12


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("draw = 3", "unknown entry 'draw'"),
        ("[settings]\ndrew = 3", r"unknown option of \[settings\] 'drew': did you mean 'draw'"),
        ("[settings]\ndraw = 'many'", "draw many is not a whole number"),
        ("targets = ['much']", "target 'much' is not a share"),
        ("method = 'mine'", "unknown method 'mine'"),
        ("model = ", "not TOML"),
    ],
)
def test_a_recipe_that_is_wrong_is_named(text: str, why: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(text)
    with pytest.raises(BitsectError, match=rf"mine\.toml: .*{why}"):
        read_recipe(path)


def test_what_a_recipe_needs(tmp_path: Path) -> None:
    with pytest.raises(BitsectError, match="unknown recipe 'resnet5': did you mean 'resnet50'"):
        bitsect.run_recipe("resnet5", "x.npz", out=tmp_path)
    with pytest.raises(BitsectError, match="pass out="):
        bitsect.run_recipe("resnet50", "x.npz")
