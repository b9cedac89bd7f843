"""Searches against brute force, the claims about the printed algorithm, and pins."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bitsect.errors import BitsectError, PlanError, TargetError
from bitsect.solve.search import PRINTED, SEARCHES
from bitsect.solve.search.pins import pinned
from bitsect.solve.search.problem import Found, Problem
from bitsect.solve.search.uniform import or_cheaper_uniform
from bitsect.values import FLOAT, INT4, INT8, Evaluation, Format, Layer, Plan, high_to_low

TOTAL = 1000
HONEST = [name for name in SEARCHES if name != "literal"]  # return only plans that passed
BY_ORDER = [
    name for name in HONEST if name not in ("frontier", *PRINTED)
]  # begin below a uniform plan that passes


def layers_of(count: int, kind: str = "conv2d") -> tuple[Layer, ...]:
    return tuple(Layer(f"layer{i}", kind, (4, 4, 3, 3), ()) for i in range(count))


class Asked:
    """A judge that counts questions: `correct(plan)` samples of TOTAL, part of them where that decides."""

    def __init__(self, correct: Callable[[Plan], int], *, lazy: bool = False) -> None:
        self.correct, self.lazy = correct, lazy
        self.calls: list[tuple[Plan, Fraction | None]] = []

    def __call__(self, plan: Plan, threshold: Fraction | None) -> Evaluation:
        self.calls.append((plan, threshold))
        correct = self.correct(plan)
        if self.lazy and threshold is not None:
            # The wrong samples come first, so a failing plan is decided early and a passing one as
            # soon as enough are right.
            for seen in range(TOTAL + 1):
                part = Evaluation(max(0, seen - (TOTAL - correct)), seen, TOTAL)
                if part.reaches(threshold) is not None:
                    return part
        return Evaluation(correct, TOTAL, TOTAL)

    @property
    def plans(self) -> list[Plan]:
        return [plan for plan, threshold in self.calls if threshold is not None]


def problem(
    count: int,
    correct: Callable[[Plan], int],
    *,
    threshold: Fraction = Fraction(9, 10),
    formats: Sequence[Format] = (INT8, INT4),
    allowed: Mapping[str, tuple[Format, ...]] | None = None,
    order: Sequence[str] | None = None,
    lazy: bool = False,
) -> tuple[Problem, Asked]:
    layers = layers_of(count)
    judge = Asked(correct, lazy=lazy)
    names = order if order is not None else [layer.name for layer in layers]
    chosen = pinned(layers, formats) if allowed is None else allowed
    return Problem(layers, chosen, lambda format: names, threshold, judge), judge


def lowered(plan: Plan, *formats: Format) -> int:
    return sum(format in formats for format in plan.values())


def counting(int8: int, int4: int = 0) -> Callable[[Plan], int]:
    """Passes as long as at most `int8` layers are lowered and at most `int4` of them to four bits."""
    return lambda plan: TOTAL if lowered(plan, INT8, INT4) <= int8 and lowered(plan, INT4) <= int4 else 0


def bits(plan: Plan) -> float:
    return sum(format.stored_bits for format in plan.values())


costs = st.lists(st.integers(0, 60), max_size=9)


def additive(losses: Sequence[int]) -> Callable[[Plan], int]:
    """Each layer costs its own samples at int8 and three times as many at int4."""
    price = {FLOAT: 0, INT8: 1, INT4: 3}
    return lambda plan: max(
        0, TOTAL - sum(price[f] * loss for f, loss in zip(plan.values(), losses, strict=True))
    )


def scattered(seed: int) -> Callable[[Plan], int]:
    """Any accuracy for any plan, except that the float plan is right everywhere."""

    def correct(plan: Plan) -> int:
        whole = lowered(plan, FLOAT) == len(plan)
        return TOTAL if whole else random.Random(f"{seed} {plan.key}").randint(0, TOTAL)

    return correct


# ---- what holds for every search -----------------------------------------------------------------


@pytest.mark.parametrize("name", HONEST)
@settings(max_examples=60)
@given(count=st.integers(0, 12), seed=st.integers(0, 10**6), lazy=st.booleans())
def test_returns_a_plan_that_passed_whatever_the_accuracy(
    name: str, count: int, seed: int, lazy: bool
) -> None:
    task, judge = problem(count, scattered(seed), threshold=Fraction(1, 2), lazy=lazy)
    found = SEARCHES[name](task)
    assert found.met
    assert found.evaluation == Evaluation(judge.correct(found.plan), TOTAL, TOTAL)
    assert found.evaluation.exact >= task.threshold


@pytest.mark.parametrize("name", SEARCHES)
@settings(max_examples=60)
@given(count=st.integers(0, 12), seed=st.integers(0, 10**6), lazy=st.booleans())
def test_remembers_all_it_asked_and_asks_nothing_twice(name: str, count: int, seed: int, lazy: bool) -> None:
    task, judge = problem(count, scattered(seed), threshold=Fraction(1, 2), lazy=lazy)
    found = SEARCHES[name](task)
    # The float network was judged before any search: to ask about it again costs nothing.
    calls = [(plan, threshold) for plan, threshold in judge.calls if plan != task.start]
    evaluated = [plan for plan, _ in found.evaluated if plan != task.start]
    assert evaluated == list(dict.fromkeys(plan for plan, _ in calls))
    asked = [plan for plan, threshold in calls if threshold is not None]
    assert len({*asked}) == len(asked)
    assert dict(found.evaluated)[found.plan] == found.evaluation
    assert found.evaluation.complete
    assert found.met == (judge.correct(found.plan) >= 500)
    to_the_end = [plan for plan, threshold in calls if threshold is None]
    assert to_the_end in ([], [found.plan])


@pytest.mark.parametrize("name", SEARCHES)
def test_partial_evaluations_change_nothing_but_the_samples_seen(name: str) -> None:
    losses = [3, 9, 1, 7, 30, 12]
    eager, _ = problem(6, additive(losses))
    lazy, judge = problem(6, additive(losses), lazy=True)
    whole, part = SEARCHES[name](eager), SEARCHES[name](lazy)
    assert whole.plan == part.plan
    assert whole.evaluation == part.evaluation
    assert any(not evaluation.complete for _, evaluation in part.evaluated)
    assert judge.calls[-1] == (part.plan, None)  # completed once, at the end


def test_a_judge_that_stops_undecided_is_asked_to_go_on() -> None:
    def judge(plan: Plan, threshold: Fraction | None) -> Evaluation:
        return Evaluation(1, 2, 4) if threshold is not None else Evaluation(3, 4, 4)

    layers = layers_of(1)
    found = SEARCHES["bisection"](
        Problem(layers, pinned(layers, [INT8]), lambda f: ["layer0"], Fraction(3, 4), judge)
    )
    assert found.plan["layer0"] == INT8
    assert found.evaluation.complete


@pytest.mark.parametrize("name", SEARCHES)
@pytest.mark.parametrize("kept", [999, 998])
def test_targets_are_exact_fractions(name: str, kept: int) -> None:
    # 99.9 % of 1000 right answers is 999 exactly, where floats put the threshold a hair above it.
    assert 0.999 * (1000 / 1300) > 999 / 1300

    def judge(plan: Plan, threshold: Fraction | None) -> Evaluation:
        return Evaluation(1000 if lowered(plan, FLOAT) == len(plan) else kept, 1300, 1300)

    layers = layers_of(2)
    threshold = Fraction(999, 1000) * Fraction(1000, 1300)
    task = Problem(layers, pinned(layers, [INT8]), lambda f: ["layer0", "layer1"], threshold, judge)
    found = SEARCHES[name](task)
    (asked,) = {each.reaches(threshold) for plan, each in found.evaluated if plan != task.start}
    assert asked is (kept == 999)
    if name != "literal":
        assert lowered(found.plan, INT8) == (2 if kept == 999 else 0)


@pytest.mark.parametrize("name", SEARCHES)
def test_no_layers_and_no_formats(name: str) -> None:
    for task, _ in (problem(0, counting(0)), problem(3, counting(3), formats=())):
        found = SEARCHES[name](task)
        assert found.plan == task.start
        assert found.met
        assert found.reason == "nothing to search: no layer may take a lower format"


@pytest.mark.parametrize("name", HONEST)
def test_one_layer_can_take_every_format_or_none(name: str) -> None:
    for int8, int4, expected in ((0, 0, FLOAT), (1, 0, INT8), (1, 1, INT4)):
        found = SEARCHES[name](problem(1, counting(int8, int4))[0])
        assert found.plan["layer0"] == expected


@pytest.mark.parametrize("name", ["bisection", "progressive"])
def test_reasons_read_as_sentences(name: str) -> None:
    def reason(int8: int, int4: int) -> str:
        return SEARCHES[name](problem(20, counting(int8, int4))[0]).reason

    missed = "every plan tried with it misses the target"
    assert reason(0, 0) == f"no layer took int8: {missed}"
    assert reason(17, 3) == "int8: 17 of 20 layers; int4: 3 of 17 layers"
    assert reason(17, 0) == f"int8: 17 of 20 layers; no layer took int4: {missed}"
    assert reason(20, 3) == "every layer took int8; int4: 3 of 20 layers"
    assert reason(20, 20) == "every layer took int4"


@pytest.mark.parametrize("name", SEARCHES)
def test_follows_the_order_of_each_format(name: str) -> None:
    layers = layers_of(4)
    names = [layer.name for layer in layers]
    orders = {INT8: names, INT4: names[::-1]}
    allowed = pinned(layers, [INT8, INT4])
    task = Problem(layers, allowed, lambda f: orders[f], Fraction(9, 10), Asked(counting(4, 1)))
    plans = [plan for plan, _ in SEARCHES[name](task).evaluated]
    first = next(plan for plan in plans if 0 < lowered(plan, INT4) < 4)
    assert first["layer0"] != INT4  # the least sensitive to int4 stand at the other end
    assert next(plan for plan in plans if lowered(plan, INT8))["layer0"] == INT8


@pytest.mark.parametrize("name", SEARCHES)
def test_a_layer_without_a_score_is_an_error(name: str) -> None:
    with pytest.raises(BitsectError, match="layer 'layer1' has no place in the order for int8"):
        SEARCHES[name](problem(2, counting(1), order=["layer0"])[0])


# ---- bisection -----------------------------------------------------------------------------------


def largest_counts(losses: Sequence[int], threshold: Fraction) -> tuple[int, int]:
    """Brute force: the most layers at int8, then the most of those at int4, each a prefix."""
    correct = additive(losses)
    names = [f"layer{i}" for i in range(len(losses))]
    plan = Plan(dict.fromkeys(names, FLOAT))
    counts = []
    for format in (INT8, INT4):
        trials = [plan.replace(names[:n], format) for n in range(len(names) + 1)]
        count = max(n for n, trial in enumerate(trials) if correct(trial) >= threshold * TOTAL)
        plan, names = trials[count], names[:count]
        counts.append(count)
    return counts[0], counts[1]


@settings(max_examples=200)
@given(losses=costs, kept=st.integers(1, 100))
def test_bisection_finds_the_largest_counts_where_accuracy_is_monotone(losses: list[int], kept: int) -> None:
    threshold = Fraction(kept, 100)
    task, _ = problem(len(losses), additive(losses), threshold=threshold)
    plan = SEARCHES["bisection"](task).plan
    assert (lowered(plan, INT8, INT4), lowered(plan, INT4)) == largest_counts(losses, threshold)


@settings(max_examples=200)
@given(count=st.integers(0, 70), seed=st.integers(0, 10**6))
def test_bisection_asks_at_most_log2_questions_per_format(count: int, seed: int) -> None:
    task, judge = problem(count, scattered(seed), threshold=Fraction(1, 2))
    found = SEARCHES["bisection"](task)
    at_int4 = [plan for plan in judge.plans if lowered(plan, INT4)]
    took_int8 = lowered(found.plan, INT8, INT4)
    # One more for each format: all layers in it, a plan that is shown beside the found one anyway.
    assert len(judge.plans) - len(at_int4) <= math.ceil(math.log2(count + 1)) + 1
    assert len(at_int4) <= math.ceil(math.log2(took_int8 + 1)) + 1


# ---- uniform plans: the bound of every search but the printed one ------------------------------------


def dip(plan: Plan) -> int:
    """All layers at int8 do better than float, though half of them do worse: as networks really do."""
    if lowered(plan, INT4) > 2 or 0 < lowered(plan, FLOAT) < len(plan):
        return 0
    return TOTAL


@pytest.mark.parametrize("name", BY_ORDER)
def test_no_layer_stays_higher_than_in_a_uniform_plan_that_passes(name: str) -> None:
    task, judge = problem(7, dip)
    found = SEARCHES[name](task)
    assert lowered(found.plan, FLOAT) == 0
    assert lowered(found.plan, INT4) == 2
    assert judge.plans[:2] == [task.uniform(INT4), task.uniform(INT8)]


@settings(max_examples=100)
@given(count=st.integers(1, 9), seed=st.integers(0, 10**6), name=st.sampled_from(BY_ORDER))
def test_the_plan_never_has_more_bits_than_a_uniform_one_that_passes(
    count: int, seed: int, name: str
) -> None:
    task, judge = problem(count, scattered(seed), threshold=Fraction(1, 2))
    plan = SEARCHES[name](task).plan
    for format in (INT8, INT4):
        if judge.correct(task.uniform(format)) >= 500:
            assert all(each.stored_bits <= format.stored_bits for each in plan.values())


@settings(max_examples=100)
@given(count=st.integers(1, 9), seed=st.integers(0, 10**6), name=st.sampled_from(HONEST))
def test_the_plan_is_never_dearer_than_a_uniform_one_that_passes(count: int, seed: int, name: str) -> None:
    """The frontier may leave a layer in float to lower others further: all bits together are its bound."""
    task, judge = problem(count, scattered(seed), threshold=Fraction(1, 2))
    plan = or_cheaper_uniform(task, SEARCHES[name](task), bits).plan
    for format in (INT8, INT4):
        if judge.correct(task.uniform(format)) >= 500:
            assert bits(plan) <= bits(task.uniform(format))


def test_the_printed_search_stays_as_printed() -> None:
    task, judge = problem(7, dip)
    SEARCHES["literal"](task)
    assert task.uniform(INT8) not in judge.plans


def test_pinned_layers_take_their_nearest_format_in_a_uniform_plan() -> None:
    pins = ["layer0=float", "layer1=float,int4", "layer2=int4", "last=int8"]
    task, _ = problem(5, dip, allowed=pinned(layers_of(5), [INT8, INT4], pins))
    assert list(task.uniform(INT8).values()) == [FLOAT, FLOAT, INT4, INT8, INT8]
    assert list(task.uniform(INT4).values()) == [FLOAT, INT4, INT4, INT4, INT8]
    found = SEARCHES["bisection"](replace(task, judge=Asked(lambda plan: TOTAL)))
    assert found.plan == task.uniform(INT4)


def test_a_search_of_ones_own_is_never_dearer_than_a_uniform_plan() -> None:
    task, judge = problem(4, dip)
    timid = Found(task.start, judge(task.start, None), (), True, "all in float")
    found = or_cheaper_uniform(task, timid, bits)
    assert found.plan == task.uniform(INT8)
    assert found.evaluation.complete
    assert found.reason == "all in float; all layers in int8 keep the target for less"
    low = Found(task.uniform(INT8), judge(task.uniform(INT8), None), (), True, "")
    assert or_cheaper_uniform(task, low, bits) is low
    missed = Found(task.uniform(INT4), judge(task.uniform(INT4), None), (), False, "missed")
    assert or_cheaper_uniform(task, missed, bits).plan == task.uniform(INT8)


# ---- progressive ---------------------------------------------------------------------------------


@settings(max_examples=100)
@given(losses=costs, kept=st.integers(1, 100))
def test_progressive_keeps_each_layer_that_still_fits(losses: list[int], kept: int) -> None:
    room = TOTAL - math.ceil(Fraction(kept, 100) * TOTAL)
    expected = [FLOAT] * len(losses)
    for format, more in ((INT8, 1), (INT4, 2)):
        for i, loss in enumerate(losses):
            if (format == INT8 or expected[i] == INT8) and more * loss <= room:
                expected[i], room = format, room - more * loss
    task, _ = problem(len(losses), additive(losses), threshold=Fraction(kept, 100))
    assert list(SEARCHES["progressive"](task).plan.values()) == expected


def test_progressive_passes_over_a_misplaced_layer_where_bisection_stops() -> None:
    spoilt, _ = problem(8, lambda plan: 0 if plan["layer0"] != FLOAT else TOTAL, formats=[INT8])
    assert lowered(SEARCHES["progressive"](spoilt).plan, INT8) == 7
    assert lowered(SEARCHES["bisection"](spoilt).plan, INT8) == 0


# ---- literal: what the printed algorithm does ----------------------------------------------------


def literally(count: int, passing: int) -> tuple[Found, list[int]]:
    """Algorithm 1 at one format where up to `passing` layers pass, and the counts that it tried."""
    task, judge = problem(count, counting(passing), formats=[INT8])
    return SEARCHES["literal"](task), [lowered(plan, INT8) for plan in judge.plans]


@pytest.mark.parametrize("count", range(2, 40))
def test_literal_tries_neither_all_nor_none(count: int) -> None:
    for passing in range(count + 1):
        found, tried = literally(count, passing)
        assert 0 not in tried
        assert count not in tried
        assert 1 <= lowered(found.plan, INT8) <= count - 1


def test_literal_with_one_layer_only_tries_none() -> None:
    for passing in (0, 1):
        found, tried = literally(1, passing)
        assert tried == [0]
        assert found.plan["layer0"] == FLOAT
        assert found.reason == "int8: 0 of 1 layers"  # not that the target left no room: it never asked


def test_literal_ends_on_a_threshold_that_failed() -> None:
    # 8 layers, 4 pass: 4 passes, 6 fails, 5 fails; 5 − ⌊(5 − 4) / 2⌋ = 5 does not change.
    found, tried = literally(8, 4)
    assert tried == [4, 6, 5]
    assert lowered(found.plan, INT8) == 5
    assert not found.met
    assert found.evaluation == Evaluation(0, TOTAL, TOTAL)
    assert found.reason == "int8: 5 of 8 layers; this plan misses the target"


def test_literal_ends_on_a_threshold_that_passed() -> None:
    # 8 layers, 5 pass: 4 passes, 6 fails, 5 passes; 5 + ⌊(6 − 5) / 2⌋ = 5 does not change.
    found, tried = literally(8, 5)
    assert tried == [4, 6, 5]
    assert lowered(found.plan, INT8) == 5
    assert found.met


def test_literal_takes_one_layer_even_where_none_passes() -> None:
    found, tried = literally(8, 0)
    assert tried == [4, 2, 1]
    assert lowered(found.plan, INT8) == 1
    assert not found.met


def test_literal_leaves_one_layer_even_where_all_pass() -> None:
    found, tried = literally(8, 8)
    assert tried == [4, 6, 7]
    assert lowered(found.plan, INT8) == 7
    assert found.met


@pytest.mark.parametrize("count", [8, 20, 53, 54, 193])
def test_literal_ends_on_a_failed_threshold_in_about_half_of_the_cases(count: int) -> None:
    failed = sum(not literally(count, passing)[0].met for passing in range(count + 1))
    assert failed / (count + 1) == pytest.approx(0.5, abs=0.06)


def test_literal_goes_on_from_a_plan_that_failed() -> None:
    # The int8 step ends on 5 layers, which failed; so does every int4 question that builds on it.
    found = SEARCHES["literal"](problem(8, counting(4, 4))[0])
    assert (lowered(found.plan, INT8), lowered(found.plan, INT4)) == (4, 1)
    assert not found.met


# ---- ladders and pins ----------------------------------------------------------------------------


def test_high_to_low_is_one_order_for_all_formats() -> None:
    names = ["int2", "w4a8", "int4", "w4a16", "w4a16g64", "int8", "w8a4", "w8a16", "float", "w4a16g128"]
    ordered = [str(f) for f in high_to_low(map(Format.parse, names))]
    assert ordered == [
        "float", "w8a16", "w4a16g64", "w4a16g128", "w4a16", "int8", "w8a4", "w4a8", "int4", "int2",
    ]  # fmt: skip


def test_without_pins_every_layer_may_take_float_and_the_formats() -> None:
    assert pinned(layers_of(2), [INT4, INT8]) == dict.fromkeys(("layer0", "layer1"), (FLOAT, INT8, INT4))


def test_pins_choose_the_ladder_and_later_ones_replace_earlier_ones() -> None:
    layers = (*layers_of(3), Layer("fc", "linear", (10, 4), ()))
    allowed = pinned(
        layers, [INT8, INT4], ["*=int8", "first=float", "kind:linear=int6, float", "layer2=int4,int8"]
    )
    assert allowed == {
        "layer0": (FLOAT,),
        "layer1": (INT8,),
        "layer2": (INT8, INT4),
        "fc": (FLOAT, Format(6, 6)),
    }


@pytest.mark.parametrize(
    ("pin", "message"),
    [
        ("layr1=int8", "no layer matches 'layr1'; did you mean 'layer1'"),
        ("kind:conv2=int8", "did you mean 'kind:conv2d'"),
        ("lst=int8", "did you mean 'last'"),
        ("zzz=int8", "`bitsect layers` lists them"),
        ("first=int9", "pin 'first=int9': format bits must be 2 to 8"),
        ("first=fp8", "pin 'first=fp8': unknown format 'fp8'"),
        ("first", "expected PATTERN=FORMAT"),
        ("first=", "expected PATTERN=FORMAT"),
        ("=int8", "expected PATTERN=FORMAT"),
        ("first=int8,", "unknown format ''"),
    ],
)
def test_bad_pins_say_what_and_where(pin: str, message: str) -> None:
    with pytest.raises(PlanError) as error:
        pinned(layers_of(2), [INT8], [pin])
    assert message in str(error.value)


def test_formats_that_round_nothing_in_a_layer_are_left_out() -> None:
    layers = (*layers_of(1), Layer("scores", "matmul", None, ()))
    w4a16 = Format.parse("w4a16")
    assert pinned(layers, [w4a16, INT8]) == {"layer0": (FLOAT, w4a16, INT8), "scores": (FLOAT, INT8)}
    with pytest.raises(PlanError, match="layer 'scores' multiplies two activations"):
        pinned(layers, [INT8], ["*=w4a16"])
    assert pinned(layers, [INT8], ["*=w4a16", "kind:matmul=float"])["scores"] == (FLOAT,)


@pytest.mark.parametrize("name", SEARCHES)
@settings(max_examples=60)
@given(data=st.data(), seed=st.integers(0, 10**6))
def test_every_asked_plan_stays_on_its_ladders(name: str, data: st.DataObject, seed: int) -> None:
    ladders = st.lists(st.sampled_from([FLOAT, INT8, Format(6, 6), INT4]), min_size=1, unique=True)
    chosen = data.draw(st.lists(ladders.map(tuple), max_size=7))
    allowed = {f"layer{i}": ladder for i, ladder in enumerate(chosen)}
    start = Plan({n: high_to_low(ladder)[0] for n, ladder in allowed.items()})
    rough = scattered(seed)
    task, judge = problem(
        len(chosen),
        lambda plan: TOTAL if plan == start else rough(plan),
        allowed=allowed,
        threshold=Fraction(1, 2),
    )
    SEARCHES[name](task)
    for plan, _ in judge.calls:
        known = set(plan.values()) == {FLOAT}  # the float network was judged before any search
        assert known or all(format in allowed[layer] for layer, format in plan.items())


@pytest.mark.parametrize("name", SEARCHES)
def test_a_layer_steps_past_a_format_that_it_may_not_take(name: str) -> None:
    layers = layers_of(4)
    allowed = pinned(layers, [INT8, INT4], ["layer0=float,int4", "layer1=float,int4", "last=int8"])
    task, _ = problem(4, lambda plan: TOTAL, allowed=allowed)
    plan = SEARCHES[name](task).plan
    assert plan["layer0"] == INT4
    assert plan["layer3"] == INT8


@pytest.mark.parametrize("name", SEARCHES)
def test_a_start_that_may_not_be_float_is_judged_before_any_step(name: str) -> None:
    layers = layers_of(3)
    allowed = pinned(layers, [INT8, INT4], ["last=int8"])
    task, judge = problem(3, counting(1), allowed=allowed)
    found = SEARCHES[name](task)
    uniform = 2 if name in BY_ORDER else 0
    assert judge.calls[uniform] == (task.start, task.threshold)
    if name != "literal":
        assert found.plan == task.start
        assert len(found.evaluated) > 1


@pytest.mark.parametrize("name", SEARCHES)
@pytest.mark.parametrize("lazy", [False, True])
def test_pins_that_miss_the_target_are_named(name: str, lazy: bool) -> None:
    layers = layers_of(3)
    allowed = pinned(layers, [INT8, INT4], ["first=int4", "last=int8"])
    task, _ = problem(3, lambda plan: 450, allowed=allowed, lazy=lazy)
    with pytest.raises(TargetError) as error:
        SEARCHES[name](task)
    assert "'layer0' (int4), 'layer2' (int8) and all other" in str(error.value)
    assert "45.0000% is reached where 90.0000% is needed" in str(error.value)


def test_many_pins_are_counted_rather_than_listed() -> None:
    allowed = pinned(layers_of(12), [INT8], ["*=int8"])
    with pytest.raises(TargetError, match=r"'layer4' \(int8\) and 7 more and all other"):
        SEARCHES["bisection"](problem(12, lambda plan: 0, allowed=allowed)[0])


def test_a_layer_that_is_allowed_nothing_is_an_error() -> None:
    with pytest.raises(PlanError, match="layer 'layer1' is allowed no format"):
        problem(2, counting(0), allowed={"layer0": (FLOAT,), "layer1": ()})
