"""The paper's tables and figures from runs: what is printed beside them, what is drawn, what is written."""

from __future__ import annotations

import ast
import builtins
import csv
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import bitsect
import paper
from bitsect.errors import BitsectError, MissingExtraError, OptionError
from bitsect.values import Layer
from paper.__main__ import main
from paper.data import Data, Network
from paper.experiments import EXPERIMENTS, SEARCHES
from paper.figures import FIGURES
from paper.folder import page_text, write_folder
from paper.make import make
from paper.printed import BERT, MOBILENETV2, RESNET50, most_like, printed_figure, printed_rows
from paper.tables import comparison_table
from paper.text import markdown_table

HOSTILE = "$\\frac{a|b}<script>alert(1)</script>`*_"


# ---- what the paper prints -----------------------------------------------------------------------


@pytest.mark.parametrize(("table", "rows", "quoted"), [(1, 16, 11), (2, 16, 11), (3, 14, 7), (7, 6, 5)])
def test_every_row_of_the_paper_is_there(table: int, rows: int, quoted: int) -> None:
    found = printed_rows(table)
    assert len(found) == rows
    assert sum(row["origin"] == "quoted" for row in found) == quoted


def test_shares_of_the_printed_rows_fit_their_figures() -> None:
    """Sizes and latencies against the baseline's; accuracy is against that of each work, so it cannot be."""
    for table in (1, 2, 3, 7):
        baseline, *others = printed_rows(table)
        for row in others:
            for figure, share in (("size_mb", "size_percent"), ("latency_ms", "latency_percent")):
                if row[figure] is not None:
                    # The paper rounds milliseconds and megabytes to two digits.
                    error = 100 * 0.0101 / baseline[figure] * max(1, row[figure] / baseline[figure]) + 0.06
                    assert 100 * row[figure] / baseline[figure] == pytest.approx(row[share], abs=error)


def test_figures_of_the_supplement() -> None:
    assert printed_figure("greedy", RESNET50, "aughessian", "99%") == 71.97
    assert printed_figure("interlayer", BERT, "interlayer", "99.99%") == 85.35
    assert printed_figure("evaluations", BERT, "aughessian", "99%", "4") == 8
    assert printed_figure("greedy", BERT, "hessian", "99%") is None


def test_a_network_stands_beside_the_one_it_is_most_like() -> None:
    def of(*kinds: str) -> tuple[Layer, ...]:
        return tuple(Layer(kind, kind, (1,), ()) for kind in kinds)

    assert most_like(of("conv2d", "linear")) == RESNET50
    assert most_like(of("conv2d", "depthwise", "linear")) == MOBILENETV2
    assert most_like(of("linear", "matmul", "conv2d")) == BERT


# ---- from runs -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(1)
    layers = nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64, 4)
    network = nn.Sequential(*layers).eval()
    x = torch.randn(64, 1, 8, 8, generator=torch.Generator().manual_seed(5))
    with torch.no_grad():
        y = network(x).argmax(1)
    folder = tmp_path_factory.mktemp("paper")
    np.savez(folder / "samples.npz", x=x.numpy(), y=y.numpy())
    asked: dict[str, Any] = {"draw": 24, "threads": 1, "batch_size": 8, "method": "paper", "metric": "random"}
    bitsect.sensitivity(network, str(folder / "samples.npz"), out=folder / "net$1", **asked)
    return folder / "net$1"


def test_everything_of_two_runs_is_drawn_and_the_same_bytes_again(run: Path, tmp_path: Path) -> None:
    other = Path(shutil.copytree(run, tmp_path / "other"))
    asked: dict[str, Any] = {"targets": "80%,95%", "draws": 2, "test_data": str(run.parent / "samples.npz")}
    made = make("all", [run, other], out=tmp_path / "drawn", **asked)
    names = {path.name for path in (tmp_path / "drawn").iterdir()}
    assert {f"{name}.csv" for name in made.made} <= names
    assert {f"{name}.{ending}" for name in FIGURES for ending in ("svg", "png")} <= names
    for name in FIGURES:
        assert (tmp_path / "drawn" / f"{name}.png").read_bytes().startswith(b"\x89PNG")
        assert b"</svg>" in (tmp_path / "drawn" / f"{name}.svg").read_bytes()
    page = (tmp_path / "drawn" / "README.md").read_text()
    for words in (
        "Table 1 (ResNet50), with net$1, other",
        "| other | yes |",
        "| MrBiQ† | quoted |",
        "paper, ResNet50",
    ):
        assert words in page
    for reference in ("figure2.svg", "thresholds.svg", "error-bars.csv"):
        assert f"({reference})" in page
    again = made.write(tmp_path / "again")
    assert again[0].name == "README.md"
    for path in again:
        assert path.read_bytes() == (tmp_path / "drawn" / path.name).read_bytes(), path.name


def test_rows_of_a_table_are_what_was_found(run: Path, tmp_path: Path) -> None:
    made = make("table", run, targets="95%", methods="paper", out=tmp_path)
    compared = bitsect.compare(run, metrics="hessian,aughessian", targets="95%", latency="a100")
    with (tmp_path / "table.csv").open() as file:
        baseline, *rows = csv.DictReader(file)
    assert float(baseline["size_percent"]) == 100
    assert [row["name"] for row in rows] == ["Hessian 95 %", "AugHessian 95 %"]
    for row, trial in zip(rows, compared.trials, strict=True):
        assert float(row["kept_percent"]) == pytest.approx(100 * trial.kept, rel=1e-4)
        assert float(row["latency_percent"]) == pytest.approx(100 * (trial.latency_ratio or 0), rel=1e-4)
        expected = trial.size_ratio * float(baseline["size_mb"])
        assert float(row["size_mb"]) == pytest.approx(expected, rel=1e-4)
    assert all("¶" in row["marks"] for row in rows)  # there are no test samples
    assert len(made.rows) == 3


def test_a_figure_brings_what_is_drawn_with_it(run: Path, tmp_path: Path) -> None:
    make("figure3", run, out=tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {
        "README.md",
        "figure3.csv",
        "figure3.png",
        "figure3.svg",
        "scores.csv",
    }
    assert list(make("figure3", run).made) == ["figure3"]


@pytest.mark.parametrize("method", SEARCHES)
def test_every_experiment_gives_rows(method: str, run: Path) -> None:
    made = make("all", run, targets="80%,95%", draws=1, method=method)
    assert list(made.made) == list(EXPERIMENTS)
    assert {row["network"] for row in made.rows} == {"net$1"}
    assert all(data.rows and data.words for data in made.made.values())
    json.dumps(made.to_json(), allow_nan=False)
    searches = {row["search"] for row in made.made["greedy"].rows}
    assert searches == set(SEARCHES[method].values())


def test_the_pair_matrix_is_of_every_pair(run: Path) -> None:
    rows = make("figure3", run).rows
    assert [(row["first_place"], row["second_place"]) for row in rows] == [(0, 1), (0, 2), (1, 2)]
    single = bitsect.sensitivity(run, metric="single").values
    float_loss = single[0] - rows[0]["first_alone"]
    for row in rows:
        assert row["first_alone"] == pytest.approx(single[row["first_place"]] - float_loss)
        assert row["standard_error"] > 0
    interlayer = bitsect.sensitivity(run, metric="interlayer").values
    assert interlayer[0] == pytest.approx(sum(max(0, row["excess"]) for row in rows[:2]))


@pytest.mark.parametrize(("method", "called"), [("paper", "Gauss–Newton"), ("paper-literal", "Hessian")])
def test_a_curved_network_has_its_traces_called_what_they_are(
    method: str, called: str, tmp_path: Path
) -> None:
    torch.manual_seed(1)
    network = nn.Sequential(nn.Flatten(), nn.Linear(16, 8), nn.GELU(), nn.Linear(8, 3)).eval()
    x = torch.randn(24, 1, 4, 4)
    options: dict[str, Any] = {"threads": 1, "draw": 24, "metric": "random", "probes": 2, "method": method}
    bitsect.sensitivity(network, (x, torch.arange(24) % 3), out=tmp_path / "run", **options)
    make(
        "table,interlayer",
        tmp_path / "run",
        targets="50%",
        method=method,
        methods=method,
        out=tmp_path / "out",
    )
    page = (tmp_path / "out" / "README.md").read_text()
    assert f"traces of its {called} matrix" in page
    assert f"\n| {called} 50 %" in page
    make("interlayer", tmp_path / "run", targets="50%", method=method, out=tmp_path / "alone")
    assert "traces of" not in (tmp_path / "alone" / "README.md").read_text()


def test_rows_are_csv_on_the_command_line(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["scores", str(run)])
    shown = capsys.readouterr().out
    assert shown.splitlines()[0].startswith("network,metric,place,layer,score")
    main(["scores", str(run), "-o", str(tmp_path / "f.csv")])
    assert (tmp_path / "f.csv").read_text() == shown
    with pytest.raises(SystemExit, match="error: unknown experiment 'figure55': did you mean 'figure5'"):
        main(["figure55", str(run)])
    with pytest.raises(SystemExit):
        main(["all", str(run)])
    assert "several figures need a folder" in capsys.readouterr().err


def test_only_public_names_are_used() -> None:
    for path in Path(paper.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("bitsect"):
                assert node.module == "bitsect", path
                assert {name.name for name in node.names} <= set(bitsect.__all__), path
            if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "bitsect":
                assert node.attr in bitsect.__all__, path


@pytest.mark.parametrize(
    ("names", "words"),
    [("figur4", "did you mean 'figure4'"), ("", "name figures and tables"), ("all,figure4", "all alone")],
)
def test_what_cannot_be_made(names: str, words: str, run: Path) -> None:
    with pytest.raises(OptionError, match=words):
        make(names, run)


def test_runs_of_one_name_are_refused(run: Path) -> None:
    with pytest.raises(OptionError, match="called otherwise"):
        make("table", [run, run])
    with pytest.raises(OptionError, match="unknown method 'papr'"):
        make("table", run, methods="papr")


def test_without_matplotlib_nothing_is_measured(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *rest: Any) -> Any:
        if name.startswith("matplotlib"):
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(MissingExtraError, match=r"matplotlib: pip install 'bitsect\[report\]'"):
        make("figure4", run.parent / "no run at all", out="x")


# ---- whatever stands in the rows -----------------------------------------------------------------


def hostile(latency: float | None = 0.7) -> tuple[dict[str, Data], Network]:
    """Everything, of a network and a layer that have the worst of names."""
    own = {"network": HOSTILE}
    trial = {**own, "metric": "hessian", "search": "bisection", "target": "99%", "latency_ratio": latency}
    trial |= {"kept": 0.9, "test_kept": None, "draw": 0}
    score = {**own, "metric": "hessian", "place": 0, "layer": HOSTILE, "score": 0.0, "against_mean": 0.0}
    made = {
        "figure2": [trial],
        "figure3": [],
        "scores": [score],
        "figure4": [trial],
        "figure5": [{**trial, "place": 0, "layer": HOSTILE, "format": "int8", "bits": 8}],
        "error-bars": [{**trial, "latency_ratio_sd": None, "draws": 1}],
        "thresholds": [
            {**own, "metric": "hessian", "target": "99%", "bits": 8, "layers": 0, "of": 1, "score": None}
        ],
        "greedy": [trial],
        "evaluations": [{**own, "metric": "hessian", "target": "99%"}],
    }
    network = Network(HOSTILE, BERT, 1, HOSTILE)
    return {name: Data(name, name, tuple(rows)) for name, rows in made.items()}, network


@pytest.mark.parametrize("latency", [0.7, None])
def test_one_layer_with_a_hostile_name_is_drawn_as_it_is(latency: float | None, tmp_path: Path) -> None:
    made, network = hostile(latency)
    write_folder(made, [network], tmp_path)
    page = (tmp_path / "README.md").read_text()
    assert "<script>" not in page
    for path in tmp_path.glob("*.svg"):
        assert "<script" not in path.read_text()


def test_many_layers_are_numbered_not_named(tmp_path: Path) -> None:
    rows = tuple(
        {
            "network": "n",
            "metric": "hessian",
            "target": "98%",
            "draw": 0,
            "place": i,
            "layer": f"l{i}",
            "bits": 8,
        }
        for i in range(193)
    )
    write_folder({"figure5": Data("figure5", "", rows)}, [Network("n", BERT, 193)], tmp_path)
    assert (tmp_path / "figure5.png").stat().st_size < 500_000


def test_tables_hold_whatever_a_cell_holds() -> None:
    table = markdown_table(["a"], [[HOSTILE + "\n| next |"]])
    assert len(table.splitlines()) == 3
    assert table.splitlines()[2].count("|") - table.splitlines()[2].count("\\|") == 2


def test_a_page_names_its_marks() -> None:
    row = {"network": "n", "name": "Baseline", "marks": "¶", "no_fine_tuning": "", "weights": "16"}
    row |= {"activations": "16", "embeddings": "16", **dict.fromkeys(("latency_ms", "latency_percent"))}
    row |= dict.fromkeys(("accuracy_percent", "kept_percent", "size_mb", "size_percent"), 1.0)
    network = Network("n", BERT, 1)
    data = {"table": Data("table", "", (row,))}
    assert "¶ accuracy on the samples that were searched on" in comparison_table(data["table"], [network])
    assert "| E |" in page_text(data, [network])


def test_a_file_in_the_way_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    made, network = hostile()
    with pytest.raises(BitsectError, match="is a file"):
        write_folder(made, [network], tmp_path / "file")
    assert (tmp_path / "file").read_text() == "mine"
