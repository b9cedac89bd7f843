"""quantize, search and evaluate: the closing table, the verdict, the file, and what to type next."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...values.cost import megabytes
from ...values.destination import BITS, destination_named
from .lines import Aside, Lines, accuracy_cell, add_row, layers_by_format, size_cell, table_of, wrapped

if TYPE_CHECKING:
    from ...pipeline.evaluate import Judgement
    from ...pipeline.result import Result
    from ...pipeline.rivals import Other


def judgement_lines(found: Judgement) -> Lines:
    """The float network and a plan on the same samples."""
    table = table_of("", "accuracy", "loss", "size", "")
    for row in (found.float, found.plan):
        loss = "–" if row.evaluation.loss is None else f"{row.evaluation.loss:.4f}"
        add_row(
            table, row.name, accuracy_cell(row.evaluation), loss, size_cell(row), layers_by_format(row.plan)
        )
    yield table
    yield from map(Aside, found.notes)


def result_lines(result: Result) -> Lines:
    """The answer of a search: its table, whether the target is kept, what was written, what to type next."""
    where, timed = destination_named(result.goal.destination), result.rows[0].cost.latency_ms is not None
    other = " ([destination=] says where it will run)" if where.name == BITS else ""
    yield wrapped(f"For {where.name}: {where.in_words(by_table=timed)}{other}.")
    yield from _table(result, timed)
    yield wrapped(f"Plan: {layers_by_format(result.plan)} layers.")
    if result.timing is not None:
        yield wrapped(_measured(result))
    yield wrapped(f"Search: {result.reason}.")
    if result.target is not None:
        yield wrapped(f"Target {result.target}: {_kept(result)}.")
    for line in result.remarks:
        yield wrapped(f"Note: {line.removesuffix('.')}.")
    seconds = ", ".join(f"{name} {value:.1f} s" for name, value in result.seconds.items())
    yield wrapped(f"Plans judged by the search: {result.evaluations}. Time: {seconds}.")
    yield from _file(result)
    if not result.run.temporary:
        yield Aside(f"Plan written to {result.run.folder.path / 'plan.json'}")
        if (page := result.run.folder.path / "report.html").exists():
            yield Aside(f"Report written to {page}")
        yield from (Aside(f"Next: {line}") for line in _next(result))


def _table(result: Result, timed: bool) -> Lines:
    """A row for float, for one format in all layers, and for the plan."""
    formats = list(dict.fromkeys(format.name for row in result.rows[1:] for format in row.plan.values()))
    tested = ["held out"] if result.promise is not None else []
    tested += ["on test"] if result.test is not None else []
    table = table_of("", "accuracy", *tested, "size", *(["latency"] if timed else []), *formats)
    for row in result.rows:
        cells = [accuracy_cell(row.evaluation, counts=False)]
        if result.promise is not None:
            share = result.promise.accuracy.get(row.name)
            cells.append("–" if share is None else f"{share:.2%}")
        if result.test is not None:
            known = result.test.rows.get(row.name)
            cells.append("–" if known is None else accuracy_cell(known, counts=False))
        cells.append(size_cell(row))
        if timed:
            ms, ratio = row.cost.latency_ms, row.cost.latency_ratio
            cells.append("–" if ms is None or ratio is None else f"{ms:.3g} ms {ratio:4.0%}")
        macs = row.plan.macs(result.run.layers)
        shares = [macs[name] / (sum(macs.values()) or 1) if name in macs else None for name in formats]
        digits = 1 if len(formats) + len(tested) + timed <= 4 else 0  # so that a line has room for them
        add_row(
            table, row.name, *cells, *("–" if share is None else f"{share:.{digits}%}" for share in shares)
        )
    yield table
    yield wrapped(f"Under {', '.join(formats)}: the share of the multiply-adds.\n", "dim")


def _file(result: Result) -> Lines:
    """The file that was written, beside float's."""
    delivery = result.delivery
    if delivery is None:
        return
    proof = delivery.proof
    parts = [f"{megabytes(proof.size_bytes)} beside {megabytes(proof.float_size_bytes)} of float's file"]
    if proof.latency_ratio is not None:
        pace = "SLOWER than float, " if proof.slower else ""
        times = f"{proof.latency_ms:.3g} ms beside {proof.float_latency_ms:.3g} ms"
        parts.append(f"{pace}{times} ({proof.latency_ratio:.2f}x)")
    before, after = result.rows[0].evaluation, result.rows[-1].evaluation
    if result.test is not None:
        before, after = result.test.float, result.test.plan
    parts.append(f"accuracy {after.shown} beside {before.shown}")
    same = proof.samples - len(proof.differing)
    parts.append(f"{same:,} of {proof.samples:,} answers are the judged model's in {proof.runtime}")
    state = f"File: {delivery.path}" if delivery.kept else f"NOT written: {delivery.complaint}"
    yield f"{state}: {'; '.join(parts)}."
    for line in delivery.remarks:
        yield wrapped(f"Note: {line}.")
    for other in result.others:
        if other.path is not None:
            yield (
                f"Better: {other.path}, made by {other.tool}: {other.ratio:.2f} of the time of float, "
                f"{megabytes(other.size_bytes or 0)}, target {result.target} {other.said}."
            )
    if worse := [other for other in result.others if other.path is None]:
        yield f"Other tools: {'; '.join(map(_worse, worse))}."


def _worse(other: Other) -> str:
    """Why the file of another tool is not the answer."""
    if other.ratio is None or other.size_bytes is None:
        return f"{other.tool} ({other.said})"
    return f"{other.tool} ({other.ratio:.2f}x, {megabytes(other.size_bytes)}: {other.said})"


def _next(result: Result) -> list[str]:
    """Two commands to type next, their options as messages mention them."""
    run, delivery = result.run.folder.path, result.delivery
    if result.target is not None and not result.target_met:
        return [f"bitsect blame {run}", f"bitsect show {run}"]
    if delivery is None or not delivery.kept:
        return [f"bitsect export {run} -o FILE.onnx", f"bitsect show {run}"]
    data = "FILE" if result.test is None else result.test.data
    if delivery.path.suffix == ".onnx":
        return [f"bitsect evaluate {delivery.path} [data={data}]", f"bitsect report {run} [open=]"]
    return [f"bitsect show {run}", f"bitsect report {run} [open=]"]


def _measured(result: Result) -> str:
    """What the files of the rows took, beside what was predicted."""
    timing = result.timing
    assert timing is not None
    known = timing.to_json({row.name: row.plan for row in result.rows})["plans"]
    parts = []
    for name, times in known.items():
        against = times["measured_ratio"]
        share = "" if name == "float" or against is None else f" ({against:.2f} of float"
        if share and times["predicted_ratio"] is not None:
            share += f", predicted {times['predicted_ratio']:.2f}"
        parts.append(f"{name} {times['measured_ms']:.3g} ms{share + ')' if share else ''}")
    threads = "one thread" if timing.measured.threads == 1 else f"{timing.measured.threads} threads"
    length = timing.measured.length
    on = "" if length is None else f", sequences of length {length}"
    return f"Measured in {timing.measured.runtime}, {threads}{on}: {'; '.join(parts)}."


def _kept(result: Result) -> str:
    """Whether the target is kept: as held-out samples prove it, else on the searched ones; and on test."""
    tested = []
    if result.test is not None:
        tested = [f"{'kept' if result.test.target_met else 'NOT kept'} on the test samples"]
    if result.promise is None:
        first = f"{'kept' if result.target_met else 'NOT kept'} on the calibration samples"
        return ", ".join([first, *tested])
    promise = result.promise
    seen = f"{promise.samples:,} held-out samples: {promise.seen}"
    return ", ".join([f"{promise.verdict} ({seen})", *tested])
