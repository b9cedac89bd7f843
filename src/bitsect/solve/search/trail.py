"""The trail: plans from the most accurate to the cheapest, by predicted damage per cost saved.

The damage is a quadratic form, so what a move of one layer does is known from one vector G s that is
kept up to date: all moves of all layers are weighed at once, without asking about any plan.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...errors import BitsectError
from ...values import Costs, Damage, Format, Plan
from .problem import Problem

Numbers = NDArray[np.float64]
Whole = NDArray[np.int64]

STEP = 10.0  # where only an order is known, how much worse the next lower format is taken to be
# Shares of the damage of the plan that was found, down to a 64th, so that hardly ever no plan is proven.
# Twice as many steps prove plans that cost the same: each of them is one more that may fail by chance.
SAFER = tuple(2 ** (-step / 2) for step in range(1, 13))
SWAPS = 64  # exchanges tried at most to better one plan
TINY = 1e-12  # of the largest cost or damage: differences below are rounding errors


@dataclass(frozen=True)
class Point:
    """A plan with what it is predicted to do and what it costs."""

    plan: Plan
    damage: float
    cost: float


@dataclass(frozen=True)
class Moves:
    """Every single move open to a plan: layer `layer[m]` goes to rung `rung[m]`."""

    layer: Whole
    rung: Whole
    damage: Numbers  # how much more is predicted
    cost: Numbers  # how much more the plan costs; negative is saved

    def made(self, at: Whole, move: int) -> Whole:
        """The plan `at` after one of the moves."""
        new = at.copy()
        new[self.layer[move]] = self.rung[move]
        return new


class Trails:
    """The predictions of a problem as arrays; a plan is one rung of its ladder for each layer."""

    def __init__(self, problem: Problem) -> None:
        self.names = list(problem.ladders)
        self.ladders = [problem.ladders[name] for name in self.names]
        self.damage = problem.damage or ordered_damage(problem)
        self.costs = problem.costs or Costs.bits(problem.ladders)
        none = len(self.damage.changes)  # the row of a layer in float: no damage
        pairs = [(i, r) for i, ladder in enumerate(self.ladders) for r in range(len(ladder))]
        self._layer, self._rung = (np.array([p[k] for p in pairs], dtype=np.int64) for k in (0, 1))
        self._row = np.full((len(self.names), max(map(len, self.ladders), default=1)), none)
        self._cost = np.zeros(self._row.shape)
        self._format = np.zeros(self._row.shape, dtype=np.int64)
        formats = list(dict.fromkeys(format for ladder in self.ladders for format in ladder))
        for i, r in pairs:
            format = self.ladders[i][r]
            row = self.damage.place(self.names[i], format)
            self._row[i, r] = none if row is None else row
            self._cost[i, r] = self.costs.of(self.names[i], format)
            self._format[i, r] = formats.index(format)
        known = {name: i for i, name in enumerate(self.names)}
        edges = [(known[a], known[b]) for a, b in self.costs.neighbours]
        self._before, self._after = (np.array([e[k] for e in edges], dtype=np.int64) for k in (0, 1))
        change = [price.get((a, b), 0.0) for price in self.costs.prices for a in formats for b in formats]
        self._change = np.array(change, dtype=np.float64).reshape(len(edges), len(formats), len(formats))
        self._edges = np.arange(len(edges)) if self._change.any() else np.arange(0)
        self._before, self._after = self._before[self._edges], self._after[self._edges]
        self._gram = np.pad(self.damage.gram.astype(np.float64), ((0, 1), (0, 1)))  # as corrected

    # One plan

    def plan(self, at: Whole) -> Plan:
        return Plan({name: self.ladders[i][at[i]] for i, name in enumerate(self.names)})

    def rungs(self, plan: Plan) -> Whole:
        return np.array([self.ladders[i].index(plan[n]) for i, n in enumerate(self.names)], dtype=np.int64)

    def point(self, at: Whole) -> Point:
        return Point(self.plan(at), self.predicted(at), self.price(at))

    def predicted(self, at: Whole) -> float:
        rows = self._rows(at)
        return float(self._gram[rows][:, rows].sum())

    def price(self, at: Whole) -> float:
        layers = np.arange(len(at))
        formats = self._format[layers, at]
        changes = self._change[self._edges, formats[self._before], formats[self._after]].sum()
        return float(self.costs.rest + self._cost[layers, at].sum() + changes)

    def correct(self, layer: int, rung: int, factor: float) -> None:
        """Take the damage of a layer on a rung for `factor` times what was predicted so far."""
        row = self._row[layer, rung]
        self._gram[row] *= factor**0.5
        self._gram[:, row] *= factor**0.5

    # One move, or two at once

    def moves(self, at: Whole, pull: Numbers | None = None) -> Moves:
        """All moves of single layers from the plan `at`, whose Σ of rows of the Gram matrix is `pull`."""
        layer, rung, gram, own = self._layer, self._rung, self._gram, self._gram.diagonal()
        rows = self._rows(at)
        old, new = rows[layer], self._row[layer, rung]
        pull = gram[rows].sum(axis=0) if pull is None else pull
        damage = 2 * (pull[new] - pull[old] - gram[old, new]) + own[new] + own[old]
        cost = self._cost[layer, rung] - self._cost[layer, at[layer]] + self._changes(at)
        other = rung != at[layer]
        return Moves(layer[other], rung[other], damage[other], cost[other])

    def together(self, at: Whole, moves: Moves, second: Whole) -> Numbers:
        """What every move and each move of `second` add to their damages when both are made."""
        new, old = self._row[moves.layer, moves.rung], self._rows(at)[moves.layer]
        moved = 2 * (self._gram[new] - self._gram[old])
        return np.asarray(moved[:, new[second]] - moved[:, old[second]])

    def _rows(self, at: Whole) -> Whole:
        return self._row[np.arange(len(at)), at]

    def _changes(self, at: Whole) -> Numbers:
        """What each move costs more at the borders to its neighbours."""
        total = np.zeros(len(self._layer))
        if not len(self._before):
            return total
        formats = self._format[np.arange(len(at)), at]
        table = np.zeros((len(self.names), self._change.shape[1]))  # borders of a layer, were it in a format
        np.add.at(table, self._before, self._change[self._edges, :, formats[self._after]])
        np.add.at(table, self._after, self._change[self._edges, formats[self._before], :])
        new = table[self._layer, self._format[self._layer, self._rung]]
        return np.asarray(new - table[self._layer, formats[self._layer]])

    # Many

    def down(self, at: Whole) -> list[Whole]:
        """The plans from `at` to the cheapest, each by the best move after the one before."""
        trail = [at]
        least = TINY * max(1.0, abs(self.price(at)))
        pull = self._gram[self._rows(at)].sum(axis=0)
        while True:
            moves = self.moves(at, pull)
            saving = moves.cost < -least
            if saving.any():
                rate = np.where(saving, moves.damage / np.where(saving, -moves.cost, 1.0), np.inf)
                best = int(rate.argmin())
                layer = moves.layer[best]
                before, at = self._row[layer, at[layer]], moves.made(at, best)
                pull = pull + self._gram[self._row[layer, at[layer]]] - self._gram[before]
            elif (run := self._best_run(at, least)) is not None:
                at = run
                pull = self._gram[self._rows(at)].sum(axis=0)
            else:
                return trail
            trail.append(at)

    def _best_run(self, at: Whole, least: float) -> Whole | None:
        """The best saving of a run of layers in one format, where borders make single ones dearer."""
        if not len(self._before):
            return None
        price, damage = self.price(at), self.predicted(at)
        best: tuple[float, Whole] | None = None
        for format in dict.fromkeys(format for ladder in self.ladders for format in ladder):
            target = np.array(
                [ladder.index(format) if format in ladder else at[i] for i, ladder in enumerate(self.ladders)]
            )
            length = 2
            while length < 2 * len(at):
                for begin in range(max(1, len(at) - length + 1)):
                    trial = at.copy()
                    trial[begin : begin + length] = target[begin : begin + length]
                    saved = price - self.price(trial)
                    if saved > least:
                        rate = (self.predicted(trial) - damage) / saved
                        if best is None or rate < best[0]:
                            best = rate, trial
                length *= 2
        return None if best is None else best[1]

    def polished(self, at: Whole) -> Whole:
        """A plan that costs no more than `at` and has the least damage that exchanging moves leads to."""
        price = self.price(at)
        least = TINY * max(1.0, abs(price))
        for _ in range(SWAPS):
            moves, now = self.moves(at), self.predicted(at)
            down = np.flatnonzero(moves.cost < 0)
            damage = moves.damage[:, None] + moves.damage[down] + self.together(at, moves, down)
            cost = moves.cost[:, None] + moves.cost[down]
            damage[(cost > least) | (moves.layer[:, None] == moves.layer[down])] = 0.0
            alone = np.where(moves.cost <= least, moves.damage, 0.0)
            if alone.min(initial=0.0) <= damage.min(initial=0.0):
                better = moves.made(at, int(alone.argmin())) if len(alone) else at
            else:
                i, j = np.unravel_index(damage.argmin(), damage.shape)
                better = moves.made(moves.made(at, int(i)), int(down[j]))
            # Borders that two moved layers share are counted only here.
            if self.price(better) > price + least or self.predicted(better) >= now * (1 - 1e-9):
                return at
            at = better
        return at


def trail(problem: Problem) -> list[Point]:
    """The plans of the trail, cost falling and predicted damage rising from one to the next."""
    trails = Trails(problem)
    return thinned(trails, trails.down(trails.rungs(problem.start)))


def safer(problem: Problem, plan: Plan) -> list[Plan]:
    """The cheapest plans with ever less of the predicted damage of `plan` (see SAFER), safest last.

    They are chosen before any held-out sample is looked at, for when `plan` is not proven on those.
    """
    trails = Trails(problem)
    damage = trails.predicted(trails.rungs(plan))
    found: dict[Plan, None] = {}
    points = trail(problem)
    for share in SAFER:
        within = [point for point in points if point.damage <= damage * share]
        if within:
            at = trails.polished(trails.rungs(min(within, key=lambda point: point.cost).plan))
            found[trails.plan(at)] = None
    return [other for other in found if other != plan]


def thinned(trails: Trails, plans: Sequence[Whole]) -> list[Point]:
    """The first of `plans`, then those for which no other costs as little with as little damage."""
    points = [(trails.price(at), trails.predicted(at), k) for k, at in enumerate(plans)]
    kept: list[tuple[float, float, int]] = []
    for point in sorted(points[1:]):
        if point[0] < points[0][0] and (not kept or point[1] < kept[-1][1]):
            kept.append(point)
    return [Point(trails.plan(plans[k]), damage, cost) for cost, damage, k in (points[0], *reversed(kept))]


def ordered_damage(problem: Problem) -> Damage:
    """A damage that only follows the order of the layers, each lower format STEP times worse."""
    single: dict[tuple[str, Format], float] = {}
    for depth, format in enumerate(problem.formats):
        order = {name: place for place, name in enumerate(problem.order(format))}
        for name, ladder in problem.ladders.items():
            if format not in ladder[1:]:
                continue
            if name not in order:
                raise BitsectError(f"layer '{name}' has no place in the order for {format}: score it first")
            single[name, format] = (order[name] + 1) / len(order) * STEP**depth
    # Where a layer begins it does no damage that could be spared.
    return Damage.separable(dict.fromkeys(problem.changes, 0.0) | single, "order")
