"""How many samples run at once, and memory that is kept between batches."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from bitsect.errors import OptionError, RunError
from bitsect.measure import traces
from bitsect.network.capture import capture
from bitsect.network.footprint import footprint, weight_bytes
from bitsect.runs.estimate import (
    PREFIX_BYTES,
    STAGES,
    USUAL,
    Needs,
    fitting_batch,
    spare_bytes,
)
from bitsect.runs.memory import TENSOR_BYTES, comfortable_rows, give_memory_back, keep_freed_memory
from bitsect.runs.opening import open_run
from bitsect.sources.room import free_bytes
from bitsect.values import INT8, Resources, Scoring, Settings


@pytest.mark.parametrize(("pixels", "rows"), [(8, 64), (512, 8), (4096, 1)])
def test_large_samples_run_in_small_batches(pixels: int, rows: int) -> None:
    with torch.device("meta"):
        program = capture(nn.Conv2d(1, 6, 3, padding=1), torch.empty(2, 1, pixels, pixels))
    assert comfortable_rows(program) == rows
    assert rows == 1 or rows * 6 * pixels**2 * 4 <= TENSOR_BYTES
    assert math.log2(rows).is_integer()


def test_a_run_keeps_the_batch_it_was_made_with(tmp_path) -> None:
    data = (torch.randn(6, 8), torch.arange(6) % 3)
    for asked, kept in ((Settings(), 64), (Settings(batch_size=5), 5)):
        with open_run(nn.Linear(8, 3), data, asked, out=tmp_path / str(kept)) as run:
            assert run.batch_size == run.settings.batch_size == kept
        with open_run(tmp_path / str(kept)) as again:
            assert again.batch_size == kept


def test_memory_may_be_kept_and_given_back_at_any_time() -> None:
    keep_freed_memory()
    held = [torch.randn(2_000_000) for _ in range(4)]
    total = float(sum(each.sum() for each in held))
    del held[1:]
    give_memory_back()
    assert math.isfinite(total)
    assert torch.equal(held[0], held[0].clone())


class Diamond(nn.Module):
    """Values of known sizes: x 8, a 16, b 16, their sum 16, a view of it, c 4 numbers for each sample."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(8, 16), nn.Linear(8, 16), nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.c((self.a(x) + self.b(x)).view(-1, 16))


def test_a_footprint_counts_what_is_alive_and_views_once() -> None:
    found = footprint(capture(Diamond(), torch.zeros(2, 8)))
    assert found.everything == 4 * (8 + 16 + 16 + 16 + 4)
    assert found.outputs == 4 * 4
    assert found.states == 4 * (8 + 16 + 16)  # x before a; x and a before b; the sum before c
    assert found.running == 4 * (16 + 16 + 16)  # adding, and no operand is being rounded
    assert found.besides == 4 * (16 + 8)  # what b gives, and what it takes, which is being rounded
    assert sorted(weight_bytes(capture(Diamond(), torch.zeros(2, 8)))) == [256, 512, 512]


def test_more_rows_and_workers_need_more() -> None:
    needs = Needs.of(capture(nn.Conv2d(3, 8, 3), torch.zeros(2, 3, 64, 64)))
    for stage in STAGES:
        assert needs.bytes(stage, 2) <= needs.bytes(stage, 32)
        assert 2 * needs.bytes(stage, 8) < needs.together(stage, 8, 2)
    assert needs.most(8, 1) == max(needs.bytes(stage, 8) for stage in USUAL)


def test_traces_need_memory_for_the_samples_that_are_differentiated_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    program = capture(nn.Conv2d(3, 8, 3), torch.zeros(2, 3, 64, 64))
    few = Needs.of(program).bytes("traces", 3)
    monkeypatch.setattr(traces, "MEMORY_BYTES", 3.5 * program.bytes_per_sample * traces.KEPT_COPIES)
    needs = Needs.of(program)
    assert needs.bytes("traces", 64) == few
    assert needs.bytes("traces", 2) < few


def test_what_plans_share_stays_within_what_stages_leave() -> None:
    needs = Needs.of(capture(nn.Conv2d(3, 8, 3), torch.zeros(2, 3, 64, 64)))
    most = needs.most(64, 1)
    assert spare_bytes(needs, 64, Resources(memory=int(0.9 * most))) == 0
    some = spare_bytes(needs, 64, Resources(memory=int(2 * most)))
    assert 0 < some < most / 3  # it lies scattered, and holds far more than its size
    assert spare_bytes(needs, 64, Resources(memory="100GB")) == PREFIX_BYTES


def test_the_batch_of_a_new_run_fits_the_memory_that_is_allowed() -> None:
    program = capture(nn.Sequential(nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 3)), torch.zeros(2, 3, 64, 64))
    needs = Needs.of(program)
    whole = fitting_batch(program, Settings(), Resources(memory="100GB"))
    assert whole == comfortable_rows(program)
    for rows in (16, 4, 1):
        limit = int(needs.most(rows, 1)) + 1
        assert fitting_batch(program, Settings(), Resources(memory=limit)) == rows
    with pytest.raises(RunError, match=r"one sample at a time needs about .* and memory=1000 allows"):
        fitting_batch(program, Settings(), Resources(memory=1000))
    assert fitting_batch(program, Settings(batch_size=7), Resources(memory=1000)) == 7
    assert free_bytes() > 0


def test_a_stage_that_does_not_fit_says_what_it_would_need(tmp_path) -> None:
    data = (torch.randn(8, 3, 64, 64), torch.arange(8) % 3)
    layers = [nn.Conv2d(3, 8, 3), *(nn.Conv2d(8, 8, 3) for _ in range(7))]
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())
    with open_run(model, data, Settings(batch_size=8), out=tmp_path / "run") as run:
        need = Needs.of(run.program)
    between = int((need.bytes("evaluate", 8) + need.bytes("exact", 8)) / 2)
    with (
        open_run(tmp_path / "run", None, None, Resources(memory=between)) as run,
        pytest.raises(RunError, match=r"exact needs about .* with batches of 8, and memory=\d+ allows"),
    ):
        run.score(Scoring(metric="interlayer"), INT8)
    with pytest.raises(RunError, match="evaluate needs about"):
        open_run(tmp_path / "run", None, None, Resources(memory=100_000))
    with open_run(tmp_path / "run") as run:  # and gave the folder back
        assert run.batch_size == 8


@pytest.mark.parametrize("memory", ["8", "many", "0GB", -1, True, "1 XB"])
def test_a_size_of_memory_is_a_number_with_a_unit(memory: object) -> None:
    with pytest.raises(OptionError, match="is no size: pass one as 800MB or 16GB"):
        Resources(memory=memory)


def test_journals_hold_losses_and_no_outputs(tmp_path) -> None:
    """What is kept does not grow with the number of classes."""
    sizes = []
    for classes in (10, 1000):
        model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, classes))
        data = (torch.randn(16, 8), torch.arange(16) % 10)
        folder = tmp_path / str(classes)
        with open_run(model, data, Settings(batch_size=8, threads=1), out=folder) as run:
            for scoring in (Scoring(metric="sqnr"), Scoring(metric="interlayer", pairs="linear")):
                run.score(scoring, INT8)
        kept = folder.glob("journals/*.journal")
        sizes.append({path.name: path.stat().st_size for path in kept})
    assert sizes[0] == sizes[1]
    assert sizes[0].keys() >= {"single-int8.journal", "linear-int8.journal"}
