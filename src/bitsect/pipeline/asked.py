"""What a run was asked: it stays so until something else is asked."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from ..latency.tables import TABLES, TIMED, latency_table
from ..runs.disk import reading
from ..runs.folder import RunFolder
from ..runs.opening import is_folder
from ..runs.run import Run
from ..sources.data import Samples
from ..sources.data.load import MEMORY
from ..values import Goal, LatencyTable, Scoring
from ..values.boundary import Boundary
from ..values.options import given, refuse_code, to_json

FILE = "asked.json"
KEPT, LIMITS = {"target", "max_drop", "max_perplexity"}, {"budget", "max_size"}
# What a goal says of where a plan will run and what it may be made of, whatever is to be kept.
TERMS = ("latency", "runtime_threads", "objective", "formats", "keep")
Json = dict[str, Any]


@dataclass(frozen=True)
class Asked:
    """What the last search of a run was asked for; of options those that were given, not defaults."""

    method: str | None = None
    destination: str | None = None
    goal: Json = field(default_factory=dict)
    scoring: Json = field(default_factory=dict)
    validation_data: str | None = None

    @classmethod
    def of(cls, run: Any) -> Asked:
        """What the run in the folder `run` was asked; nothing if it is no such folder."""
        if not is_folder(run) or not RunFolder.is_run(Path(run)):
            return cls()
        known = RunFolder(Path(run), only_read=True).read_json(FILE)
        with reading(Path(run) / FILE, "remove it, and name the options again"):
            asked = cls(**known or {})
            asked.on_goal(Goal(), trust=True)
            asked.on_scoring(Scoring(), trust=True)
        return asked

    @classmethod
    def now(
        cls, method: str, destination: str, scoring: Scoring, goal: Goal, samples: Samples | None
    ) -> Asked:
        """What is asked now; of samples to prove a target on, the place that they came from."""
        where = str(Path(destination).resolve()) if Path(destination).is_file() else destination
        place = None if samples is None or samples.spec == MEMORY else str(samples.spec)
        return cls(method, where, _options(goal), _options(scoring), place)

    def keep(self, run: Run, *, first: bool = False) -> None:
        """Keep it in the run; where it is only the `first` request, if there is none yet."""
        if not first or run.folder.read_json(FILE) is None:
            run.folder.write_json(FILE, vars(self))

    def on_goal(self, goal: Goal, names: Collection[str] | None = None, *, trust: bool = False) -> Goal:
        """`goal` with what was asked before (of `names` alone) where it asks for nothing else.

        Another destination brings its own latencies; a limit alone asks for no target; and one way to say
        what is to be kept replaces the other.
        """
        asked, replaced = given(goal), {"destination"}
        if asked.keys() & (KEPT | LIMITS):
            replaced |= KEPT
        if asked.get("destination") is not None:
            replaced.add("latency")
        wanted = self.goal.keys() if names is None else self.goal.keys() & {*names}
        known = {name: self.goal[name] for name in wanted - replaced}
        if isinstance(known.get("latency"), dict):
            known["latency"] = _table(known["latency"])
        whole = Goal(**{**known, **asked})
        return whole if trust else refuse_code(FILE, whole, goal)

    def on_scoring(self, scoring: Scoring, *, trust: bool = False) -> Scoring:
        """`scoring` with what was asked before where it asks for nothing else."""
        whole = Scoring(**{**self.scoring, **given(scoring)})
        return whole if trust else refuse_code(FILE, whole, scoring)

    def on_validation(self, data: Any, goal: Goal) -> Any:
        """The samples to prove the target of `goal` on: those given, else those of before."""
        proves = goal.confidence is not None and goal.target is not None
        return self.validation_data if data is None and proves else data


def staying(asked: Goal | Scoring, whole: Goal | Scoring) -> list[str]:
    """What of the `whole` was asked before and not now, as options are mentioned."""
    shown = to_json(whole)
    return [f"[{name}={_words(shown[name])}]" for name in shown if name in given(whole).keys() - given(asked)]


def _options(options: Goal | Scoring) -> Json:
    """The options that were given, as JSON that means the same wherever it is read again."""
    found = {name: value for name, value in to_json(options).items() if name in given(options)}
    latency = getattr(options, "latency", None)
    if latency is not None and str(latency) not in (*TABLES, *TIMED):
        table = latency_table(latency, ())
        assert table is not None
        boundaries = [asdict(each) for each in table.boundaries]
        found["latency"] = {"table": table.to_json(), "rest_ms": table.rest_ms, "boundaries": boundaries}
    return found


def _table(data: Json) -> LatencyTable:
    boundaries = tuple(Boundary(**each) for each in data["boundaries"])
    return replace(
        LatencyTable.from_json(data["table"], FILE), rest_ms=data["rest_ms"], boundaries=boundaries
    )


def _words(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)
