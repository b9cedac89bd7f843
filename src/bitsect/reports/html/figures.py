"""Figures as data: what Plotly draws, made of a story; @name is a colour of the page's theme."""

from __future__ import annotations

import html
import math
from typing import Any

from ...values.evaluation import accuracy_shown
from ...values.format import Format, rank
from ...values.shown import Histogram, Interaction, LayerValues, short
from ..order import seriated
from ..story import CurveStory, Scored, Story

Figure = dict[str, Any]
MOST_PAIRED = 300  # layers that a heat map shows: those that hurt most in pairs
FEW_CODES = 40  # up to so many codes are drawn one by one
LOG_FROM = 30.0  # the largest score over the smallest, from which on an axis is logarithmic


def formats_shown(story: Story) -> dict[str, str]:
    """The colour of every format, by its name in the theme."""
    names = {*story.formats, "float"}
    for point in story.curve.points if story.curve is not None else ():
        names |= {name for name in point.formats if _is_format(name)}
    ordered = sorted(names, key=lambda name: rank(Format.parse(name)))
    others = [name for name in ordered if name not in ("float", "int8", "int4")]
    colours = {"float": "float", "int8": "int8", "int4": "int4"}
    colours |= {name: f"other{1 + place % 4}" for place, name in enumerate(others)}
    return {name: colours[name] for name in ordered}


def _is_format(name: str) -> bool:
    try:
        Format.parse(name)
    except Exception:  # a file may say anything
        return False
    return True


def curve_figure(curve: CurveStory, axis: str) -> Figure:
    """Accuracy against latency or size, both as shares of the network in float at 16 bits."""
    able = [point for point in curve.points if getattr(point, axis) is not None]
    known = [point for point in able if not point.is_plan and not _is_uniform(point.names)]
    uniform = [point for point in able if _is_uniform(point.names) and not point.is_plan]
    hull = sorted((point for point in able if point.on_hull), key=lambda point: getattr(point, axis))
    path = sorted((p for p in able if p.order is not None and p.complete), key=lambda point: point.order or 0)
    cost = "latency" if axis == "latency_ratio" else "size"

    def dots(points: list[Any], name: str, marker: dict[str, Any], **more: Any) -> Figure:
        return {
            "type": "scatter",
            "mode": "markers",
            "name": name,
            "x": [100 * getattr(point, axis) for point in points],
            "y": [100 * point.accuracy for point in points],
            "text": [_hover(point, cost, curve) for point in points],
            "hovertemplate": "%{text}<extra></extra>",
            "marker": marker,
            **more,
        }

    whole = [point for point in known if point.complete]
    partly = [point for point in known if not point.complete]
    traces = [
        {
            **dots(path, "the search's path", {}),
            "mode": "lines",
            "hoverinfo": "skip",
            "hovertemplate": None,
            "line": {"color": "@faint", "width": 1.2, "dash": "dot"},
        },
        {
            **dots(hull, "what no other beats", {}),
            "mode": "lines",
            "hoverinfo": "skip",
            "hovertemplate": None,
            "line": {"color": "@accent", "width": 2, "shape": "linear"},
        },
        dots(whole, "evaluated plans", {"color": "@muted", "size": 8, "opacity": 0.85}),
        dots(partly, "given up early", {"color": "@muted", "size": 8, "symbol": "circle-open"}),
        dots(
            uniform,
            "one format for all",
            {"color": "@text", "size": 11, "symbol": "diamond"},
            mode="markers+text",
            textfont={"size": 12},
            cliponaxis=False,
        ),
        dots([p for p in able if p.is_plan], "the plan", {"color": "@accent", "size": 18, "symbol": "star"}),
    ]
    for trace in traces:
        if trace["name"] == "one format for all":
            trace["texttemplate"] = [clean(_short_name(point.names)) for point in uniform]
            trace["textposition"] = "bottom center"
    shapes, notes = [], []
    if curve.needed is not None:
        shapes.append(_line(100 * curve.needed, "@bad"))
        notes.append(_note(100 * curve.needed, f"target {100 * curve.needed:.2f}%", "@bad"))
    return {
        "data": [trace for trace in traces if len(trace["x"])],
        "layout": {
            "xaxis": {"title": {"text": f"{cost}, % of float at 16 bits"}, "ticksuffix": "%"},
            "yaxis": {"title": {"text": "accuracy on the searched samples"}, "ticksuffix": "%"},
            "shapes": shapes,
            "annotations": notes,
            "showlegend": True,
        },
    }


def scores_figure(scored: Scored, formats: dict[str, str], colours: dict[str, str], by_score: bool) -> Figure:
    """The scores of all layers, coloured by what the plan gives them, with the threshold that parts them."""
    scores = scored.scores
    errors = scores.standard_error or (None,) * len(scores.layers)
    rows = list(zip(range(len(scores.layers)), scores.layers, scores.values, errors, strict=True))
    if by_score:
        rows.sort(key=lambda row: (row[2], row[0]))
    positive = [value for value in scores.values if value > 0]
    log = min(scores.values, default=0.0) >= 0 and bool(positive)
    log = log and max(positive) / min(positive) > LOG_FROM
    traces = []
    for name in (*colours, ""):
        mine = [(x, row) for x, row in enumerate(rows) if formats.get(row[1], "") == name]
        if mine:
            traces.append(_score_trace(mine, name, "@" + colours.get(name, "muted"), log))
    shapes, notes = [], []
    if scored.threshold is not None and (scored.threshold > 0 or not log):
        shapes.append(_line(scored.threshold, "@text"))
        height = math.log10(scored.threshold) if log else scored.threshold
        notes.append(_note(height, f"threshold {scored.threshold:.3g}", "@text"))
    names = [clean(row[1]) for row in rows]
    return {
        "data": traces,
        "layout": {
            "barmode": "overlay",
            "bargap": 0.25,
            "xaxis": {
                "tickvals": list(range(len(rows))),
                "ticktext": names,
                "tickangle": -60,
                "automargin": True,
            }
            if len(rows) <= 60
            else {
                "title": {"text": "layers by rising score" if by_score else "layers along the network"},
                "showticklabels": False,
            },
            "yaxis": {
                "title": {"text": f"score by {clean(scores.called)}"},
                "type": "log" if log else "linear",
            }
            | {"exponentformat": "power"}
            | ({"dtick": 1} if log else {}),
            "shapes": shapes,
            "annotations": notes,
            "showlegend": True,
        },
    }


def _score_trace(mine: list[Any], format: str, colour: str, log: bool) -> Figure:
    # Bars that start at 0 have no place on a logarithmic axis: there a score is a dot.
    shape = {"type": "scatter", "mode": "markers", "marker": {"color": colour, "size": 7}}
    if not log:
        shape = {"type": "bar", "marker": {"color": colour}, "textposition": "none"}
    errors = [row[3] for _, row in mine]
    known = any(error is not None for error in errors)
    return {
        **shape,
        "name": clean(format) or "no plan yet",
        "x": [x for x, _ in mine],
        "y": [row[2] if row[2] > 0 or not log else None for _, row in mine],
        "text": [clean(row[1]) for _, row in mine],
        "customdata": [row[0] for _, row in mine],
        "hovertemplate": "<b>%{text}</b><br>%{y:.4g}"
        + ("±%{error_y.array:.2g}" if known else "")
        + "<extra></extra>",
    } | (
        {
            "error_y": {
                "array": short([error or 0.0 for error in errors]),
                "thickness": 1,
                "width": 0,
                "color": "@muted",
            }
        }
        if known
        else {}
    )


def pairs_data(found: Interaction) -> Figure:
    """A table of pairs, for a heat map: its upper half, and the order that puts like layers together."""
    if len(found.layers) > MOST_PAIRED:
        found = strongest(found, MOST_PAIRED)
    return {
        "title": f"{found.measure} at {found.format}",
        "names": [clean(name) for name in found.layers],
        "upper": found.to_json()["upper"],
        "clustered": seriated(found.table),
    }


def strongest(found: Interaction, count: int) -> Interaction:
    """The `count` layers that hurt most in pairs, in graph order."""
    import numpy as np

    total = np.nan_to_num(np.abs(found.table)).sum(axis=1)
    kept = np.sort(np.argsort(-total, kind="stable")[:count])
    names = tuple(found.layers[i] for i in kept)
    return Interaction(found.measure, found.format, names, found.table[np.ix_(kept, kept)])


def values_data(values: LayerValues) -> Figure:
    """The histograms of a layer, as short as they can be said."""
    return {
        "format": values.format,
        "weights": values.weights and _histogram(values.weights),
        "inputs": values.inputs and _histogram(values.inputs),
    }


def _histogram(found: Histogram) -> Figure:
    data: Figure = {"low": _digits(found.low), "high": _digits(found.high), "counts": list(found.counts)}
    if found.clip is not None and found.step is not None and found.bits is not None:
        codes = 1 + round((found.clip[1] - found.clip[0]) / found.step) if found.step else 0
        data |= {
            "bits": found.bits,
            "clip": [_digits(end) for end in found.clip],
            "step": _digits(found.step),
            "beyond": _digits(found.beyond),
            "drawn": 0 < codes <= FEW_CODES,
        }
    return data


def _digits(value: float) -> float | None:
    return short([value])[0]


def _is_uniform(names: tuple[str, ...]) -> bool:
    return any(
        name == "float" or name.startswith("all ") or name.endswith(" where allowed") for name in names
    )


def _short_name(names: tuple[str, ...]) -> str:
    (first, *_) = [name for name in names if _is_uniform((name,))]
    return first


def _hover(point: Any, cost: str, curve: CurveStory) -> str:
    """What is said of a plan, a fact per line."""
    on = "" if point.samples == 1 else f" on {point.samples:,} samples"
    accuracy = accuracy_shown(point.accuracy, point.samples)
    lines = [f"<b>{clean(point.label)}</b>", f"accuracy {accuracy}{on}"]
    if not point.complete:
        lines[-1] += ", then given up"
    lines.append(f"size {point.size_ratio:.1%}")
    if point.latency_ratio is not None:
        ms = "" if point.latency_ms is None else f" ({point.latency_ms:.3g} ms)"
        lines.append(f"latency {point.latency_ratio:.1%}{ms}")
    lines.append(", ".join(f"{count} {clean(name)}" for name, count in point.formats.items() if count))
    return "<br>".join(lines)


def _line(at: float, colour: str) -> Figure:
    place = {"xref": "paper", "x0": 0, "x1": 1, "y0": at, "y1": at}
    return {"type": "line", **place, "line": {"color": colour, "width": 1.2, "dash": "dash"}}


def _note(at: float, text: str, colour: str) -> Figure:
    return {
        "xref": "paper",
        "x": 1,
        "xanchor": "right",
        "y": at,
        "yanchor": "bottom",
        "text": text,
        "showarrow": False,
        "font": {"color": colour, "size": 12},
    }


def clean(text: str) -> str:
    """`text` as Plotly shows it to the letter: it takes tags for its own."""
    return html.escape(text, quote=False)
