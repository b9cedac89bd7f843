"""What a run was asked stays until something else is asked: destination, latencies, formats, objective."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import bitsect
from bitsect.errors import BitsectError, RunError, in_command
from bitsect.latency.a100 import table as a100
from bitsect.runs.progress import Progress
from bitsect.values import LatencyTable
from tiny import images, residual

FIRST: dict[str, Any] = {
    "target": "90%",
    "method": "paper",
    "metric": "random",
    "destination": "a100",
    "objective": "size",
    "formats": "int8",
    "keep": ["head=float"],
    "probe_seed": 3,
}


class Heard(Progress):
    def __init__(self) -> None:
        super().__init__()
        self.heard: list[str] = []

    def say(self, what: str) -> None:
        self.heard.append(in_command(what))

    @contextmanager
    def shown(self, name: str, total: int | None) -> Iterator[Any]:
        yield lambda count: None


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made") / "run"
    bitsect.quantize(residual()[0], images(24), out=folder, **FIRST)
    return folder


@pytest.fixture
def run(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "run"))


def answer(run: Path) -> dict[str, Any]:
    return dict(json.loads((run / "result.json").read_text()))


def test_another_target_asks_for_nothing_else(run: Path) -> None:
    before, progress = answer(run), Heard()
    bitsect.quantize(run, target="80%", progress=progress)
    after = answer(run)
    assert after["goal"] | {"target": "90%"} == before["goal"]
    assert after["scoring"] == before["scoring"]
    assert after["latency_source"] == before["latency_source"]
    (said,) = (line for line in progress.heard if line.startswith("as this run was asked before"))
    for option in ("--objective size", "--formats int8", "--keep head=float", "--probe-seed 3"):
        assert option in said
    assert "target" not in said


def test_something_else_takes_the_place_of_what_was_asked_and_stays_in_its_turn(run: Path) -> None:
    bitsect.quantize(run, target="80%", formats="int8,int4", keep="none", metric="single")
    bitsect.quantize(run, max_drop=5)
    after = answer(run)["goal"]
    assert after["formats"] == ["int8", "int4"]
    assert after["keep"] == []
    assert answer(run)["scoring"]["metric"] == "single"
    assert after["destination"] == "a100"
    assert after["max_drop"] == 5


def test_another_destination_stays_and_brings_its_own_latencies(run: Path) -> None:
    bitsect.quantize(run, target="80%", destination="bits")
    bitsect.quantize(run, target="85%")
    after = answer(run)["goal"]
    assert (after["destination"], after["latency"]) == ("bits", None)
    assert after["formats"] == ["int8"]  # which were asked for by name


def test_a_latency_table_stays_wherever_its_file_went(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = a100(residual()[1].layers)
    table = LatencyTable("bench", "made up", table.formats, table.rows)
    monkeypatch.chdir(tmp_path)
    for latency in (table, "bench.json"):
        table.write(tmp_path / "bench.json")
        bitsect.quantize(run, target="80%", latency=latency)
        (tmp_path / "bench.json").unlink()
        found = bitsect.quantize(run, target="85%")
        assert found.table == table
        assert bitsect.frontier(run).device == "bench"
    assert bitsect.quantize(run, target="85%", latency="none").table is None


def test_a_limit_stays_beside_a_new_target_and_alone_asks_for_none(run: Path) -> None:
    limited = bitsect.quantize(run, max_size="0.9x", keep="none")
    assert limited.target is None
    both = bitsect.quantize(run, target="80%")
    assert str(both.goal.limits) == "0.9x size"
    assert bitsect.quantize(run, target="80%", max_size="none").goal.limits is None


def test_samples_that_a_target_was_proven_on_prove_the_next(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    x, y = images(24, seed=9)
    save_file({"x": x, "y": y}, tmp_path / "proof.safetensors")
    run, data = tmp_path / "run", tmp_path / "proof.safetensors"
    ask = {"method": "paper", "metric": "random", "confidence": "95%", "destination": "bits"}
    bitsect.quantize(residual()[0], images(24), validation_data=data, target="50%", out=run, **ask)
    assert bitsect.quantize(run, target="60%").promise is not None
    assert answer(run)["goal"]["confidence"] == 0.95


def test_every_verb_on_a_run_goes_by_what_it_was_asked(run: Path) -> None:
    table = a100(residual()[1].layers)
    bitsect.quantize(run, target="80%", latency=LatencyTable("bench", "made up", table.formats, table.rows))
    assert bitsect.sensitivity(run).metric == "random"
    assert bitsect.frontier(run, targets="80%", evaluations=3).device == "bench"
    assert bitsect.compare(run, targets="80%", metrics="random").device == "bench"
    assert {str(each) for each in bitsect.quantize(run, target="70%").goal.formats} == {"int8"}


def test_a_killed_first_search_has_been_asked_all_the_same(tmp_path: Path) -> None:
    def stopped(network: Any) -> float:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        bitsect.quantize(residual()[0], images(24), out=tmp_path / "run", evaluate=stopped, **FIRST)
    assert bitsect.quantize(tmp_path / "run", target="80%").goal.objective == "size"


def test_a_request_that_fails_is_not_what_stays(run: Path) -> None:
    with pytest.raises(bitsect.BitsectError):
        bitsect.quantize(run, target="80%", max_size="0.0001x")
    assert bitsect.quantize(run, target="80%").goal.limits is None


@pytest.mark.parametrize(
    "spoilt", [{"goal": {"formats": 3}}, {"goal": {"tarrget": 1}}, {"scoring": {"probes": -1}}, {"more": 1}]
)
def test_a_request_that_was_spoilt_is_refused_in_one_line(run: Path, spoilt: dict[str, Any]) -> None:
    from bitsect.runs.folder import RunFolder

    folder = RunFolder(run)
    folder.recognise()
    folder.write_json("asked.json", spoilt)
    folder.close()
    with pytest.raises(RunError, match=r"asked.json.*remove it, and name the options again") as error:
        bitsect.quantize(run, target="80%")
    assert "\n" not in str(error.value)


def test_code_that_a_run_was_asked_for_is_imported_for_those_who_trust_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own_metrics.py").write_text(
        "import bitsect\n\n@bitsect.metric()\ndef same(means, scoring):\n    return means.weights * 0 + 1\n"
    )
    monkeypatch.chdir(tmp_path)
    own = {"metric": "own_metrics:same", "search": "bisection"}
    bitsect.quantize(residual()[0], images(24), out="run", target="50%", method="paper", **own)
    again: dict[str, Any] = {"target": "60%", "progress": Progress()}
    for call in (bitsect.quantize, bitsect.sensitivity):
        asked = again if call is bitsect.quantize else {}
        with pytest.raises(
            BitsectError, match=r"its metric 'own_metrics:same' is code to import: .*trust=True"
        ):
            call("run", **asked)
        call("run", trust=True, **asked)
        call("run", metric="own_metrics:same", **asked)
    with pytest.raises(BitsectError, match="its metric 'own_metrics:same' is code to import"):
        bitsect.compare("run", searches="bisection")
