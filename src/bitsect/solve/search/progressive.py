"""The paper's Algorithm 2: layer by layer, keeping what still meets the target."""

from __future__ import annotations

from ...values import Plan
from .problem import Found, Problem, Trials


def progressive(problem: Problem) -> Found:
    """The paper's Algorithm 2 after a uniform plan: N + 1 evaluations per format.

    It begins with all layers in the lowest format in which that passes, else at their highest. For each
    format b from high to low, for each layer on the rung above it by rising sensitivity: lower it to b
    on top of all that was lowered before; keep it there if accuracy ≥ threshold, put it back if not. A
    layer that fails does not stop those behind it, so a wrong order does less harm than to a bisection.
    """
    trials = Trials(problem)
    return layer_by_layer(trials, trials.lowest_uniform())


def layer_by_layer(trials: Trials, plan: Plan) -> Found:
    """What is left of `plan` after each layer was tried once per format."""
    problem = trials.problem
    for format in problem.formats:
        names = problem.candidates(plan, format)
        taken = 0
        for name in names:
            trial = plan.replace([name], format)
            if trials.passes(trial):
                plan, taken = trial, taken + 1
        trials.note(format, taken, len(names))
    return trials.found(plan)
