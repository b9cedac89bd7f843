"""Looks at held-out samples in growing blocks, the words for what they say, and the ledger of searches."""

from __future__ import annotations

import json
import multiprocessing
from collections.abc import Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bitsect.errors import RunError
from bitsect.runs.ledger import OWN, SHARED, Ledger, share
from bitsect.solve.confidence import LEVEL, Pairs, proves, samples_needed
from bitsect.solve.looks import (
    NOT_EXPECTED,
    NOT_KEPT,
    NOT_PROVEN,
    ONLY_EXPECTED,
    Look,
    look_at,
    look_in_blocks,
    schedule,
    weighed,
)
from bitsect.values import Target

SHARE = Target.parse("99%")


def blocks(before: Sequence[float], after: Sequence[float], target: Target = SHARE, **options: Any) -> Look:
    def scores(count: int) -> tuple[Sequence[float], Sequence[float]]:
        return before[:count], after[:count]

    return look_in_blocks(target, len(before), scores, **options)


# Blocks


@pytest.mark.parametrize("samples", [1, 100, 128, 170, 171, 744, 3072, 100_000])
def test_the_parts_of_the_level_add_up_and_the_last_look_is_at_all_samples(samples: int) -> None:
    looks = schedule(samples)
    assert looks[-1][0] == samples
    assert sum(part for _, part in looks) == pytest.approx(1)
    counts = [count for count, _ in looks]
    assert counts == sorted(set(counts))
    assert len(looks) == 1 or looks[-1][1] == pytest.approx(2 / 3)


def test_a_good_plan_is_proven_early_and_a_bad_one_given_up() -> None:
    right = [1.0] * 8192
    good = blocks(right, right)
    assert (good.outcome, good.samples, good.met) == ("proven", 1024, True)
    bad = blocks(right, [0.0 if k % 20 == 0 else 1.0 for k in range(8192)])
    assert (bad.outcome, bad.met) == ("missed", False)
    assert bad.samples <= 512
    # What 300 samples without a loss could not prove is not judged to the end, once one is lost.
    hopeless = blocks([1.0] * 400, [0.0] + [1.0] * 399, level=0.01)
    assert (hopeless.outcome, hopeless.met, hopeless.samples) == ("not proven", None, 128)


def test_all_looks_together_err_no_more_often_than_the_level() -> None:
    rng, wrong, trials = np.random.default_rng(0), 0, 1500
    for _ in range(trials):
        before = (rng.random(1500) < 0.9).astype(float)
        lost = rng.random(1500) < 0.01
        wrong += blocks(before, np.where(lost, 0.0, before)).proven
    assert 0.01 < wrong / trials <= 0.055


def test_until_a_sample_is_right_nothing_is_said() -> None:
    late = [0.0] * 128 + [1.0] * 2000
    assert blocks(late, late).proven


# Words


@pytest.mark.parametrize(
    ("lost", "expected", "verdict", "met"),
    [
        (0, None, "kept with 95 % confidence", True),
        (6, None, NOT_PROVEN, None),
        (6, 0.995, ONLY_EXPECTED, None),
        (6, 0.985, NOT_EXPECTED, None),
        (12, None, NOT_KEPT, False),
        (12, 0.985, NOT_KEPT, False),
        (12, 0.995, ONLY_EXPECTED, None),  # labels cannot tell
        (60, 0.995, NOT_KEPT, False),  # they refute what was expected
    ],
)
def test_what_is_said_of_a_plan(lost: int, expected: float | None, verdict: str, met: bool | None) -> None:
    right, plan = [1.0] * 1000, [0.0] * lost + [1.0] * (1000 - lost)
    look = look_at(SHARE, right, plan)
    if expected is not None:
        look = weighed(look, Pairs.of(right, plan), SHARE, expected)
    assert look.verdict.startswith(verdict)
    assert look.met is met
    assert look.verdict.startswith("kept") == (met is True)


def test_what_is_expected_says_how_many_samples_would_prove_it() -> None:
    right, plan = [1.0] * 1000, [0.0] * 12 + [1.0] * 988
    look = weighed(look_at(SHARE, right, plan), Pairs.of(right, plan), SHARE, 0.996)
    needed = int(look.verdict.split(": ")[1].split()[0].replace(",", ""))
    assert proves(Pairs.expected(needed, kept=0.996), SHARE)
    assert not proves(Pairs.expected(needed - 1, kept=0.996), SHARE)


@pytest.mark.parametrize("target", [SHARE, Target.drop(1)])
def test_nobody_counts_on_a_plan_that_did_better_than_float_by_luck(target: Target) -> None:
    right, better = [1.0] * 36 + [0.0] * 4, [1.0] * 37 + [0.0] * 3
    least = samples_needed(target, 0.9)
    assert least is not None
    verdict = look_at(target, right, better).verdict
    assert verdict.endswith(" samples would prove it")
    assert int(verdict.split()[2].replace(",", "")) >= least


def test_what_is_not_proven_says_how_many_samples_would_do() -> None:
    verdict = look_at(SHARE, [1.0] * 1000, [0.0] * 6 + [1.0] * 994).verdict
    needed = int(verdict.split()[2].replace(",", ""))
    assert verdict == f"not proven: {needed:,} samples would prove it"
    cells = np.array([0.994, 0.006]), np.array([1.0, 1.0]), np.array([1.0, 0.0])
    assert proves(Pairs(cells[0] * needed, *cells[1:]), SHARE)
    assert not proves(Pairs(cells[0] * (needed - 1), *cells[1:]), SHARE)


def test_exactly_the_target_is_proven_by_no_number_of_samples() -> None:
    look = look_at(SHARE, [1.0] * 1000, [0.0] * 10 + [1.0] * 990)
    assert look.verdict == "not proven: it would take more than 1,000,000 samples"


# The ledger


def samples(start: int, count: int) -> list[bytes]:
    """Digests in an order that is not that of the samples."""
    return [blake2b(str(number).encode(), digest_size=16).digest() for number in range(start, start + count)]


def test_searches_on_the_same_samples_are_counted_and_all_shares_are_one() -> None:
    assert sum(share(number) for number in range(1, 100_000)) == pytest.approx(1, abs=1e-4)


def test_a_search_that_is_asked_again_keeps_its_number(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "run")
    (tmp_path / "run").mkdir()
    first = ledger.enter("a", samples(0, 500))
    second = ledger.enter("b", samples(0, 500))
    assert (first.number, second.number) == (1, 2)
    assert ledger.enter("a", samples(0, 500)) == first
    assert second.share == share(2)  # the first never ended: it may have lost all it had
    third = Ledger(tmp_path / "other")  # another run of the same parent, on samples that were added to
    (tmp_path / "other").mkdir()
    assert third.enter("c", samples(0, 700)).number == 3
    assert third.enter("d", samples(300, 500)).number == 4  # another seed on the same pool
    assert third.enter("e", samples(10_000, 500)).number == 1  # others altogether


def test_what_a_search_did_not_lose_goes_to_the_next(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "run")
    (tmp_path / "run").mkdir()
    first = ledger.enter("a", samples(0, 50))
    ledger.close(first, first.share)
    second = ledger.enter("b", samples(0, 50))
    assert second.share == pytest.approx(share(1) + share(2))
    ledger.close(second, 0.01)
    ledger.close(second, 0.02)  # for an easier target: the least that was left counts
    assert ledger.enter("c", samples(0, 50)).share == pytest.approx(0.01 + share(3))


def test_neither_file_alone_resets_the_ledger(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    Ledger(tmp_path / "run").enter("a", samples(0, 50))
    for name in (tmp_path / SHARED, tmp_path / "run" / OWN):
        name.unlink()
        assert Ledger(tmp_path / "run").enter("a", samples(0, 50)).number == 1
        assert name.exists()
    before = (tmp_path / SHARED).read_bytes()
    Ledger(tmp_path / "run").enter("a", samples(0, 50))
    assert (tmp_path / SHARED).read_bytes() == before


@pytest.mark.parametrize("text", ["", "[]", '{"searches": [{}]}', '{"searches": [1]}', '{"searches": 3}'])
def test_a_damaged_ledger_is_no_empty_one(tmp_path: Path, text: str) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / OWN).write_text(text)
    with pytest.raises(RunError, match=OWN):
        Ledger(tmp_path / "run").enter("a", samples(0, 50))


def enter(folder: Path, key: str) -> None:
    folder.mkdir()
    Ledger(folder).enter(key, samples(0, 50))


def test_runs_that_look_at_the_same_time_are_all_counted(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    workers = [context.Process(target=enter, args=(tmp_path / f"run-{k}", f"{k}")) for k in range(6)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    known = json.loads((tmp_path / SHARED).read_text())["searches"]
    assert sorted(each["number"] for each in known) == [1, 2, 3, 4, 5, 6]


def test_ten_searches_that_all_miss_are_hardly_ever_promised() -> None:
    rng, trials, wrong = np.random.default_rng(1), 300, 0
    for _ in range(trials):
        before = (rng.random(744) < 0.9).astype(float)
        for number in range(1, 11):
            plan = np.where(rng.random(744) < 0.011, 0.0, before)
            if blocks(before, plan, level=LEVEL * share(number)).proven:
                wrong += 1
                break
    assert wrong <= 0.05 * trials
