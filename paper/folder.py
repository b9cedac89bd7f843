"""Everything about the paper in one folder: CSV, SVG and PNG, and a page of Markdown that shows them."""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from bitsect import BitsectError, MissingExtraError

from . import tables
from .data import Data, Network
from .figures import FIGURES
from .printed import OTHERS, RESNET50, TABLES, TITLES
from .text import csv_text, plain, write_whole

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PAGE = "README.md"


def write_folder(made: Mapping[str, Data], networks: Sequence[Network], folder: Path) -> tuple[Path, ...]:
    """Write all of `made` into `folder`, and return what was written, the page first."""
    check_drawing(made)
    draw = [name for name in FIGURES if name in made]
    if folder.exists() and not folder.is_dir():
        raise BitsectError(f"{folder} is a file: tables and figures need a folder")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BitsectError(f"{folder} cannot be made: {error.strerror}; choose another") from None
    written = []
    for name, data in made.items():
        path = folder / f"{name}.csv"
        write_whole(path, csv_text(data.rows).encode())
        written.append(path)
    for name in draw:
        figure = FIGURES[name][1](made, networks)
        if figure is not None:
            written += _save(figure, folder / name)
    page = folder / PAGE
    write_whole(page, page_text(made, networks).encode())
    return page, *written


def page_text(made: Mapping[str, Data], networks: Sequence[Network]) -> str:
    """The page: tables in Markdown, figures beside it."""
    parts = ["# The paper's tables and figures\n", _of_what(networks)]
    if "table" in made:
        for beside, number in TABLES.items():
            if alike := [each for each in networks if each.beside == beside]:
                parts.append(f"## Table {number} ({TITLES[beside]}), with {_named(alike)}\n")
                parts.append(tables.comparison_table(made["table"], alike) + "\n")
    for name, (title, _) in FIGURES.items():
        if name in made:
            parts.append(f"## {title}\n\n![{title}]({name}.svg)\n\n[{name}.csv]({name}.csv)\n")
            if name == "error-bars":
                parts.append(tables.spread_table(made[name], networks) + "\n")
    for name, title, table in (
        ("greedy", "Table 4: greedy (progressive) search", tables.greedy_table),
        ("interlayer", "Table 5: inter-layer dependencies alone", tables.interlayer_table),
        ("evaluations", "Table 6: length of the search, in evaluated plans", tables.evaluations_table),
    ):
        if name in made:
            parts.append(f"## {title}\n\n{table(made[name], networks)}\n")
    alike = [each for each in networks if each.beside == RESNET50]
    if "table" in made and alike:
        found = tables.other_work_table(made["table"], alike)
        parts.append(f"## Table {OTHERS}: further works, with {_named(alike)}\n\n{found}\n")
    return "\n".join(parts)


def _named(networks: Sequence[Network]) -> str:
    return ", ".join(plain(each.name) for each in networks)


def _of_what(networks: Sequence[Network]) -> str:
    lines = []
    for each in networks:
        told = [f"{each.layers} layers"]
        if each.curvature is not None:
            told.append(f"traces of its {each.curvature} matrix")
        if each.samples is not None:
            told.append(f"searched on {each.samples}")
            told.append("no test samples" if each.test is None else f"tested on {each.test}")
            told.append("no latency" if each.device is None else f"latency of {each.device}")
        lines.append(f"- {plain(each.name)}: {', '.join(map(plain, told))}")
    return "\n".join(lines) + "\n"


def _save(figure: Figure, stem: Path) -> list[Path]:
    """The figure as SVG and PNG, the same bytes every time."""
    import matplotlib

    written = []
    for ending, metadata in (("svg", {"Date": None}), ("png", {"Software": None})):
        buffer = io.BytesIO()
        with matplotlib.rc_context({"svg.hashsalt": stem.name}):
            figure.savefig(buffer, format=ending, metadata=metadata)
        path = stem.with_name(f"{stem.name}.{ending}")
        write_whole(path, buffer.getvalue())
        written.append(path)
    return written


def check_drawing(names: Iterable[str]) -> None:
    """Refuse figures that cannot be drawn, before hours go into their data."""
    if any(name in FIGURES for name in names):
        try:
            import matplotlib  # noqa: F401
        except ImportError:
            raise MissingExtraError("matplotlib", "report", "drawing figures") from None
