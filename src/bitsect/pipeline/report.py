"""report: a run as one page that explains itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..errors import BitsectError
from ..reports.html.page import check_extra, has_extra, page
from ..reports.reading import read_story, story_of
from ..reports.story import Story
from ..runs.bar import Bar
from ..runs.disk import write_text
from ..runs.opening import open_run
from ..runs.progress import Progress
from ..runs.run import Run
from ..values import FLOAT, INT8, Plan, Scoring
from .asked import Asked
from .blame import blame as find_blame
from .methods import method_of
from .plans import own_plan, same_task
from .shown import keep_values

FILE = "report.html"


def report(
    run: str | Path,
    *,
    out: str | Path | None = None,
    blame: bool = False,
    task: Any = None,
    trust: bool = False,
    progress: Progress | None = None,
) -> Path:
    """The path of a page that shows a run: one file that needs no network, in the run folder or as `out`.

    It is made of what the run has found so far, finished or not. Scores and histograms of the layers are
    measured now where they are missing; where the network or the samples are gone, the page does without.

    Arguments:
        run: the folder of a run.
        out: where to write the page; default: report.html in the run folder.
        blame: measure first what the plan loses and to whom.
        task: the run's own task again, if that is a function of yours.
        trust, progress: as for `quantize`.
    """
    check_extra()
    story = read_story(run)  # so that what is no run is refused first
    if blame:
        find_blame(run, task=task, trust=trust, progress=progress)
    if not (story.values and story.scored):
        _measure(run, story, task, trust, progress)
    place = Path(run) / FILE if out is None else Path(out)
    write_text(place, page(read_story(run)))
    return place


def write_report(run: Run) -> Path | None:
    """The page of an open run, in its folder; None where nobody could see it or the extra is missing."""
    if run.temporary or not has_extra():
        return None
    place = run.folder.inside(FILE)
    write_text(place, page(story_of(run.folder)))
    return place


def _measure(run: str | Path, story: Story, task: Any, trust: bool, progress: Progress | None) -> None:
    """Measure what the page shows and no search had to know: histograms and scores of the layers."""
    progress = progress or Bar()
    try:
        with open_run(run, settings=same_task(task), trust=trust, progress=progress) as opened:
            if not story.values:  # of its plan, else of the network in float
                keep_values(opened, own_plan(opened) or Plan.uniform(opened.layers, FLOAT))
            if not story.scored:
                asked = Asked.of(run).on_scoring(Scoring(), trust=trust)
                opened.score(method_of(run, None, None).complete(asked), INT8)
    except BitsectError as error:
        progress.say(f"no histograms or scores of the layers: {error}")
