"""Calls that many tests make, in few words."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch.fx import Node

from bitsect.exporters.onnx.prove import prove as prove_onnx
from bitsect.exporters.onnx.write import Written, write_onnx
from bitsect.exporters.proof import Proof
from bitsect.exporters.subject import Subject
from bitsect.network.program import Program
from bitsect.rounding import ranges
from bitsect.rounding.rounder import Rounder
from bitsect.sources.data import Samples
from bitsect.sources.tasks.task import Task, task_named
from bitsect.values import Plan, Ranges, Settings


def calibrate(
    program: Program,
    samples: Samples,
    *,
    bits: Iterable[int] = (8, 4),
    progress: Callable[[int], None] = lambda rows: None,
    **settings: Any,
) -> Ranges:
    """The ranges under `settings`; `method` is the range method."""
    if "method" in settings:
        settings["range"] = settings.pop("method")
    return ranges.calibrate(program, samples, Settings(**settings), bits, progress)


@contextmanager
def named(program: Program, nodes: Mapping[str, Node]) -> Iterator[None]:
    """A block in which `program` shows what `nodes` make to those who observe their names."""
    program.tensors.update(nodes)
    program._tensor_nodes.update({name: (node,) for name, node in nodes.items()})
    try:
        yield
    finally:
        for name in nodes:
            del program.tensors[name], program._tensor_nodes[name]


def export_onnx(
    program: Program,
    rounder: Rounder,
    plan: Plan,
    path: str | Path,
    *,
    target: str = "onnxruntime",
    metadata: Mapping[str, str] | None = None,
) -> Written:
    """The program under `plan` in an ONNX file."""
    return write_onnx(Subject(program, rounder, plan, task_named("classification")), path, target, metadata)


def prove(
    written: Written,
    program: Program,
    rounder: Rounder,
    plan: Plan,
    samples: Samples,
    task: Task,
    **more: Any,
) -> Proof:
    """The proof of a written model, timed for a moment only."""
    return prove_onnx(written, Subject(program, rounder, plan, task), samples, **more)
