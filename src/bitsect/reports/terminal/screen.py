"""The story of a run on one screen of a terminal, 60 to 200 columns wide, with colour or without."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence

from rich.text import Text

from ...values.cost import megabytes
from ...values.evaluation import accuracy_shown
from ...values.format import FLOAT
from ..story import BAD, GOOD, OPEN, UNSURE, BlameStory, Scored, Seen, ShownRow, Story

LEAST, WIDE = 40, 130  # columns: what is always there, and from where on two things stand side by side
SHOWN = 8  # layers, pairs and notes of each kind; the report and the other commands hold all
TONES = {GOOD: ("✔", "bold green"), UNSURE: ("?", "bold yellow"), BAD: ("✘", "bold red"), OPEN: ("…", "bold")}
COLOURS = ("cyan", "green", "magenta", "blue", "red")
Lines = list[Text]


def screen(story: Story, width: int) -> Lines:
    """The lines of the story, none wider than `width`."""
    width = max(width, LEAST)
    half = (width - 3) // 2 if width >= WIDE else width
    signs = _signs(story)
    first = [*_before_and_after(story, half), *_strip(story, signs, half)]
    second = [*_sensitive(story, signs, half), *_pairs(story, half), *_blame(story.blame, half)]
    middle = _side_by_side(first, second, half) if width >= WIDE else first + second
    parts = [_heading(story, width), middle, _in_float(story, width), _end(story, width)]
    return [line for part in parts for line in part]


def printable(text: str) -> str:
    """`text` on one line; what would steer a terminal is spelt out.

    >>> printable("a\\x1b[31m\\nb")
    'a\\\\x1b[31m\\\\nb'
    """
    return "".join(each if each.isprintable() else repr(each)[1:-1] for each in text)


def folded(text: str, width: int, style: str = "", indent: int = 0) -> Lines:
    """Lines of words, as many as it takes; the second and later ones are indented."""
    rest, lines = printable(text), Lines()
    while rest:
        room = width - (indent if lines else 0)
        part = _break(rest, room)
        lines.append(Text(" " * (indent if lines else 0) + part.rstrip(), style))
        rest = rest[len(part) :].lstrip()
    return lines


def _break(text: str, width: int) -> str:
    """As much of `text` as has room, up to a space, else a dot or an underscore, else anywhere."""
    if Text(text).cell_len <= width:
        return text
    fits = max(1, width)
    while fits > 1 and Text(text[:fits]).cell_len > width:  # wide characters take two columns
        fits -= 1
    part = text[:fits]
    for pattern in (r".* ", r".*[._]"):
        found = re.match(pattern, part)
        if found and len(found[0]) > fits // 3:
            return found[0]
    return part


# ---- what it is, and the verdict -----------------------------------------------------------------


def _heading(story: Story, width: int) -> Lines:
    known = [story.network, story.data, story.task]
    known += [f"method {story.method}"] if story.method else []
    known += [f"for {story.destination}"] if story.destination else []
    sign, style = TONES.get(story.verdict.tone, TONES[OPEN])
    lines = folded(" · ".join(known), width, "dim", 2)
    lines += folded(f"{sign} {story.verdict.headline}", width, style, 2)
    return [*lines, *folded(f"  {story.verdict.evidence}", width, indent=2)]


def _title(words: str) -> Lines:
    return [Text(""), Text(words, "bold")]


def _before_and_after(story: Story, width: int) -> Lines:
    """Float, one format for all layers, and the plan: a column each; what is known of them, a line each."""
    if not story.rows:
        return []
    rows = _fitting(story.rows, width)
    names = [row.name.removeprefix("all ").removesuffix(" where allowed") for row in rows]
    kinds: list[tuple[str, Callable[[ShownRow], Seen | None]]] = [
        ("on held-out", lambda row: row.held_out),
        ("on test", lambda row: row.tested),
        ("on searched", lambda row: row.searched),
    ]
    lines = [_cells("", names, "bold")]
    unseen = True
    for name, of in kinds:
        found = [of(row) for row in rows]
        if not any(found):
            continue
        lines.append(_cells(name, [_accuracy(seen) for seen in found], last="bold"))
        if unseen:
            lines.append(_cells("  95 % interval", [_interval(seen) for seen in found], "dim"))
            unseen = False
    lines.append(_cells("size", [f"{row.size_ratio:.1%}" for row in rows], last="bold"))
    lines.append(_cells("", [megabytes(row.size_bytes) for row in rows], "dim"))
    predicted = [(row.latency_ratio, row.latency_ms) for row in rows]
    measured = [(row.measured_ratio, row.measured_ms) for row in rows]
    for name, times in (("latency", predicted), ("  measured", measured)):
        if any(ms is not None for _, ms in times):
            lines.append(_cells(name, [_share(ratio) for ratio, _ in times], last="bold"))
            lines.append(_cells("", [_milliseconds(ms) for _, ms in times], "dim"))
    kind = "your own figure" if story.judge else "agreement with float" if story.agreement else "accuracy"
    return [*_title(f"Before and after, {kind}"), *lines]


LABEL, CELL = 15, 11


def _fitting(rows: Sequence[ShownRow], width: int) -> Sequence[ShownRow]:
    """The rows that have room; float and the plan always have."""
    room = max(2, (width - LABEL) // CELL)
    return rows if len(rows) <= room else [*rows[: room - 1], rows[-1]]


def _cells(label: str, cells: Iterable[str], style: str = "", last: str | None = None) -> Text:
    parts = [f"{cell:>{CELL}}" for cell in cells]
    line = Text(f"{label:<{LABEL}}" + "".join(parts[:-1]), style)
    return line.append(parts[-1], last if last is not None else style) if parts else line


def _accuracy(seen: Seen | None) -> str:
    return "–" if seen is None else accuracy_shown(seen.accuracy, seen.samples)


def _interval(seen: Seen | None) -> str:
    if seen is None or seen.low is None or seen.high is None:
        return "–"
    return f"{100 * seen.low:.1f}–{100 * seen.high:.1f}"


def _share(ratio: float | None) -> str:
    return "–" if ratio is None else f"{ratio:.1%}"


def _milliseconds(ms: float | None) -> str:
    return "–" if ms is None else f"{ms:.3g} ms"


# ---- layers --------------------------------------------------------------------------------------


def _signs(story: Story) -> dict[str, tuple[str, str]]:
    """A character and a colour for each format: its bits where these tell it from others, else a letter."""
    signs: dict[str, tuple[str, str]] = {}
    letters, colours = iter("abcdeghijklmnopqrstuvwxyz"), iter(COLOURS * 9)
    for name in story.formats:
        if name == FLOAT.name:
            signs[name] = ("f", "yellow")
        else:
            sign = name[3:] if re.fullmatch(r"int\d", name) else next(letters, "+")
            signs[name] = (sign, next(colours))
    return signs


def _strip(story: Story, signs: dict[str, tuple[str, str]], width: int) -> Lines:
    """A character for each layer in the order of the network, in tens."""
    taken = [layer for layer in story.layers if layer.format is not None]
    if not taken:
        return []
    lines, room = Lines(), max(1, (width - 5) // 11)  # tens in a line
    for start in range(0, len(taken), 10 * room):
        line = Text().append(f"{start + 1:>4} ", "dim")
        for number, layer in enumerate(taken[start : start + 10 * room]):
            line.append(" " if number and number % 10 == 0 else "")
            line.append(*signs[str(layer.format)])
        lines.append(line)
    legend = Text("     ")
    for name, count in story.counts.items():
        sign, colour = signs[name]
        legend.append(sign, colour).append(f" {name}: {count} layer{'s' * (count != 1)}   ")
    whole = sum(layer.macs for layer in taken) or 1
    shares = [f"{name} {sum(e.macs for e in taken if e.format == name) / whole:.0%}" for name in story.counts]
    about = folded(f"     multiply-adds: {', '.join(shares)}", width, "dim", 5)
    return [*_title("Format of every layer"), *lines, *_wrapped(legend, width), *about]


def _wrapped(line: Text, width: int) -> Lines:
    if line.cell_len <= width:
        line.rstrip()
        return [line]
    return folded(line.plain, width, indent=5)


def _sensitive(story: Story, signs: dict[str, tuple[str, str]], width: int) -> Lines:
    """The layers of the highest scores, with bars, errors and formats."""
    scored = next((each for each in story.scored if each.own), None) or next(iter(story.scored), None)
    if scored is None or not scored.scores.layers:
        return []
    scores = scored.scores
    formats = {layer.name: layer.format for layer in story.layers}
    known = dict(zip(scores.layers, scores.values, strict=True))
    errors = dict(zip(scores.layers, scores.standard_error or (), strict=False))
    most = [*reversed(scores.order())][:SHOWN]
    low, high = min(0.0, *known.values()), max(known.values())
    lines = Lines()
    longest = max(Text(printable(name)).cell_len for name in most)
    column = longest if longest <= width - 30 else 8  # a name that leaves no room for figures stands above
    for name in most:
        figure = f"{known[name]:.3g}" + (f" ± {errors[name]:.1g}" if errors.get(name) is not None else "")
        share = (known[name] - low) / (high - low) if high > low else 0.0
        line = Text(printable(name))
        if line.cell_len > column:
            lines += folded(name, width)
            line = Text("")
        line.append(" " * (column - line.cell_len + 1) + f"{figure:>16} ")
        line.append(*signs.get(formats.get(name) or "", (" ", "")))
        line.append(" " + _bar(share, width - column - 20), "dim")
        line.rstrip()
        lines.append(line)
    agreement = "" if scores.split_half is None else f", two halves agree to {scores.split_half:.2f}"
    return [*_title(f"Most sensitive layers by {scored.name}"), *lines, *_rest(scored, agreement, width)]


def _rest(scored: Scored, agreement: str, width: int) -> Lines:
    left = len(scored.scores.layers) - SHOWN
    more = f"{left} more layers" if left > 0 else "all layers"
    return folded(f"{more}{agreement}", width, "dim")


def _bar(share: float, width: int) -> str:
    """A bar of at most `width` columns, to an eighth of one.

    >>> _bar(0.5, 5), _bar(0.0, 5), _bar(1.0, 3)
    ('██▌', '', '███')
    """
    eighths = round(8 * max(0, min(width, 24)) * share)
    return "█" * (eighths // 8) + " ▏▎▍▌▋▊▉"[eighths % 8].strip()


def _pairs(story: Story, width: int) -> Lines:
    if not story.pairs:
        return []
    table = story.pairs[0]
    lines = Lines()
    for first, second, excess in table.worst(SHOWN // 2):
        if excess > 0:
            lines += folded(f"{excess:9.2g}  {first}, {second}", width, indent=11)
    return [*_title(f"Worst pairs at {table.format}: {table.measure}"[:width]), *lines] if lines else []


def _blame(blame: BlameStory | None, width: int) -> Lines:
    if blame is None or not blame.layers:
        return []
    lines = Lines()
    for each in blame.layers[: SHOWN // 2]:
        lines += folded(
            f"{each.share:6.0%} ± {each.error:.0%}  {each.name} ({each.format})", width, indent=14
        )
        if each.causes:
            lines += folded(f"{'':14}{each.causes[0]}", width, "dim", 14)
    return [*_title(f"Blame: damage gone with one layer in float, {blame.samples:,} samples"[:width]), *lines]


# ---- what else is worth knowing ------------------------------------------------------------------


def _in_float(story: Story, width: int) -> Lines:
    """What stays in float, and why; a reason once for all that it holds of."""
    reasons: dict[str, list[str]] = {}
    for layer in story.layers:
        if layer.format == FLOAT.name and layer.reason:
            reasons.setdefault(layer.reason, []).append(layer.name)
    for item in story.skipped:
        reasons.setdefault(item.reason, []).append(item.name)
    lines = Lines()
    for reason, names in reasons.items():
        more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
        lines += folded(f"{reason}: {', '.join(names[:SHOWN])}{more}", width, indent=2)
    return [*_title("In float"), *lines] if lines else []


def _end(story: Story, width: int) -> Lines:
    lines = Lines()
    if story.reason:
        lines += folded(f"Search: {story.reason}", width, indent=2)
    if story.seconds:
        took = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in story.seconds.items())
        judged = "" if story.evaluations is None else f"{story.evaluations} plans judged; "
        lines += folded(f"Took: {judged}{took}", width, indent=2)
    for note in story.notes:
        lines += folded(f"Note: {note}", width, indent=2)
    for fault in story.faults:
        lines += folded(f"Cannot be read: {fault}", width, "red", 2)
    if story.command:
        lines += folded(f"Again: {story.command}", width, "dim", 2)
    return [Text(""), *lines] if lines else []


def _side_by_side(left: Lines, right: Lines, width: int) -> Lines:
    """Two columns of `width` each, with a gap between them."""
    lines = Lines()
    for number in range(max(len(left), len(right))):
        line = left[number].copy() if number < len(left) else Text("")
        if number < len(right) and right[number].plain:
            line.append(" " * (width - line.cell_len + 3)).append(right[number])
        lines.append(line)
    return lines
