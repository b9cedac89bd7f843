"""The page of a verdict on quantised files: one file that needs no network."""

from __future__ import annotations

from pathlib import Path

from ...runs.disk import write_text
from ...values.verdict import FAULT, MISSED, PROVEN, UNPROVEN, Verdict
from .page import POLICY, check_extra, environment, style

TONES = {PROVEN: "good", UNPROVEN: "unsure", MISSED: "bad", FAULT: "bad"}


def write_verdict(verdict: Verdict, path: Path) -> None:
    write_text(path, verdict_page(verdict))


def verdict_page(verdict: Verdict) -> str:
    """The whole page; the same verdict makes the same bytes."""
    check_extra()
    worst = max((each.outcome for each in verdict.files), key=[PROVEN, UNPROVEN, MISSED, FAULT].index)
    context = {
        "verdict": verdict,
        "rows": (verdict.reference, *verdict.files),
        "tone": TONES[worst],
        "tones": TONES,
        "threads": sorted(verdict.reference.ms),
        "policy": POLICY,
        "style": style("body", page=True),
    }
    return str(environment().get_template("verdict.html.jinja").render(context))
