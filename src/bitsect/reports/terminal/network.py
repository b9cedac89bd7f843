"""layers, latency and sensitivity: what is known of the layers of a network before any plan."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...values.comparison import Comparison
from ...values.cost import megabytes
from ...values.scores import Scores
from .lines import Aside, Lines, add_row, count, table_of, wrapped

if TYPE_CHECKING:
    from ...pipeline.latency import Latencies

ROOMY = 90  # columns in which the shape of weights is shown too; --json always has it
BAR = 30  # columns of the longest bar


def layers_lines(found: dict[str, Any], width: int) -> Lines:
    """The layers of a network, its totals, and what stays in float and why."""
    roomy = width >= ROOMY
    heads = ["weight", "weights", "multiply-adds", "places"] if roomy else ["weights", "multiply-adds"]
    table = table_of("layer", "kind", *heads, title=found["model"])
    for layer in found["layers"]:
        numbers = [count(layer["weights"]), count(layer["macs"])]
        if roomy:
            shape = "×".join(map(str, layer["weight_shape"] or ["–"]))
            numbers = [shape, *numbers, str(len(layer["places"]))]
        add_row(table, layer["name"], layer["kind"], *numbers)
    yield table
    totals, compared = found["totals"], found["difference"]
    sizes = [f"{megabytes(1e6 * size)} at {bits} bits" for bits, size in totals["size_mb"].items()]
    yield wrapped(
        f"\n{totals['layers']} layer{'' if totals['layers'] == 1 else 's'}, {totals['weights']:,} weights, "
        f"{count(totals['macs'])} multiply-adds per sample; {', '.join(sizes)}"
    )
    if compared is not None and Comparison.from_json(compared).is_noise:
        yield wrapped(
            f"Largest difference from the network on its example: {compared['difference']:.2g}, "
            "rounding noise."
        )
    for note in found["notes"]:
        yield f"Note: {note}."
    if found["unrolled"]:
        yield "Recurrent layers are unrolled: sequences are as long as the example's."
    if found["skipped"]:
        yield "\nStays in float:"
        for item in found["skipped"]:
            yield f"  {item['name']}: {item['reason']}"


def latency_lines(found: Latencies) -> Lines:
    """Milliseconds of every layer, and of uniform plans."""
    described, table = found.to_json(), found.table
    names = [format.name for format in found.formats]
    shown = table_of(
        "layer", "kind", *(f"{name}, ms" for name in names), title=f"{found.model} on {table.device}"
    )
    for layer in described["layers"]:
        cells = ["–" if layer["ms"].get(name) is None else f"{layer['ms'][name]:.4f}" for name in names]
        add_row(shown, layer["name"], layer["kind"], *cells)
    yield shown
    base = "float" if table.boundaries else "16 bit"
    yield wrapped(f"\n{base}: {described['baseline_ms']:.3f} ms")
    if table.boundaries:
        yield wrapped(f"besides the layers: {table.rest_ms:.3f} ms, and what rounding between them takes")
    for name, ratio in described["ratio"].items():
        if ratio is not None:
            yield wrapped(f"{name.replace('_', ' ')}: {ratio:.2%} of {base}")
    yield from map(Aside, [f"Source: {table.source}", *found.notes])


def scored(scores: Scores) -> list[dict[str, Any]]:
    """Each layer with its score and standard error, as JSON has it."""
    errors = scores.standard_error or (None,) * len(scores.layers)
    rows = zip(scores.layers, scores.values, errors, strict=True)
    return [{"name": name, "score": value, "standard_error": error} for name, value, error in rows]


def scores_lines(scores: Scores, until_stable: float | None) -> Lines:
    """The layers by their scores, the most sensitive first, and how far that order can be relied on."""
    title = ", ".join(filter(None, [f"{scores.called} at {scores.format}", scores.draws]))
    table = table_of("layer", "score", "± error", "", title=title)
    largest = max(map(abs, scores.values), default=0.0) or 1.0
    for row in sorted(scored(scores), key=lambda row: -row["score"]):
        error = "–" if row["standard_error"] is None else f"{row['standard_error']:.2g}"
        bar = "█" * round(BAR * max(0.0, row["score"]) / largest)
        add_row(table, row["name"], f"{row['score']:.4g}", error, bar)
    yield table
    if scores.split_half is not None:
        yield Aside(f"Two halves of them agree on this order to {scores.split_half:.2f} (rank correlation).")
    if scores.probing is not None:
        yield from map(Aside, (*scores.probing.meaning(), *scores.probing.doubts()))
    if until_stable is not None:
        reached = (scores.split_half or 0.0) >= until_stable
        yield Aside(f"{'Stable' if reached else 'Not stable'} at {until_stable:g} with {scores.draws}.")
