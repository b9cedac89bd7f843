"""The paper's figures, drawn with matplotlib: a panel for each network."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from .data import Data, Network

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Drawn = Mapping[str, Data]  # everything that was made, by its name
Draw = Callable[[Drawn, Sequence[Network]], "Figure | None"]

# Okabe and Ito's colours, which people with any colour vision tell apart.
COLOURS = {
    "hessian": "#0072b2",
    "aughessian": "#009e73",
    "interlayer": "#e69f00",
    "random": "#999999",
    "damage": "#d55e00",
}
MARKERS = {"bisection": "o", "literal": "o", "progressive": "s", "literal-progressive": "s", "frontier": "D"}
WIDTH, HEIGHT = 4.3, 3.3  # inches of a panel
SHOWN = ("99%", "99.9%")  # targets whose thresholds are drawn
NAMED_LAYERS = 24  # more names than this would not be read


def accuracy_against_latency(data: Data, networks: Sequence[Network]) -> Figure:
    """What is kept against relative latency: a line for each contender, a point for each target."""
    figure, axes = _panels(networks)
    for axis, network in zip(axes[0], networks, strict=True):
        rows = [row for row in data.of(network.name) if row["latency_ratio"] is not None]
        tested = bool(rows) and all(row["test_kept"] is not None for row in rows)
        kept = "test_kept" if tested else "kept"
        for metric, search in dict.fromkeys((row["metric"], row["search"]) for row in rows):
            own = [row for row in rows if (row["metric"], row["search"]) == (metric, search)]
            points = [
                (*_mean(own, target, kept), target) for target in dict.fromkeys(r["target"] for r in own)
            ]
            points.sort()
            x, y, _ = zip(*points, strict=True)
            for place in dict.fromkeys(zip(x, y, strict=True)):
                words = ", ".join(target for *where, target in points if tuple(where) == place)
                axis.annotate(words, place, (5, -9), textcoords="offset points", fontsize=6, alpha=0.7)
            axis.plot(
                x,
                y,
                marker=MARKERS.get(search, "o"),
                linestyle="-" if search in ("bisection", "literal") else "--",
                color=COLOURS.get(metric),
                alpha=0.85,
                label=f"{network.label(metric)}, {search}",
            )
        axis.set_xlabel("latency, % of 16 bits")
        axis.set_ylabel(f"accuracy kept on {'test' if tested else 'searched'} samples, %")
        axis.grid(alpha=0.25)
        _legend(axis)
    return figure


def _mean(rows: Sequence[Mapping[str, Any]], target: str, kept: str) -> tuple[float, float]:
    own = [row for row in rows if row["target"] == target]
    return (
        100 * float(np.mean([row["latency_ratio"] for row in own])),
        100 * float(np.mean([row[kept] for row in own])),
    )


def _figure2(made: Drawn, networks: Sequence[Network]) -> Figure:
    return accuracy_against_latency(made["figure2"], networks)


def _figure4(made: Drawn, networks: Sequence[Network]) -> Figure:
    return accuracy_against_latency(made["figure4"], networks)


def pairs_and_scores(made: Drawn, networks: Sequence[Network]) -> Figure:
    """Excess loss of every pair above, scores of every layer below."""
    figure, axes = _panels(networks, rows=2)
    for column, network in enumerate(networks):
        _heat_map(axes[0][column], made["figure3"].of(network.name), network.layers)
        if "scores" in made:
            _scores(axes[1][column], made["scores"].of(network.name), network)
    return figure


def _heat_map(axis: Axes, rows: Sequence[Mapping[str, Any]], layers: int) -> None:
    """Pairs within two standard errors of none are grey: they may be noise."""
    matrix, unsure = np.full((2, layers, layers), np.nan)
    for row in rows:
        i, j = row["first_place"], row["second_place"]
        noise = row["standard_error"] is None or abs(row["excess"]) <= 2 * row["standard_error"]
        (unsure if noise else matrix)[[i, j], [j, i]] = row["excess"]
    known = np.abs(matrix[np.isfinite(matrix)])
    axis.imshow(np.where(np.isnan(unsure), np.nan, 0.75), cmap="gray", vmin=0, vmax=1)
    # One pair that is far beyond all others must not make the rest white.
    most = float(np.quantile(known, 0.99)) if known.size else 0.0
    image = axis.imshow(matrix, cmap="RdBu_r", vmin=-most or None, vmax=most or None, interpolation="nearest")
    axis.set_xlabel("layer")
    axis.set_ylabel("layer")
    axis.locator_params(integer=True)
    bar = axis.figure.colorbar(image, ax=axis, shrink=0.85, extend="both")
    bar.set_label("excess loss of the pair at 8 bits (grey: within 2 standard errors)", fontsize=7)


def _scores(axis: Axes, rows: Sequence[Mapping[str, Any]], network: Network) -> None:
    for metric in dict.fromkeys(row["metric"] for row in rows):
        own = [row for row in rows if row["metric"] == metric]
        axis.plot(
            [row["place"] for row in own],
            [row["against_mean"] for row in own],
            marker=".",
            color=COLOURS.get(metric),
            alpha=0.85,
            label=network.label(metric),
        )
    axis.set_yscale("symlog", linthresh=0.1)
    axis.set_ylabel("score, of the mean layer's")
    axis.grid(alpha=0.25)
    _layer_axis(axis, [row["layer"] for row in rows if row["metric"] == rows[0]["metric"]])
    _legend(axis)


def bits_of_layers(made: Drawn, networks: Sequence[Network]) -> Figure:
    """Bars as high as the bits of each layer, by curvature alone and augmented, at two targets."""
    data = made["figure5"]
    targets = list(dict.fromkeys(row["target"] for row in data.rows))
    figure, axes = _panels(networks, rows=len(targets), height=1.9, wide=1.5)
    for column, network in enumerate(networks):
        rows = _first_draw(data.of(network.name))
        metrics = list(dict.fromkeys(row["metric"] for row in rows))
        for axis, target in zip((line[column] for line in axes), targets, strict=True):
            for number, metric in enumerate(metrics):
                own = [row for row in rows if (row["metric"], row["target"]) == (metric, target)]
                width = 0.8 / len(metrics)
                places = [row["place"] + (number - (len(metrics) - 1) / 2) * width for row in own]
                axis.bar(
                    places,
                    [row["bits"] for row in own],
                    width,
                    color=COLOURS.get(metric),
                    label=network.label(metric),
                )
            axis.set_yticks([4, 8, 16])
            axis.set_ylabel(f"bits at {target.replace('%', ' %')}")
            axis.grid(axis="y", alpha=0.25)
        _legend(axes[0][column])
        _layer_axis(
            axes[-1][column], list(dict.fromkeys(row["layer"] for row in rows)), above=axes[:-1, column]
        )
    return figure


def _first_draw(rows: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    return [row for row in rows if row["draw"] == rows[0]["draw"]]


def error_bars(made: Drawn, networks: Sequence[Network]) -> Figure:
    """Mean latency with its standard deviation over draws, by target."""
    data = made["error-bars"]
    figure, axes = _panels(networks)
    for axis, network in zip(axes[0], networks, strict=True):
        rows = [row for row in data.of(network.name) if row.get("latency_ratio") is not None]
        targets = list(dict.fromkeys(row["target"] for row in rows))
        for number, metric in enumerate(dict.fromkeys(row["metric"] for row in rows)):
            own = [row for row in rows if row["metric"] == metric]
            axis.errorbar(
                [targets.index(row["target"]) + 0.12 * number for row in own],
                [100 * row["latency_ratio"] for row in own],
                [100 * (row["latency_ratio_sd"] or 0.0) for row in own],
                marker="o",
                capsize=3,
                color=COLOURS.get(metric),
                label=network.label(metric),
            )
        axis.set_xticks(range(len(targets)), [target.replace("%", " %") for target in targets])
        axis.set_xlabel("target")
        axis.set_ylabel(f"latency, % of 16 bits, {rows[0]['draws'] if rows else 0} draws")
        axis.grid(alpha=0.25)
        _legend(axis)
    return figure


def thresholds(made: Drawn, networks: Sequence[Network]) -> Figure:
    """Scores of all layers, and the scores at which 8 and 4 bits end."""
    data, scored = made["thresholds"], made["scores"]
    metrics = list(dict.fromkeys(row["metric"] for row in data.rows))
    figure, axes = _panels(networks, rows=len(metrics))
    for column, network in enumerate(networks):
        for axis, metric in zip((line[column] for line in axes), metrics, strict=True):
            rows = [row for row in scored.of(network.name) if row["metric"] == metric]
            axis.scatter(
                [row["place"] for row in rows], [row["score"] for row in rows], s=14, color=COLOURS[metric]
            )
            ends = [
                row for row in data.of(network.name) if row["metric"] == metric and row["score"] is not None
            ]
            shown = {row["target"] for row in ends} & set(SHOWN) or {row["target"] for row in ends}
            for row in ends:
                if row["target"] in shown:
                    axis.axhline(
                        row["score"],
                        linestyle="--" if row["bits"] == 8 else ":",
                        color=COLOURS[metric],
                        alpha=0.5 if row["target"] == SHOWN[0] else 1.0,
                        label=f"{row['target'].replace('%', ' %')}, {row['bits']} bits: "
                        f"{row['layers']} of {row['of']} layers",
                    )
            positive = [row["score"] for row in rows if row["score"] > 0]
            axis.set_yscale("symlog", linthresh=min(positive, default=1.0))
            most = max((row["score"] for row in rows), default=1.0)
            axis.set_ylim(
                min((row["score"] for row in rows if row["score"] < 0), default=0.0), 3 * most or 1.0
            )
            axis.set_ylabel(f"{network.label(metric)} score")
            axis.grid(alpha=0.25)
            _legend(axis, title="at or below the line")
        named = [row["layer"] for row in scored.of(network.name) if row["metric"] == metrics[0]]
        _layer_axis(axes[-1][column], named, above=axes[:-1, column])
    return figure


FIGURES: dict[str, tuple[str, Draw]] = {
    "figure2": ("Figure 2: bisection and progressive search by curvature, and in random order", _figure2),
    "figure3": ("Figure 3: excess loss of pairs of layers, and the scores of layers", pairs_and_scores),
    "figure4": ("Figure 4: accuracy against latency, curvature alone and augmented", _figure4),
    "figure5": ("Figure 5: the bit-width of every layer", bits_of_layers),
    "error-bars": ("Figure 6: latency over several draws of the samples", error_bars),
    "thresholds": ("Figure 7: scores, and where 8 and 4 bits end", thresholds),
}


def _panels(
    networks: Sequence[Network], rows: int = 1, height: float = HEIGHT, wide: float = 1.0
) -> tuple[Figure, Any]:
    from matplotlib.figure import Figure

    figure = Figure(
        figsize=(wide * WIDTH * len(networks), height * rows + 0.4), layout="constrained", dpi=110
    )
    axes = figure.subplots(rows, len(networks), squeeze=False)
    for axis, network in zip(axes[0], networks, strict=True):
        axis.set_title(network.name, parse_math=False)  # a dollar in a name is a dollar
    return figure, axes


def _layer_axis(axis: Axes, names: Sequence[str], above: Sequence[Axes] = ()) -> None:
    """Layers along the axis: by name where they are few, else by number."""
    if len(names) <= NAMED_LAYERS:
        axis.set_xticks(range(len(names)), names, rotation=60, ha="right", fontsize=7, parse_math=False)
        for other in above:
            other.set_xticks(range(len(names)), [""] * len(names))
    else:
        axis.set_xlabel("layer, in the order of the network")


def _legend(axis: Axes, title: str | None = None) -> None:
    if axis.get_legend_handles_labels()[0]:
        axis.legend(fontsize=8, title=title, title_fontsize=8, framealpha=0.7)
