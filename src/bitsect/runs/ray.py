"""Workers on a Ray cluster: one that is there, or one that is started on this machine."""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from ..errors import MissingExtraError, OptionError
from .packing import Packed, pack, unpack
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
        self._ray, self._threads = ray, threads
        self._started = not ray.is_initialized()
        if self._started:
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
        """The cluster at `address`; without one Ray takes what runs on this machine, else it starts one."""
        # Of a cluster of one's own, workers are not to stand back behind everything else.
        os.environ.setdefault("RAY_worker_niceness", "0")
        # Its first autoscaler reports its end to a server that Ray has ended before: a second in vain.
        os.environ.setdefault("RAY_enable_autoscaler_v2", "1")
        try:
            with _ctrl_c_waits():
                self._ray.init(
                    None if address == AUTO else address,
                    log_to_driver=False,
                    include_dashboard=False if address == AUTO else None,
                    logging_level=logging.ERROR,
                )
        except Exception as error:  # it says in many ways that there is no cluster
            reason = (str(error).splitlines() or [""])[0]
            forget = ": `ray stop` forgets one that is gone" if address == AUTO else ""
            raise OptionError(f"no Ray cluster answers at [ray={address}] ({reason}){forget}") from None

    def hire(self) -> Actor:
        return Actor(self._ray, self._threads)

    def put(self, value: Any) -> Callable[[], Any]:
        return InStore(self._ray.put(pack(value)))

    def close(self) -> None:
        if self._started:
            self._ray.shutdown()


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

        packed: Packed = ray.get(self.where)
        return unpack(packed)


class Actor:
    """A worker at the other end of a cluster."""

    def __init__(self, ray: Any, threads: int) -> None:
        self._ray = ray
        # Restarts are the crew's: it knows what the worker was doing.
        self._actor = ray.remote(num_cpus=threads, max_restarts=0)(_Remote).remote(threads)

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

    def __init__(self, threads: int) -> None:
        self._worker = Worker(threads)

    def answer(self, verb: str, *arguments: Any) -> tuple[bool, Any]:
        try:
            return True, None if verb == "start" else getattr(self._worker, verb)(*arguments)
        except Exception as error:
            return False, that_travels(error)
