"""The problem that a search solves: layers in order, what they may take, and what must be kept."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

from ..errors import OptionError
from ..runs.run import Run
from ..solve.allowed import Allowed
from ..solve.costs import cost_table
from ..solve.search.problem import Ask, Problem
from ..values import Format, Goal, LatencyTable, Scores, Scoring, high_to_low
from ..values.goal import parse_formats
from ..values.scoring import EACH
from .methods import DAMAGE, FRONTIER

DAMAGE_SAMPLES = 512  # that the predicted damage of plans rests on at most


def check_scoring(scoring: Scoring, goal: Goal) -> None:
    """Refuse a metric that the search would not look at."""
    if goal.search == FRONTIER and scoring.metric != DAMAGE:
        raise OptionError(
            f"the search {FRONTIER} goes by the damage that plans are predicted to do: pass [metric=damage], "
            f"or another search with metric {scoring.metric}, such as [search=bisection]"
        )


def state_problem(
    run: Run,
    scoring: Scoring,
    goal: Goal,
    allowed: Allowed,
    needed: Fraction,
    judge: Ask,
    table: LatencyTable | None,
) -> tuple[Problem, Scores]:
    """Everything that a search may know, and the scores of the layers in the highest format."""
    return scored_problem(
        unscored_problem(run, goal, allowed, needed, judge, table), run, scoring, goal, allowed
    )


def scored_problem(
    problem: Problem, run: Run, scoring: Scoring, goal: Goal, allowed: Allowed
) -> tuple[Problem, Scores]:
    """The problem with its layers scored, and their scores in the highest format."""
    if goal.search == FRONTIER:
        return _with_damage(run, scoring, goal, problem)
    scored_in = {step: scoring_format(scoring, goal, step) for step in allowed.steps or allowed.wanted}
    scores = {format: run.score(scoring, format) for format in high_to_low(scored_in.values())}
    order = {step: scores[format].order() for step, format in scored_in.items()}
    return replace(problem, order=order.__getitem__), next(iter(scores.values()))


def unscored_problem(
    run: Run, goal: Goal, allowed: Allowed, needed: Fraction, judge: Ask, table: LatencyTable | None
) -> Problem:
    """What is known before any layer is scored."""
    costs = cost_table(run.layers, allowed.formats, table, goal.objective)
    return Problem(run.layers, allowed.formats, _none, needed, judge, costs=costs)


def _with_damage(run: Run, scoring: Scoring, goal: Goal, problem: Problem) -> tuple[Problem, Scores]:
    names = [layer.name for layer in run.layers]
    if not problem.formats:  # pins leave nothing to choose
        return problem, Scores("damage", goal.formats[0], tuple(names), (0.0,) * len(names))
    damage = run.damage(problem.changes, DAMAGE_SAMPLES, scoring.until_stable)
    return replace(problem, damage=damage, order=damage.order), damage.scores(names, problem.formats[0])


def _none(format: Format) -> tuple[str, ...]:
    return ()


def scoring_format(scoring: Scoring, goal: Goal, step: Format) -> Format:
    """The format whose scores order the layers for a step; in the paper, the highest for all steps."""
    if scoring.score_format == EACH:
        return step
    return goal.formats[0] if scoring.score_format is None else parse_formats(scoring.score_format)[0]
