"""compare: metrics, searches and methods side by side, over several draws of the samples."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..errors import OptionError
from ..names import check_name, listed
from ..runs.draws import check_draws, draw_of
from ..runs.opening import open_run
from ..runs.progress import Progress
from ..runs.run import Run
from ..solve.answer import search_named
from ..solve.costs import cost
from ..solve.intervals import WORDS, standings
from ..solve.metrics import METRICS, metric_named
from ..sources.data import Samples
from ..values import Goal, Plan, Resources, Scoring, Settings, Target
from ..values.method import METHODS, Method
from ..values.options import given, on_top_of
from ..values.trial import Compared, Setup, Trial
from .asked import TERMS, Asked
from .forecast import passes_of_trials, with_later
from .keywords import with_options
from .latency import table_for
from .methods import DAMAGE, FRONTIER, destined, method_of
from .plans import same_task
from .rows import tested_on
from .trials import TrialBench

TARGETS = ("99%",)
BISECTION = "bisection"
SAMPLING = {"draw", "hold_out"}  # settings that are no rounding
# Options of a goal that a comparison has no use for: the command does not offer them.
REFUSED = ("target", "max_drop", "max_perplexity", "budget", "max_size", "confidence")

Names = str | Sequence[str] | None


@with_options(scoring=Scoring, goal=Goal, resources=Resources)
def compare(
    run: str | Path,
    *,
    metrics: Names = None,
    searches: Names = None,
    methods: Names = None,
    targets: Any = None,
    draws: int = 1,
    scoring: Scoring,
    goal: Goal,
    resources: Resources,
    test_data: Any = None,
    test_draw: int | None = None,
    task: Any = None,
    trust: bool = False,
    progress: Progress | None = None,
) -> Compared:
    """Every metric with every search under every method's rounding, at every target, on every draw.

    A draw is a folder inside the run, with samples that another seed takes from the same source; the
    first is the run's own. What one metric measures on a draw serves the others, plans are judged once,
    and what was killed goes on. Every search is alone with its samples: none is promised anything.

    Arguments:
        run: the folder of a run.
        metrics: names with commas, or all; default: the method's own. In Python also a list, as for the rest.
        searches: names with commas; default: the method's own. The search frontier goes with the metric
            damage alone.
        methods: whose rounding and defaults to try, with commas, or all; default: the run's own.
        targets: as 98%,99%; default: 99%.
        draws: how many draws of the samples, as many runs with other seeds.
        test_data: samples that no search sees; default: those that the run was tested on.
        test_draw: test on so many samples, drawn at random; default: all.
        task: the run's own task again, if that is a function of yours.
        trust, progress: as for `quantize`.
    """
    own, earlier = method_of(run, None, None), Asked.of(run)
    goal, scoring = earlier.on_goal(goal, TERMS), earlier.on_scoring(scoring, trust=trust)
    _, settings, goal = destined(run, None, same_task(task), goal)
    request = Contenders.of(own, metrics, searches, methods, targets, scoring, goal)
    if draws < 1:
        raise OptionError(f"draws {draws} is not at least 1")
    with open_run(run, None, settings, resources, trust=trust, progress=progress) as opened:
        return _compared(opened, own, request, draws, _test(opened, test_data, test_draw))


def _compared(run: Run, own: Method, request: Contenders, draws: int, test: Samples | None) -> Compared:
    if draws > 1:
        check_draws(run)
    table, _ = table_for(run, request.goal)
    trials: list[Trial] = []
    seeds = range(run.settings.seed, run.settings.seed + draws)
    parts = [
        (seed, method, list(request.setups(method, seed))) for seed in seeds for method in request.methods
    ]
    ahead = with_later(
        [
            passes
            for seed, method, setups in parts
            for passes in passes_of_trials(run, _settings(run, method, own, seed), setups, table, test)
        ]
    )
    for seed, method, setups in parts:
        run.progress.say(f"draw {seed}, method {method.name}")
        with drawn(run, method, own, seed) as draw:
            bench = TrialBench(draw, table, test)
            for setup in setups:
                draw.progress.expect(next(ahead))
                trials.append(bench.trial(*setup))
    order = list(dict.fromkeys(trial.setup for trial in trials))
    trials.sort(key=lambda trial: (order.index(trial.setup), trial.draw))
    return Compared(
        tuple(trials),
        standings(trials),
        WORDS,
        request.left_out,
        None if test is None else _in_words(test),
        None if table is None else table.device,
        _in_words(run.samples),
        cost(Plan.uniform(run.layers), run.layers, table),
    )


def _test(run: Run, data: Any, draw: int | None) -> Samples | None:
    samples = tested_on(run) if data is None else run.load(data)
    if samples is None or draw is None:
        return samples
    return replace(run.load(samples, draw=draw), spec=samples.spec)


def _in_words(samples: Samples) -> str:
    return f"{len(samples):,} samples of {Path(samples.spec).name}"


@dataclass(frozen=True)
class Contenders:
    """What is to be compared."""

    methods: tuple[Method, ...]
    metrics: tuple[str, ...]  # none: the method's own
    searches: tuple[str, ...]
    targets: tuple[Target, ...]
    scoring: Scoring
    goal: Goal

    @classmethod
    def of(
        cls,
        own: Method,
        metrics: Names,
        searches: Names,
        methods: Names,
        targets: Any,
        scoring: Scoring,
        goal: Goal,
    ) -> Contenders:
        for name in REFUSED:
            if name in given(goal) and getattr(goal, name) is not None:
                raise OptionError(
                    f"[{name}=] does not apply to compare: name what to keep as [targets=98%,99%]"
                )
        chosen = tuple(METHODS) if methods == "all" else _names(methods)
        wanted = tuple(METRICS) if metrics == "all" else _names(metrics)
        asked = _names(searches)
        for name in chosen:
            check_name("method", name, METHODS)
        for name in wanted:
            metric_named(name)
        for name in asked:
            search_named(name)
        parsed = Target.several(targets or TARGETS)
        found = tuple(METHODS[name] for name in chosen) or (own,)
        return cls(found, wanted, asked, parsed, scoring, goal)

    def setups(self, method: Method, seed: int) -> Iterator[tuple[Setup, Scoring, Goal]]:
        """What is tried under a method's rounding, the contenders in the order in which they were named.

        Probes and random orders are drawn anew with the samples.
        """
        for metric, search in self._pairs(method):
            drawn = Scoring(metric=metric, probe_seed=self.scoring.probe_seed + seed)
            scoring = on_top_of(method.complete(self.scoring), drawn)
            for target in self.targets:
                goal = on_top_of(
                    method.complete(self.goal), Goal(search=search, target=target, confidence=None)
                )
                yield Setup(method.name, metric, search, str(target)), scoring, goal

    def _pairs(self, method: Method) -> list[tuple[str, str]]:
        """Metrics with searches that go together; what the method's own search does not go by is bisected."""
        metrics = self.metrics or (method.scoring.metric,)
        if not self.searches:
            own = method.goal.search
            return [(name, own if own != FRONTIER or name == DAMAGE else BISECTION) for name in metrics]
        pairs = [(name, search) for search in self.searches for name in metrics]
        fitting = [pair for pair in pairs if pair[1] != FRONTIER or pair[0] == DAMAGE]
        if FRONTIER in self.searches and (DAMAGE, FRONTIER) not in fitting:
            fitting.append((DAMAGE, FRONTIER))
        return fitting

    @property
    def left_out(self) -> tuple[str, ...]:
        """What does not go together, in words."""
        others = [name for name in self.metrics if name != DAMAGE]
        if FRONTIER in self.searches and others:
            return (
                f"the search {FRONTIER} goes by predicted damage: it is not tried with {', '.join(others)}",
            )
        return ()


def _names(names: Names) -> tuple[str, ...]:
    return tuple(str(name) for name in listed(names))


@contextmanager
def drawn(run: Run, method: Method, own: Method, seed: int) -> Iterator[Run]:
    """The run itself where it is the draw that is asked for, else a folder inside it."""
    inside = method.name != own.name or seed != run.settings.seed
    settings = _settings(run, method, own, seed)
    with draw_of(run, settings, method.name) if inside else nullcontext(run) as draw:
        yield draw


def _settings(run: Run, method: Method, own: Method, seed: int) -> Settings:
    settings = run.settings
    if method.name != own.name:
        # What the methods decide of the rounding; all else is the run's own, its samples among it.
        names = {name for each in METHODS.values() for name in given(each.settings)} - SAMPLING
        settings = on_top_of(settings, Settings(**{name: getattr(method.settings, name) for name in names}))
    return on_top_of(settings, Settings(seed=seed))
