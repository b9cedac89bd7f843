"""How many samples run at once, and memory that is kept between batches."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from bitsect.network.capture import capture
from bitsect.runs.memory import TENSOR_BYTES, comfortable_rows, give_memory_back, keep_freed_memory
from bitsect.runs.opening import open_run
from bitsect.values import Settings


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
