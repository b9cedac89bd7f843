"""What timings belong to: a runtime, its version, a processor, a number of threads."""

from __future__ import annotations

import hashlib
import os
import platform
import re
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path


@dataclass(frozen=True)
class Machine:
    """Where kernels were timed."""

    runtime: str
    version: str
    processor: str
    threads: int

    @property
    def key(self) -> str:
        """A file name that only the same runtime on the same processor with as many threads has."""
        digest = hashlib.sha256(repr(asdict(self)).encode()).hexdigest()[:12]
        return re.sub(r"[^\w.-]+", "-", f"{self.runtime}-{self.version}-{self.threads}-{digest}")

    def __str__(self) -> str:
        threads = "one thread" if self.threads == 1 else f"{self.threads} threads"
        return f"{self.runtime} {self.version} in {threads} on {self.processor.partition(' [')[0]}"


def here(runtime: str, threads: int) -> Machine:
    """This machine, with the runtime as it is installed."""
    try:
        installed = version(runtime)
    except PackageNotFoundError:  # what is missing is said by whoever needs it
        installed = ""
    return Machine(runtime, installed, processor(), threads)


def processor() -> str:
    """The processor's name, with what else tells it from others of that name."""
    try:
        text = Path("/proc/cpuinfo").read_text(errors="replace").partition("\n\n")[0]
    except OSError:
        return f"{platform.processor() or platform.machine()} [{os.cpu_count()} cores]"
    facts: dict[str, str] = dict(re.findall(r"^([^\t:]+?)\s*:\s*(.*)$", text, re.MULTILINE))
    flags = hashlib.sha256((facts.get("flags") or facts.get("Features") or "").encode()).hexdigest()[:8]
    about = [facts.get(name, "") for name in ("cpu family", "model", "stepping", "cache size")]
    name = facts.get("model name", platform.machine())
    return f"{name} [{' '.join(filter(None, about))} {flags} {os.cpu_count()} cores]"


def cache_folder() -> Path:
    """The user's folder for what can be made again, as the system has it."""
    if os.environ.get("XDG_CACHE_HOME"):
        base = Path(os.environ["XDG_CACHE_HOME"])
    elif platform.system() == "Windows" and os.environ.get("LOCALAPPDATA"):
        base = Path(os.environ["LOCALAPPDATA"])
    elif platform.system() == "Darwin":
        base = Path("~/Library/Caches").expanduser()
    else:
        base = Path("~/.cache").expanduser()
    return base / "bitsect" / "latency"
