"""Reading a run folder into its story: without torch, and whatever state the run is in."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from ..errors import BitsectError, RunError
from ..runs.disk import reading
from ..runs.folder import AGAIN, RunFolder
from ..values.format import Format, rank
from ..values.plan import Plan
from ..values.scores import Scores
from ..values.shown import Choices, Interaction, LayerValues, Structure
from ..values.target import Target
from .again import command_of
from .answer import answer_of, number, text
from .story import (
    OPEN,
    Blamed,
    BlameStory,
    CurveStory,
    LayerStory,
    Remedied,
    Scored,
    ShownPoint,
    ShownVerdict,
    Story,
)

T = TypeVar("T")
Json = dict[str, Any]
EDITED = ShownVerdict(
    OPEN,
    "plan.json was edited after it was judged",
    "figures are of the plan before; `bitsect evaluate RUN` judges the new one",
)


def read_story(path: str | Path) -> Story:
    """The story of the run in the folder `path`."""
    path = Path(path)
    if not RunFolder.is_run(path):
        raise RunError(f"{path} is not a run, it holds no run.json: `bitsect quantize MODEL --out` makes one")
    folder = RunFolder(path, only_read=True)
    folder.recognise()
    return story_of(folder)


def story_of(folder: RunFolder) -> Story:
    """The story of an open run folder.

    What the verdict rests on must be there and whole; of the rest, what cannot be read is left out, and
    named in its faults.
    """
    known = _Reading(folder)
    run = folder.read_json("run.json")
    if run is None:
        raise RunError(f"{folder.path} is not a run, it holds no run.json")
    with reading(folder.path / "run.json", AGAIN):
        about = {name: str(run[name]) for name in ("model", "data", "task")}
    structure = known.needed("layers.json", Structure.from_json) or Structure()
    choices = known.of("choices.json", Choices.from_json)
    result = known.needed("result.json", dict)
    effort = known.of("effort.json", _effort) or _Effort()
    formats = known.plan()
    answer = known.needed("result.json", answer_of) or {}
    if answer and not formats:
        raise RunError(
            f"{folder.path / 'plan.json'} is gone, of which result.json speaks: `bitsect search "
            f"{folder.path} --target {answer.get('target') or '99%'}` finds it again"
        )
    judged = (result or {}).get("plan_key")
    if answer and formats and structure.layers and _key(structure, formats) != judged:
        answer["verdict"], choices = EDITED, None  # which are of the plan before
    layers = tuple(_layer(each, formats, choices, result) for each in structure.layers)
    goal = (result or {}).get("goal") or {}
    metric = ((result or {}).get("scoring") or {}).get("metric")
    settings = {"Goal": goal, "Scoring": (result or {}).get("scoring") or {}, "Settings": _settings(run)}
    return Story(
        str(folder.path),
        about["model"],
        about["data"],
        about["task"],
        method=text(run.get("method")),
        destination=text(run.get("destination")),
        finished=bool(answer),
        layers=layers,
        skipped=structure.skipped,
        scored=known.scored(formats, metric),
        pairs=known.pairs(),
        curve=known.of("curve.json", lambda data: _curve(data, answer.get("target"), result)),
        values=known.of("values.json", _values) or {},
        blame=known.of("blame.json", lambda data: _blame(data, result)),
        settings={name: _flat(options) for name, options in settings.items() if options},
        fingerprints={
            "network": str(run.get("model_fingerprint")),
            "samples": str(run.get("data_fingerprint")),
            "run": str(folder.run),
        },
        versions=effort.versions or {"torch": str(run.get("torch"))},
        seconds=effort.seconds,
        evaluations=effort.evaluations,
        device=choices.device if choices is not None else None,
        command=command_of(folder.path, run, result),
        faults=tuple(known.faults),
        **answer,
    )


class _Reading:
    """Files of a run, each read or named as a fault."""

    def __init__(self, folder: RunFolder) -> None:
        self.folder, self.faults = folder, list[str]()

    def needed(self, name: str, make: Callable[[Json], T]) -> T | None:
        """What `make` makes of the file `name`; None where it is not there."""
        data = self.folder.read_json(name)
        with reading(self.folder.path / name, AGAIN):
            return None if data is None else make(data)

    def of(self, name: str, make: Callable[[Json], T]) -> T | None:
        """The same; None also where it cannot be read, which is a fault."""
        try:
            return self.needed(name, make)
        except BitsectError as error:
            self.faults.append(str(error))
            return None

    def plan(self) -> dict[str, str]:
        """The format of every layer; nothing where no plan was found."""
        with reading(self.folder.path / "plan.json", AGAIN):
            layers = (self.folder.read_plan("plan.json") or {"layers": {}})["layers"]
            return {str(name): Format.parse(str(each)).name for name, each in layers.items()}

    def pairs(self) -> tuple[Interaction, ...]:
        """Every table of pairs of layers."""
        names = sorted(path.name for path in self.folder.path.glob("pairs-*.json"))
        found = (self.of(name, Interaction.from_json) for name in names)
        return tuple(each for each in found if each is not None and len(each.layers) > 1)

    def scored(self, formats: dict[str, str], metric: str | None) -> tuple[Scored, ...]:
        """Every file of scores, those that the search went by first."""
        found = []
        for path in sorted(self.folder.path.glob("scores-*.json")):
            scores = self.of(path.name, Scores.from_json)
            if scores is not None and scores.layers:
                found.append(Scored(scores, cut(scores, formats), scores.metric == metric))
        distinct = {(each.scores.metric, str(each.scores.format)): each for each in found}
        return tuple(
            sorted(
                distinct.values(),
                key=lambda each: (
                    not each.own,
                    each.threshold is None,
                    each.scores.metric,
                    rank(each.scores.format),
                ),
            )
        )


def cut(scores: Scores, formats: dict[str, str]) -> float | None:
    """The score below which the plan lowers layers to the format of the scores, and above which it does not.

    None where no single score parts them.

    >>> from bitsect.values import INT8
    >>> scores = Scores("single", INT8, ("a", "b"), (1.0, 4.0))
    >>> cut(scores, {"a": "int8", "b": "float"}), cut(scores, {"a": "float", "b": "int8"})
    (2.5, None)
    """
    low, high = list[float](), list[float]()
    for name, value in zip(scores.layers, scores.values, strict=True):
        if name in formats:
            lowered = rank(Format.parse(formats[name])) >= rank(scores.format)
            (low if lowered else high).append(value)
    if not low or not high or max(low) > min(high):
        return None
    return (max(low) + min(high)) / 2


def _key(structure: Structure, formats: dict[str, str]) -> str:
    """What the plan is known by; layers that it does not name stay in float."""
    return Plan({each.name: Format.parse(formats.get(each.name, "float")) for each in structure.layers}).key


def _layer(facts: Any, formats: dict[str, str], choices: Choices | None, result: Json | None) -> LayerStory:
    taken = formats.get(facts.name, "float") if formats else None
    ms = choices.ms.get(facts.name, {}) if choices is not None else {}
    reason = _why_float(facts.name, choices, result) if taken == "float" else None
    return LayerStory(
        facts.name,
        facts.kind,
        facts.weights,
        facts.macs,
        facts.weight_shape,
        taken,
        ms.get("float"),
        ms.get(taken) if taken is not None else None,
        reason,
    )


def _why_float(name: str, choices: Choices | None, result: Json | None) -> str:
    """Why a layer of the plan stays in float."""
    if choices is None or name not in choices.allowed:
        return "the plan says so"
    if any(format != "float" for format in choices.allowed[name]):
        return "the search left it there: it is too sensitive, or gains too little"
    if name in choices.pinned:
        return "it is pinned to float"
    where = choices.device or str((result or {}).get("goal", {}).get("destination"))
    return f"no format is faster for it on {where}"


def _curve(data: Json, target: str | None, result: Json | None) -> CurveStory:
    baseline, plan = float(data["float_accuracy"]), str((result or {}).get("plan_key", ""))
    needed = None
    if target is not None:
        asked = Target.parse(target)
        needed = baseline * float(asked.relative) if asked.relative is not None else None
        needed = max(0.0, baseline - float(asked.max_drop)) if asked.max_drop is not None else needed
    points = tuple(
        ShownPoint(
            str(each["key"]),
            tuple(map(str, each["names"])),
            float(each["accuracy"]),
            int(each["samples"]),
            bool(each["complete"]),
            float(each["size_ratio"]),
            number(each["latency_ratio"]),
            number(each["latency_ms"]),
            bool(each["on_latency_hull"] if each["latency_ms"] is not None else each["on_size_hull"]),
            {str(name): int(count) for name, count in each["formats"].items()},
            each["order"] if isinstance(each.get("order"), int) else None,
            bool(plan) and plan.startswith(str(each["key"])),
        )
        for each in data["points"]
    )
    return CurveStory(points, baseline, text(data["device"]), needed)


def _values(data: Json) -> dict[str, LayerValues]:
    return {str(name): LayerValues.from_json(each) for name, each in data["layers"].items()}


def _blame(data: Json, result: Json | None) -> BlameStory | None:
    """The blame that was kept; None where it is of another plan than the run's last."""
    if result is None or data["plan"] != result["plan_key"]:
        return None
    whole = float(data["damage"]["mean"])

    def share(gain: Json | None, name: str = "mean") -> float | None:
        return None if gain is None or not whole else float(gain[name]) / whole

    layers = tuple(
        Blamed(
            str(each["name"]),
            str(each["format"]),
            float(each["share"]),
            share(each["gain"], "error") or 0.0,
            share(each["weights"]),
            share(each["activations"]),
            tuple(str(cause["words"]) for cause in each["causes"]),
            tuple(
                Remedied(
                    str(remedy["words"]),
                    float(remedy["recovers"]),
                    float(remedy["size_ratio"]),
                    number(remedy["latency_ratio"]),
                    remedy["words"] == each["remedy"],
                )
                for remedy in each["remedies"]
            ),
        )
        for each in data["layers"]
    )
    pairs = tuple(
        (str(p["first"]), str(p["second"]), float(p["excess"]["mean"]), float(p["excess"]["error"]))
        for p in data["pairs"]
    )
    return BlameStory(int(data["samples"]), whole, layers, pairs, tuple(map(str, data["notes"])))


@dataclass(frozen=True)
class _Effort:
    """What a run took, and in which versions."""

    seconds: Mapping[str, float] = field(default_factory=dict)
    evaluations: int | None = None
    versions: Mapping[str, str] = field(default_factory=dict)


def _effort(data: Json) -> _Effort:
    seconds = {str(name): float(value) for name, value in data["seconds"].items()}
    versions = {str(name): str(value) for name, value in (data.get("versions") or {}).items()}
    return _Effort(seconds, int(data["evaluations"]), versions)


def _settings(run: Json) -> Json:
    from ..values.options import names_of
    from ..values.settings import Settings

    return {name: run.get(name) for name in names_of(Settings)}


def _flat(options: Json) -> dict[str, Any]:
    """Options by name, without those that were left open."""
    return {str(name): value for name, value in options.items() if value not in (None, [], "")}
