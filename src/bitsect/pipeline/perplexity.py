"""Perplexity: what a target means for a language model, and a target that is one of perplexity."""

from __future__ import annotations

import math
from collections.abc import Iterator

from ..errors import OptionError
from ..network.exported_program import example_outputs
from ..runs.run import Run
from ..sources.tasks.sequences import token_logits
from ..values import Evaluation, Goal, Target
from ..values.options import given


def with_tokens(goal: Goal, run: Run) -> Goal:
    """`goal`, whose largest perplexity is a drop of the score of this run's language model."""
    if goal.target is None or goal.target.perplexity is None:
        return goal
    return Goal(**{**given(goal), "target": in_tokens(goal.target, run)})


def in_tokens(target: Target, run: Run) -> Target:
    """The same target; of a largest perplexity, with the drop of the score that it is."""
    if target.perplexity is None:
        return target
    if not run.task.name.endswith("language-modelling"):
        raise OptionError(
            f"[max_perplexity=] is for the task language-modelling, not {run.task.name}: pass [target=99%]"
        )
    return target.of_tokens(_tokens(run))


def meaning(run: Run, target: Target | None, float_network: Evaluation) -> Iterator[str]:
    """What a share of the score 1 − (−ln p) / ln V of a language model is in perplexity."""
    if target is None or target.relative is None or not run.task.name.endswith("language-modelling"):
        return
    rise = (1 - float(target.relative)) * float_network.accuracy * math.log(_tokens(run))
    yield (
        f"{target} of a language model's score lets its perplexity rise by {100 * math.expm1(rise):.1f} %: "
        "[max_perplexity=1.01x] says how far it may rise"
    )


def _tokens(run: Run) -> int:
    """How many tokens the network chooses from."""
    return max(2, int(token_logits(example_outputs(run.program.exported)).shape[-1]))
