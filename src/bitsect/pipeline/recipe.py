"""run_recipe: a whole experiment, every target with every search, on one run."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeVar

from ..errors import OptionError
from ..runs.progress import Progress
from ..sources.models import is_read
from ..sources.recipes import read_recipe
from ..values import Goal, Resources, Scoring, Settings
from ..values.options import given, refuse_code
from .keywords import with_options
from .quantize import quantize
from .result import Result

T = TypeVar("T")


@with_options(settings=Settings, scoring=Scoring, goal=Goal, resources=Resources)
def run_recipe(
    recipe: str | Path,
    data: Any = None,
    *,
    model: Any = None,
    method: str | None = None,
    settings: Settings,
    scoring: Scoring,
    goal: Goal,
    resources: Resources,
    test_data: Any = None,
    validation_data: Any = None,
    out: str | Path | None = None,
    export: str | Path | None = None,
    fresh: bool = False,
    trust: bool = False,
    progress: Progress | None = None,
) -> tuple[Result, ...]:
    """A result for every target and search of a recipe; what was measured serves all of them.

    Arguments:
        recipe: the name of one, as bitsect recipe list has them, or a TOML file.
        data: the samples to calibrate and search on; recipes name no files.
        model: another network than the recipe's.
        method, test_data, validation_data, export, fresh, trust, progress: as for `quantize`.
        out: the folder of the run, which all targets share.

    Options that are given replace those of the recipe, and a target or a search all of its own.
    """
    chosen = read_recipe(recipe)
    if out is None:
        raise OptionError("a recipe searches several times on one run: pass [out=FOLDER]")
    trusted = trust or Path(recipe).suffix != ".toml"
    if not (trusted or model is not None or chosen.model is None or is_read(chosen.model)):
        raise OptionError(
            f"{recipe}: its network '{chosen.model}' is code to import: name it yourself, or pass "
            "[trust=True]"
        )
    model = chosen.model if model is None else model
    if model is None:
        raise OptionError(f"recipe '{recipe}' names no network: name one")

    def complete(options: T, wanted: T) -> T:
        whole = chosen.complete(options)
        return whole if trusted else refuse_code(recipe, whole, wanted)

    settings, scoring = complete(settings, settings), complete(scoring, scoring)
    asked = given(goal)
    targets: list[Any] = (
        [None] if {"target", "max_drop", "max_perplexity"} & asked.keys() else [*chosen.targets] or [None]
    )
    searches: list[Any] = [None] if "search" in asked else [*chosen.searches] or [None]
    goals = []
    for search in searches:
        for target in targets:
            more = (("search", search), ("target", target))
            more_asked = {name: value for name, value in more if value is not None}
            goals.append(complete(Goal(**{**asked, **more_asked}), goal))
    results: list[Result] = []
    for each in goals:
        result = quantize(
            model,
            data,
            method=method or chosen.method,
            settings=settings,
            scoring=scoring,
            goal=each,
            resources=resources,
            test_data=test_data,
            validation_data=validation_data,
            out=out,
            export=export,
            fresh=fresh and not results,
            trust=trust,
            progress=progress,
        )
        results.append(result)
    return tuple(results)
