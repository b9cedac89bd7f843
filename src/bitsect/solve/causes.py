"""Why a layer is sensitive, in words of measured facts."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from ..values.blame import Array, Cause, Facts

Places = NDArray[np.intp]

WIDE_RANGE, CLIPPED, OUTLIER_CHANNEL, OUTLIER_VALUES = (
    "wide range",
    "clipped",
    "outlier channel",
    "outlier values",
)
DEAD_CHANNEL, HUGE_CHANNEL, UNEQUAL_SUM, FEW_WEIGHTS = (
    "dead channel",
    "huge channel",
    "unequal sum",
    "few weights",
)
WIDE = 1.5  # times the largest value, from which on a range is called wide
APART = 3.0  # times all others, from which on a channel is called an outlier
HUGE = 8.0  # times the median channel of weights
UNEQUAL = 4.0  # times the other addend of a sum
FEW = 0.01  # of all weights
NAMED = 3  # channels that are named before the rest is counted


def causes(facts: Facts) -> tuple[Cause, ...]:
    """What is out of the ordinary about a layer, the furthest first."""
    found = [
        *_range(facts),
        *_outliers(facts),
        *_dead(facts),
        *_huge(facts),
        *_sum(facts),
        *_few(facts),
    ]
    return tuple(sorted(found, key=lambda cause: -cause.times))


def _range(facts: Facts) -> Iterator[Cause]:
    if facts.range is None or not facts.largest:
        return
    times = facts.range / facts.largest
    if times >= WIDE:
        yield Cause(
            WIDE_RANGE,
            f"its range of {facts.range:.3g} is {times:.1f} times the largest input seen, so that "
            f"{1 - 1 / times:.0%} of its codes are never used",
            # Codes that nothing uses are a fault in themselves: nothing explains more.
            times * APART,
        )
    elif facts.nearly_all > facts.range:
        yield Cause(
            CLIPPED,
            f"more than 0.1 % of its inputs are cut off: they reach {facts.largest:.3g}, its codes "
            f"{facts.range:.3g}",
            facts.nearly_all / facts.range,
        )


def _outliers(facts: Facts) -> Iterator[Cause]:
    if facts.range is None or facts.input_channels is None:
        return
    reach = min(facts.range, facts.largest)
    channels = apart(facts.input_channels)
    if channels.size:
        others = np.delete(facts.input_channels, channels).max()
        times = min(reach, float(facts.input_channels[channels].max())) / max(others, 1e-30)
        if times >= APART:
            yield Cause(
                OUTLIER_CHANNEL,
                f"{_named(channels)} of its input {'reaches' if len(channels) == 1 else 'reach'} "
                f"{facts.input_channels[channels].max():.3g}, all others {others:.3g}: they share "
                f"{1 / times:.0%} of its range",
                float(times),
            )
    if facts.nearly_all and reach and 1 - facts.nearly_all / reach >= 0.5:
        share = 1 - facts.nearly_all / reach
        yield Cause(
            OUTLIER_VALUES, f"0.1 % of its input values use {share:.0%} of its range", 1 / (1 - share)
        )


def apart(channels: Array) -> Places:
    """The few channels, a sixteenth of all at most, that reach beyond APART times the others; or none.

    >>> apart(np.array([1.0, 9.0, 1.2, 0.8])).tolist(), apart(np.array([1.0, 2.0, 1.5])).tolist()
    ([1], [])
    """
    order = np.argsort(-channels, kind="stable")
    for count in range(1, max(1, len(channels) // 16) + 1):
        if count < len(channels) and channels[order[count - 1]] >= APART * channels[order[count]] > 0:
            return np.sort(order[:count])
    return order[:0]


def _dead(facts: Facts) -> Iterator[Cause]:
    for words, channels in (("output", facts.output_channels), ("input", facts.input_channels)):
        if channels is None or not channels.any():
            continue
        dead = np.flatnonzero(channels == 0)
        if len(dead):
            yield Cause(
                DEAD_CHANNEL,
                f"{_named(dead)} of its {words} {'is' if len(dead) == 1 else 'are'} dead: always 0 on these "
                f"samples ({len(dead)} of {len(channels)})",
                1 + len(dead) / len(channels),
            )


def _huge(facts: Facts) -> Iterator[Cause]:
    if facts.weight_channels is None:
        return
    usual = float(np.median(facts.weight_channels))
    times = facts.weight_channels / usual if usual else np.ones(len(facts.weight_channels))
    huge = np.flatnonzero(times >= HUGE)
    if len(huge):
        yield Cause(
            HUGE_CHANNEL,
            f"the weights of {_named(huge)} of its output are up to {times.max():.0f} times those of the "
            "usual channel",
            float(times.max()) / HUGE,
        )


def _sum(facts: Facts) -> Iterator[Cause]:
    if len(facts.addends) == 2 and min(facts.addends) > 0:
        small, large = sorted(facts.addends)
        if large / small >= UNEQUAL:
            yield Cause(
                UNEQUAL_SUM,
                f"it reads a sum of values up to {small:.3g} and values up to {large:.3g}: the smaller have "
                f"{small / large:.0%} of its codes",
                large / small / UNEQUAL * APART,
            )


def _few(facts: Facts) -> Iterator[Cause]:
    if 0 < facts.weights <= FEW * facts.all_weights:
        share = facts.weights / facts.all_weights
        yield Cause(
            FEW_WEIGHTS, f"it has {facts.weights:,} weights, {share:.2%} of all: float costs little", 1.0
        )


def _named(channels: Places) -> str:
    names = ", ".join(str(int(channel)) for channel in channels[:NAMED])
    if len(channels) == 1:
        return f"channel {names}"
    return f"channels {names}" + (f" and {len(channels) - NAMED} more" if len(channels) > NAMED else "")
