"""quantize: a target in, a plan out. The whole story, one stage per line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..errors import OptionError
from ..runs.bar import Bar
from ..runs.opening import is_folder, open_run
from ..runs.progress import Progress
from ..solve.answer import search_named, threshold
from ..solve.metrics import metric_named
from ..values import Goal, Resources, Scoring, Settings
from .asked import Asked, staying
from .forecast import passes_of_cheapest, passes_of_search
from .judge import Evaluate, Judge
from .keywords import with_options
from .methods import completed, destined, method_of
from .notes import (
    about_destination,
    notes_on_answer,
    notes_on_population,
    notes_on_promise,
    notes_on_samples,
    notes_on_test,
)
from .perplexity import with_tokens
from .problem import check_scoring
from .promise import Prover, check_promise, promise_samples, with_hold_out
from .report import write_report
from .result import Result
from .rivals import can_answer
from .rows import compare, test_rows, test_samples
from .shown import keep_shown, keep_values
from .solving import Case, cheapest_first, is_tried_first, searched
from .written import request_for, written


@with_options(settings=Settings, scoring=Scoring, goal=Goal, resources=Resources)
def quantize(
    model: Any,
    data: Any = None,
    *,
    method: str | None = None,
    settings: Settings,
    scoring: Scoring,
    goal: Goal,
    resources: Resources,
    test_data: Any = None,
    validation_data: Any = None,
    evaluate: Evaluate | None = None,
    out: str | Path | None = None,
    export: str | Path | None = None,
    fresh: bool = False,
    trust: bool = False,
    progress: Progress | None = None,
) -> Result:
    """The plan of least cost that keeps the target, and everything about it.

    >>> result = quantize("zoo:fashion-resnet", target=0.9, draw=64, formats="int8", destination="bits")
    >>> result.plan.counts
    {'float': 0, 'int8': 22}

    Arguments:
        model: zoo:NAME, hf:FOLDER, paper:NAME, FILE.pt2, package.module:function, or the folder of a run,
            which is continued. In Python also an nn.Module.
        data: samples to calibrate and search on: FILE.npz, .safetensors, .csv, .tsv, .jsonl, .json (SQuAD),
            .txt, a folder of images (one sub-folder per class), datasets:NAME or zoo:NAME; a network of the
            zoo brings its own. In Python also tensors (inputs, labels), or any iterable of such batches.
        method: named defaults for all options, bitsect, paper or paper-literal; default: bitsect, or the
            run's own.
        test_data: samples that the search does not see; the closing table shows both.
        validation_data: samples to prove the target on, in place of held-out ones of `data`.
        evaluate: a function of a module that returns a number, in place of the task's accuracy.
        out: the folder of the run, which the same call continues; without it nothing stays on disk.
        export: the file to write at the end; default: model.onnx in `out`, where it will run in a runtime.
        fresh: start anew, removing the run in `out`.
        trust: load a .pt2 file even if that can run its author's code, and import the code that a run or a
            recipe in a file names.
        progress: what is told of the stages; default: a bar, where anybody would see it.
    """
    before = None if fresh else out  # a run that starts anew takes nothing from the one it removes
    earlier, of_run, progress = Asked.of(model), is_folder(model), progress or Bar()
    chosen = method_of(model, before, method or earlier.method)
    asked = earlier.on_scoring(scoring, trust=trust), earlier.on_goal(goal, trust=trust)
    stays = [*staying(goal, asked[1]), *staying(scoring, asked[0])]
    settings, scoring, goal = completed(
        chosen, settings, *asked, of_run=of_run, judged_as_a_whole=evaluate is not None
    )
    destination, settings, goal = destined(model, before, settings, goal, chosen)
    validation_data = earlier.on_validation(validation_data, goal)
    progress.say(about_destination(destination, goal))
    if stays:
        progress.say(f"as this run was asked before: {', '.join(stays)}")
    check_request(goal, scoring, evaluate, test_data)
    settings = with_hold_out(settings, goal, validation_data, of_run)
    with open_run(
        model, data, settings, resources, out=out, fresh=fresh, trust=trust, progress=progress
    ) as run:
        goal = with_tokens(goal, run)
        run.folder.note(method=chosen.name, destination=destination.name)
        unseen = test_samples(run, model, test_data, evaluate)
        held_out = promise_samples(run, goal, validation_data)
        given = held_out if validation_data is not None else None
        request = Asked.now(chosen.name, destination.name, *asked, given)
        request.keep(run, first=True)
        file = request_for(run, export, destination)
        judge = Judge(run, evaluate)
        float_network = judge.float_network()
        threshold(goal.target, float_network)  # refuses samples of which none is right
        early = notes_on_samples(run, judge, float_network, goal)
        early += notes_on_promise(run, goal, held_out, float_network)
        early += notes_on_test(run, unseen, held_out)
        prover, found, promise, scores = Prover.of(run, goal, held_out, scoring), None, None, None
        if is_tried_first(goal):
            progress.expect(passes_of_cheapest(run, goal, held_out, unseen))
            case = Case.of(run, goal, destination, judge, roughly=True)
            found = cheapest_first(case, prover)
            promise = prover.promise(found.plan) if prover is not None and found is not None else None
        if found is None:
            case = Case.of(run, goal, destination, judge, roughly=False)
            progress.expect(passes_of_search(run, scoring, goal, case.allowed, held_out, unseen))
            found, promise, scores = searched(case, scoring, prover)
        evaluations = len(judge.judged)
        rows = compare(run, found.plan, case.allowed, judge, case.table, is_cheapest=scores is None)
        tested = test_rows(run, rows, goal.target, unseen)
        keep_values(run, found.plan)
        notes = (
            *notes_on_answer(run, case.problem, found, rows, goal, case.allowed, case.table),
            *early,
            *case.notes,
        )
        notes += notes_on_population(promise, tested)
        notes += () if scores is None else tuple(scores.doubts())
        result = Result(
            run,
            goal,
            scoring,
            found,
            rows,
            tested,
            evaluations,
            case.table,
            judge.name,
            promise,
            chosen.name,
            notes,
            case.fastest.timing,
            scores=scores,
        )
        result.keep()
        request.keep(run)
        keep_shown(run, judge, case.allowed, case.table, found, rows)
        write_report(run)
        return written(result, file, unseen, prover if can_answer(run, asked[1], goal) else None)


def check_request(goal: Goal, scoring: Scoring, evaluate: Evaluate | None, test_data: Any) -> None:
    """Refuse what can be refused before the first minute of work."""
    goal.check()
    metric_named(scoring.metric)
    search_named(goal.search)
    check_scoring(scoring, goal)
    check_promise(goal, evaluate)
    if evaluate is not None and test_data is not None:
        raise OptionError(
            "[test_data=] cannot be combined with [evaluate=], which judges the model itself: "
            "call it on result.model() afterwards"
        )
