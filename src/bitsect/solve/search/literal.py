"""The paper's Algorithms 1 and 2 as printed, faults included."""

from __future__ import annotations

from .problem import Found, Problem, Trials
from .progressive import layer_by_layer


def literal(problem: Problem) -> Found:
    """Algorithm 1: the plan on which the printed bisection ends, whether or not it passed (see `Found.met`).

    For each format b from high to low, with ll the layers by rising sensitivity:

        thr, upl, lowl = ⌊|ll| / 2⌋, |ll|, 0
        repeat
            if accuracy(ll[0:thr] at b) ≥ target:  lowl = thr;  thr += ⌊(upl − thr) / 2⌋
            else:                                  upl = thr;   thr −= ⌊(thr − lowl) / 2⌋
        until thr is not changing
        lower ll[0:thr] to b;  ll = ll[0:thr]

    The midpoint always lies below `upl` and, from two layers on, above zero: all layers and none are
    never tried. When the last question is answered with no, `thr` stays on the count that failed.
    """
    trials = Trials(problem)
    plan = trials.start()
    for format in problem.formats:
        names = problem.candidates(plan, format)
        threshold, upper, lower = len(names) // 2, len(names), 0
        changing = True
        while changing:
            before = threshold
            if trials.passes(plan.replace(names[:threshold], format)):
                lower = threshold
                threshold += (upper - threshold) // 2
            else:
                upper = threshold
                threshold -= (threshold - lower) // 2
            changing = threshold != before
        plan = plan.replace(names[:threshold], format)
        trials.steps.append(f"{format}: {threshold} of {len(names)} layers")
    return trials.found(plan)


def literal_progressive(problem: Problem) -> Found:
    """Algorithm 2: `progressive` from the float network, with no uniform plan judged before."""
    trials = Trials(problem)
    return layer_by_layer(trials, trials.start())
