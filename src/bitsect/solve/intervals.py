"""Figures over draws: means with their spread, and paired differences with an interval.

Two searches on the same draws of the samples are compared draw by draw: with d_k the difference on
draw k, the mean of all n is known to

    mean(d) ± t(n − 1) · s(d) / √n

with 95 % confidence, s the standard deviation and t the quantile of Student's distribution.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from statistics import NormalDist

import numpy as np

from ..values.trial import EVERY, FIGURES, Difference, Setup, Spread, Standing, Trial

LEVEL = 0.95
WORDS = "95 % interval of Student's t over paired draws"


def spread(values: Sequence[float]) -> Spread:
    """The mean and the standard deviation of `values`.

    >>> spread([1.0, 3.0])
    Spread(mean=2.0, deviation=1.4142135623730951, draws=2)
    """
    count = len(values)
    deviation = float(np.std(values, ddof=1)) if count > 1 else None
    return Spread(float(np.mean(values)), deviation, count)


def difference(values: Sequence[float], level: float = LEVEL) -> Difference:
    """The mean of paired differences, with its interval.

    >>> found = difference([1.0, 2.0, 3.0])
    >>> round(found.mean, 3), round(found.low, 3), round(found.high, 3)
    (2.0, -0.484, 4.484)
    """
    known = spread(values)
    if known.deviation is None:
        return Difference(known.mean, None, None, known.draws)
    half = student_quantile(known.draws - 1, (1 + level) / 2) * known.deviation / math.sqrt(known.draws)
    return Difference(known.mean, known.mean - half, known.mean + half, known.draws)


def paired_difference(values: Sequence[float], level: float = LEVEL) -> tuple[float, float, float]:
    """The mean of paired differences of scores in [0, 1], with the interval of Bonett and Price (2012).

    The interval is that of the samples and two more, of which one gained and one lost: where no answer
    changed, its width says how many samples say so.

    >>> [round(value, 4) for value in paired_difference([0.0] * 98 + [-1.0] * 2)]
    [-0.02, -0.0578, 0.0186]
    """
    count = len(values) + 2
    mean = sum(values) / count
    variance = (sum(value * value for value in values) + 2) / count - mean * mean
    half = NormalDist().inv_cdf((1 + level) / 2) * math.sqrt(variance / count)
    return sum(values) / len(values), max(mean - half, -1.0), min(mean + half, 1.0)


def student_quantile(freedom: int, level: float) -> float:
    """The value that Student's t with so many degrees of freedom stays below with probability `level`.

    >>> [round(student_quantile(n, 0.975), 3) for n in (1, 2, 4, 30)]
    [12.706, 4.303, 2.776, 2.042]
    """
    low, high = 0.0, 1.0
    while _student(freedom, high) < level:
        high *= 2
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _student(freedom, middle) < level else (low, middle)
    return high


def _student(freedom: int, t: float) -> float:
    """P(T < t) for t ≥ 0: a finite sum, for the degrees of freedom are whole (Abramowitz and Stegun 26.7)."""
    angle = math.atan(t / math.sqrt(freedom))
    sine, cosine = math.sin(angle), math.cos(angle)
    odd = freedom % 2
    term = cosine if odd else 1.0
    total = 0.0
    for k in range(odd + 2, freedom + 1, 2):
        total += term
        term *= cosine**2 * (k - 1) / k
    inside = sine * total
    return 0.5 + ((angle + inside) / math.pi if odd else inside / 2)


def standings(trials: Iterable[Trial]) -> tuple[Standing, ...]:
    """Every contender at every target, then over all targets, against the first on the same draws.

    Over all targets, a draw counts once: its figures are means over the targets that were tried on it.
    """
    by_setup: dict[Setup, dict[int, Mapping[str, float]]] = {}
    met: dict[Setup, list[bool]] = {}
    for trial in trials:
        by_setup.setdefault(trial.setup, {})[trial.draw] = _figures(trial)
        met.setdefault(trial.setup, []).append(trial.met)
    if len({setup.target for setup in by_setup}) > 1:
        for setup, figures in _over_targets(by_setup).items():
            by_setup[setup] = figures
            met[setup] = [all(known) for known in _kept_by_draw(trials, setup)]
    first = next(iter(by_setup)).contender if by_setup else None
    reference = {setup.target: by_setup[setup] for setup in by_setup if setup.contender == first}
    return tuple(
        Standing(
            setup,
            sum(met[setup]),
            len(draws),
            {name: spread(values) for name, values in _columns(draws).items()},
            {} if setup.contender == first else _against(draws, reference.get(setup.target, {})),
        )
        for setup, draws in by_setup.items()
    )


def _figures(trial: Trial) -> dict[str, float]:
    values = {name: getattr(trial, name) for name in FIGURES}
    return {name: float(value) for name, value in values.items() if value is not None}


def _columns(draws: Mapping[int, Mapping[str, float]]) -> dict[str, list[float]]:
    """The figures by name, of the draws that have them."""
    columns = {name: [row[name] for row in draws.values() if name in row] for name in FIGURES}
    return {name: values for name, values in columns.items() if values}


def _against(
    draws: Mapping[int, Mapping[str, float]], first: Mapping[int, Mapping[str, float]]
) -> dict[str, Difference]:
    both = [(draws[draw], first[draw]) for draw in draws if draw in first]
    pairs = {name: [a[name] - b[name] for a, b in both if name in a and name in b] for name in FIGURES}
    return {name: difference(values) for name, values in pairs.items() if values}


def _over_targets(
    by_setup: Mapping[Setup, Mapping[int, Mapping[str, float]]],
) -> dict[Setup, dict[int, Mapping[str, float]]]:
    """The means over targets, for each contender and draw that all the targets were tried on."""
    targets = dict.fromkeys(setup.target for setup in by_setup)
    found: dict[Setup, dict[int, Mapping[str, float]]] = {}
    for contender in dict.fromkeys(setup.contender for setup in by_setup):
        known = [by_setup.get(Setup(*contender, target), {}) for target in targets]
        draws = [draw for draw in known[0] if all(draw in each for each in known)]
        if draws:
            found[Setup(*contender, EVERY)] = {
                draw: {
                    name: float(np.mean([each[draw][name] for each in known]))
                    for name in FIGURES
                    if all(name in each[draw] for each in known)
                }
                for draw in draws
            }
    return found


def _kept_by_draw(trials: Iterable[Trial], setup: Setup) -> list[list[bool]]:
    draws: dict[int, list[bool]] = {}
    for trial in trials:
        if trial.setup.contender == setup.contender:
            draws.setdefault(trial.draw, []).append(trial.met)
    return list(draws.values())
