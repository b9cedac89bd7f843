"""What a user should know about a result, each in a sentence: of the samples, and of the plan."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from torch import Tensor
from torch.fx import Node
from torch.utils._pytree import tree_leaves

from ..errors import DataError
from ..names import some
from ..network.comparison import draws_numbers
from ..network.exported_program import example_outputs
from ..network.operators import operator_name
from ..network.outputs import mixes_samples, output_axes
from ..network.remarks import remarks, unseen_layers
from ..runs.run import Run
from ..solve.allowed import Allowed
from ..solve.search.problem import Found, Problem
from ..sources.data import Samples
from ..sources.data.copies import seen_before
from ..sources.tasks.outputs import named_tensors
from ..sources.tasks.quantities import features_name
from ..sources.tasks.task import Task
from ..values import FLOAT, Evaluation, Goal, LatencyTable, Target
from ..values.destination import BITS, Destination, destination_named
from ..values.goal import LABELS
from .judge import Judge
from .perplexity import meaning
from .promise import Promise, what_can_be_promised
from .rows import Row, Tested

RISE = 1.1  # of a user's own figure by rounding: more is strange
NO_LABELS = "no labels: accuracy is agreement with the float network's own answers"


def about_destination(destination: Destination, goal: Goal) -> str:
    """Where the model will run, said first: it decides all the rest."""
    said = f"for {destination.name}: {destination.in_words(by_table=goal.latency is not None)}"
    if destination.name == BITS:
        said += "; [destination=onnxruntime] finds the plan for where it will run"
    return said


def notes_on_samples(run: Run, judge: Judge, float_network: Evaluation, goal: Goal) -> tuple[str, ...]:
    """What the float network's accuracy says of the samples: told at once, before the long work."""
    # Where a plan is promised, others than these samples decide, and what they can prove is said of them.
    target = goal.target if goal.confidence is None else None
    _check_end(run)
    notes = (*_about_judge(run, judge), *_about_samples(run, judge.labels, float_network, target))
    notes += tuple(meaning(run, goal.target, float_network))
    for note in notes:
        run.progress.say(note)
    return notes


def _check_end(run: Run) -> None:
    """Refuse probabilities where a task asks for the sign of logits: every class would count as given."""
    ends = [each for each in tree_leaves(run.program.contents.outputs) if isinstance(each, Node)]
    signed = run.task.name in ("multi-label", "binary")
    if signed and [operator_name(each.target) for each in ends] == ["sigmoid"]:
        raise DataError(
            f"the network ends in a sigmoid, and the task {run.task.name} goes by the sign of its inputs: "
            "leave the sigmoid out"
        )


def notes_on_promise(
    run: Run, goal: Goal, held_out: Samples | None, float_network: Evaluation
) -> tuple[str, ...]:
    """What can be promised with the held-out samples: told at once too."""
    notes = tuple(what_can_be_promised(goal, held_out, float_network))
    for note in notes:
        run.progress.say(note)
    return notes


def notes_on_test(run: Run, unseen: Samples | None, held_out: Samples | None) -> tuple[str, ...]:
    """Said at once where the test samples are not as unseen as they should be."""
    used = {"searched on": run.samples, "held out": held_out}
    notes = tuple(
        f"{known:,} of {len(unseen):,} test samples are among those that were {how}: on new samples the plan "
        "may do worse than the test says"
        for how, samples in used.items()
        if unseen is not None and samples is not None and (known := seen_before(unseen, samples))
    )
    for note in notes:
        run.progress.say(note)
    return notes


def notes_on_population(promise: Promise | None, tested: Tested | None) -> tuple[str, ...]:
    """Said where samples that a promise rests on and test samples are not of one kind.

    The accuracies of the float network on both differ by more than three standard errors of the difference.
    """
    if promise is None or tested is None or not promise.accuracy:
        return ()
    there, here = promise.accuracy["float"], tested.float.accuracy
    counts = promise.samples, tested.float.total
    variance = sum(a * (1 - a) / n for a, n in zip((there, here), counts, strict=True) if 0 <= a <= 1)
    if min(counts) < 2 or abs(there - here) <= 3 * math.sqrt(variance):
        return ()
    return (
        f"the float network is {there:.2%} right on the held-out samples and {here:.2%} on the test samples, "
        "which is no chance: the promise is about samples like those held out (validation samples tell more "
        "than training samples)",
    )


def notes_on_answer(
    run: Run,
    problem: Problem,
    found: Found,
    rows: Sequence[Row],
    goal: Goal,
    allowed: Allowed,
    table: LatencyTable | None,
) -> Iterator[str]:
    """What a user should know about the plan and the network."""
    if goal.confidence is None:  # else a plan is promised for what held-out samples prove, not these
        yield from _about_search(problem, found, goal.target)
        if goal.guide == LABELS:
            yield from _about_uniform(problem, rows, goal.objective)
    yield from _about_device(allowed, table, goal.objective)
    yield from _about_float(found, goal)
    yield from _about_figure(rows)
    yield from _perplexities(run.task, rows)
    yield from remarks(run.program)
    yield from _about_rounding(run)
    yield from unseen_layers(run.program, run.ranges())


def _about_float(found: Found, goal: Goal) -> Iterator[str]:
    """A plan that leaves everything as it is should not look like a success; one that is faster may."""
    timed = destination_named(goal.destination).runtime is not None
    if goal.target is not None and not timed and set(found.plan.values()) == {FLOAT}:
        sure = "" if goal.confidence is None else " for certain; more samples may prove one that does"
        yield f"no layer was quantised: no plan with fewer bits keeps the target{sure}"


def _about_figure(rows: Sequence[Row]) -> Iterator[str]:
    """A user's own figure that rises by rounding is perhaps an error or a loss."""
    before, after = rows[0].evaluation, max((row.evaluation for row in rows), key=lambda each: each.accuracy)
    if before.total == 1 and after.accuracy > RISE * before.accuracy:
        yield (
            f"the figure rises from {before.accuracy:.4g} to {after.accuracy:.4g} by rounding: a higher one "
            "is taken for the better, so an error or a loss must be turned round (1 − error, 1 / loss)"
        )


def _perplexities(task: Task, rows: Sequence[Row]) -> Iterator[str]:
    """What the losses of a language model mean: exp of the mean surprise of a token."""
    losses = [(row.name, row.evaluation.loss) for row in rows if row.evaluation.loss is not None]
    if task.name.endswith("language-modelling"):
        yield f"perplexity: {', '.join(f'{name} {math.exp(min(loss, 700)):.4g}' for name, loss in losses)}"


def _about_judge(run: Run, judge: Judge) -> Iterator[str]:
    """A user's own function is not part of the run: who goes on without it should know."""
    before = (run.folder.read_json("result.json") or {}).get("judge")
    if before is not None and judge.name is None:
        yield (
            f"the last search of this run was judged by your own function '{before}', this one is by the "
            "accuracy of its task"
        )


def _about_samples(
    run: Run, labels: Tensor | None, float_network: Evaluation, target: Target | None
) -> Iterator[str]:
    agreement = run.samples.labels is None
    if labels is not None:
        yield from _near_chance(run.task, labels, float_network, agreement)
    if target is not None:
        yield from _no_room(target, float_network)
    yield from about_output(run)
    yield from _about_batches(run)
    length = getattr(run.samples.source, "fixed", None)
    if length is not None:
        yield (
            f"the network takes sequences of one length: shorter ones are filled up to {length}, masked, and "
            "ranges see what fills them"
        )
    if run.task.reference:
        yield from about_reference(run)
    elif agreement:
        yield NO_LABELS


def about_reference(run: Run) -> Iterator[str]:
    """What accuracy means where no labels are looked at, and which outputs have no part in it."""
    outputs = example_outputs(run.program.exported)
    if not run.task.needs_axes:
        yield "accuracy is the mean cosine to the float network's own features; labels are left aside"
        judged_one = features_name(outputs)
        if left := [name for name in named_tensors(outputs) if name != judged_one]:
            yield (
                f"the features are output '{judged_one}'; not judged: {some(left)}, nor layers that only "
                "these need: [task=outputs] judges all outputs"
            )
        return
    yield (
        "accuracy is 1 − the squared error of the outputs over the square of the float network's own, the "
        "mean over outputs and samples; labels are left aside"
    )
    judged, axes = dict(run.task.axes), output_axes(run.program)
    names = [name for name in named_tensors(outputs) if name not in judged]
    if others := [name for name in names if name in axes]:
        yield f"output '{run.task.output}' is what is judged, not {some(others)}: [output=NAME] takes another"
    if fixed := [name for name in names if name not in axes]:
        yield f"not judged: {some(fixed)}, which no layer reaches, or which have no part for every sample"


def _about_batches(run: Run) -> Iterator[str]:
    """Said where the answer to a sample is not the network's answer to that sample alone."""
    program, samples = run.program, run.samples
    if draws_numbers(program):
        yield "the network draws random numbers in evaluation mode too: its accuracy is another at every call"
        return
    is_fixed = program.fixed_batch is not None or samples.source.lengths is not None
    if is_fixed or min(len(samples), run.batch_size) < 4:
        return
    if mixes_samples(program, samples.inputs(slice(0, 2)), samples.inputs(slice(0, 4))):
        yield (
            "the answer to a sample depends on the others in its batch, as statistics of a batch make it: "
            f"what is found holds for batches of {run.batch_size}, and not for single samples"
        )


def about_output(run: Run) -> Iterator[str]:
    """Which output was judged, where the network has several and none is called logits."""
    names = list(named_tensors(example_outputs(run.program.exported)))
    if not run.task.needs_axes and run.task.output not in (None, "logits") and len(names) > 1:
        others = ", ".join(name for name in names if name != run.task.output)
        yield f"output '{run.task.output}' is what is judged, not {others}: [output=NAME] takes another"


def _near_chance(task: Task, labels: Tensor, judged: Evaluation, agreement: bool) -> Iterator[str]:
    """Said if the float network is within two standard deviations of one answer for all samples.

    Guesses that do not depend on the inputs get at most the share c of the most common label right, up to
    the chance of a binomial: c·n ± 2·√(n·c·(1 − c)).
    """
    if task.chance is None or not task.mean:
        return
    n, share = judged.total, task.chance(labels)
    perfect = judged.correct == n and not agreement
    if not agreement and task.chance is not None and n * share < judged.correct < n / 2:
        yield (
            f"the float network gets only {judged.correct / n:.0%} of the samples right: check the labels, "
            "and that inputs are normalised as it was trained with"
        )
    if perfect or judged.correct > n * share + 2 * math.sqrt(n * share * (1 - share)):
        return
    if agreement:
        yield f"the float network gives {share * n:.0f} of {n} samples the same answer: agreement says little"
    else:
        yield (
            f"the float network gets {judged.correct:g} of {n} samples right, where one answer for all gets "
            f"{share * n:.0f}: check the labels, how inputs are normalised, and that the outputs are logits"
        )


def _no_room(target: Target, judged: Evaluation) -> Iterator[str]:
    """Said if the samples are too few for the target: no single one may be lost."""
    if judged.total == 1 or judged.correct != int(judged.correct):
        return
    lost = int(judged.correct) - math.ceil(target.threshold(judged.exact) * judged.total)
    loss = target.max_drop if target.relative is None else (1 - target.relative) * judged.exact
    if lost > 0 or not loss:  # a target that allows no loss at all was meant so
        return
    yield (
        f"the target of {target} lets none of the {judged.correct:g} samples that are right be lost: "
        f"about {math.ceil(1 / loss)} samples, not {judged.total}, would allow one"
    )


def _about_search(problem: Problem, found: Found, target: Target | None) -> Iterator[str]:
    """The two ends of a search, said in so many words."""
    ends = {name: ladder for name, ladder in problem.ladders.items() if len(ladder) > 1}
    if target is not None and found.met and ends:
        if all(found.plan[name] == ladder[0] for name, ladder in ends.items()):
            yield f"nothing lower keeps the target of {target}: every layer stays at its highest"
        if all(found.plan[name] == ladder[-1] for name, ladder in ends.items()):
            yield f"the lowest format already keeps the target of {target} in every layer"


def _about_uniform(problem: Problem, rows: Sequence[Row], objective: str) -> Iterator[str]:
    """Uniform plans that would do with less: the printed search is left as it is printed."""
    *others, found = rows
    for row in others:
        allowed = all(format in problem.ladders[name] for name, format in row.plan.items())
        cheaper = row.cost.price(objective) < found.cost.price(objective)
        if problem.threshold and allowed and cheaper and row.evaluation.reaches(problem.threshold):
            yield f"{row.name} keeps the target too and costs less: [search=bisection] takes it"


def _about_device(allowed: Allowed, table: LatencyTable | None, objective: str) -> Iterator[str]:
    """Formats that a device makes no use of, and where its latencies come from."""
    if table is None:
        return
    left_out = ", ".join(map(str, allowed.left_out))
    if left_out and objective == "latency":
        yield f"no layer is faster in {left_out} on {table.device}: [objective=size] takes it all the same"
    elif left_out:
        yield f"{table.device} runs no layer in {left_out}"
    yield f"latencies are those of {table.device}: {table.source}"


def _about_rounding(run: Run) -> Iterator[str]:
    """Which layers the chosen rounding cannot fit."""
    if run.left_to_squant:
        names = ", ".join(run.left_to_squant)
        yield f"gptq does not know what the weights of {names} are multiplied by: these round by squant"
