"""Where the workers of a run are: on this machine, on a cluster, or nowhere."""

from __future__ import annotations

import os
from pathlib import Path

from ..values import Resources
from .processes import Processes
from .progress import Progress
from .workers import Workers, WorkerSite


def hired(resources: Resources, threads: int | None, folder: Path, progress: Progress) -> Workers | None:
    """The workers that were asked for, on their way; None where this process does all work itself."""
    threads = threads or 1
    site: WorkerSite
    if resources.ray is not None:
        from .ray import Cluster

        site = cluster = Cluster(resources.ray, resources.workers, threads)
        progress.say(f"workers are on {cluster.which}")
    elif (count := resources.workers or 1) > 1:
        # In the run folder, whose lock says whose it is: what a kill leaves of it is swept away on opening.
        site = Processes(count, threads, folder / f".workers.{os.getpid()}.tmp")
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        if count * threads > max(cores, count):
            progress.say(
                f"{count} workers in {threads} threads each are more than the {cores} processors here: a new "
                "run with [threads=1] is faster"
            )
    else:
        return None
    workers = Workers(site, threads)
    workers.begin()
    return workers
