"""What a search may know, what it hands back, and the memory of what it has asked."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Protocol

from ...errors import BitsectError, PlanError, TargetError
from ...values import FLOAT, Costs, Damage, Evaluation, Format, Layer, Plan
from ...values.format import high_to_low, rank

MISSES = "this plan misses the target"
NAMED = 5  # layers that an error names before it counts the rest


class Ask(Protocol):
    """How well a plan does on the samples.

    With a threshold it may stop as soon as `Evaluation.reaches(threshold)` is decided; without one
    it goes to the end, from where it stopped if it has seen the plan before.
    """

    def __call__(self, plan: Plan, threshold: Fraction | None) -> Evaluation: ...


@dataclass(frozen=True)
class Problem:
    """Everything a search may know.

    A layer's ladder is its allowed formats from high to low. It starts on the top rung, and the step
    for a format is open to the layers that stand on the rung directly above it.
    """

    layers: tuple[Layer, ...]  # in graph order
    allowed: Mapping[str, tuple[Format, ...]]  # per layer; float only where it is named
    order: Callable[[Format], Sequence[str]]  # layers by rising sensitivity to the step to this format
    threshold: Fraction
    judge: Ask
    damage: Damage | None = None  # predicted, of any plan; the searches by order do without
    costs: Costs | None = None  # None: every layer's bits count alike

    def __post_init__(self) -> None:
        for layer in self.layers:
            if not self.allowed.get(layer.name):
                raise PlanError(
                    f"layer '{layer.name}' is allowed no format: allow at least one, such as float"
                )

    @cached_property
    def ladders(self) -> dict[str, tuple[Format, ...]]:
        return {layer.name: high_to_low(self.allowed[layer.name]) for layer in self.layers}

    @property
    def formats(self) -> tuple[Format, ...]:
        """The steps: every format that some layer can go down to, from high to low."""
        return high_to_low(format for ladder in self.ladders.values() for format in ladder[1:])

    @property
    def start(self) -> Plan:
        return Plan({name: ladder[0] for name, ladder in self.ladders.items()})

    def uniform(self, format: Format) -> Plan:
        """Every layer in `format`; where that is not allowed, on the rung above it, else on its top rung."""
        return uniform_plan(self.ladders, format)

    def on_ladders(self, plan: Plan) -> Plan:
        """`plan` with formats that a layer's ladder lacks, as of a uniform plan, on the rung above."""
        return Plan({name: uniform_plan(self.ladders, format)[name] for name, format in plan.items()})

    @property
    def changes(self) -> tuple[tuple[str, Format], ...]:
        """Every layer in every format that rounds it: what `damage` must have been measured for."""
        return tuple((name, f) for name, ladder in self.ladders.items() for f in ladder if not f.is_float)

    @property
    def bound(self) -> tuple[str, ...]:
        """The layers that may not stay in float."""
        return tuple(name for name, ladder in self.ladders.items() if FLOAT not in ladder)

    def candidates(self, plan: Plan, format: Format) -> tuple[str, ...]:
        """The layers that `plan` holds directly above `format`, by rising sensitivity."""
        above = {
            name
            for name, ladder in self.ladders.items()
            if format in ladder[1:] and plan[name] == ladder[ladder.index(format) - 1]
        }
        if not above:
            return ()
        ordered = tuple(name for name in self.order(format) if name in above)
        if unscored := above.difference(ordered):
            raise BitsectError(
                f"layer '{min(unscored)}' has no place in the order for {format}: score it first"
            )
        return ordered


@dataclass(frozen=True)
class Found:
    """The plan that a search ended on, and the way there."""

    plan: Plan
    evaluation: Evaluation  # of the plan, over all samples
    evaluated: tuple[tuple[Plan, Evaluation], ...]  # in the order asked; some decided before the end
    met: bool  # whether the plan keeps the target
    reason: str  # why the search stopped there

    def __repr__(self) -> str:
        return (
            f"Found: {self.plan.counted} layers, {self.evaluation.shown}, {len(self.evaluated)} plans judged"
        )


class Trials:
    """The memory of one search: no plan is judged twice, unless its evaluation must be completed."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.evaluated: dict[Plan, Evaluation] = {}
        self.steps: list[str] = []  # what each format came to, in words

    def start(self) -> Plan:
        """The plan with every layer on its top rung, known to keep the target.

        All in float it does so by definition; where pins forbid float it has to prove it.
        """
        plan, bound = self.problem.start, self.problem.bound
        if bound and not self.passes(plan):
            names = ", ".join(f"'{name}' ({plan[name]})" for name in bound[:NAMED])
            if len(bound) > NAMED:
                names += f" and {len(bound) - NAMED} more"
            raise TargetError(
                f"the target cannot be kept: with {names} and all other layers at their highest, "
                f"{float(self.complete(plan).exact):.4%} is reached where "
                f"{float(self.problem.threshold):.4%} is needed; allow float there or lower the target"
            )
        return plan

    def lowest_uniform(self) -> Plan:
        """Where a search begins: all layers in the lowest format that passes, else all on their top rungs.

        No layer needs to stay above a uniform plan that passes. These plans are shown beside the found
        one anyway, so they cost no evaluations of their own.
        """
        for format in reversed(self.problem.formats):
            plan = self.problem.uniform(format)
            if self.passes(plan):
                held = [ladder for ladder in self.problem.ladders.values() if format in ladder]
                self.note(format, len(held), len(held))
                return plan
        return self.start()

    def passes(self, plan: Plan) -> bool:
        """Whether `plan` keeps the target."""
        if plan not in self.evaluated:
            self.evaluated[plan] = self.problem.judge(plan, self.problem.threshold)
        if self.evaluated[plan].reaches(self.problem.threshold) is None:  # stopped before it was decided
            self.complete(plan)
        return self.evaluated[plan].reaches(self.problem.threshold) is True

    def complete(self, plan: Plan) -> Evaluation:
        """The evaluation of `plan` over all samples."""
        known = self.evaluated.get(plan)
        if known is None or not known.complete:
            self.evaluated[plan] = self.problem.judge(plan, None)
        return self.evaluated[plan]

    def note(self, format: Format, taken: int, of: int) -> None:
        """Say in the reason that `taken` of the `of` layers that were tried took `format`."""
        if taken and taken == len(self.problem.layers):
            self.steps.append(f"every layer took {format}")
        elif taken:
            self.steps.append(f"{format}: {taken} of {of} layers")
        elif of:
            self.steps.append(f"no layer took {format}: every plan tried with it misses the target")

    def found(self, plan: Plan) -> Found:
        evaluation = self.complete(plan)
        met = evaluation.reaches(self.problem.threshold) is True
        steps = self.steps or ["nothing to search: no layer may take a lower format"]
        if not met:
            steps = [*steps, MISSES]
        return Found(plan, evaluation, tuple(self.evaluated.items()), met, "; ".join(steps))


def uniform_plan(ladders: Mapping[str, tuple[Format, ...]], format: Format) -> Plan:
    """Every layer in `format`; where its ladder lacks that, on the rung above it, else on its top rung."""
    return Plan(
        {
            name: [ladder[0], *(rung for rung in ladder if rank(rung) <= rank(format))][-1]
            for name, ladder in ladders.items()
        }
    )
