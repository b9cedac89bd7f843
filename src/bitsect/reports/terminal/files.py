"""export, judge, and evaluate of a file: what was written, and what files of any tool are worth."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...values.cost import megabytes
from ...values.verdict import JudgedFile, Verdict
from .lines import Aside, Lines, add_row, table_of, wrapped

if TYPE_CHECKING:
    from ...exporters.deliver import Delivery
    from ...exporters.runtimes.onnxruntime import Ran

SHOWN = 4  # layers, kernels and answers that a line names


def delivery_lines(delivery: Delivery) -> Lines:
    """What came of proving a written model, and whether the target is kept."""
    yield from str(delivery.proof).splitlines()
    accuracies = [f"{each.shown} under placement {name}" for name, each in delivery.judged.items()]
    yield f"On the {delivery.judged_on}: {', '.join([f'float {delivery.float.shown}', *accuracies])}."
    if delivery.target is not None:
        missed = "NOT kept" if delivery.missed else "missed on these samples, by no more than chance explains"
        yield f"Target {delivery.target}: {'kept' if delivery.target_kept else missed}."
    else:
        yield "No target is known that the model would have to keep."
    for remark in (*delivery.remarks, *(each.shortened() for each in delivery.written.notes)):
        yield f"Note: {remark}."
    if delivery.kept:
        yield Aside(f"Written to {delivery.path}")


def ran_lines(ran: Ran) -> Lines:
    """How accurate and how fast the model in a file is."""
    speed = "" if ran.latency_ms is None else f", {ran.latency_ms:.2f} ms for one sample in one thread"
    judged = "" if ran.output is None else f" by output '{ran.output}'"
    yield f"accuracy {ran.accuracy:.2%}{judged} on {ran.samples:,} samples{speed} ({ran.runtime})"


def verdict_lines(verdict: Verdict) -> Lines:
    """A table of the files, and what is to be said of each."""
    threads = sorted(verdict.reference.ms)
    times = ["1 thread" if count == 1 else f"{count} threads" for count in threads]
    drop = verdict.target.startswith("max drop")
    table = table_of("", "accuracy", "lost" if drop else "kept", "changed", *times, "size", "int + float")
    for row in (verdict.reference, *verdict.files):
        add_row(table, row.name, *_cells(verdict, row, threads))
    yield table
    length = "" if verdict.length is None else f", times at length {verdict.length}"
    about = f"{verdict.samples:,} samples, each run alone, task {verdict.task}{length}"
    yield wrapped(f"{about}; int + float: kernels that multiply.\n", "dim")
    for file in verdict.files:
        yield f"{file.name}: {_words(verdict, file, drop)}."
    for line in verdict.notes:
        yield f"Note: {line}."


def _cells(verdict: Verdict, row: JudgedFile, threads: list[int]) -> list[str]:
    cells = ["–" if share is None else f"{share:.2%}" for share in (row.accuracy, row.kept)]
    cells.append("–" if row.changed is None else f"{row.changed:,}")
    for count in threads:
        ratio = None if row is verdict.reference else verdict.ratio(row, count)
        own = f"{row.ms[count]:.3g} ms" if count in row.ms else "–"  # as of a file that does not run
        cells.append(own if ratio is None else f"× {ratio:.2f}")
    cells.append(megabytes(row.size_bytes) if row.size_bytes else "–")
    cells.append("–" if row.kernels is None else f"{row.kernels.integer} + {row.kernels.floats}")
    return cells


def _words(verdict: Verdict, file: JudgedFile, drop: bool) -> str:
    """What is to be said of a file, in a line."""
    parts = [file.verdict]
    if file.bound is not None:
        parts.append(f"at {'most' if drop else 'least'} {file.bound:.2%} {'lost' if drop else 'kept'}")
    if file.difference is not None:
        mean, low, high = (100 * value for value in file.difference)
        parts.append(f"accuracy {mean:+.2f} points ({low:+.2f} to {high:+.2f})")
    if file.suspects:
        layers = "; ".join(f"{each.layer} ({each.why})" for each in file.suspects)
        parts.append(f"look first at {layers}")
    if file.kernels is not None and file.kernels.floats:
        names = ", ".join(file.kernels.float_names[:SHOWN])
        more = " …" if file.kernels.floats > SHOWN else ""
        parts.append(f"{file.kernels.float_share:.0%} of the time in float kernels: {names}{more}")
    if file.first_changed:
        more = " …" if (file.changed or 0) > SHOWN else ""
        parts.append(f"answers changed: {', '.join(file.first_changed[:SHOWN])}{more}")
    return "; ".join(parts)
