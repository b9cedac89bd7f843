"""Comparing searches over draws: figures against a reference, draws that go on and are shared."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import bitsect
from bitsect.errors import DataError, OptionError
from bitsect.solve.intervals import difference, spread, standings, student_quantile
from bitsect.values.trial import EVERY, Compared, Setup, Trial

DRAW, ALL = 32, 96
FIRST, SECOND = ("paper", "sqnr", "bisection"), ("paper", "random", "bisection")


def network() -> nn.Module:
    torch.manual_seed(1)
    layers = nn.Conv2d(1, 6, 3), nn.ReLU(), nn.Conv2d(6, 6, 3), nn.ReLU(), nn.Flatten(), nn.Linear(96, 5)
    return nn.Sequential(*layers).eval()


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    x = torch.randn(ALL, 1, 8, 8, generator=torch.Generator().manual_seed(5))
    with torch.no_grad():
        y = network()(x).argmax(1)
    path = tmp_path_factory.mktemp("data") / "samples.npz"
    np.savez(path, x=x.numpy(), y=y.numpy())
    return path


def run_of(data: Path, out: Path, **options: Any) -> Path:
    asked = {"draw": DRAW, "threads": 1, "batch_size": 16, "method": "paper"} | options
    bitsect.sensitivity(network(), str(data), metric="random", out=out, **asked)
    return out


@pytest.fixture(scope="module")
def fresh(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run_of(data, tmp_path_factory.mktemp("fresh") / "run")


@pytest.fixture
def run(fresh: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(fresh, tmp_path / "run"))


def compare(run: Path, data: Path, **options: Any) -> Compared:
    asked = {"metrics": "sqnr,random", "targets": "80%,95%", "draws": 2, "test_data": str(data)} | options
    return bitsect.compare(run, **asked)


@pytest.fixture(scope="module")
def compared(fresh: Path, data: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Compared]:
    path = Path(shutil.copytree(fresh, tmp_path_factory.mktemp("compared") / "run"))
    return path, compare(path, data, searches="bisection,progressive")


# ---- intervals -----------------------------------------------------------------------------------


def test_quantiles_are_those_of_the_tables() -> None:
    table = {1: 12.7062, 2: 4.3027, 3: 3.1824, 4: 2.7764, 5: 2.5706, 9: 2.2622, 29: 2.0452, 120: 1.9799}
    for freedom, expected in table.items():
        assert student_quantile(freedom, 0.975) == pytest.approx(expected, abs=1e-4)


def test_an_interval_holds_the_truth_as_often_as_it_says() -> None:
    rng = np.random.default_rng(0)
    found = [difference(list(rng.normal(0.3, 1.0, 5))) for _ in range(2000)]
    held = np.mean([(each.low or 0) <= 0.3 <= (each.high or 0) for each in found])
    assert held == pytest.approx(0.95, abs=0.015)


def test_one_draw_says_nothing_of_others() -> None:
    assert difference([0.5]).low is None
    assert spread([0.5]).deviation is None
    assert difference([0.5]).verdict == "no difference seen"
    assert difference([1.0, 1.1, 0.9]).verdict == "more"
    assert difference([-1.0, -1.1, -0.9]).verdict == "less"


def trial(contender: tuple[str, str, str], target: str, draw: int, size: float) -> Trial:
    figures = {"bits": 16 * size, "size_ratio": size, "latency_ratio": None, "bit_operations_ratio": size}
    figures |= {"evaluations": 3, "evaluations_by_format": {"int8": 3}, "seconds": None, "accuracy": 0.9}
    rest = {"float_accuracy": 1.0, "test_accuracy": 0.8, "test_float_accuracy": 1.0}
    setup = Setup(*contender, target)
    return Trial(setup, draw, "key", {"a": "int8"}, True, {"int8": 1}, **figures, **rest)


def test_standings_against_a_plain_reference() -> None:
    rng = np.random.default_rng(1)
    sizes = {
        (c, t, d): float(rng.random()) for c in (FIRST, SECOND) for t in ("98%", "99%") for d in range(4)
    }
    trials = [trial(c, t, d, size) for (c, t, d), size in sizes.items()]
    found = {(each.setup.contender, each.setup.target): each for each in standings(trials)}
    for target in ("98%", "99%"):
        pairs = np.array([sizes[SECOND, target, d] - sizes[FIRST, target, d] for d in range(4)])
        known = found[SECOND, target].differences["size_ratio"]
        assert known.mean == pytest.approx(pairs.mean())
        half = 3.1824 * pairs.std(ddof=1) / 2
        assert known.high == pytest.approx(pairs.mean() + half, rel=1e-4)
        assert found[FIRST, target].differences == {}
    means = np.array(
        [np.mean([sizes[SECOND, t, d] - sizes[FIRST, t, d] for t in ("98%", "99%")]) for d in range(4)]
    )
    every = found[SECOND, EVERY]
    assert every.differences["size_ratio"].mean == pytest.approx(means.mean())
    assert every.figures["size_ratio"].deviation == pytest.approx(
        np.std([np.mean([sizes[SECOND, t, d] for t in ("98%", "99%")]) for d in range(4)], ddof=1)
    )
    assert "latency_ratio" not in every.figures
    assert "seconds" not in every.figures


def test_draws_that_only_one_of_them_has_are_not_paired() -> None:
    trials = [trial(FIRST, "98%", d, 0.5) for d in range(3)] + [
        trial(SECOND, "98%", d, 0.7) for d in (1, 2, 9)
    ]
    (_, second) = standings(trials)
    assert second.differences["size_ratio"].draws == 2
    assert second.figures["size_ratio"].draws == 3


# ---- compare -------------------------------------------------------------------------------------


def test_every_contender_at_every_target_on_every_draw(compared: tuple[Path, Compared]) -> None:
    path, found = compared
    seen = [(t.setup.metric, t.setup.search, t.setup.target, t.draw) for t in found.trials]
    assert len(seen) == len(set(seen)) == 2 * 2 * 2 * 2
    assert (path / "draw-paper-1" / "trials.json").exists()
    assert not (path / "plan.json").exists()  # the run's own answer is not touched
    json.dumps(found.to_json(), allow_nan=False)
    for each in found.trials:
        assert each.evaluations == sum(each.evaluations_by_format.values())
        assert sum(each.formats.values()) == len(each.layers)
        assert each.test_kept is not None


def test_a_trial_is_what_quantize_finds(compared: tuple[Path, Compared], data: Path, tmp_path: Path) -> None:
    _, found = compared
    for draw in (0, 1):
        options: dict[str, Any] = {"draw": DRAW, "seed": draw, "threads": 1, "batch_size": 16}
        result = bitsect.quantize(
            network(),
            str(data),
            target="95%",
            metric="sqnr",
            method="paper",
            out=tmp_path / f"{draw}",
            **options,
        )
        (known,) = (
            t
            for t in found.trials
            if (t.setup.metric, t.setup.search, t.setup.target, t.draw) == ("sqnr", "bisection", "95%", draw)
        )
        assert known.plan == result.plan.key
        assert known.accuracy == result.accuracy
        assert known.size_ratio == pytest.approx(result.size_ratio)


def test_again_nothing_is_measured_and_one_draw_more_is_only_that(run: Path, data: Path) -> None:
    first = compare(run, data, draws=1)
    before = {p: p.stat().st_size for p in run.rglob("*.journal")}
    assert compare(run, data, draws=1).to_json() == first.to_json()
    assert {p: p.stat().st_size for p in run.rglob("*.journal")} == before
    both = compare(run, data, draws=2)
    assert [t for t in both.trials if t.draw == 0] == list(first.trials)
    assert {p: p.stat().st_size for p in before} == before


def test_a_killed_comparison_ends_like_one_that_was_not(run: Path, data: Path, tmp_path: Path) -> None:
    whole = compare(Path(shutil.copytree(run, tmp_path / "whole")), data)

    class Stop(BaseException):
        pass

    class Killer(bitsect.Progress):
        stages = 0

        def stage(self, name: str, total: int | None = None) -> Any:
            Killer.stages += 1
            if Killer.stages == 9:
                raise Stop
            return super().stage(name, total)

    with pytest.raises(Stop):
        compare(run, data, progress=Killer())
    again = compare(run, data)
    timeless = [[replace(t, seconds=None) for t in each.trials] for each in (again, whole)]
    assert timeless[0] == timeless[1]


def test_other_methods_have_their_own_rounding(run: Path, data: Path) -> None:
    found = bitsect.compare(run, methods="paper,bitsect", targets="90%", draws=1)
    assert [t.setup.contender for t in found.trials] == [
        ("paper", "aughessian", "bisection"),
        ("bitsect", "damage", "frontier"),
    ]
    assert (run / "draw-bitsect-0" / "journals" / "gptq.journal").exists()


def test_the_search_frontier_is_tried_with_damage_alone(run: Path, data: Path) -> None:
    found = bitsect.compare(run, metrics="sqnr,random", searches="frontier", targets="90%")
    assert [t.setup.metric for t in found.trials] == ["damage"]
    assert "not tried with sqnr, random" in found.left_out[0]


def test_a_run_of_another_method_gives_the_paper_its_own_rounding(data: Path, tmp_path: Path) -> None:
    path = run_of(data, tmp_path / "run", method="bitsect")
    found = bitsect.compare(path, metrics="sqnr,damage", targets="90%")
    assert [t.setup.contender for t in found.trials] == [
        ("bitsect", "sqnr", "bisection"),
        ("bitsect", "damage", "frontier"),
    ]
    scores = bitsect.sensitivity(path, metric="interlayer", method="paper")
    assert (path / "draw-paper-0").is_dir()
    same = run_of(data, tmp_path / "paper", placement="onnxruntime", sign="signed")
    assert scores == bitsect.sensitivity(same, metric="interlayer")
    assert scores != bitsect.sensitivity(path, metric="interlayer")


def test_a_new_start_removes_the_draws(run: Path, data: Path) -> None:
    compare(run, data)
    (run / "draw-paper-1" / "mine.txt").write_text("a user's own")
    run_of(data, run, fresh=True)
    assert not (run / "trials.json").exists()
    assert [item.name for item in (run / "draw-paper-1").iterdir()] == ["mine.txt"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"draws": 0}, "at least 1"),
        ({"metrics": "hesian"}, "did you mean 'hessian'"),
        ({"searches": "bisecton"}, "did you mean 'bisection'"),
        ({"methods": "papr"}, "did you mean 'paper'"),
        ({"target": 0.9}, "does not apply to compare"),
    ],
)
def test_what_cannot_be_compared(run: Path, options: dict[str, Any], said: str) -> None:
    with pytest.raises(OptionError, match=said):
        bitsect.compare(run, **options)


def test_draws_of_the_same_samples_are_refused(data: Path, tmp_path: Path) -> None:
    everything = run_of(data, tmp_path / "all", draw=None)
    with pytest.raises(DataError, match="are all 96 that there are"):
        bitsect.compare(everything, draws=2)
    x = torch.randn(16, 1, 8, 8)
    memory = tmp_path / "memory"
    bitsect.sensitivity(network(), x, metric="random", out=memory, threads=1)
    with pytest.raises(DataError, match="given in Python"):
        bitsect.compare(memory, draws=2)
