"""What was asked for, made of what was written; refused here before the first minute of work."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from pathlib import Path
from typing import Any

from ..errors import BitsectError, DataError, RunError
from ..names import calling, resolve
from ..runs.run import LOSSES, PAIRS, Run, is_number, known_names, one_of
from ..solve.search import SEARCHES, Found, Problem, Search, high_to_low
from ..sources.data import Samples
from ..sources.data.load import MEMORY
from ..values import FLOAT, INT8, Format, Plan, Target
from ..values.budget import Budget
from ..values.probing import ESTIMATORS

MEASURING = (
    "pairs",
    "loss",
    "samples",
    "estimator",
    "probes",
    "tolerance",
    "seed",
)  # what `Run.measured` takes


def parse_target(
    target: str | float | Target | None, budget: str | None, max_size: str | None
) -> Target | None:
    """What must be kept; nothing where a budget alone is given."""
    if isinstance(target, Target):
        return target
    if target is not None:
        return Target.parse(target)
    if budget or max_size:
        return None
    raise BitsectError(
        "what must be kept? pass --target 99.9%, --max-drop 0.5, --budget 0.8x or --max-size 12MB"
    )


def parse_limits(budget: str | None, max_size: str | None, latency: object) -> Budget | None:
    """What may be spent, if that is limited."""
    if budget and latency is None:
        raise BitsectError(f"a latency budget of {budget} needs a latency table: pass --latency a100 or FILE")
    return Budget.parse(latency=budget, size=max_size) if budget or max_size else None


def parse_formats(formats: Sequence[str | Format]) -> tuple[Format, ...]:
    """The formats to choose from besides float, from high to low."""
    parsed = high_to_low(Format.parse(f) if isinstance(f, str) else f for f in formats)
    lower = tuple(format for format in parsed if format != FLOAT)
    if not lower:
        raise BitsectError("no format to try besides float: name one, such as int8 or w4a16")
    return lower


def scoring_format(score_format: str | None, formats: Sequence[str | Format]) -> Callable[[Format], Format]:
    """The format whose scores order the layers for a step; in the paper, the highest for all steps."""
    if score_format == "each":
        return lambda step: step
    (chosen, *_) = parse_formats(formats if score_format is None else (score_format,))
    return lambda step: chosen


def search_named(name: str) -> Search:
    """The search of this name, or one's own as `package.module:function`."""
    if ":" not in name:
        one_of("search", name, SEARCHES)
        return SEARCHES[name]
    found = resolve(name, "search")
    if not callable(found):
        raise BitsectError(f"search '{name}' is a {type(found).__name__}: name a function of a Problem")

    @wraps(found)
    def search(problem: Problem) -> Found:
        with calling("search", name):
            answer = found(problem)
        if not isinstance(answer, Found):
            raise BitsectError(
                f"search '{name}' returned a {type(answer).__name__}: expected a bitsect.search.Found"
            )
        return answer

    return search


def check_measuring(given: Mapping[str, Any] | None) -> dict[str, Any]:
    """Options of measuring, by names that there are and with values that can be."""
    measuring = dict(given or {})
    known_names("option of measuring", measuring, MEASURING)
    one_of("pairs", measuring.get("pairs", "exact"), PAIRS)
    one_of("loss", measuring.get("loss", "task"), LOSSES)
    for name, least in (("samples", 1), ("probes", 1), ("seed", 0)):
        value = measuring.get(name, least)
        if not (name == "samples" and value is None) and (not is_number(value, int) or value < least):
            raise BitsectError(f"{name} {value} is not a whole number of at least {least}")
    tolerance = measuring.get("tolerance", 0.0)
    if not is_number(tolerance) or not tolerance >= 0:
        raise BitsectError(f"tolerance {tolerance} is not a number of at least 0")
    one_of("estimator", measuring.get("estimator", ESTIMATORS[0]), ESTIMATORS)
    return measuring


def parse_format(plan: object, format: str | Format | None) -> Format | None:
    """The one format of a uniform plan, where that is asked for instead of a plan."""
    if plan is not None and format is not None:
        raise BitsectError("pass either a plan or a format, not both")
    return Format.parse(format) if isinstance(format, str) else format


def plan_for(run: Run, plan: str | Path | Plan | None, format: Format | None) -> Plan:
    """The plan that is asked for; the run's own where none is, else int8 in every layer."""
    layers, own = run.program.layers, run.folder.path / "plan.json"
    if isinstance(plan, Plan):
        return Plan.from_json(plan.to_json(), layers)
    if plan is None and format is None and own.exists():
        plan = own
    return Plan.uniform(layers, format or INT8) if plan is None else Plan.read(Path(plan), layers)


def unseen_samples(run: Run, test: Any) -> Samples | None:
    """The test samples, else those of the run's last test; one is run, so that they are refused first."""
    samples = run.load(test) if test is not None else tested_on(run)
    if samples is not None:
        run.program.run(samples.inputs(slice(0, 1)))
    return samples


def tested_on(run: Run) -> Samples | None:
    """The samples that the run was tested on, unchanged; None if there are none that a file holds."""
    known = (run.folder.read_json("result.json") or {}).get("test") or {}
    spec = known.get("data", MEMORY)
    if spec == MEMORY:
        return None
    where = f"{run.folder.path} was tested on the samples of {spec}"
    try:
        samples = run.load(spec)
    except DataError as error:
        raise RunError(f"{where}: {error}; or pass other test samples") from None
    if samples.fingerprint() != known.get("fingerprint"):
        raise RunError(f"{where}, which have changed since: pass test samples again")
    return samples
