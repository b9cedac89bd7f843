"""The answer of a run: what result.json says, as the rows and the verdict of a story."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from ..solve.looks import NOT_EXPECTED, ONLY_EXPECTED
from ..values.target import Target
from .story import BAD, GOOD, OPEN, UNSURE, Seen, ShownPromise, ShownRow, ShownVerdict

Json = dict[str, Any]


def answer_of(result: Json) -> Json:
    """What result.json says, as fields of a story."""
    promise = _promise(result.get("promise"))
    rows = tuple(_rows(result, promise))
    target = result["target"]
    measured = result.get("measured") or {}
    return {
        "target": text(target),
        "promise": promise,
        "rows": rows,
        "verdict": _verdict(result, rows, promise),
        "notes": tuple(str(note).removesuffix(".") for note in result["notes"]),
        "reason": str(result["reason"]),
        "agreement": bool(result["agreement"]),
        "judge": text(result["judge"]),
        "latency_source": text(result.get("latency_source")),
        "runtime": f"{measured['runtime']}, {_threads(measured['threads'])}" if measured else None,
    }


def _rows(result: Json, promise: ShownPromise | None) -> Iterator[ShownRow]:
    uniform = {str(row.get("name", f"all {name}")): row for name, row in result["uniform"].items()}
    test = result.get("test") or {}
    tested = {name: test[name] for name in ("float", "plan") if name in test}
    tested |= {str(row.get("name")): row for row in (test.get("uniform") or {}).values()}
    held_out = (result.get("promise") or {}).get("accuracy", {})
    times = (result.get("measured") or {}).get("plans", {})
    for name, row in {"float": result["float"], **uniform, "plan": result["plan"]}.items():
        seen, took = tested.get(name), times.get(name, {})
        yield ShownRow(
            name,
            _seen(row),
            1e6 * float(row["size_mb"]),
            float(row["size_ratio"]),
            number(row.get("loss")),
            Seen.of(float(held_out[name]), promise.samples) if promise and name in held_out else None,
            _seen(seen) if seen else None,
            number(row.get("latency_ms")),
            number(row.get("latency_ratio")),
            number(took.get("measured_ms")),
            number(took.get("measured_ratio")),
        )


def _seen(row: Json) -> Seen:
    return Seen.of(float(row["accuracy"]), int(row["samples"]))


def _promise(data: Json | None) -> ShownPromise | None:
    if data is None:
        return None
    return ShownPromise(
        str(data["verdict"]),
        bool(data["proven"]),
        int(data["samples"]),
        float(data["confidence"]),
        number(data.get("kept")),
        number(data.get("lost")),
        number(data["bound"]),
    )


def _verdict(result: Json, rows: tuple[ShownRow, ...], promise: ShownPromise | None) -> ShownVerdict:
    target, met = result["target"], bool(result["target_met"])
    if target is None:
        spent = result["goal"].get("budget") or result["goal"].get("max_size")
        return ShownVerdict(OPEN, f"The most accurate plan within {spent}", "no target was asked for")
    asked = Target.parse(target)
    kept = _kept(asked, bool(result["agreement"]), bool(result["judge"]))
    if promise is not None:
        seen = _shown(promise, str(result["promise"].get("seen")) if asked.perplexity else None)
        if promise.proven:
            return ShownVerdict(GOOD, f"It {kept[0]}", f"proven {seen}")
        if result["target_met"] is None:
            verdict, _, why = promise.verdict.partition(": ")
            can = "is expected to" if verdict == ONLY_EXPECTED else "may"
            can = "is not expected to" if promise.verdict == NOT_EXPECTED else can
            return ShownVerdict(UNSURE, f"It {can} {kept[1]}", f"not proven {seen}; {why}".removesuffix("; "))
        return ShownVerdict(BAD, f"It {kept[2]}", seen)
    tested = rows[-1].tested
    if tested is not None:
        met = bool(result["test"]["target_met"])
        seen = f"on {tested.samples:,} test samples that the search has not seen"
        return ShownVerdict(GOOD if met else BAD, f"It {kept[0] if met else kept[2]}", seen)
    seen = "on the samples that were searched on; no others were looked at"
    return ShownVerdict(UNSURE if met else BAD, f"It {kept[0] if met else kept[2]}", seen)


def _kept(target: Target, agreement: bool, judge: bool) -> tuple[str, str, str]:
    """What a plan does that keeps the target, what it seems to do, and what one does that misses it."""
    of = "your own figure" if judge else "accuracy"
    if target.perplexity is not None:
        said = f"perplexity within {str(target).removeprefix('perplexity ')} of float's"
        return f"keeps {said}", f"keep {said}", f"does not keep {said}"
    if target.relative is None:
        of = "agreement with the float network" if agreement else of
        points = str(target).removeprefix("max drop ")
        lost = f"at most {points} of {of}"
        return f"loses {lost}", f"lose {lost}", f"loses more than {points} of {of}"
    if agreement:
        said = f"with the float network on {target} of the samples"
        return f"agrees {said}", f"agree {said}", f"does not agree {said}"
    share = f"{target} of {of}" if judge else f"{target} of its {of}"
    return f"keeps {share}", f"keep {share}", f"does not keep {share}"


def _shown(promise: ShownPromise, words: str | None) -> str:
    seen = f"on {promise.samples:,} held-out samples that the search has not seen"
    if words is not None:
        return f"{seen}: {words}"
    if promise.kept is not None:
        seen += f": {promise.kept:.2%} kept"
        least = "" if promise.bound is None else f", at least {promise.bound:.2%}"
    else:
        assert promise.lost is not None
        seen += f": {100 * promise.lost:.2f} points lost"
        least = "" if promise.bound is None else f", at most {100 * promise.bound:.2f}"
    return f"{seen}{least} with {promise.confidence:.0%} confidence" if least else seen


def _threads(count: Any) -> str:
    return "one thread" if count == 1 else f"{count} threads"


def number(value: Any) -> float | None:
    """A finite number, or None."""
    if value is None:
        return None
    number = float(value)
    return number if math.isfinite(number) else None


def text(value: Any) -> str | None:
    return None if value is None else str(value)
