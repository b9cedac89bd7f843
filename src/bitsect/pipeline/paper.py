"""paper: the paper's figures and tables, made for the networks of runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import OptionError
from ..latency import latency_table
from ..names import check_name
from ..reports.paper.data import Data, Rows, Subject
from ..reports.paper.folder import check_drawing, write_folder
from ..reports.paper.printed import most_like
from ..runs.opening import open_run
from ..runs.progress import Progress
from ..values.method import METHODS
from .compare import in_words
from .experiments import EXPERIMENTS, Asked, Desk
from .methods import method_of
from .plans import same_task
from .rows import tested_on

ALL = "all"


@dataclass(frozen=True)
class Paper:
    """Figures and tables of the paper, for one network or several: their data, ready to be drawn."""

    made: Mapping[str, Data]
    networks: tuple[Subject, ...]

    @property
    def rows(self) -> Rows:
        """The rows of everything that was made."""
        return tuple(row for data in self.made.values() for row in data.rows)

    @property
    def words(self) -> str:
        return "; ".join(data.words for data in self.made.values())

    def write(self, folder: str | Path) -> tuple[Path, ...]:
        """Write CSV, SVG, PNG and a page of Markdown into `folder`; the page comes first."""
        return write_folder(self.made, self.networks, Path(folder))

    def __repr__(self) -> str:
        return f"Paper: {', '.join(self.made)} of {len(self.networks)} networks"

    def to_json(self) -> dict[str, Any]:
        return {
            "networks": [vars(each) for each in self.networks],
            "made": [data.to_json() for data in self.made.values()],
        }


def paper(
    names: str | Sequence[str],
    runs: str | Path | Sequence[str | Path],
    *,
    targets: str | Sequence[str] | None = None,
    draws: int | None = None,
    latency: Any = "a100",
    test_data: Any = None,
    pairs: str = "exact",
    methods: str | Sequence[str] = ("paper", "bitsect"),
    task: Any = None,
    out: str | Path | None = None,
    trust: bool = False,
    progress: Progress | None = None,
) -> Paper:
    """Figures and tables of the paper, made for the networks of runs and drawn beside each other.

    Everything is under the paper's rounding, whatever a run's own is, and rests on `sensitivity` and
    `compare`: what a run has measured already is used, and what is measured now is kept in it. A network is
    called as the folder of its run.

    Arguments:
        names: which, such as `figure2`, or several with commas; `all` for everything.
        runs: the folder of a run, or several.
        targets: others than the paper's.
        draws: how many draws of the samples; default: 5 for the error bars, 1 for all else.
        latency: a latency table.
        test_data: samples that no search sees; default: those that a run was tested on.
        pairs: exact, or linear for large networks.
        methods: whose rows stand in the tables.
        task: the runs' own task again, where that is a function of yours.
        out: a folder for CSV, SVG, PNG and a page of Markdown.
        trust, progress: as for `quantize`.
    """
    chosen = _chosen(names, drawn=out is not None)
    asked = _asked(targets, draws, latency, pairs, methods)
    if out is not None:
        check_drawing(chosen)
    folders = [runs] if isinstance(runs, str | Path) else list(runs)
    called = [Path(run).resolve().name for run in folders]
    if not folders or len(set(called)) < len(called):
        raise OptionError("name the folder of one run or more, each folder called otherwise")
    rows: dict[str, list[dict[str, Any]]] = {name: [] for name in chosen}
    networks = []
    for name, run in zip(called, folders, strict=True):
        with open_run(run, settings=same_task(task), trust=trust, progress=progress) as opened:
            test = tested_on(opened) if test_data is None else opened.load(test_data)
            desk = Desk(opened, method_of(run, None, None), asked, test)
            for experiment, found in rows.items():
                found += [{"network": name, **row} for row in EXPERIMENTS[experiment].rows(desk)]
            networks.append(_subject(name, desk))
    made = {name: Data(name, EXPERIMENTS[name].words, tuple(found)) for name, found in rows.items()}
    result = Paper(made, tuple(networks))
    if out is not None:
        result.write(out)
    return result


def _chosen(names: str | Sequence[str], *, drawn: bool) -> list[str]:
    """The experiments that are asked for, and what is drawn beside them, each once and in their order."""
    listed = _listed(names)
    if listed == [ALL]:
        return list(EXPERIMENTS)
    for name in listed:
        check_name("experiment", name, [*EXPERIMENTS, ALL])
    if not listed or ALL in listed:
        raise OptionError(f"name figures and tables ({', '.join(EXPERIMENTS)}), or {ALL} alone")
    beside = [each for name in listed for each in EXPERIMENTS[name].beside if drawn]
    return [name for name in EXPERIMENTS if name in {*listed, *beside}]


def _asked(targets: Any, draws: int | None, latency: Any, pairs: str, methods: Any) -> Asked:
    if draws is not None and draws < 1:
        raise OptionError(f"draws {draws} is not at least 1")
    named = tuple(_listed(methods))
    for name in named:
        check_name("method", name, METHODS)
    if not named:
        raise OptionError(f"no method is named: use {', '.join(METHODS)}")
    return Asked(None if targets is None else tuple(_listed(targets)), draws, latency, pairs, named)


def _listed(given: str | Sequence[str]) -> list[str]:
    parts = given.split(",") if isinstance(given, str) else map(str, given)
    return [part.strip() for part in parts if part.strip()]


def _subject(name: str, desk: Desk) -> Subject:
    run = desk.run
    table = latency_table(desk.asked.latency, run.layers)
    return Subject(
        name,
        most_like(run.layers),
        len(run.layers),
        len(run.samples),
        Path(run.samples.spec).name,
        None if desk.test is None else in_words(desk.test),
        None if table is None else table.device,
    )
