"""How often a promise is wrong as people use it, and what it costs in samples: simulations of the rules.

    python benchmarks/coverage.py --out benchmarks/results

Each scene of `coverage.csv` is a use of held-out samples by somebody whose plans miss the target, by nothing
or by a tenth of what may be lost; counted is how often any of them is promised. Beside the present rules
(growing blocks, a ledger of searches, groups) stands one fixed bound at 5 % for every look.
`power.csv` says how many samples prove a plan in four of five cases, for several losses; beside it a test by
betting (a mixture of Π (1 + λ c) over λ), which is valid after every single sample.
"""

from __future__ import annotations

import argparse
import csv
import math
from collections.abc import Iterator
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np

from bitsect.runs.ledger import share
from bitsect.solve.confidence import LEVEL, Pairs, grouped, proves, statistic
from bitsect.solve.looks import schedule
from bitsect.values import Target

RIGHT = np.array([1.0, 1.0, 0.0, 0.0]), np.array([1.0, 0.0, 1.0, 0.0])  # both, float alone, plan alone, none
FLOAT, TARGET = 0.9, 0.99
WEALTH = np.geomspace(0.02, 0.995, 24)  # λ of the test by betting, as shares of the largest
Numbers = np.ndarray[Any, np.dtype[np.float64]]


def proven(counts: Numbers, target: float, level: float) -> Any:
    """Whether tables of counts [..., 4] prove the target at one look."""
    return statistic(Pairs(counts, *RIGHT), target, 0.0, level) >= NormalDist().inv_cdf(1 - level)


def in_blocks(steps: Numbers, ends: list[int], target: float, level: float) -> Any:
    """Whether a plan is proven at any look; `steps` are counts [trials, looks, 4] of the blocks."""
    so_far = steps.cumsum(axis=1)
    parts = [part for _, part in schedule(ends[-1])]
    looks = [proven(so_far[:, j], target, level * part) for j, part in enumerate(parts)]
    return np.any(looks, axis=0)


def ends_of(samples: int) -> list[int]:
    return [end for end, _ in schedule(samples)]


class Outcomes:
    """Samples [trials, n] of 0/1 pairs as cells 0 … 3, and of plans that are alike."""

    def __init__(self, rng: Any, trials: int, samples: int, over: float, noise: float = 0.003) -> None:
        self.rng, self.shape, self.noise = rng, (trials, samples), noise
        self.lost = FLOAT * (1 - TARGET) * over + noise  # of all samples
        self.right = rng.random(self.shape) < FLOAT
        self.shared = rng.random(self.shape)

    def plan(self, correlation: float) -> Numbers:
        """The cells of one plan, whose losses it shares with others where `correlation` says so."""
        own = np.where(self.rng.random(self.shape) < correlation, self.shared, self.rng.random(self.shape))
        loses, gains = own < self.lost / FLOAT, own < self.noise / (1 - FLOAT)
        return np.where(self.right, np.where(loses, 1, 0), np.where(gains, 2, 3))


def counts(cells: Numbers) -> Numbers:
    """How often each cell is in every row."""
    return np.stack([(cells == cell).sum(axis=-1) for cell in range(4)], axis=-1).astype(np.float64)


def steps_of(cells: Numbers, ends: list[int]) -> Numbers:
    return np.stack([counts(part) for part in np.split(cells, ends[:-1], axis=1)], axis=1)


def searches(
    rng: Any, trials: int, samples: int, over: float, number: int, correlation: float
) -> tuple[float, float]:
    """The same samples asked by several searches: how often any of them is promised, now and before."""
    outcomes, ends = Outcomes(rng, trials, samples, over), ends_of(samples)
    now, before = np.zeros(trials, dtype=bool), np.zeros(trials, dtype=bool)
    for k in range(1, number + 1):
        cells = outcomes.plan(correlation)
        now |= in_blocks(steps_of(cells, ends), ends, TARGET, LEVEL * share(k))
        before |= proven(counts(cells), TARGET, LEVEL)
    return float(now.mean()), float(before.mean())


def cheapest(rng: Any, trials: int, samples: int, number: int) -> tuple[float, float]:
    """Searches of plans around the target: how often the cheapest promised one misses it.

    A plan that is proven spends nothing, so that what it had goes to the next search.
    """
    ends, wrong, wrong_before = ends_of(samples), 0, 0
    for _ in range(trials):
        outcomes = Outcomes(rng, 1, samples, 1.0)
        over = np.exp(0.3 * rng.normal(size=number))
        handed, kept = 0.0, dict[str, list[float]](now=[], before=[])
        for k in range(number):
            outcomes.lost = FLOAT * (1 - TARGET) * over[k] + outcomes.noise
            cells, level = outcomes.plan(0.5), share(k + 1) + handed
            done = bool(in_blocks(steps_of(cells, ends), ends, TARGET, LEVEL * level)[0])
            handed = level if done else 0.0
            if done:
                kept["now"].append(over[k])
            if proven(counts(cells), TARGET, LEVEL)[0]:
                kept["before"].append(over[k])
        wrong += max(kept["now"], default=0.0) > 1
        wrong_before += max(kept["before"], default=0.0) > 1
    return wrong / trials, wrong_before / trials


def added(rng: Any, trials: int, over: float, sizes: list[int]) -> tuple[float, float]:
    """Samples are added until the plan is proven: every size is another search on these samples."""
    outcomes = Outcomes(rng, trials, sizes[-1], over)
    cells = outcomes.plan(0.0)
    now, before = np.zeros(trials, dtype=bool), np.zeros(trials, dtype=bool)
    for k, size in enumerate(sizes, start=1):
        ends = ends_of(size)
        now |= in_blocks(steps_of(cells[:, :size], ends), ends, TARGET, LEVEL * share(k))
        before |= proven(counts(cells[:, :size]), TARGET, LEVEL)
    return float(now.mean()), float(before.mean())


def seeds(rng: Any, trials: int, pool: int, held: int, tries: int) -> tuple[float, float]:
    """One plan, twenty seeds: each holds out other samples of the same pool."""
    cells, ends = Outcomes(rng, trials, pool, 1.0).plan(0.0), ends_of(held)
    now, before = np.zeros(trials, dtype=bool), np.zeros(trials, dtype=bool)
    for k in range(1, tries + 1):
        some = cells[:, rng.permutation(pool)[:held]]
        now |= in_blocks(steps_of(some, ends), ends, TARGET, LEVEL * share(k))
        before |= proven(counts(some), TARGET, LEVEL)
    return float(now.mean()), float(before.mean())


def clustered(
    rng: Any, trials: int, groups: int, size: int, correlation: float, lost: float
) -> tuple[float, float]:
    """Groups whose losses share a cause: a plan that loses just what is allowed, judged by groups or not."""
    target = 1 - lost / FLOAT
    spread = (1 - correlation) / correlation if correlation else math.inf
    rates = (
        np.full((trials, groups), lost)
        if math.isinf(spread)
        else rng.beta(lost * spread, (1 - lost) * spread, size=(trials, groups))
    )
    before = np.ones((trials, groups, size))
    before[..., : round(size * (1 - FLOAT))] = 0.0
    loses = rng.random(before.shape) < np.minimum(1.0, rates / FLOAT)[..., None]
    return _of_groups(before, before * ~loses, target)


def outliers(
    rng: Any, trials: int, groups: int, size: int, share_of: float, falls: float
) -> tuple[float, float]:
    """Scores between 0 and 1, of which a few documents lose a large part; the rest keep theirs."""
    before = np.repeat(rng.beta(8, 4, size=(trials, groups, 1)), size, axis=2)
    before = np.clip(before + 0.05 * rng.normal(size=before.shape), 0, 1)
    hit = rng.random((trials, groups, 1)) < share_of
    after = before * np.where(hit, 1 - falls, 1.0)
    return _of_groups(before, after, 1 - share_of * falls)


def _of_groups(before: Numbers, after: Numbers, target: float) -> tuple[float, float]:
    now = alone = 0
    trials, groups, size = before.shape
    of, level, kept = np.repeat(np.arange(groups), size), LEVEL * share(1), Target.parse(target)
    looks = schedule(groups) if size == 1 else [(groups * size, 1.0)]  # groups are judged whole
    for f, q in zip(before.reshape(trials, -1), after.reshape(trials, -1), strict=True):
        pairs = ((Pairs.of(*grouped(of[:end], f[:end], q[:end])), part) for end, part in looks)
        now += any(proves(some, kept, level * part) for some, part in pairs)
        alone += proves(Pairs.of(f, q), kept, LEVEL)
    return now / trials, alone / trials


def scenes(rng: Any, trials: int) -> Iterator[tuple[str, tuple[float, float]]]:
    """Each scene with how often a promise is wrong in it, now and by one bound."""
    for samples in (744, 1536, 3072):
        for alike in (0.0, 0.5, 0.9):
            scene = f"ten searches, all lose 1.1 x what is allowed, {samples} samples, correlation {alike}"
            yield scene, searches(rng, trials, samples, 1.1, 10, alike)
        yield f"cheapest promised of ten searches, {samples} samples", cheapest(rng, trials, samples, 10)
    sizes = np.geomspace(300, 8000, 12).round().astype(int).tolist()
    for over in (1.0, 1.1):
        yield f"samples added, 12 sizes, loses {over} x what is allowed", added(rng, trials, over, sizes)
    yield "twenty seeds on one pool of 4096 samples", seeds(rng, trials, 4096, 3072, 20)
    for groups in (100, 300):
        for alike in (0.0, 0.1, 0.2, 0.5):
            for lost in (0.01, 0.03):
                scene = f"{groups} groups of 10, correlation {alike}, {lost:.0%} lost"
                yield scene, clustered(rng, trials, groups, 10, alike, lost)
        for part, falls in ((0.01, 0.9), (0.02, 0.5), (0.05, 0.5)):
            scene = f"{groups} texts of 10 pieces, {part:.0%} of texts lose {falls:.0%} of their score"
            yield scene, outliers(rng, trials, groups, 10, part, falls)
    for samples in (300, 1000):
        for part, falls in ((0.01, 0.9), (0.05, 0.5)):
            scene = f"{samples} answers with F1, {part:.0%} of them lose {falls:.0%}"
            yield scene, outliers(rng, trials, samples, 1, part, falls)


def bets(counts: Numbers, target: float) -> Any:
    """The logarithm of the wealth of the test by betting."""
    c = RIGHT[1] - target * RIGHT[0]
    logs = counts @ np.log1p(np.outer(WEALTH / target, c)).T
    most = logs.max(axis=-1, keepdims=True)
    return most[..., 0] + np.log(np.exp(logs - most).mean(axis=-1))


def rate(
    rng: Any, trials: int, rule: str, samples: int, cells: Numbers, target: float
) -> tuple[float, float]:
    """How often so many samples prove a plan, and how many of them are judged."""
    level, looks = LEVEL * share(1) / 2, schedule(samples)  # of the first plan of the first search
    ends = [end for end, _ in looks]
    steps = np.stack([rng.multinomial(n, cells, size=trials) for n in np.diff([0, *ends])], axis=1)
    so_far = steps.cumsum(axis=1).astype(np.float64)
    if rule == "fixed":
        return float(proven(so_far[:, -1], target, LEVEL).mean()), float(samples)
    if rule == "betting":
        done = bets(so_far, target) >= -math.log(level)
    else:
        each = [proven(so_far[:, j], target, level * part) for j, (_, part) in enumerate(looks)]
        done = np.stack(each, axis=1)
    stopped = np.where(done.any(axis=1), np.array(ends)[done.argmax(axis=1)], samples)
    return float(done.any(axis=1).mean()), float(stopped.mean())


def power(rng: Any, trials: int) -> Iterator[dict[str, Any]]:
    """Samples that prove a plan in 80 of 100 cases, for each rule; and how many of them are judged."""
    for target in (0.98, 0.99, 0.995, 0.999):
        for part, noise in ((0.0, 0.0), (0.1, 0.0), (0.25, 0.0), (0.5, 0.0), (0.0, 1.0), (0.25, 1.0)):
            allowed = FLOAT * (1 - target)
            gains = noise * allowed / 2
            lost = part * allowed + gains
            cells = np.array([FLOAT - lost, lost, gains, 1 - FLOAT - gains])
            row = {"target": target, "lost_of_allowed": part, "changed_besides_of_allowed": noise}
            for rule in ("fixed", "blocks", "betting"):
                low, high = 1.0 / (1 - target), 400.0 / (1 - target)
                while high / low > 1.02:
                    middle = math.sqrt(low * high)
                    enough = rate(rng, trials, rule, round(middle), cells, target)[0] >= 0.8
                    low, high = (low, middle) if enough else (middle, high)
                row[f"{rule}_needs"] = round(high)
                row[f"{rule}_judges"] = round(rate(rng, trials, rule, round(high), cells, target)[1])
            yield row


def write(path: Path, rows: list[dict[str, Any]]) -> None:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--trials", type=int, default=2000)
    arguments = parser.parse_args()
    rng, rows = np.random.default_rng(0), []
    for name, (now, before) in scenes(rng, arguments.trials):
        rows.append({"scene": name, "trials": arguments.trials, "wrong": now, "wrong_with_one_bound": before})
        print(f"{now:6.1%} {before:6.1%}  {name}", flush=True)
    write(arguments.out / "coverage.csv", rows)
    found = []
    for row in power(rng, arguments.trials):
        found.append(row)
        print(*row.values(), flush=True)
    write(arguments.out / "power.csv", found)


if __name__ == "__main__":
    main()
