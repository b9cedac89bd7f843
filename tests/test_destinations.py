"""Where it will run: destinations, kernels timed here, costs with boundaries, files measured last."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from torch import nn

import bitsect
from bitsect import Goal, Settings
from bitsect.errors import BitsectError, ExportError, OptionError, RunError
from bitsect.exporters.onnx.pieces import WrittenGraph
from bitsect.exporters.runtimes.apart import ADVICE, Apart, Fault, Model, Times
from bitsect.exporters.runtimes.onnxruntime import OnnxModel, feed_of
from bitsect.latency import clock as clocks
from bitsect.latency import network_table, timed
from bitsect.latency.clock import Clock
from bitsect.latency.fit import Pieces, fit_table
from bitsect.latency.machine import Machine
from bitsect.latency.profiles import import_profiles
from bitsect.latency.timings import VERSION, Time, Timings
from bitsect.latency.written import TimingModel, takes
from bitsect.network.capture import capture
from bitsect.rounding.boundaries import boundaries
from bitsect.rounding.rounder import Rounder
from bitsect.runs.progress import Progress
from bitsect.solve.allowed import allowed_formats
from bitsect.solve.costs import cost_table, faster_formats, latency_ms
from bitsect.solve.search.problem import Problem
from bitsect.solve.search.trail import Trails
from bitsect.sources.data import load_samples
from bitsect.sources.tasks.task import task_named
from bitsect.values import FLOAT, INT4, INT8, ONNXRUNTIME, Format, LatencyTable, Plan
from bitsect.values.boundary import Boundary, step_key
from bitsect.values.destination import CPU_FORMATS, DESTINATIONS, check_written, destination_named
from bitsect.values.format import DYNAMIC
from bitsect.values.latency_table import place_key
from short import calibrate, export_onnx, prove
from tiny import images, residual, seeded

LAYERS = residual()[1].layers
MACHINE = Machine("onnxruntime", "1.0", "a processor [1 2 3]", 1)


@pytest.fixture(autouse=True)
def a_moment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Timing takes a moment, and its cache is the test's own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(timed, "VISITS", 2)
    monkeypatch.setattr(timed, "VISIT_SECONDS", 0.0005)
    monkeypatch.setattr(timed, "PASSES", (2, 2))
    monkeypatch.setattr(clocks, "WHOLE_VISITS", 3)
    monkeypatch.setattr(clocks, "VISIT_SECONDS", 0.001)


# Destinations


def test_what_follows_from_a_destination_gives_way_to_what_is_asked() -> None:
    there = destination_named("onnxruntime")
    goal = there.complete_goal(Goal(target="99%"))
    assert (goal.latency, goal.formats, goal.destination) == (
        "onnxruntime",
        (*CPU_FORMATS[1:], DYNAMIC, INT8),
        there.name,
    )
    asked = there.complete_goal(Goal(target="99%", latency="a100", formats="int4"))
    assert (asked.latency, asked.formats) == ("a100", (INT4,))
    assert there.complete_settings(Settings()).placement == "onnxruntime"
    assert there.complete_settings(Settings(placement="paper")).placement == "paper"
    assert destination_named("bits").complete_goal(Goal(target="99%")).latency is None


def test_a_latency_table_is_a_destination(tmp_path: Path) -> None:
    path = tmp_path / "device.json"
    path.write_text("{}")
    there = destination_named(path)
    assert (there.latency, there.placement.name, there.form) == (str(path), "paper", None)
    with pytest.raises(OptionError, match=r"nothing\.json: no such latency table"):
        destination_named("nothing.json")
    with pytest.raises(OptionError, match="unknown destination 'onnxruntim': did you mean 'onnxruntime'"):
        destination_named("onnxruntim")
    with pytest.raises(OptionError, match="unknown destination 'a100'"):
        check_written("a100")


def test_a_budget_needs_a_destination_with_times() -> None:
    Goal(budget="0.8x", destination="onnxruntime")
    with pytest.raises(OptionError, match="needs a latency table"):
        Goal(budget="0.8x", destination="bits")


@pytest.mark.parametrize("name", DESTINATIONS)
def test_every_destination_says_what_it_is(name: str) -> None:
    there = DESTINATIONS[name]
    assert there.name == name
    assert there.about
    assert there.runtime in (None, there.form)


# Boundaries and what they cost


def table_with(
    change_ms: float = 0.3, rest_ms: float = 1.0, slower: tuple[str, ...] = (), layers: Any = LAYERS
) -> LatencyTable:
    """Float layers take 1 ms, int8 ones 0.5 (or 1.1 where they are `slower`), each step the same."""
    program = residual()[1]
    between = boundaries(program)
    rows: dict[str, dict[Format, float | None]] = {}
    for layer in layers:
        for place in layer.places:
            rows[place_key(place)] = {FLOAT: 1.0, INT8: 1.1 if layer.name in slower else 0.5}
    for boundary in between:
        for step in ("quantize", "dequantize"):
            rows[step_key(step, boundary.elements)] = {INT8: change_ms}
    return LatencyTable("here", "a test", (FLOAT, INT8), rows, rest_ms=rest_ms, boundaries=between)


def test_boundaries_follow_the_graph() -> None:
    found = {(each.before, each.after) for each in boundaries(residual()[1])}
    assert {("stem", "a"), ("a", "b"), ("b", "c"), ("c", "d"), ("b", "e"), (None, "stem")} <= found
    assert ("stem", "b") in found  # the shortcut is added to what b makes
    assert ("d", "e") in found or ("e", "d") in found
    assert ("d", "head") not in found


def test_readers_of_one_tensor_share_its_rounding() -> None:
    class Heads(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.q, self.k = torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = torch.nn.functional.gelu(x)
            return self.q(x) + self.k(x)

    first, second = boundaries(capture(Heads().eval(), seeded(2, 8)))
    assert (first.before, first.after, first.elements) == (None, "q", 8)
    assert (second.before, second.after, second.back) == ("q", "k", False)
    assert second.step(INT8, INT8) is None
    assert second.step(FLOAT, INT8) == "quantize"
    assert second.step(INT8, FLOAT) is None


def test_the_cost_that_a_search_adds_up_is_the_latency_of_the_plan() -> None:
    table, draw = table_with(), random.Random(0)
    allowed = {layer.name: (FLOAT, INT8) for layer in LAYERS}
    costs = cost_table(LAYERS, allowed, table, "latency")
    problem = Problem(LAYERS, allowed, lambda f: [layer.name for layer in LAYERS], 0, None, costs=costs)  # type: ignore[arg-type]
    trails = Trails(problem)
    for _ in range(30):
        plan = Plan({layer.name: draw.choice((FLOAT, INT8)) for layer in LAYERS})
        expected = 1.0 + sum(1.0 if plan[layer.name] == FLOAT else 0.5 for layer in LAYERS)
        formats = {None: FLOAT, **dict(plan.items())}
        for each in table.boundaries:
            a, b = (formats[name].activation_bits is not None for name in (each.before, each.after))
            expected += 0.3 if (not a and b) or (a and not b and each.back) else 0.0
        assert latency_ms(plan, LAYERS, table) == pytest.approx(expected)
        assert costs(plan) == pytest.approx(expected)
        assert trails.price(trails.rungs(plan)) == pytest.approx(expected)
        at = trails.rungs(plan)
        moves = trails.moves(at)
        for layer, rung, saved in zip(moves.layer, moves.rung, moves.cost, strict=True):
            moved = at.copy()
            moved[layer] = rung
            assert trails.price(moved) - trails.price(at) == pytest.approx(saved)


def test_a_layer_slower_in_integers_stays_so_only_where_the_whole_gains() -> None:
    allowed = {layer.name: (FLOAT, INT8) for layer in LAYERS}
    dear, cheap = (table_with(ms, slower=("c",)) for ms in (0.3, 0.001))
    assert INT8 in faster_formats(LAYERS, dear, allowed)["c"]
    assert faster_formats(LAYERS, cheap, allowed)["c"] == (FLOAT,)
    codes = Plan.uniform(LAYERS, INT8)
    for table, better in ((dear, codes), (cheap, codes.replace(["c"], FLOAT))):
        worse = codes if better != codes else codes.replace(["c"], FLOAT)
        assert latency_ms(better, LAYERS, table) < latency_ms(worse, LAYERS, table)


def test_formats_that_gain_next_to_nothing_are_spared() -> None:
    w8, table = Format(8, None), table_with()
    rows = {key: dict(row) for key, row in table.rows.items()}
    for layer in LAYERS:
        rows[place_key(layer.places[0])][w8] = 0.45 if layer.name == "head" else None
    table = replace(table, formats=(FLOAT, w8, INT8), rows=rows)
    goal = Goal(target="99%", formats=(w8, INT8), latency="x")
    assert allowed_formats(LAYERS, goal, table).wanted == (INT8,)
    rows[place_key(LAYERS[-1].places[0])][w8] = 0.01
    assert allowed_formats(LAYERS, goal, replace(table, rows=rows)).wanted == (w8, INT8)


# How pieces add up


def planted(noise: float, seed: int = 0, slow: float = 0.8) -> tuple[Pieces, dict[Plan, float], Any]:
    """Pieces of which whole networks are made by known factors, `slow` for float, measured with noise."""
    table, draw = table_with(), random.Random(seed)
    pieces = Pieces(LAYERS, table.boundaries, table.rows)
    factors = {FLOAT: slow, INT8: 0.6}

    def whole(plan: Plan) -> float:
        exact = replace(
            table,
            rows={
                key: {
                    f: ms * (0.5 if key.startswith(("quant", "dequant")) else factors[f])
                    for f, ms in row.items()
                }  # type: ignore[operator]
                for key, row in table.rows.items()
            },
        )
        return latency_ms(plan, LAYERS, exact) * (1 + draw.uniform(-noise, noise))

    plans = [Plan.uniform(LAYERS), Plan.uniform(LAYERS, INT8)]
    plans += [Plan({layer.name: draw.choice((FLOAT, INT8)) for layer in LAYERS}) for _ in range(10)]
    return pieces, {plan: whole(plan) for plan in plans}, whole


@pytest.mark.parametrize("slow", [0.8, 2.5])  # weights that lie in the cache for a kernel alone take longer
def test_factors_are_found_again(slow: float) -> None:
    pieces, measured, whole = planted(0.0, slow=slow)
    table = fit_table(pieces, measured, {}, (FLOAT, INT8), "here", "a test")
    for seed in range(5):
        draw = random.Random(seed)
        plan = Plan({layer.name: draw.choice((FLOAT, INT8)) for layer in LAYERS})
        assert latency_ms(plan, LAYERS, table) == pytest.approx(whole(plan), rel=0.02)


class Noisy(Apart):
    """A machine on which everything is slowed down for a while, by up to twice."""

    def __init__(self, true_ms: dict[str, float], seed: int) -> None:
        super().__init__("noisy")
        self.true_ms, self.random, self.slow = true_ms, random.Random(seed), 1.0

    def time(self, models: Any, *, visits: int = 5, **more: Any) -> dict[str, Times | Fault]:
        found: dict[str, Times | Fault] = {}
        least: dict[str, list[float]] = {model.name: [] for model in models}
        for _ in range(visits):
            self.slow = self.random.choice((1.0, 1.0, 1.5, 2.0))
            for name, seen in least.items():
                seen.append(self.true_ms.get(name, 0.02) * self.slow * (1 + self.random.expovariate(60)))
        for name, seen in least.items():
            found[name] = Times(tuple(seen), tuple(ms * 1.4 for ms in seen))
        return found


@pytest.mark.parametrize("seed", range(4))
def test_noise_that_hits_all_alike_changes_no_plan(seed: int) -> None:
    true = {f"layer{i}|{f}": ms for i in range(12) for f, ms in ((FLOAT, 1.0 + i / 10), (INT8, 0.45))}
    true |= {f"layer11|{INT8}": 2.5}  # one that is slower
    clock = Clock(Noisy(true, seed), 1, Model("reference", Path("x"), Path("x")))
    seen = {}
    for i in range(12):
        group = [Model(f"layer{i}|{f}", Path("x"), Path("x")) for f in (FLOAT, INT8)]
        passes = [clock.time(group, 5, 0.0) for _ in range(2)]
        for model in group:
            seen[model.name] = [times for each in passes if isinstance(times := each[model.name], Times)]
    for name, passes in seen.items():
        ms = clock.ms(passes)
        assert ms == pytest.approx(true[name], rel=0.08)
        assert abs(ms - true[name]) <= 2 * clock.spread_ms(passes, ms)
    for i in range(12):
        faster = clock.ms(seen[f"layer{i}|{INT8}"]) < clock.ms(seen[f"layer{i}|{FLOAT}"])
        assert faster is (i != 11)


# The process apart, and the cache


def models(folder: Path, *names: str) -> list[Model]:
    feed = folder / "feed.npz"
    np.savez(feed, x=np.zeros(1))
    return [Model(name, folder / f"{name}.onnx", feed) for name in names]


def test_a_kernel_that_dies_or_fails_ends_nothing_else(tmp_path: Path) -> None:
    with Apart("engines:Crashing") as apart:
        found = apart.time(models(tmp_path, "good", "crash", "wrong", "better"), visits=2, visit_seconds=0.0)
        assert isinstance(found["good"], Times)
        assert isinstance(found["better"], Times)
        assert found["crash"] == Fault(f"its kernel ended the process with SIGILL: {ADVICE}")
        assert found["wrong"] == Fault("no such kernel")
        assert "ONEDNN_MAX_CPU_ISA=AVX512_CORE_FP16" in ADVICE
        (again,) = apart.time(models(tmp_path, "good"), visits=1, visit_seconds=0.0).values()
        assert isinstance(again, Times)


def test_a_format_whose_kernel_dies_is_not_taken() -> None:
    timings = Timings(MACHINE)
    program = residual()[1]
    timer = timed.Timer(Apart("engines:Crashing"), timings, program, (), (INT8,), timed.Progress())
    for key, *_ in timer._places():
        timings.rows[key] = {FLOAT: Time(1.0), INT8: Time(0.5)}
    key = place_key(LAYERS[1].places[0])
    timings.rows[key][INT8] = Time(None, 0.0, "SIGILL")
    timings.wholes[timer.network] = {plan.key: 5.0 for plan in timer.plans().values()}
    assert all(plan["a"] == FLOAT for plan in timer.plans().values())
    table = timer.table()
    assert not table.supports(INT8, LAYERS[1])
    assert INT8 not in allowed_formats(LAYERS, Goal(target="99%", formats="int8"), table).formats["a"]


def test_timings_are_kept_whole_or_made_again(tmp_path: Path) -> None:
    timings = Timings(
        MACHINE, {"conv": {INT8: Time(0.5, 0.01), INT4: Time(None, 0.0, "SIGILL")}}, {"n": {"p": 1.0}}, 0.25
    )
    timings.write()
    assert Timings.of(MACHINE) == timings
    assert [path.name for path in timings.path.parent.iterdir()] == [timings.path.name]
    assert Timings.of(replace(MACHINE, threads=2)).rows == {}
    busy = Timings(MACHINE, {"other": {INT8: Time(4.0, 0.1)}}, {"n": {"q": 6.0}}, 0.5)
    busy.write()  # everything took twice as long, the reference too
    assert Timings.of(MACHINE).rows["other"] == {INT8: Time(2.0, 0.05)}
    assert (Timings.of(MACHINE).rows["conv"], Timings.of(MACHINE).wholes) == (
        timings.rows["conv"],
        {"n": {"p": 1.0, "q": 3.0}},
    )
    whole = timings.path.read_text()
    damages = [
        whole[:40],
        "[]",
        whole.replace("0.5", "-1"),
        whole.replace("0.5", '"x"'),
        whole.replace("1.0", "null"),
    ]
    damages += [
        whole.replace(f'"version": {VERSION}', '"version": 1'),
        whole.replace("int8", "int99"),
        "\x00",
    ]
    for damaged in damages:
        said: list[str] = []
        timings.path.write_text(damaged)
        assert Timings.of(MACHINE, said.append).rows == {}
        assert "damaged and made again" in said[0]


def test_a_cache_that_cannot_be_written_is_no_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    Timings(MACHINE, {"conv": {INT8: Time(0.5, 0.01)}}, reference_ms=1.0).write()
    assert Timings.of(MACHINE).rows == {}


# Real pieces in a real runtime


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[TimingModel, Path]:
    return TimingModel.of(residual()[1], seeded(1, 3, 8, 8), "onnxruntime"), tmp_path_factory.mktemp(
        "written"
    )


@pytest.mark.parametrize("format", [FLOAT, INT8])
def test_a_piece_computes_what_the_whole_does_there(
    format: Format, written: tuple[TimingModel, Path]
) -> None:
    network, folder = written
    path = network.write(Plan.uniform(LAYERS, format), folder / f"{format}.onnx")
    graph, feed = WrittenGraph(path), feed_of(path, network.inputs)
    for layer in LAYERS:
        piece = graph.piece(layer.name)
        assert piece is not None
        values = graph.values([*piece.inputs, *piece.outputs], feed)
        alone = folder / f"{format}-{layer.name}.onnx"
        graph.write(piece, values, alone)
        session = onnxruntime.InferenceSession(str(alone), providers=["CPUExecutionProvider"])
        made = session.run(None, {name: values[name] for name in piece.inputs})
        for name, array in zip(piece.outputs, made, strict=True):
            assert np.abs(array.astype(float) - values[name].astype(float)).max() <= (
                1e-4 if format == FLOAT else 1
            )
        if format == INT8 and layer.kind != "linear":
            assert {values[name].dtype for name in (*piece.inputs, *piece.outputs)} == {np.dtype(np.uint8)}


def test_a_table_is_timed_once_and_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    program = residual()[1]
    table, notes = network_table("onnxruntime", program, seeded(1, 3, 8, 8), (INT8,))
    assert table is not None
    assert any("in float16" in note or "float16 is not offered" in note for note in notes)
    assert "timed here: onnxruntime" in table.source
    for layer in LAYERS:
        for place in layer.places:
            ms, spread = table.rows[place_key(place)], table.spread[place_key(place)]
            assert all(ms[format] is not None and spread[format] >= 0 for format in (FLOAT, INT8))
    monkeypatch.setattr(timed.Timer, "fill", lambda *args: pytest.fail("it was timed again"))
    again, noted = network_table("onnxruntime", program, seeded(1, 3, 8, 8), (INT8,))
    assert again == table
    assert [note for note in noted if "float16" in note] == [note for note in notes if "float16" in note]
    with pytest.raises(BitsectError, match="no such latency table"):
        network_table("nowhere", program, None, (INT8,))


def test_weight_only_kernels_are_for_linear_layers_whose_inputs_they_divide() -> None:
    grouped, head = Format(4, None, 3), LAYERS[-1]
    assert takes(head, grouped)
    assert not takes(head, Format(4, None, 4))
    assert not any(takes(layer, grouped) for layer in LAYERS[:-1])
    assert all(takes(layer, format) for layer in LAYERS for format in (FLOAT, INT8))


def test_the_answer_for_a_runtime_is_measured_and_too_small_a_network_stays_in_float(tmp_path: Path) -> None:
    model, _ = residual()
    result = bitsect.quantize(
        model,
        images(48),
        target=0.5,
        destination="onnxruntime",
        formats="int8",
        confidence=None,
        out=tmp_path / "run",
    )
    assert result.run.settings.placement == "onnxruntime"
    assert result.timing is not None
    predicted, measured = result.timing.ratios(result.plan)
    assert measured is not None
    assert predicted is not None
    ms = result.timing.measured.ms
    assert ms[result.plan] <= ms[Plan.uniform(LAYERS)]
    kept = json.loads((tmp_path / "run" / "result.json").read_text())
    assert "measured" in json.dumps(kept)
    again = bitsect.quantize(tmp_path / "run", target=0.4, confidence=None, formats="int8")
    assert again.goal.destination == "onnxruntime"
    other = bitsect.export(tmp_path / "run", tmp_path / "file.onnx")
    assert other.written.destination == "onnxruntime"


def test_float_is_the_answer_where_nothing_is_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    from bitsect.pipeline import fastest

    def slow(runtime: str, plans: Any, *more: Any) -> Any:
        return fastest.MeasuredFiles(
            "slow 1", 1, {plan: 1.0 + (FLOAT not in plan.values()) for plan in plans}, {}
        )

    monkeypatch.setattr(fastest, "measure", slow)
    monkeypatch.setattr("bitsect.pipeline.solving.table_for", lambda run, goal, mixed: (table_with(), ()))
    result = bitsect.quantize(
        residual()[0], images(48), target=0.3, destination="onnxruntime", formats="int8", confidence=None
    )
    assert set(result.plan.values()) == {FLOAT}
    assert "nothing that keeps the target is faster than float" in result.reason


def test_a_run_that_goes_on_keeps_what_was_timed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the clock says something else the second time, as it does, the plan is still the same."""
    from bitsect.pipeline import fastest

    seen: list[int] = []

    def measure(runtime: str, plans: Any, *more: Any) -> Any:
        seen.append(len(plans))
        slow = (
            (lambda plan: FLOAT not in plan.values())
            if len(seen) > 1
            else (lambda plan: FLOAT in plan.values())
        )
        return fastest.MeasuredFiles("here 1", 1, {plan: 1.0 + slow(plan) for plan in plans}, {})

    monkeypatch.setattr(fastest, "measure", measure)
    asked = {"target": 0.3, "destination": "onnxruntime", "formats": "int8", "confidence": None}
    first = bitsect.quantize(residual()[0], images(48), out=tmp_path / "run", **asked)
    tables = sorted((tmp_path / "run").glob("latency-onnxruntime-*.json"))  # a rough one is enough at first
    (measured,) = (tmp_path / "run").glob("measured-onnxruntime-*.json")
    kept = [each.read_bytes() for each in (*tables, measured)]
    for name in ("result.json", "plan.json"):  # killed before its end
        (tmp_path / "run" / name).unlink()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "another"))
    monkeypatch.setattr(timed.Timer, "fill", lambda *args: pytest.fail("it was timed again"))
    again = bitsect.quantize(residual()[0], images(48), out=tmp_path / "run", **asked)
    assert again.plan == first.plan
    assert again.table == first.table
    assert len(seen) == 1
    assert [each.read_bytes() for each in (*tables, measured)] == kept
    assert json.dumps(again._facts()) == json.dumps(first._facts())


@pytest.mark.parametrize("passes", [2, 5])
def test_kernels_whose_times_cannot_all_be_true_are_timed_again(
    passes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the first passes next to nothing was left of a kernel once an empty model was taken off."""
    key, calls = "gemm m384 n2 k384 b1", list[set[str]]()

    class Held:
        def time(self, models: Any, **more: Any) -> Any:
            ms = {"reference": 1.0, "empty": 0.01, f"{key}|float": 0.04}
            ms[f"{key}|int8"] = 0.0101 if len(calls) < 2 * passes else 0.02
            calls.append({each.name for each in models} - {"reference"})
            return {each.name: Times((ms[each.name],) * 3, (ms[each.name],) * 3) for each in models}

    monkeypatch.setattr(timed, "PASSES", (2, 5))
    held: Any = Held()
    timings = Timings(Machine("onnxruntime", "1", "this", 1))
    timer = timed.Timer(held, timings, residual()[1], (), (INT8,), Progress())
    groups = [
        [Model(name, Path(), Path()) for name in names]
        for names in (["empty"], [f"{key}|float", f"{key}|int8"])
    ]
    timer._time(groups, Clock(held, 1, Model("reference", Path(), Path())), lambda count: None)
    assert timings.rows[key][INT8].ms == pytest.approx(0.01 if passes == 2 else 0.0001)
    assert len(calls) >= 9  # five passes, as long as there is a doubt
    assert not timer._contradictions()  # of this network's own kernels
    assert bool(timer._contradictions({f"{key}|float": 0.03})) == (passes == 5)


def test_what_was_timed_is_read_with_care(tmp_path: Path) -> None:
    asked = {"target": 0.3, "destination": "onnxruntime", "formats": "int8", "confidence": None}
    bitsect.quantize(residual()[0], images(48), out=tmp_path / "run", **asked)
    for pattern in ("latency-*.json", "measured-*.json"):
        path = next(iter(sorted((tmp_path / "run").glob(pattern))))
        whole = path.read_text()
        path.write_text(whole.replace("1", "2", 1))
        with pytest.raises(RunError, match="remove it") as caught:
            bitsect.quantize(tmp_path / "run", target=0.2, confidence=None, formats="int8")
        assert "\n" not in str(caught.value)
        path.write_text(whole)
    plain = {"target": 0.3, "formats": "int8", "confidence": None}
    bitsect.quantize(residual()[0], images(48), out=tmp_path / "run", fresh=True, destination="bits", **plain)
    assert not list((tmp_path / "run").glob("measured-*"))


def test_other_commands_know_where_it_will_run(tmp_path: Path) -> None:
    run = tmp_path / "run"
    bitsect.quantize(
        residual()[0],
        images(48),
        target=0.3,
        formats="int8",
        destination="bits",
        placement="onnxruntime",
        confidence=None,
        out=run,
    )
    asked = {"destination": "onnxruntime"}
    curve = bitsect.frontier(run, targets="50%", formats="int8", evaluations=3, **asked)
    assert curve.device == "onnxruntime"
    assert all(point.cost.latency_ms for point in curve.points)
    compared = bitsect.compare(run, metrics="sqnr", targets="50%", formats="int8", **asked)
    assert compared.device == "onnxruntime"
    assert compared.trials[0].latency_ratio is not None
    found = bitsect.blame(run, format="int8", samples=8, **asked)
    remedies = [remedy for layer in found.layers for remedy in layer.remedies]
    assert any(remedy.latency_ratio is not None for remedy in remedies)


def test_a_run_under_another_placement_is_not_compared_for_a_runtime(tmp_path: Path) -> None:
    run = tmp_path / "run"
    bitsect.quantize(residual()[0], images(48), target=0.3, method="paper", formats="int8", out=run)
    for command in (bitsect.compare, bitsect.frontier, bitsect.blame):
        with pytest.raises(RunError, match="placement"):
            command(run, destination="onnxruntime")


def test_sentences_are_timed_at_one_length(tmp_path: Path) -> None:
    """The table and the files, at the length of the middle sentence; another length is another kernel."""
    pytest.importorskip("transformers")
    from hf_models import distilbert

    model, data = distilbert(tmp_path / "model")
    result = bitsect.quantize(
        f"hf:{model}", str(data), target=0.1, destination="onnxruntime", formats="int8", confidence=None
    )
    lengths = result.run.samples.source.lengths
    assert lengths is not None
    middle = int(lengths.median())
    assert int(lengths.max()) > middle
    assert result.table is not None
    assert f"sequences of length {middle}" in result.table.source
    assert result.timing is not None
    assert result.timing.measured.length == middle
    assert set(result.table.rows) >= {place_key(p) for layer in result.run.layers for p in layer.places}
    (cache,) = (tmp_path / "cache" / "bitsect" / "latency").iterdir()
    kernels = [key for key in json.loads(cache.read_text())["rows"] if key.startswith("gemm")]
    assert kernels
    assert all(key.endswith(f"at length {middle}") for key in kernels)


def test_openvino_runs_what_was_judged(tmp_path: Path) -> None:
    pytest.importorskip("openvino")
    x, y = images(64)
    bitsect.quantize(
        residual()[0],
        (x, y),
        target=0.1,
        formats="int8",
        placement="onnxruntime",
        confidence=None,
        out=tmp_path / "run",
    )
    delivery = bitsect.export(
        tmp_path / "run", tmp_path / "model.onnx", format="int8", destination="openvino"
    )
    assert delivery.proof.runtime.startswith("openvino")
    assert delivery.proof.latency_ms is not None
    ran = bitsect.evaluate_file(tmp_path / "model.onnx", (x, y), runtime="openvino")
    assert ran.accuracy == pytest.approx(delivery.proof.runtime_accuracy)
    (tmp_path / "broken.onnx").write_bytes(b"no model")
    with pytest.raises(ExportError, match=r"broken\.onnx"):
        bitsect.evaluate_file(tmp_path / "broken.onnx", (x, y), runtime="openvino")


def test_openvino_runs_integers_at_any_length_and_at_a_fixed_one(tmp_path: Path) -> None:
    pytest.importorskip("openvino")
    torch.manual_seed(0)
    wide = [module for _ in range(3) for module in (nn.Linear(256, 256), nn.LayerNorm(256))]
    model = nn.Sequential(nn.Linear(32, 256), nn.GELU(), *wide, nn.Linear(256, 5)).eval()
    x = seeded(16, 6, 32)
    program = capture(model, x[:2])
    samples = load_samples((x, torch.zeros(16)))
    rounder = Rounder(program, calibrate(program, samples, sign="auto"), ONNXRUNTIME)
    plan = Plan.uniform(program.layers, INT8)

    written = export_onnx(program, rounder, plan, tmp_path / "model.onnx", target="openvino")
    task = task_named(lambda outputs, labels: outputs.mean((1, 2)).sigmoid())
    proof = prove(written, program, rounder, plan, samples, task)
    assert proof.float_kernels == ()
    # A zero point that layers share would keep them in float where shapes are fixed.
    weights = [node for node in WrittenGraph(written.path).model.graph.node if "weight" in node.name]
    assert [len(node.input) for node in weights] == [2] * 5


# What others measured


def profile_of(path: Path, folder: Path) -> Path:
    options = onnxruntime.SessionOptions()
    options.enable_profiling, options.profile_file_prefix = True, str(folder / path.stem)
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    for _ in range(3):
        session.run(None, feed_of(path, seeded(1, 3, 8, 8)))
    return Path(session.end_profiling())


def test_profiles_of_onnxruntime_become_a_table(written: tuple[TimingModel, Path], tmp_path: Path) -> None:
    network, folder = written
    files = {
        format: profile_of(network.write(Plan.uniform(LAYERS, format), folder / f"p-{format}.onnx"), tmp_path)
        for format in (FLOAT, INT8)
    }
    table = import_profiles(files, LAYERS)
    assert table.formats == (FLOAT, INT8)
    assert all(table.ms(layer, format) > 0 for layer in LAYERS for format in (FLOAT, INT8))
    assert table.device == "ONNX Runtime"
    events = json.loads(files[INT8].read_text())
    by_hand = [e["dur"] / 1000 for e in events if e.get("name", "").startswith("stem_token_")]
    assert table.ms(LAYERS[0], INT8) == pytest.approx(max(sorted(by_hand)[len(by_hand) // 2], 0.0005))


TRT = [
    {"count": 500},
    *(
        {
            "name": f"{layer.name} + node_relu_{number}",
            "timeMs": 5.0,
            "averageMs": 0.01 * (number + 1),
            "percentage": 1.0,
        }
        for number, layer in enumerate(LAYERS)
    ),
    {
        "name": "Reformatting CopyNode for Input Tensor 0 to stem",
        "timeMs": 1,
        "averageMs": 0.002,
        "percentage": 1,
    },
]


def test_profiles_of_trtexec_become_a_table(tmp_path: Path) -> None:
    path = tmp_path / "trt.json"
    path.write_text(json.dumps(TRT))
    table = import_profiles({FLOAT: path}, LAYERS, "a GPU")
    assert (table.device, table.source) == ("a GPU", "profile of TensorRT: float=trt.json")
    assert table.ms(LAYERS[0], FLOAT) == pytest.approx(0.01)
    newer = [TRT[0], *({**row, "medianMs": 0.5} for row in TRT[1:])]
    path.write_text(json.dumps(newer))
    assert import_profiles({FLOAT: path}, LAYERS).ms(LAYERS[0], FLOAT) == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{}", "not a profile"),
        ("[1]", "not a profile"),
        ("[]", "neither a profile"),
        ('[{"name": "x"}]', "neither a profile"),
        ('[{"cat": "Session"}]', "holds no node"),
        ('[{"cat": "Node", "name": "a_kernel_time", "dur": 1}]', "has no args"),
        ('[{"cat": "Node", "name": "a_kernel_time", "args": {}, "dur": "x"}]', "'x' is no time"),
        ('[{"cat": "Node", "name": "a_kernel_time", "args": {}, "dur": -1}]', "-1 is no time"),
        ('[{"count": 1}, {"averageMs": 1}]', "has no name"),
        ('[{"count": 1}, {"name": "stem", "averageMs": null}]', "None is no time"),
        ('[{"count": 1}, {"name": "other", "averageMs": 1}]', "no node does the work of layer 'stem'"),
        ("nothing", "profile"),
    ],
)
def test_what_is_no_profile_is_one_line(content: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    path.write_text(content)
    with pytest.raises(BitsectError, match=message) as caught:
        import_profiles({FLOAT: path}, LAYERS)
    assert "\n" not in str(caught.value)


def test_a_model_in_the_process_apart_takes_what_the_network_takes(written: tuple[TimingModel, Path]) -> None:
    network, folder = written
    path = network.write(Plan.uniform(LAYERS), folder / "whole.onnx")
    assert feed_of(path, network.inputs).keys() == OnnxModel(path).inputs.keys()
    assert Boundary("a", "b", 4).step(FLOAT, FLOAT) is None
