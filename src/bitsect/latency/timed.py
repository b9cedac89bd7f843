"""A latency table timed on this machine, of kernels in exactly the form that the exporter writes.

Every distinct kernel of a network is cut out of a written model, once for each format, and timed alone; then
whole models, in one format and mixed, say how pieces add up (see `fit`).
"""

from __future__ import annotations

import hashlib
import random
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch

from ..errors import BitsectError, MissingExtraError
from ..exporters.onnx.pieces import WrittenGraph, empty_model, rounding_models
from ..exporters.runtimes.apart import Apart, Fault, Model, Times
from ..exporters.runtimes.onnxruntime import feed_of
from ..network.program import Program
from ..rounding.boundaries import boundaries
from ..rounding.placements.dynamic import is_dynamic_product
from ..runs.progress import Progress
from ..values import FLOAT, INT8, Format, LatencyTable, Layer, Place, Plan
from ..values.boundary import Boundary, step_key
from ..values.latency_table import place_key
from .clock import Clock, time_wholes
from .fit import Pieces, fit_table
from .halves import HALF, about_half, write_half
from .machine import Machine, processor
from .order import Kernel, contradictions
from .shared import by_kernel
from .timings import Time, Timings
from .written import TimingModel, takes

VISITS, VISIT_SECONDS = 5, 0.004  # of one kernel, in each of at least two passes
PASSES = (2, 5)  # at least, and at most where repetitions spread
STEADY = 0.1  # of the time: a kernel whose repetitions spread by more is timed again
BUSY = 1.25  # waiting so many times as long as a run takes: something else runs on this machine
MIXED = (0.3, 0.6)  # shares of float layers in the mixed models
EMPTY = "empty"
# What is written as ONNX is cut and fed with ONNX Runtime, wherever it is timed.
PACKAGES = {
    "onnxruntime": dict.fromkeys(("onnx", "onnx_ir", "onnxscript", "onnxruntime")),
    "openvino": {"openvino": "openvino", **dict.fromkeys(("onnx", "onnx_ir", "onnxscript"))},
}

Feed = Mapping[str, np.ndarray[Any, Any]]


def timed_table(
    runtime: str,
    program: Program,
    inputs: Any,
    formats: Sequence[Format],
    *,
    threads: int = 1,
    mixed: bool = True,
    progress: Progress | None = None,
) -> tuple[LatencyTable, tuple[str, ...]]:
    """The table of a network in a runtime on this machine, and what should be known of it.

    What is in the cache is not timed again. Without `mixed` models, only those in one format say how kernels
    add up: this takes a fifth of the time, and is good enough to know which formats pay.
    """
    for package, extra in PACKAGES[runtime].items():
        if find_spec(package) is None:
            raise MissingExtraError(package, extra, f"timing in {runtime}")
    progress, notes = progress or Progress(), list[str]()
    between = boundaries(program)
    with Apart(runtime) as apart:
        machine = Machine(runtime, apart.version, processor(), threads)
        timings = Timings.of(machine, progress.say)
        length = program.length_of(inputs)
        timer = Timer(apart, timings, program, between, tuple(formats), progress, length, mixed)
        if timer.is_missing():
            with tempfile.TemporaryDirectory() as folder:
                notes += timer.fill(TimingModel.of(program, inputs, runtime), Path(folder))
            timings.write()
    known = timings.wholes[timer.network]
    if mixed:
        notes.append(about_half(known.get(HALF), known[timer.uniform(FLOAT).key]))
    return timer.table(), tuple(notes)


@dataclass(frozen=True)
class Timer:
    """What is to be timed of one network, and where it is kept."""

    apart: Apart
    timings: Timings
    program: Program
    boundaries: tuple[Boundary, ...]
    formats: tuple[Format, ...]  # besides float
    progress: Progress
    length: int | None = None  # of the sequences that it is timed on, where any will do
    mixed: bool = True  # whether models in several formats are timed too

    @property
    def layers(self) -> tuple[Layer, ...]:
        return self.program.layers

    @property
    def network(self) -> str:
        """What decides the time of a network: its layers and what lies between them, not its weights."""
        graph = "\n".join(f"{node.op} {node.target}" for node in self.program.exported.graph.nodes)
        text = f"{self.layers!r}\n{self.boundaries!r}\n{graph}\n{self._at}"
        return hashlib.sha256(text.encode()).hexdigest()[:24]

    @property
    def _at(self) -> str:
        """What kernels are called besides, where they are timed at another length than the example's."""
        return "" if self.length in (None, self.program.length) else f" at length {self.length}"

    def _key(self, place: Place) -> str:
        return f"{place_key(place)}{self._at}"

    def is_missing(self) -> bool:
        known = self.timings.wholes.get(self.network, {})
        return bool(
            [*self._missing_places()]
            or [*self._missing_steps()]
            or any(plan.key not in known for plan in self.plans().values())
        )

    def uniform(self, format: Format) -> Plan:
        """Every layer in `format`; a weight-only one is for linear layers alone."""
        return Plan({layer.name: format if self._takes(layer, format) else FLOAT for layer in self.layers})

    def _takes(self, layer: Layer, format: Format) -> bool:
        """Whether the exporter writes the layer in `format`, and a kernel may be found for it."""
        if format.is_float or not takes(layer, format):
            return format.is_float
        places = [multiply for multiply in self.program.multiplies if multiply.layer == layer.name]
        products = [each for each in places if each.activations]
        if format.dynamic and not all(is_dynamic_product(self.program, each) for each in products):
            return False
        return {each.node.meta["val"].dtype for each in places} == {torch.float32}

    def plans(self) -> dict[str, Plan]:
        """The whole models that are timed, by name: in one format each, and mixed of float and the others."""
        plans = {FLOAT.name: self.uniform(FLOAT)}
        plans |= {format.name: self.uniform(format) for format in self.formats}
        lower = sorted((f for f in self.formats if f.activation_bits is not None), key=lambda f: f.dynamic)
        names = [layer.name for layer in self.layers]
        for format in lower[:1] if self.mixed else ():
            base = self.uniform(format)
            for other in (each for each in lower if each.dynamic and each != format):
                taken = [layer.name for layer in self.layers if self._takes(layer, other)]
                plans[f"{other} where possible, else {format}"] = base.replace(taken, other)
            for kernel, chosen in by_kernel(self.layers):
                plans[f"{format} but {kernel}"] = base.replace(chosen, FLOAT)
            plans[f"{format} alternating"] = base.replace(names[::2], FLOAT)
            plans[f"{format} in the first half"] = base.replace(names[len(names) // 2 :], FLOAT)
            plans[f"{format} in the second half"] = base.replace(names[: len(names) // 2], FLOAT)
            draw = random.Random(0)
            for share in MIXED:
                plans[f"{format} but {share:.0%}"] = base.replace(
                    [name for name in names if draw.random() < share], FLOAT
                )
        known = {plan: name for name, plan in reversed(plans.items())}  # of equal ones the first
        return {name: plan for plan, name in reversed(known.items()) if self._runs(plan)}

    def _runs(self, plan: Plan) -> bool:
        """Whether no kernel of the plan is known not to run."""
        for layer in self.layers:
            for place in layer.places:
                time = self.timings.rows.get(self._key(place), {}).get(plan[layer.name])
                if time is not None and time.ms is None:
                    return False
        return True

    # Timing

    def fill(self, written: TimingModel, folder: Path) -> Iterator[str]:
        """Time what is missing, and say what should be known of it."""
        feed = feed_of(written.write(self.uniform(FLOAT), folder / "float.onnx"), written.inputs)
        clock = Clock.made(self.apart, self.threads, folder)
        clock.best_ms = self.timings.reference_ms
        yield from self.time_kernels(written, feed, clock, folder)
        self._time_wholes(written, _save(feed, folder / "feed.npz"), clock, folder)

    def time_kernels(self, written: TimingModel, feed: Feed, clock: Clock, folder: Path) -> Iterator[str]:
        """Time the kernels that are missing, and the steps between layers."""
        groups = [*self._kernel_groups(written, feed, folder), *self._step_groups(folder)]
        empty = folder / "empty.onnx"
        nothing = _save(empty_model(empty), folder / "empty.npz")
        with self.progress.stage("time kernels", PASSES[0] * len(groups)) as advance:
            busy = self._time([[Model(EMPTY, empty, nothing)], *groups], clock, advance)
        if busy and median(busy) > BUSY:
            yield (
                f"the machine is busy: a run was waited for {median(busy):.1f} times as long as it takes; "
                "plans rest on the least times, but timing again on a quiet machine is safer"
            )
        if pairs := self._contradictions():
            first, second = sorted(
                f"{key} takes {ms:.4f} ms in {format}" for (key, format), ms in pairs[0].items()
            )
            yield (
                f"{len(pairs)} times of kernels go against each other ({first}, {second}): timing again on a "
                "quiet machine is safer"
            )
        for key, row in self.timings.rows.items():
            for format, time in row.items():
                if time.why is not None and any(key == name for name, *_ in self._places()):
                    yield f"{format} does not run here for {key}: {time.why}"

    @property
    def threads(self) -> int:
        return self.timings.machine.threads

    def _time(
        self, groups: Sequence[Sequence[Model]], clock: Clock, advance: Callable[[int], None]
    ) -> list[float]:
        """Time all groups, in passes that lie apart; returns how much longer each took."""
        found: dict[str, list[Times]] = {}
        left = list(groups)
        for number in range(PASSES[1]):
            for group in left:
                for name, times in clock.time(group, VISITS, VISIT_SECONDS).items():
                    if isinstance(times, Fault):
                        self._keep(name, Time(None, 0.0, times.why))
                    else:
                        found.setdefault(name, []).append(times)
                if number < PASSES[0]:
                    advance(1)
            if number + 1 >= PASSES[0]:
                self.timings.at_best(clock.best_ms)
                pairs = self._contradictions(_least(found, clock))
                doubted = {f"{key}|{format}" for pair in pairs for key, format in pair} & found.keys()
                doubted |= {EMPTY} if doubted else set()  # what is taken off all of them
                left = [
                    group
                    for group in groups
                    if any(m.name in doubted or _spreads(found.get(m.name, [])) for m in group)
                ]
        least = _least(found, clock)
        del found[EMPTY]
        for name, passes in found.items():
            self._keep(name, Time(least[name], clock.spread_ms(passes, least[name])))
        every = [times for passes in found.values() for times in passes]
        return [median(times.mean) / median(times.least) for times in every]

    def _contradictions(self, least: Mapping[str, float] | None = None) -> list[dict[Kernel, float]]:
        """Kernels whose times go against each other, among those that are known and what was just timed."""
        ms = {
            (k, f): t.ms for k, row in self.timings.rows.items() for f, t in row.items() if t.ms is not None
        }
        ms |= {_kernel(name): time for name, time in (least or {}).items()}
        own = {key for key, *_ in self._places()} | {_kernel(name)[0] for name in least or {}}
        found = [{each: ms[each] for each in pair} for pair in contradictions(ms)]
        return [pair for pair in found if any(key in own for key, _ in pair)]

    def _keep(self, name: str, time: Time) -> None:
        key, format = _kernel(name)
        self.timings.rows.setdefault(key, {})[format] = time

    def _places(self) -> Iterator[tuple[str, str, Layer]]:
        """The first place of every distinct kernel: its key, its name, its layer."""
        seen: set[str] = set()
        for layer in self.layers:
            for place in layer.places:
                key = self._key(place)
                if key not in seen:
                    seen.add(key)
                    yield key, place.name, layer

    def _missing_places(self) -> Iterator[tuple[str, str, Format]]:
        for key, name, layer in self._places():
            for format in (FLOAT, *self.formats):
                if self._takes(layer, format) and not self.timings.knows(key, format):
                    yield key, name, format

    def _missing_steps(self) -> Iterator[int]:
        for elements in sorted({boundary.elements for boundary in self.boundaries}):
            if any(
                not self.timings.knows(step_key(step, elements), INT8) for step in ("quantize", "dequantize")
            ):
                yield elements

    def _kernel_groups(self, written: TimingModel, feed: Feed, folder: Path) -> list[list[Model]]:
        """The pieces that are missing, those of one kernel together."""
        groups: dict[str, list[Model]] = {}
        missing = [*self._missing_places()]
        for format in (FLOAT, *self.formats):
            places = {key: name for key, name, each in missing if each == format}
            if not places:
                continue
            graph = WrittenGraph(written.write(self.uniform(format), folder / f"{format}.onnx"))
            pieces = {key: piece for key, name in places.items() if (piece := graph.piece(name))}
            for key in places.keys() - pieces.keys():  # it is part of the rest, whatever its format
                self.timings.rows.setdefault(key, {})[format] = Time(1e-6)
            names = [name for piece in pieces.values() for name in (*piece.inputs, *piece.outputs)]
            values = graph.values(names, feed)
            for number, (key, piece) in enumerate(pieces.items()):
                path = folder / f"{format}-{number}.onnx"
                graph.write(piece, values, path)
                given = _save({name: values[name] for name in piece.inputs}, path.with_suffix(".npz"))
                groups.setdefault(key, []).append(Model(f"{key}|{format}", path, given))
        return list(groups.values())

    def _step_groups(self, folder: Path) -> Iterator[list[Model]]:
        """Rounding and un-rounding of as many values as lie between layers."""
        for elements in self._missing_steps():
            yield [
                Model(f"{step_key(name, elements)}|{INT8}", path, _save(feed, path.with_suffix(".npz")))
                for name, path, feed in rounding_models(elements, folder)
            ]

    def _time_wholes(self, written: TimingModel, feed: Path, clock: Clock, folder: Path) -> None:
        plans = self.plans()
        with self.progress.stage("time networks", len(plans)) as advance:
            models = []
            for number, (name, plan) in enumerate(plans.items()):
                models.append(Model(name, written.write(plan, folder / f"whole-{number}.onnx"), feed))
                advance(1)
            half = folder / "float16.onnx"
            if self.mixed and write_half(models[0].path, half) is None:  # the first is float
                models.append(Model(HALF, half, feed))
            found = time_wholes(clock, models)
        self.timings.at_best(clock.best_ms)
        known = self.timings.wholes.setdefault(self.network, {})
        for name, times in found.items():
            if isinstance(times, Times):
                known[name if name == HALF else plans[name].key] = clock.ms([times])
            elif name == FLOAT.name:
                raise BitsectError(f"{self.apart.engine} does not run the float network here: {times.why}")

    # What comes of it

    def table(self) -> LatencyTable:
        """The rows of this network, as they add up in it."""
        keys = {place_key(place): self._key(place) for layer in self.layers for place in layer.places}
        keys |= {
            key: key
            for b in self.boundaries
            for key in (step_key(step, b.elements) for step in ("quantize", "dequantize"))
        }
        wanted = (FLOAT, INT8, *self.formats)  # steps between layers stand under int8
        rows = {
            key: {f: time for f, time in self.timings.rows.get(timed, {}).items() if f in wanted}
            for key, timed in keys.items()
        }
        known = self.timings.wholes[self.network]
        measured = {plan: known[plan.key] for plan in self.plans().values() if plan.key in known}
        pieces = Pieces(
            self.layers,
            self.boundaries,
            {key: {f: t.ms for f, t in row.items()} for key, row in rows.items()},
        )
        spread = {
            key: {f: t.spread_ms for f, t in row.items() if t.ms is not None} for key, row in rows.items()
        }
        where = str(self.timings.machine)
        if self.length is not None:
            where += f", sequences of length {self.length}"
        table = fit_table(pieces, measured, spread, (FLOAT, *self.formats), self.apart.engine, where)
        # Kernels alike may belong to layers that cannot all take a format: then none of them does.
        without = {
            (place_key(place), format)
            for layer in self.layers
            for format in self.formats
            if not self._takes(layer, format)
            for place in layer.places
        }
        rows_here = {
            key: {f: None if (key, f) in without else ms for f, ms in row.items()}
            for key, row in table.rows.items()
        }
        return replace(table, rows=rows_here)


def _kernel(name: str) -> Kernel:
    key, _, format = name.rpartition("|")
    return key, Format.parse(format)


def _least(found: Mapping[str, Sequence[Times]], clock: Clock) -> dict[str, float]:
    """Milliseconds of every kernel without what an empty model takes."""
    overhead = clock.ms(found[EMPTY])
    return {name: max(clock.ms(p) - overhead, 1e-6) for name, p in found.items() if name != EMPTY}


def _spreads(passes: Sequence[Times]) -> bool:
    middles = [median(times.least) for times in passes]
    return bool(middles) and max(middles) - min(middles) > STEADY * min(middles)


def _save(feed: Feed, path: Path) -> Path:
    np.savez(path, **dict(feed))  # type: ignore[arg-type]
    return path
