"""show: the story of a run, read and not computed: it needs no torch and starts at once."""

from __future__ import annotations

from pathlib import Path

from ..reports.reading import read_story
from ..reports.story import Story


def show(run: str | Path) -> Story:
    """The story of a run: its verdict, before and after, the format of every layer, who is sensitive.

    Arguments:
        run: the folder of a run.
    """
    return read_story(run)
