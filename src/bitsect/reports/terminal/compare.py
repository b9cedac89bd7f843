"""compare: metrics, searches and methods side by side."""

from __future__ import annotations

from ...values.trial import EVERY, Compared, Setup, Standing
from .lines import Aside, Lines, add_row, table_of


def compared_lines(compared: Compared) -> Lines:
    """A table for each target, and one for their mean."""
    for line in compared.left_out:
        yield Aside(line)
    contenders = {standing.setup.contender for standing in compared.standings}
    common = [len(set(each)) == 1 for each in zip(*contenders, strict=True)]
    price = "size_ratio" if compared.device is None else "latency_ratio"
    heads = {"size_ratio": "size", "latency_ratio": "latency", "kept": "kept", "test_kept": "on test"}
    for target in dict.fromkeys(standing.setup.target for standing in compared.standings):
        rows = [standing for standing in compared.standings if standing.setup.target == target]
        figures = [name for name in heads if name in rows[0].figures]
        title = "Mean over all targets" if target == EVERY else f"Target {target}"
        shown = [heads[name] for name in figures]
        table = table_of("", *shown, "plans", "s", "difference", title=f"\n{title}")
        for row in rows:
            plans = f"{row.figures['evaluations'].mean:.1f}"
            seconds = f"{row.figures['seconds'].mean:.0f}" if "seconds" in row.figures else "–"
            cells = [_cell(row, name) for name in figures]
            add_row(table, _name(row.setup, common), *cells, plans, seconds, _against(row, price))
        yield table
    yield (
        f"\nPer cent, mean ± standard deviation over draws; kept: of the float accuracy; difference: of "
        f"{heads[price]} to {compared.standings[0].setup.name}, in points ± {compared.interval}."
    )


def _name(setup: Setup, common: list[bool]) -> str:
    """What tells a contender from the others: its method, metric or search."""
    parts = [part for part, same in zip(setup.contender, common, strict=True) if not same]
    return ", ".join(parts) or setup.name


def _cell(row: Standing, name: str) -> str:
    spread = row.figures[name]
    digits = 1 if name.endswith("ratio") else 2
    deviation = "" if spread.deviation is None else f"±{100 * spread.deviation:.1f}"
    return f"{100 * spread.mean:.{digits}f}{deviation}"


def _against(row: Standing, price: str) -> str:
    if price not in row.differences:
        return ""
    found = row.differences[price]
    if found.low is None or found.high is None:
        return f"{100 * found.mean:+.1f}"
    return f"{100 * found.mean:+.1f}±{50 * (found.high - found.low):.1f}"  # which is as far to both sides
