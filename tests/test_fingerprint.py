"""What a user's function does, told from its code: the name alone says nothing."""

from __future__ import annotations

import functools
import importlib
import marshal
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from bitsect.sources.fingerprint import fingerprint

SOURCE = """
import torch
LIMIT = 1
TABLE = {"b", "a", "c"}

def helper(x):
    return x + 1

class Judge:
    level = 1
    def __init__(self, bias=0): self.bias = bias
    def __call__(self, x): return x + self.bias

def made(weight=2):
    def judge(x, share=0.5, *, strict=False):
        return helper(x) * weight > LIMIT and x in {"x", "y", "z"} and "t" in TABLE and torch.nn
    return judge

judge = made()
called = Judge()
method = called.__call__
"""


def module(source: str = SOURCE, **given: Any) -> dict[str, Any]:
    names: dict[str, Any] = {"__name__": "mylab.tasks"}
    exec(compile(source, "mylab.py", "exec"), names)
    return names | given


@pytest.mark.parametrize("name", ["judge", "called", "method", "Judge"])
def test_the_same_code_has_the_same_fingerprint(name: str) -> None:
    once, again = (fingerprint(module()[name]) for _ in range(2))
    moved = "# a comment\n\n" + SOURCE
    assert once == again == fingerprint(module(moved)[name])
    loaded: dict[str, Any] = {"__name__": "mylab.tasks"}
    exec(marshal.loads(marshal.dumps(compile(SOURCE, "mylab.py", "exec"))), loaded)  # as from a .pyc file
    assert fingerprint(loaded[name]) == once


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("judge", "> LIMIT", ">= LIMIT"),
        ("judge", "share=0.5", "share=0.6"),
        ("judge", "strict=False", "strict=True"),
        ("judge", "made(weight=2)", "made(weight=3)"),
        ("judge", "LIMIT = 1", "LIMIT = 2"),
        ("judge", "return x + 1", "return x - 1"),
        ("judge", '"b", "a", "c"', '"b", "a", "d"'),
        ("judge", '"x", "y", "z"', '"x", "y", "w"'),
        ("called", "x + self.bias", "x - self.bias"),
        ("called", "bias=0", "bias=1"),
        ("called", "level = 1", "level = 2"),
        ("method", "x + self.bias", "x - self.bias"),
    ],
)
def test_another_body_default_closure_or_helper_is_another_function(name: str, old: str, new: str) -> None:
    assert old in SOURCE
    assert fingerprint(module(SOURCE.replace(old, new))[name]) != fingerprint(module()[name])


def test_values_in_closures_count_and_logs_do_not() -> None:
    def judging(*kept: Any) -> Any:
        return lambda model: kept

    def looked(value: Any) -> Any:
        return lambda model: value

    torch.manual_seed(0)
    values: list[Any] = [torch.ones(2), torch.zeros(2), np.ones(2), np.zeros(2), [1], [2], {"a": 1}, {"a": 2}]
    values += [nn.Linear(2, 2), nn.Linear(2, 2), torch.float32, torch.float64]
    prints = [fingerprint(judging(value)) for value in values]
    assert len(set(prints)) == len(values)
    assert prints == [fingerprint(judging(value)) for value in values]
    log: list[object] = []
    before = fingerprint(looked(log))
    log.append(nn.Identity())
    assert fingerprint(looked(log)) == before
    one, other = (functools.partial(looked(0), share) for share in (1, 2))
    assert fingerprint(one) != fingerprint(other)
    log.append(log)
    fingerprint(looked(log))


def test_another_process_finds_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sets of texts have another order in every process."""
    (tmp_path / "mylab_prints.py").write_text(SOURCE)
    script = "import mylab_prints; from bitsect.sources.fingerprint import fingerprint as found\n"
    script += "print(found(mylab_prints.judge))"
    environment = {"PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path]), "PYTHONHASHSEED": "1"}
    command = [sys.executable, "-c", script]
    said = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
    monkeypatch.syspath_prepend(tmp_path)
    assert said.strip() == fingerprint(importlib.import_module("mylab_prints").judge)
