"""Draws: the network of a run on other samples from the same source, or under another method's rounding."""

from __future__ import annotations

import torch

from ..errors import DataError
from ..solve.confidence import split
from ..sources.data import Samples
from ..values import Settings
from ..values.options import to_json
from .disk import fingerprint_json
from .folder import SAMPLES_FILE, RunFolder
from .recorded import Recorded, read_samples
from .run import Run

PREFIX = "draw-"  # of the folders inside a run that hold its draws


def draw_of(run: Run, settings: Settings, name: str) -> Run:
    """The network of `run` with `settings` on the samples that their seed takes; kept in its folder.

    Nothing is captured again, and what was found is continued. `name` tells draws of one seed apart.
    """
    samples, held_out = _samples(run, settings)
    of = fingerprint_json(
        {"run": run.folder.run, "samples": samples.fingerprint(), **to_json(settings), "draw": name}
    )
    folder = RunFolder(run.folder.inside(f"{PREFIX}{name}-{settings.seed}"), of)
    draw = Run(folder, run.program, samples, run.task, settings, run.progress, held_out=held_out)
    return draw.within(run)


def check_draws(run: Run) -> None:
    """Refuse draws that would all be of the same samples."""
    known = Recorded.read(run.folder)
    assert known is not None
    if run.settings.hold_out:
        return
    whole = len(run.samples) if known.keeps_samples else len(run.load(known.data))
    if run.settings.draw is None or run.settings.draw >= whole or known.keeps_samples:
        why = "were given in Python" if known.keeps_samples else f"are all {whole:,} that there are"
        raise DataError(
            f"other draws need more samples than a run takes, and those of {run.folder.path} {why}: "
            "make the run of a file, with fewer of its samples [draw=N]; or pass [draws=1]"
        )


def _samples(run: Run, settings: Settings) -> tuple[Samples, Samples | None]:
    known = Recorded.read(run.folder)
    assert known is not None
    if known.keeps_samples:
        samples = read_samples(known.stored(run.folder, SAMPLES_FILE))
    else:
        samples = run.load(known.data, draw=settings.draw, seed=settings.seed)
    if not settings.hold_out:
        return samples, None
    searched, held = (
        samples.select(torch.from_numpy(part))
        for part in split(samples.count, settings.seed, samples.counted_families)
    )
    return searched, held
