"""sensitivity: how much rounding each layer hurts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..runs.opening import is_folder, open_run
from ..runs.progress import Progress
from ..solve.metrics import metric_named
from ..values import INT8, Goal, Resources, Scores, Scoring, Settings
from ..values.goal import parse_formats
from .asked import Asked
from .compare import drawn
from .keywords import with_options
from .methods import destined, method_of
from .notes import about_output


@with_options(settings=Settings, scoring=Scoring, resources=Resources)
def sensitivity(
    model: Any,
    data: Any = None,
    *,
    settings: Settings,
    scoring: Scoring,
    resources: Resources,
    method: str | None = None,
    out: str | Path | None = None,
    fresh: bool = False,
    trust: bool = False,
    progress: Progress | None = None,
) -> Scores:
    """The scores of all layers, with how far they can be relied on.

    >>> scores = sensitivity("zoo:fashion-resnet", draw=64, metric="sqnr")
    >>> len(scores.layers)
    22

    Layers are scored in `score_format`, int8 where none is given. In the folder of a run of another
    method they are scored under the rounding of the one that is named.

    Arguments:
        model, data, method, out, fresh, trust, progress: as for `quantize`.
    """
    own = method_of(model, None if fresh else out, None if is_folder(model) else method)
    chosen = method_of(model, None if fresh else out, method)
    scoring = chosen.complete(Asked.of(model).on_scoring(scoring, trust=trust))
    settings = settings if is_folder(model) else chosen.complete(settings)
    destination, settings, _ = destined(model, None if fresh else out, settings, Goal(), chosen)
    metric_named(scoring.metric)
    format = INT8 if scoring.score_format in (None, "each") else parse_formats(scoring.score_format)[0]
    with open_run(
        model, data, settings, resources, out=out, fresh=fresh, trust=trust, progress=progress
    ) as run:
        run.folder.note(method=own.name, destination=destination.name)
        for note in about_output(run):
            run.progress.say(note)
        with drawn(run, chosen, own, run.settings.seed) as draw:
            return draw.score(scoring, format)
