"""How much memory a stage needs: estimated before it starts, and kept under a limit by the batch of a run.

    evaluate    rows · w · running
    damage      rows · (states + w · besides) + moves
    exact       rows · (2 · states + w · besides)        states of the float batch, and those after a layer
    linear      rows · (states + w · besides + layers · outputs), of which outputs at most 1 GB
    traces      few · (everything + besides), of the rows that are differentiated at once; twice everything
                for Hutchinson's

each with the rounded weights; a network's values are counted (`network/footprint.py`), and w allows for what
kernels set aside and for memory that lies between values (`benchmarks/memory.py` shows how near that comes).
What the usual stages leave may hold what plans share (`measure/prefixes.py`).
"""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import RunError
from ..measure.expansion import OUTPUT_BYTES
from ..measure.sketch import SKETCH_BYTES as MOVES_BYTES
from ..measure.traces import differentiated_rows
from ..network.footprint import Footprint, footprint, weight_bytes
from ..network.program import Program
from ..sources.room import SHARE, free_bytes, gigabytes
from ..values import Resources, Settings
from .memory import comfortable_rows

WORKSPACE = 2.9  # of what a pass holds: operators copy their operands to layouts of their own
ROUNDING = 29  # of the largest weight, while it is being rounded
TWICE_DERIVED = 2.3  # of all values, in a double backward pass
WORKER_BYTES = 350e6  # what a worker has loaded before it begins
PREFIX_BYTES = 1e9  # for what plans share, at most
SCATTERED = 3.5  # times its size is what it holds: it lies between all that comes and goes
USUAL = ("evaluate", "damage", "exact", "traces")  # stages that every run must have memory for
STAGES = (*USUAL, "linear", "hutchinson")


@dataclass(frozen=True)
class Needs:
    """What the stages of a run need in one process, in bytes."""

    values: Footprint
    weights: tuple[int, ...]
    layers: int
    differentiated: int  # samples that are differentiated at once, at most
    held: int = 0  # bytes of samples that stay in memory

    @classmethod
    def of(cls, program: Program, held: int = 0) -> Needs:
        return cls(
            footprint(program),
            tuple(weight_bytes(program)),
            len(program.layers),
            differentiated_rows(program),
            held,
        )

    def bytes(self, stage: str, rows: int) -> float:
        """What `stage` takes at its peak beyond what is there when it starts, with batches of `rows`."""
        values = self.values
        passing = values.states + WORKSPACE * values.besides
        few = min(rows, self.differentiated)
        held = {
            "evaluate": rows * WORKSPACE * values.running,
            "damage": rows * passing + min(MOVES_BYTES, 4 * self.layers * rows * values.outputs),
            "exact": rows * (passing + values.states),
            "linear": rows * passing + min(OUTPUT_BYTES, rows * self.layers * values.outputs),
            "traces": few * (values.everything + values.besides),
            "hutchinson": few * (TWICE_DERIVED * values.everything + values.besides),
        }[stage]
        return sum(self.weights) + max(held, ROUNDING * max(self.weights, default=0))

    def most(self, rows: int, workers: int) -> float:
        """What any of the usual stages takes, in all workers together."""
        return max(self.together(stage, rows, workers) for stage in USUAL)

    def together(self, stage: str, rows: int, workers: int) -> float:
        return workers * self.bytes(stage, rows) + (workers > 1) * workers * WORKER_BYTES


def fitting_batch(program: Program, settings: Settings, resources: Resources, held: int = 0) -> int:
    """How many samples run at once in a new run: as many as are comfortable, or as memory allows."""
    if settings.batch_size is not None:
        return settings.batch_size
    rows, limit = comfortable_rows(program), limit_of(resources, held)
    needs, workers = Needs.of(program), local_workers(resources)
    while rows > 1 and needs.most(rows, workers) > limit:
        rows //= 2
    if resources.memory is not None and needs.most(rows, workers) > limit:
        raise RunError(
            f"one sample at a time needs about {gigabytes(needs.most(rows, workers))}, and "
            f"[memory={resources.memory}] allows {gigabytes(limit)} besides the samples: allow more"
            + (", or ask for fewer [workers=]" if workers > 1 else "")
        )
    return rows


def doubts(needs: Needs, stage: str, rows: int, resources: Resources) -> str | None:
    """Why `stage` does not fit, in words; None where it does. Refused where a limit was given."""
    limit, workers = limit_of(resources, needs.held), local_workers(resources)
    wanted = needs.together(stage, rows, workers)
    if wanted <= limit:
        return None
    said = f"{stage} needs about {gigabytes(wanted)} with batches of {rows}"
    said += f" in {workers} workers" if workers > 1 else ""
    if resources.memory is not None:
        fewer = "ask for fewer [workers=], " if workers > 1 else ""
        raise RunError(
            f"{said}, and [memory={resources.memory}] allows {gigabytes(limit)} besides the samples: allow "
            f"more, {fewer}or make a new run with a smaller [batch_size=]"
        )
    return f"{said}, and {gigabytes(limit / SHARE)} is free"


def local_workers(resources: Resources) -> int:
    """The processes on this machine that a stage runs in; those of a cluster look after themselves."""
    return 1 if resources.ray is not None else resources.workers or 1


def limit_of(resources: Resources, held: int) -> float:
    """What may be used: what was asked for less what samples take, or a share of what is free."""
    asked = resources.memory_bytes
    return SHARE * free_bytes() if asked is None else max(0, asked - held)


def spare_bytes(needs: Needs, rows: int, resources: Resources) -> float:
    """What each process may keep of what plans share: what the usual stages leave."""
    workers = local_workers(resources)
    left = (limit_of(resources, needs.held) - needs.most(rows, workers)) / SCATTERED
    return max(0.0, min(PREFIX_BYTES, left)) / workers
