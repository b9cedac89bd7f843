"""The page: a story in a template, with figures as data and everything it needs inside."""

from __future__ import annotations

import base64
import gzip
import json
import math
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ...errors import MissingExtraError
from ...values.cost import megabytes
from ..story import LayerStory, Seen, Story
from .figures import curve_figure, formats_shown, pairs_data, scores_figure, values_data
from .strip import strip_of

HERE = Path(__file__).parent
WORST_PAIRS = 8
MOST_PAIR_TABLES = 4  # each is a square of the layers
# Nothing is fetched: the page is what is in it.
POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:"


def has_extra() -> bool:
    """Whether pages can be made here."""
    return all(find_spec(name) is not None for name in ("jinja2", "plotly"))


def check_extra() -> None:
    """Refuse to make a page where a library is missing, by its name."""
    for name in ("jinja2", "plotly"):
        if find_spec(name) is None:
            raise MissingExtraError(name, "report", "a report")


def page(story: Story) -> str:
    """The whole page; the same story makes the same bytes."""
    check_extra()
    colours = formats_shown(story)
    context = {
        "story": story,
        "colours": colours,
        "policy": POLICY,
        "style": style("body", page=True),
        "script": (HERE / "report.js").read_text(encoding="utf-8"),
        "plotly": _plotly() if has_figures(story) else "",
        "data": json_text(figures_of(story, colours)),
        "layers": list(table_rows(story)),
        "strip": strip_of(story),
        "worst": [(found, found.worst(WORST_PAIRS)) for found in shown_pairs(story)],
    }
    return str(environment().get_template("report.html.jinja").render(context))


def excerpt(story: Story) -> str:
    """The beginning of the page as a piece of HTML without scripts, for notebooks."""
    context = {
        "story": story,
        "colours": formats_shown(story),
        "style": style(".bitsect-excerpt", page=False),
        "strip": strip_of(story),
    }
    return str(environment().get_template("excerpt.html.jinja").render(context))


def has_figures(story: Story) -> bool:
    return bool(story.scored or story.pairs or story.values or (story.curve and len(story.curve.points) > 1))


def shown_pairs(story: Story) -> list[Any]:
    return list(story.pairs[:MOST_PAIR_TABLES])


def figures_of(story: Story, colours: dict[str, str]) -> dict[str, Any]:
    """Everything that is drawn when somebody looks."""
    formats = {layer.name: layer.format for layer in story.layers if layer.format is not None}
    data: dict[str, Any] = {"colours": colours, "curve": {}, "scores": [], "pairs": [], "values": {}}
    if story.curve is not None and len(story.curve.points) > 1:
        if story.curve.timed:
            data["curve"]["latency"] = curve_figure(story.curve, "latency_ratio")
        data["curve"]["size"] = curve_figure(story.curve, "size_ratio")
    for scored in story.scored:
        both = {
            order: scores_figure(scored, formats, colours, by_score)
            for order, by_score in (("network", False), ("score", True))
        }
        data["scores"].append({"title": scored.name, **both})
    data["pairs"] = [pairs_data(found) for found in shown_pairs(story)]
    index = {layer.name: place for place, layer in enumerate(story.layers)}
    data["values"] = {
        index[name]: values_data(values) for name, values in story.values.items() if name in index
    }
    data["names"] = [layer.name for layer in story.layers]
    return data


def table_rows(story: Story) -> Any:
    """The rows of the table of layers."""
    own = story.scored[0].scores if story.scored else None
    score = dict(zip(own.layers, own.values, strict=True)) if own is not None else {}
    blame = {each.name: each.share for each in story.blame.layers} if story.blame is not None else {}
    macs = sum(layer.macs for layer in story.layers)
    for place, layer in enumerate(story.layers):
        yield {
            "place": place,
            "layer": layer,
            "share": layer.macs / macs if macs else 0.0,
            "score": score.get(layer.name),
            "blame": blame.get(layer.name),
        }


def json_text(data: Any) -> str:
    """JSON that may stand inside a script: no tag can begin or end in it, and no NaN."""
    text = json.dumps(_finite(data), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    for sign, code in (("&", "\\u0026"), ("<", "\\u003c"), (">", "\\u003e")):
        text = text.replace(sign, code)
    return text.replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(key): _finite(each) for key, each in value.items()}
    return [_finite(each) for each in value] if isinstance(value, list | tuple) else value


@cache
def style(within: str, page: bool) -> str:
    """The theme, the shared pieces inside of `within`, and what a page has besides."""
    theme, parts, own = (
        (HERE / f"{name}.css").read_text(encoding="utf-8") for name in ("theme", "parts", "report")
    )
    return f"{theme}{within} {{\n{parts}}}\n" + (own if page else "")


@cache
def _plotly() -> str:
    """Plotly's own file, compressed: a third of its size, which the browser unpacks."""
    spec = find_spec("plotly")
    assert spec is not None
    assert spec.submodule_search_locations
    (where, *_) = spec.submodule_search_locations
    source = (Path(where) / "package_data" / "plotly.min.js").read_bytes()
    return base64.b64encode(gzip.compress(source, 9, mtime=0)).decode()


@cache
def environment() -> Any:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    made = Environment(
        loader=FileSystemLoader(HERE),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {
        "percent": percent,
        "megabytes": megabytes,
        "count": count,
        "seen": seen,
        "short": lambda value: "–" if value is None else f"{value:.3g}",
        "ms": milliseconds,
        "words": words,
        "shape": shape,
        "breakable": breakable,
    }
    return made


def percent(value: float | None, digits: int = 2) -> str:
    """A share as people read it.

    >>> percent(0.9154), percent(None), percent(1.0, 0)
    ('91.54%', '–', '100%')
    """
    return "–" if value is None or not math.isfinite(value) else f"{100 * value:.{digits}f}%"


def milliseconds(value: float | None) -> str:
    """A time to three digits.

    >>> milliseconds(1.0), milliseconds(0.17649), milliseconds(123.4), milliseconds(None)
    ('1.00 ms', '0.176 ms', '123 ms', '–')
    """
    return "–" if value is None else f"{value:#.3g}".removesuffix(".") + " ms"


def seen(value: Seen | None) -> str:
    """An accuracy; a figure that is no share of samples as it is."""
    if value is None:
        return "–"
    return percent(value.accuracy) if value.samples > 1 else f"{value.accuracy:.4g}"


def count(number: int) -> str:
    """12,345 up to a million, then 1.23 M, 4.56 G."""
    for unit, size in (("G", 1e9), ("M", 1e6)):
        if number >= size:
            return f"{number / size:.2f} {unit}"
    return f"{number:,}"


def words(value: Any) -> str:
    """A setting as it is written on the command line."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def breakable(name: str) -> Any:
    """A dotted name that may be broken after its dots, and nowhere else."""
    from markupsafe import Markup, escape

    return Markup(".<wbr>").join(escape(part) for part in name.split("."))


def shape(layer: LayerStory) -> str:
    return "–" if layer.weight_shape is None else " × ".join(map(str, layer.weight_shape))
