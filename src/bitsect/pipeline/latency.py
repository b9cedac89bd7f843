"""latency: what every layer of a network, and the whole of it, takes where it will run."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import nn

from ..errors import ExportError, OptionError
from ..latency import network_table
from ..latency.machine import here
from ..latency.tables import TIMED
from ..network.capture import capture
from ..network.program import Program
from ..rounding.boundaries import boundaries
from ..runs.disk import fingerprint_json, reading
from ..runs.progress import Progress
from ..runs.run import Run
from ..solve.costs import describe
from ..sources.models.paper import paper_network
from ..values import FLOAT, INT4, INT8, Format, Goal, LatencyTable, Layer
from ..values.destination import destination_named
from ..values.goal import parse_formats
from .layers import layers

Table = tuple[LatencyTable | None, tuple[str, ...]]


@dataclass(frozen=True)
class Latencies:
    """What the layers of a network take, by format."""

    model: str
    layers: tuple[Layer, ...]
    table: LatencyTable
    formats: tuple[Format, ...]
    notes: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        described = describe(self.layers, self.table, self.formats)
        return {"model": self.model, **described, "notes": list(self.notes)}


def latency(
    model: Any,
    table: str = "a100",
    *,
    formats: str | None = None,
    threads: int = 1,
    input_shape: str | None = None,
    embeddings: bool = False,
    trust: bool = False,
    progress: Progress | None = None,
) -> Latencies:
    """What every layer of a network takes where it will run, and uniform plans of it as a whole.

    Arguments:
        model: zoo:NAME, hf:FOLDER, paper:NAME, FILE.pt2, package.module:function, or the folder of a run.
        table: a100, onnxruntime or openvino (timed on this machine), or FILE.json; default: a100.
        formats: formats to show besides float, with commas; default: those that run there.
        threads: threads to time a runtime in.
        embeddings: count embeddings as layers too.
        input_shape: the shape of one sample, as 3x224x224, where the model gives no example.
        trust, progress: as for `quantize`.
    """
    known = destination_named(table)
    if known.latency is None:
        raise OptionError(f"nothing is timed for {known.name}: pass a100, onnxruntime, openvino or a file")
    if threads < 1:
        raise OptionError(f"threads {threads} is not at least 1")
    shown = (known.formats or (INT8, INT4)) if formats is None else parse_formats(formats)
    if known.latency in TIMED and str(model).startswith("paper:"):
        program = _with_random_weights(str(model).partition(":")[2])
    else:
        program = layers(model, input_shape=input_shape, embeddings=embeddings, trust=trust)
    found, notes = network_table(
        known.latency, program, _first(program.example), shown, threads=threads, progress=progress
    )
    assert found is not None
    return Latencies(str(model), program.layers, found, (FLOAT, *shown), notes)


def table_for(run: Run, goal: Goal, *, mixed: bool = True) -> Table:
    """The latency table of a run's network for `goal`, and what should be known of it.

    What was timed is kept in the run: when it is continued, the same plan comes out. Without `mixed` models
    it is rougher (see `timed_table`).
    """
    inputs, threads = run.samples.typical(), goal.runtime_threads
    if goal.latency not in TIMED:
        return network_table(goal.latency, run.program, inputs, goal.formats)
    asked = {
        "machine": asdict(here(goal.latency, threads)),
        "length": run.program.length_of(inputs),
        "formats": [format.name for format in goal.formats],
    }
    name = f"latency-{goal.latency}-{fingerprint_json(asked)[:8]}{'' if mixed else '-rough'}.json"
    known = run.folder.read_json(name)
    if known is not None:
        with reading(run.folder.path / name, "remove it, and it is timed again"):
            kept = LatencyTable.from_json(known["table"], name)
            kept = replace(kept, rest_ms=float(known["rest_ms"]), boundaries=boundaries(run.program))
            return kept, tuple(known["notes"])
    try:
        table, notes = network_table(
            goal.latency,
            run.program,
            inputs,
            goal.formats,
            threads=threads,
            mixed=mixed,
            progress=run.progress,
        )
    except ExportError as error:
        way_out = "[destination=bits] finds a plan without a file that a runtime runs"
        raise ExportError(f"{error}; {way_out}") from None
    assert table is not None
    kept_as = {"asked": asked, "table": table.to_json(), "rest_ms": table.rest_ms, "notes": list(notes)}
    run.folder.write_json(name, kept_as)
    return table, notes


def _first(inputs: Any) -> Any:
    """The first sample of a batch."""
    return pytree.tree_map(lambda each: each[:1] if isinstance(each, torch.Tensor) else each, inputs)


def _with_random_weights(name: str) -> Program:
    """One of the paper's architectures with weights that keep values in a sane range."""
    torch.manual_seed(0)
    model, example = paper_network(name, device="cpu")
    for module in model.modules():
        if isinstance(module, nn.Conv2d):  # the default lets values vanish, and denormal ones are slow
            nn.init.kaiming_normal_(module.weight)
    return capture(model, example)
