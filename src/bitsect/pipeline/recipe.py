"""run_recipe: a whole experiment, every target with every search, on one run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..errors import OptionError
from ..runs.progress import Progress
from ..sources.recipes import read_recipe
from ..values import Goal, Resources, Scoring, Settings
from ..values.options import given
from .keywords import with_options
from .quantize import quantize
from .result import Result


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
    fresh: bool = False,
    trust: bool = False,
    progress: Progress | None = None,
) -> tuple[Result, ...]:
    """A result for every target and search of a recipe; what was measured serves all of them.

    Arguments:
        recipe: the name of one, or the path of a TOML file: `bitsect recipe show resnet50 > mine.toml`.
        data: the samples to calibrate and search on; recipes name no files.
        model: another network than the recipe's.
        method, test_data, validation_data, fresh, trust, progress: as for `quantize`.
        out: the folder of the run, which all targets share.

    Options that are given replace those of the recipe, and a target or a search all of its own.
    """
    chosen = read_recipe(recipe)
    if out is None:
        raise OptionError("a recipe searches several times on one run: pass [out=FOLDER]")
    model = chosen.model if model is None else model
    if model is None:
        raise OptionError(f"recipe '{recipe}' names no network: name one")
    settings, scoring = chosen.complete(settings), chosen.complete(scoring)
    asked = given(goal)
    targets: list[Any] = [None] if {"target", "max_drop"} & asked.keys() else [*chosen.targets] or [None]
    searches: list[Any] = [None] if "search" in asked else [*chosen.searches] or [None]
    results: list[Result] = []
    for search in searches:
        for target in targets:
            more = {
                name: value for name, value in (("search", search), ("target", target)) if value is not None
            }
            results.append(
                quantize(
                    model,
                    data,
                    method=method or chosen.method,
                    settings=settings,
                    scoring=scoring,
                    goal=chosen.complete(Goal(**{**asked, **more})),
                    resources=resources,
                    test_data=test_data,
                    validation_data=validation_data,
                    out=out,
                    fresh=fresh and not results,
                    trust=trust,
                    progress=progress,
                )
            )
    return tuple(results)
