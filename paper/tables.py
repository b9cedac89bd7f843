"""The paper's tables as Markdown, our rows beside what it prints."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from .data import Data, Network
from .printed import BERT, OTHERS, TABLES, TITLES, printed_figure, printed_rows
from .text import markdown_table, plain

PRINTED = {"hessian": "Hessian", "aughessian": "AugHessian", "interlayer": "inter-layer"}  # in the paper
METRICS = ("hessian", "aughessian", "interlayer", "random")  # in the order of the paper
MARKS = (
    ("†", "first and last layer at 8 bits"),
    ("‡", "as the paper marks it: rerun there"),
    ("⋆", "batch norm was fine-tuned"),
    ("§", "weights of up to 4 bits are re-fitted in closed form"),
    ("×", "the target is missed on the samples that were searched on"),
    ("¶", "accuracy on the samples that were searched on, for want of others"),
)


def comparison_table(data: Data, networks: Sequence[Network]) -> str:
    """Table 1, 2 or 3 of the paper with our rows, of networks that are most like its own."""
    return _comparison(TABLES[networks[0].beside], data, networks)


def other_work_table(data: Data, networks: Sequence[Network]) -> str:
    """The supplement's further rows, which it has for ResNet50 alone."""
    return _comparison(OTHERS, data, networks)


def _comparison(table: int, data: Data, networks: Sequence[Network]) -> str:
    """The columns of the paper, and who says so."""
    ours = [{**row, "origin": each.name} for each in networks for row in data.of(each.name)]
    shown, beside = [*printed_rows(table), *ours], networks[0].beside
    precision = ("W", "A", "E") if beside == BERT else ("W", "A")
    heads = ["", "who says so", "no FT", "accuracy", "kept", "MB", "size", "ms", "latency", *precision]
    rows = [_comparison_row(row, len(precision)) for row in shown]
    used = {mark for row in shown for mark in row["marks"]}
    notes = [f"{mark} {words}" for mark, words in MARKS if mark in used]
    named = ", ".join(plain(each.name) for each in networks)
    other = (
        f"`quoted`: the paper's figure for another work; `paper`: its own for {TITLES[beside]}; all else is "
        f"ours, for {named}, so that only shares compare."
    )
    return markdown_table(heads, rows) + "\n\n" + " ".join([other, *(f"{note}." for note in notes)])


def _comparison_row(row: Mapping[str, Any], precisions: int) -> list[str]:
    bits = [str(row[name]) for name in ("weights", "activations", "embeddings")][:precisions]
    figures = [
        _number(row["accuracy_percent"], " %"),
        _number(row["kept_percent"], " %"),
        _number(row["size_mb"]),
        _number(row["size_percent"], " %"),
        _number(row["latency_ms"]),
        _number(row["latency_percent"], " %"),
    ]
    return [f"{row['name']}{row['marks']}", row["origin"], row["no_fine_tuning"], *figures, *bits]


def _number(value: float | None, unit: str = "") -> str:
    if value is None:
        return "–"
    digits = 2 if abs(value) >= 1 or unit else 3
    return f"{value:.{digits}f}{unit}"


def greedy_table(data: Data, networks: Sequence[Network]) -> str:
    """Latency of bisection and of progressive search by target."""
    rows = sorted(data.rows, key=lambda row: (row["search"], METRICS.index(row["metric"])))
    keys = dict.fromkeys((row["metric"], row["search"]) for row in rows)

    def printed(network: Network, key: tuple[str, str], target: str) -> float | None:
        metric, search = key
        return printed_figure("greedy", network.beside, metric, target) if "progressive" in search else None

    return _by_target(data, networks, keys, printed)


def interlayer_table(data: Data, networks: Sequence[Network]) -> str:
    """Latency of a bisection by inter-layer dependencies alone, by target."""

    def printed(network: Network, key: tuple[str, str], target: str) -> float | None:
        return printed_figure("interlayer", network.beside, key[0], target)

    return _by_target(
        data, networks, {("interlayer", row["search"]): "inter-layer alone" for row in data.rows}, printed
    )


Key = tuple[str, str]


def _by_target(
    data: Data,
    networks: Sequence[Network],
    keys: Iterable[Key],
    printed: Callable[[Network, Key, str], float | None],
) -> str:
    """Relative latency: a row for each network and contender, a column for each target; the paper's below."""
    targets = list(dict.fromkeys(str(row["target"]) for row in data.rows))
    lines: list[list[str]] = []
    for network in networks:
        for key in keys:
            metric, search = key
            found = {t: _mean_latency(data, network.name, key, t) for t in targets}
            if any(value is not None for value in found.values()):
                lines.append(
                    [
                        network.name,
                        f"{network.label(metric)}, {search}",
                        *(_number(found[t], " %") for t in targets),
                    ]
                )
            known = {target: printed(network, key, target) for target in targets}
            if any(value is not None for value in known.values()):
                title = f"paper, {TITLES[network.beside]}"
                lines.append(
                    [title, PRINTED.get(metric, metric), *(_number(known[t], " %") for t in targets)]
                )
    return markdown_table(
        ["", "latency at target", *(target.replace("%", " %") for target in targets)], lines
    )


def _mean_latency(data: Data, network: str, key: Key, target: str) -> float | None:
    """In per cent of 16 bits, the mean over draws."""
    found = [
        100 * row["latency_ratio"]
        for row in data.of(network)
        if (row["metric"], row["search"], row["target"]) == (*key, target)
        and row["latency_ratio"] is not None
    ]
    return sum(found) / len(found) if found else None


def evaluations_table(data: Data, networks: Sequence[Network]) -> str:
    """Plans that the bisection asked about, at 8 and at 4 bits."""
    targets = list(dict.fromkeys(str(row["target"]) for row in data.rows))
    metrics = list(dict.fromkeys(str(row["metric"]) for row in data.rows))
    heads = ["", "", *(f"{target.replace('%', ' %')}, {bits} bit" for target in targets for bits in (8, 4))]
    lines = []
    for network in networks:
        title = f"paper, {TITLES[network.beside]}"
        for metric in metrics:
            rows = {r["target"]: r for r in data.of(network.name) if r["metric"] == metric}
            asked = [_asked(rows.get(target, {}), bits) for target in targets for bits in (8, 4)]
            lines.append([f"{network.name} ({network.layers} layers)", network.label(metric), *asked])
        for metric in metrics:
            known = [
                printed_figure("evaluations", network.beside, metric, target, bits)
                for target in targets
                for bits in ("8", "4")
            ]
            shown = ["–" if value is None else f"{value:.0f}" for value in known]
            lines.append([title, PRINTED.get(metric, metric), *shown])
    return markdown_table(heads, list(map(list, dict.fromkeys(map(tuple, lines)))))


def _asked(row: Mapping[str, Any], bits: int) -> str:
    if not row:
        return "–"
    return str(row.get(f"evaluations_int{bits}") or 0)


def spread_table(data: Data, networks: Sequence[Network]) -> str:
    """Means and standard deviations over draws, and the paired difference to the first contender."""
    heads = ["", "target", "order by", "latency", "difference", "kept", "kept on test", "draws"]
    lines: list[list[str]] = []
    known = {network.name: network for network in networks}
    for row in data.rows:
        low, high = row.get("latency_ratio_low"), row.get("latency_ratio_high")
        difference = "–" if low is None or high is None else f"[{100 * low:+.1f}, {100 * high:+.1f}]"
        figures = [_spread(row, name) for name in ("latency_ratio", "kept", "test_kept")]
        lines.append(
            [
                str(row["network"]),
                str(row["target"]).replace("%", " %"),
                known[str(row["network"])].label(str(row["metric"])),
                figures[0],
                difference,
                *figures[1:],
                str(row["draws"]),
            ]
        )
    return markdown_table(heads, lines)


def _spread(row: Mapping[str, Any], name: str) -> str:
    mean, deviation = row.get(name), row.get(f"{name}_sd")
    if mean is None:
        return "–"
    return f"{100 * mean:.2f}" + ("" if deviation is None else f" ± {100 * deviation:.2f}") + " %"
