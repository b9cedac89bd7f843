"""The problem that a search solves: layers in order, what they may take, and what must be kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from fractions import Fraction

from ..runs.run import Run
from ..solve.allowed import Allowed
from ..solve.costs import cost_table
from ..solve.search.problem import Problem
from ..values import Format, Goal, LatencyTable, Scores, Scoring, high_to_low
from ..values.goal import parse_formats
from ..values.scoring import EACH
from .judge import Judge

Order = Mapping[Format, Sequence[str]]
DAMAGE_SAMPLES = 512  # that the predicted damage of plans rests on: two halves of them agree


def order_layers(run: Run, scoring: Scoring, goal: Goal, allowed: Allowed) -> tuple[Scores, Order]:
    """The scores of the highest format, and the layers by rising sensitivity for every step."""
    scored_in = {step: scoring_format(scoring, goal, step) for step in allowed.steps or allowed.wanted}
    scores = {format: run.score(scoring, format) for format in high_to_low(scored_in.values())}
    order = {step: scores[format].order() for step, format in scored_in.items()}
    return next(iter(scores.values())), order


def scoring_format(scoring: Scoring, goal: Goal, step: Format) -> Format:
    """The format whose scores order the layers for a step; in the paper, the highest for all steps."""
    if scoring.score_format == EACH:
        return step
    return goal.formats[0] if scoring.score_format is None else parse_formats(scoring.score_format)[0]


def state_problem(
    run: Run,
    allowed: Allowed,
    order: Order,
    needed: Fraction,
    judge: Judge,
    goal: Goal,
    table: LatencyTable | None,
) -> Problem:
    """Everything that a search may know; the frontier also needs the predicted damage of every plan."""
    costs = cost_table(run.layers, allowed.formats, table, goal.objective)
    problem = Problem(run.layers, allowed.formats, order.__getitem__, needed, judge, costs=costs)
    if goal.search == "frontier" and problem.changes:
        return replace(problem, damage=run.damage(problem.changes, min(DAMAGE_SAMPLES, len(run.samples))))
    return problem
