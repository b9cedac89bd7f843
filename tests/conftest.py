"""What every test starts from: one thread, exporters that are read once, timing that takes a moment."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import cache

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch: tests run beside each other
os.environ.pop("COLUMNS", None)  # a console keeps the width it was made with

import pytest
import torch
from hypothesis import HealthCheck, settings

import bitsect.cli.output  # noqa: F401 (its consoles are made before a test sets their width)
from bitsect.exporters.runtimes import onnxruntime as runtime

torch.set_num_threads(1)
# How long an example takes says how busy the machine is, and nothing of what is tested.
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")


@pytest.fixture(scope="session", autouse=True)
def translations_read_once() -> Iterator[None]:
    """torch.onnx reads its hundreds of translations again for every export, which here takes longest."""
    from torch.onnx._internal.exporter import _registration

    apis = _registration.onnxscript_apis
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(apis, "get_torchlib_ops", cache(apis.get_torchlib_ops))
        yield


@pytest.fixture(scope="session", autouse=True)
def timed_for_a_moment() -> Iterator[None]:
    """How fast models are is no question of tests: each is timed for a moment, not for a second."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runtime, "TIMING_SECONDS", 0.02)
        yield


@pytest.fixture(scope="session", autouse=True)
def no_other_tools() -> Iterator[None]:
    """Files of other tools take seconds to make: they are tried where they are what is tested."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("bitsect.pipeline.written.others", lambda *of: ())
        yield
