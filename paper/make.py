"""The paper's figures and tables, made for the networks of runs and drawn beside each other."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import bitsect
from bitsect import OptionError

from .data import Data, Network, Rows
from .experiments import EXPERIMENTS, SEARCHES, Context, Options
from .folder import check_drawing, write_folder
from .printed import most_like

ALL = "all"
UNCURVED = {"figure3", "interlayer"}  # which measure no traces


@dataclass(frozen=True)
class Paper:
    """Figures and tables of the paper, for one network or several: their data, ready to be drawn."""

    made: Mapping[str, Data]
    networks: tuple[Network, ...]

    @property
    def rows(self) -> Rows:
        """The rows of everything that was made."""
        return tuple(row for data in self.made.values() for row in data.rows)

    def write(self, folder: str | Path) -> tuple[Path, ...]:
        """Write CSV, SVG, PNG and a page of Markdown into `folder`; the page comes first."""
        return write_folder(self.made, self.networks, Path(folder))

    def to_json(self) -> dict[str, Any]:
        return {
            "networks": [vars(each) for each in self.networks],
            "made": [data.to_json() for data in self.made.values()],
        }


def make(
    names: str | Sequence[str],
    runs: str | Path | Sequence[str | Path],
    *,
    targets: str | Sequence[str] | None = None,
    draws: int | None = None,
    latency: Any = "a100",
    test_data: Any = None,
    pairs: str = "exact",
    method: str = "paper",
    methods: str | Sequence[str] | None = None,
    task: Any = None,
    out: str | Path | None = None,
    trust: bool = False,
    progress: bitsect.Progress | None = None,
) -> Paper:
    """Figures and tables of the paper, made for the networks of runs and drawn beside each other.

    Everything is under the rounding of `method`, whatever a run's own is, and rests on `bitsect.sensitivity`
    and `bitsect.compare`: what a run has measured already is used, and what is measured now is kept in it. A
    network is called as the folder of its run.

    Arguments:
        names: which, such as `figure2`, or several with commas; `all` for everything.
        runs: the folder of a run, or several.
        targets: others than the paper's.
        draws: how many draws of the samples; default: 5 for the error bars, 1 for all else.
        latency: a latency table.
        test_data: samples that no search sees; default: those that a run was tested on.
        pairs: exact, or linear for large networks.
        method: `paper`, or `paper-literal`.
        methods: whose rows stand in the tables; default: those of `method` and bitsect's own.
        task: the runs' own task again, where that is a function of yours.
        out: a folder for CSV, SVG, PNG and a page of Markdown.
        trust, progress: as for `bitsect.quantize`.
    """
    chosen = _chosen(names, drawn=out is not None)
    if draws is not None and draws < 1:
        raise OptionError(f"draws {draws} is not at least 1")
    if method not in SEARCHES:
        raise OptionError(f"the paper's method is {' or '.join(SEARCHES)}, not {method}")
    options = Options(
        None if targets is None else tuple(_listed(targets)),
        draws,
        latency,
        test_data,
        pairs,
        method,
        tuple(_listed(methods or (method, "bitsect"))),
        task,
        trust,
        progress,
    )
    if out is not None:
        check_drawing(chosen)
    folders = [Path(run) for run in ([runs] if isinstance(runs, str | Path) else runs)]
    called = [run.resolve().name for run in folders]
    if not folders or len(set(called)) < len(called):
        raise OptionError("name the folder of one run or more, each folder called otherwise")
    rows: dict[str, list[dict[str, Any]]] = {name: [] for name in chosen}
    networks = []
    for name, run in zip(called, folders, strict=True):
        context = Context(run, options)
        for experiment, found in rows.items():
            found += [{"network": name, **row} for row in EXPERIMENTS[experiment].rows(context)]
        networks.append(_network(name, context, chosen))
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
        if name not in (*EXPERIMENTS, ALL):
            (*near,) = get_close_matches(name, EXPERIMENTS, 1)
            hint = f"did you mean '{near[0]}'?" if near else f"use {', '.join(EXPERIMENTS)} or {ALL}"
            raise OptionError(f"unknown experiment '{name}': {hint}")
    if not listed or ALL in listed:
        raise OptionError(f"name figures and tables ({', '.join(EXPERIMENTS)}), or {ALL} alone")
    beside = [each for name in listed for each in EXPERIMENTS[name].beside if drawn]
    return [name for name in EXPERIMENTS if name in {*listed, *beside}]


def _listed(given: str | Sequence[str]) -> list[str]:
    parts = given.split(",") if isinstance(given, str) else map(str, given)
    return [part.strip() for part in parts if part.strip()]


def _network(name: str, context: Context, chosen: Collection[str]) -> Network:
    curvature = None if UNCURVED.issuperset(chosen) else context.curvature
    network = Network(name, most_like(context.layers), len(context.layers), curvature=curvature)
    last = context.last
    if last is None:  # scores alone compare nothing
        return network
    return replace(network, samples=last.samples, test=last.test, device=last.device)
