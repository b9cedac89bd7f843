"""blame: what a plan loses and to whom."""

from __future__ import annotations

from ...values.blame import Blame, Gain, LayerBlame
from .lines import Lines, add_row, table_of, wrapped

STRONG = 2.0  # times beyond the ordinary, from which on a fact explains something
SHOWN = 10  # layers and pairs that are shown; --json and --csv hold all


def blame_lines(found: Blame) -> Lines:
    """The layers that the plan loses most to, the pairs that are worse together, causes and remedies."""
    whole = found.damage
    yield (
        f"A plan of {found.plan.counted} layers. Accuracy {found.float_accuracy:.2%} → {found.accuracy:.2%} "
        f"on {found.samples:,} samples, damage {whole.mean:.3g} ± {whole.error:.1g}. "
        "With one layer back in float, or only its weights or activations, so many per cent of it go:\n"
    )
    table = table_of("layer", "format", "gone", "by weights", "by activations", "accuracy")
    for each in found.layers[:SHOWN]:
        points = f"{100 * each.accuracy.mean:+.1f}±{100 * each.accuracy.error:.1f}"
        shares = [_share(gain, whole) for gain in (each.gain, each.weights, each.activations)]
        add_row(table, each.name, str(each.format), *shares, points)
    yield table
    if len(found.layers) > SHOWN:
        yield wrapped(f"{len(found.layers) - SHOWN} more layers: [json=] and [csv=] hold all.", "dim")
    pairs = [pair for pair in found.pairs[:SHOWN] if pair.excess.mean > 2 * pair.excess.error]
    if pairs:
        table = table_of("pair", "together", "alone", "more than both", title="\nWorse together")
        for pair in pairs[:5]:
            alone = f"{pair.alone[0]:.3g} + {pair.alone[1]:.3g}"
            excess = f"{pair.excess.mean:.2g}±{pair.excess.error:.1g}"
            add_row(table, f"{pair.first}, {pair.second}", f"{pair.together:.3g}", alone, excess)
        yield table
    for each in found.layers[:SHOWN]:
        if each.remedies or any(cause.times >= STRONG for cause in each.causes):
            yield from _explained(each)
    for line in found.notes:
        yield f"Note: {line}."


def _explained(blamed: LayerBlame) -> Lines:
    """Why, and what helps: a few lines."""
    yield f"\n{blamed.name} ({blamed.format})"
    for cause in blamed.causes:
        yield f"  {'why' if cause.times >= STRONG else 'also'}: {cause.words}"
    for each in sorted(blamed.remedies, key=lambda remedy: -remedy.recovers):
        spent = f"size {100 * each.size_ratio:+.2f} points"
        if each.latency_ratio is not None:
            spent += f", latency {100 * each.latency_ratio:+.2f}"
        mark = "→" if each is blamed.remedy else " "
        yield f"  {mark} {each.words}: {each.recovers:.0%} of it won back, {spent}"


def _share(gain: Gain | None, whole: Gain) -> str:
    if gain is None or not whole.mean:
        return "–"
    return f"{100 * gain.mean / whole.mean:.0f}±{100 * gain.error / whole.mean:.0f}"
