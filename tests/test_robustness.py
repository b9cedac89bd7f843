"""A small part of benchmarks/robustness.py: damaged files through the real commands."""

from __future__ import annotations

import random
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent.parent / "benchmarks"))
CASES = 40

pytest.importorskip("PIL")
pytest.importorskip("onnxruntime")
robustness = pytest.importorskip("robustness")


def test_damaged_inputs_end_in_a_clear_error_or_the_right_answer(tmp_path: Path) -> None:
    bench = robustness.Bench(tmp_path, seed=7, only="input:")
    cases = [bench.case(number)[0] for number in range(CASES)]
    assert [case for case in cases if case.verdict in robustness.BAD] == []
    assert {case.target for case in cases} == {target.name for target in bench.targets}


def test_the_same_seed_damages_the_same_way(tmp_path: Path) -> None:
    path, other = tmp_path / "plan.json", tmp_path / "other"
    other.write_text("something else")
    for number in range(50):
        results = []
        for _ in range(2):
            path.write_text('{"layers": {"a": "int8", "b": [1, 2, {"c": null}]}}')
            kind = robustness.damage(path, [other], random.Random(number))
            results.append((kind, path.read_bytes() if path.exists() else None))
        assert results[0] == results[1]
