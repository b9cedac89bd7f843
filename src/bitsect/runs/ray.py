"""Workers on a Ray cluster: one that the user named, or one that is started on this machine."""

from __future__ import annotations

import logging
import os
import secrets
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from ..errors import MissingExtraError, OptionError
from ..files import first_line
from ..names import child_path
from .packing import PackedObject, pack, unpack
from .worker import Worker, that_travels
from .workers import DiedError

AUTO = "auto"


class Cluster:
    """Actors on a Ray cluster, one for each `threads` of its processors, or as many as are asked for."""

    def __init__(self, address: str, size: int | None, threads: int) -> None:
        # One attempt takes 40 seconds where nothing answers: enough to know it.
        os.environ.setdefault("RAY_NUM_REDIS_GET_RETRIES", "1")
        try:
            import ray
        except ImportError:
            raise MissingExtraError("ray", "ray", f"[ray={address}]") from None
        self._ray, self._threads, self._undo = ray, threads, ExitStack()
        self.which = "the Ray cluster that this process uses"
        if not ray.is_initialized():
            try:
                self._join(address)
            except BaseException:
                self.close()
                raise
        processors = int(ray.cluster_resources().get("CPU", 0))
        self.size = size or max(1, processors // threads)
        if self.size * threads > processors:
            self.close()
            raise OptionError(
                f"{self.size} workers in {threads} threads each need more than the {processors} processors "
                "of the cluster: ask for fewer [workers=]"
            )

    def _join(self, address: str) -> None:
        """The cluster at `address`, for auto that of RAY_ADDRESS; where none is named, one of our own.

        Ray itself would take whatever a file that everybody may write to says that there is.
        """
        # Its first autoscaler reports its end to a server that Ray has ended before: a second in vain.
        os.environ.setdefault("RAY_enable_autoscaler_v2", "1")
        named = os.environ.get("RAY_ADDRESS", "") if address == AUTO else address
        options: dict[str, Any] = {"address": named}
        if named in ("", AUTO, "local"):
            self.which = "a Ray cluster of our own, on this machine alone"
            options = self._undo.enter_context(_own_cluster(self._ray))
        else:
            self.which = f"the Ray cluster at {named}" + (", by RAY_ADDRESS" if address == AUTO else "")
        if "://" not in named:
            options["job_config"] = _without_current_folder()
        self._undo.callback(self._ray.shutdown)
        try:
            with _ctrl_c_waits():
                self._ray.init(**options, log_to_driver=False, logging_level=logging.ERROR)
        except Exception as error:  # it says in many ways that there is no cluster
            raise OptionError(f"no Ray cluster at [ray={named or address}] ({first_line(error)})") from None

    def hire(self) -> Actor:
        return Actor(self._ray, self._threads)

    def put(self, value: Any) -> Callable[[], Any]:
        return InStore(self._ray.put(pack(value)))

    def close(self) -> None:
        self._undo.close()


@contextmanager
def _own_cluster(ray: Any) -> Iterator[dict[str, Any]]:
    """What starts a cluster that only this user can reach: by the loopback, a token, and a private folder."""
    constants, tokens = ray._private.ray_constants, ray._raylet.AuthenticationTokenLoader.instance()
    ours = {
        # Of a cluster of one's own, workers are not to stand back behind everything else.
        "RAY_worker_niceness": "0",
        "RAY_AUTH_TOKEN": secrets.token_hex(32),  # Ray's own lies in a file that others can read
    }
    before = {name: os.environ.get(name) for name in (*ours, "RAY_AUTH_MODE")}
    os.environ.update(ours)
    os.environ.pop("RAY_AUTH_MODE", None)  # without it Ray asks for a token
    tokens.reset_cache()
    several_machines, constants.ENABLE_RAY_CLUSTER = constants.ENABLE_RAY_CLUSTER, False
    # Names of sockets are short, so the system's own folder for such files may be too long.
    short = "/tmp" if Path("/tmp").is_dir() else None
    try:
        with TemporaryDirectory(prefix="ray-", dir=short, ignore_cleanup_errors=True) as folder:
            yield {"address": "local", "include_dashboard": False, "_temp_dir": folder}
    finally:
        constants.ENABLE_RAY_CLUSTER = several_machines
        for name, value in before.items():
            os.environ.pop(name, None) if value is None else os.environ.update({name: value})
        tokens.reset_cache()


def _without_current_folder() -> Any:
    """A job whose workers do not find everything first in the folder that this process is in."""
    from ray.job_config import JobConfig

    class Job(JobConfig):  # type: ignore[misc]
        def _runtime_env_has_working_dir(self) -> bool:
            return True

    return Job()


@contextmanager
def _ctrl_c_waits() -> Iterator[None]:
    """Ctrl-C ends what comes after this: a cluster that is half there leaves processes behind."""
    if threading.current_thread() is not threading.main_thread():
        yield  # other threads get no signals
        return
    came: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, frame: came.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before or signal.SIG_DFL)
    if came:
        signal.raise_signal(signal.SIGINT)


@dataclass(frozen=True)
class InStore:
    """A packed object in the cluster's store, whose arrays all workers of a machine share."""

    where: Any  # an ObjectRef

    def __call__(self) -> Any:
        import ray

        packed: PackedObject = ray.get(self.where)
        return unpack(packed)


class Actor:
    """A worker at the other end of a cluster."""

    def __init__(self, ray: Any, threads: int) -> None:
        self._ray = ray
        # Restarts are the crew's: it knows what the worker was doing.
        self._actor = ray.remote(num_cpus=threads, max_restarts=0)(_Remote).remote(threads, child_path())

    def ask(self, verb: str, *arguments: Any) -> Any:
        try:
            right, answer = self._ray.get(self._actor.answer.remote(verb, *arguments))
        except self._ray.exceptions.RayError as error:
            raise DiedError(f"a worker of the cluster is gone: {str(error).splitlines()[0]}") from None
        if not right:
            raise answer
        return answer

    def close(self) -> None:
        with suppress(Exception):  # the cluster itself may be gone
            self._ray.kill(self._actor)


class _Remote:
    """A worker on a cluster, which answers as one at the end of pipes does."""

    def __init__(self, threads: int, path: Sequence[str]) -> None:
        sys.path.extend(folder for folder in path if folder not in sys.path)
        self._worker = Worker(threads)

    def answer(self, verb: str, *arguments: Any) -> tuple[bool, Any]:
        try:
            return True, None if verb == "start" else getattr(self._worker, verb)(*arguments)
        except Exception as error:
            return False, that_travels(error)
