"""Bisection: how many layers, in order of sensitivity, can take each format."""

from __future__ import annotations

from .problem import Found, Problem, Trials


def bisection(problem: Problem) -> Found:
    """The plan with the most layers per format that passed, in ⌈log₂(N + 1)⌉ + 1 evaluations per format.

    It begins with all layers in the lowest format in which that passes, else at their highest. For each
    format from high to low, with the N layers on the rung above it by rising sensitivity:

        passed, failed = 0, N + 1
        while failed − passed > 1:
            n = ⌊(passed + failed) / 2⌋;  passed = n if accuracy(first n lowered) ≥ threshold, else failed = n

    Nothing lowered is the plan of the step before, which has passed. Accuracy need not fall steadily
    with n: the count that comes out has itself passed, though a larger one that was not tried might
    have passed too.
    """
    trials = Trials(problem)
    plan = trials.lowest_uniform()
    for format in problem.formats:
        names = problem.candidates(plan, format)
        before = plan
        passed, failed = 0, len(names) + 1
        while failed - passed > 1:
            count = (passed + failed) // 2
            trial = before.replace(names[:count], format)
            if trials.passes(trial):
                passed, plan = count, trial
            else:
                failed = count
        trials.note(format, passed, len(names))
    return trials.found(plan)
