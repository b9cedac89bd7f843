"""The errors that bitsect raises on purpose: one family, so that a caller catches one class.

    BitsectError
    ├── OptionError         an option is unknown, or its value is none that it may have (also a TypeError)
    ├── CaptureError        the network cannot be made into a program of layers
    ├── DataError           samples, labels or their files are not what the network needs
    ├── PlanError           a plan, format or pattern does not fit the network
    ├── RunError            a run folder is damaged, or holds something else than what was asked for
    ├── TargetError         no allowed plan keeps the target
    ├── ExportError         a written model cannot be proven equal to the one that was judged
    └── MissingExtraError   an optional dependency is needed

Messages mention options as [name=value], or [name=] without a value. Python users read them as keyword
arguments, users of the command line as options:

>>> error = BitsectError("samples are needed: pass [data=FILE]")
>>> str(error), error.as_command()
("samples are needed: pass data='FILE'", 'samples are needed: pass --data FILE')
"""

from __future__ import annotations

import re

LONGEST = 4000  # characters of a message: what users give may be of any length
_MENTION = re.compile(r"\[([a-z]\w*)=([^\]]*)\]")


class BitsectError(Exception):
    """Something a user can mend; the message says what, where, and the way out."""

    @property
    def message(self) -> str:
        """The message with options as they were mentioned; a long one loses its middle."""
        text = super().__str__()
        return text if len(text) <= LONGEST else f"{text[: LONGEST // 2]} … {text[-LONGEST // 4 :]}"

    def __str__(self) -> str:
        return in_python(self.message)

    def __format__(self, spec: str) -> str:
        # A message that is made part of another keeps its mentions until the whole is shown.
        return format(self.message, spec)

    def as_command(self) -> str:
        """The message as a user of the command line reads it."""
        return in_command(self.message)


def in_python(text: str) -> str:
    """`text` with the options that it mentions written as keyword arguments."""
    return _MENTION.sub(_as_argument, text)


SHORT = {"destination": "for"}  # options that the command has a shorter name for


def in_command(text: str) -> str:
    """`text` with the options that it mentions written as options of the command line."""
    return _MENTION.sub(_as_option, text)


def _as_argument(mention: re.Match[str]) -> str:
    name, value = mention.groups()
    if value == "":
        return name
    literal = value in ("True", "False", "None") or re.fullmatch(r"[\d.]+|\[.*|\(.*", value)
    return f"{name}={value}" if literal else f"{name}={value!r}"


def _as_option(mention: re.Match[str]) -> str:
    name, value = mention.groups()
    flag = f"--{SHORT.get(name, name).replace('_', '-')}"
    if value == "False":
        return f"--no-{flag[2:]}"
    return flag if value in ("", "True") else f"{flag} {value}"


class OptionError(BitsectError, TypeError):
    """An option is unknown, or its value is none that it may have."""


class CaptureError(BitsectError):
    """The network cannot be made into a program of layers."""


class DataError(BitsectError):
    """Samples, labels or their files are not what the network needs."""


class PlanError(BitsectError):
    """A plan, format or pattern does not fit the network."""


class RunError(BitsectError):
    """A run folder is damaged, or holds something else than what was asked for."""


class TargetError(BitsectError):
    """No allowed plan keeps the target."""


class ExportError(BitsectError):
    """A written model cannot be proven equal to the one that was judged."""


class MissingExtraError(BitsectError):
    """A dependency is needed: `pip install 'bitsect[EXTRA]'` for an optional one, else the package itself."""

    def __init__(self, package: str, extra: str | None, purpose: str) -> None:
        wanted = f"'bitsect[{extra}]'" if extra else package.replace("_", "-")
        super().__init__(f"{purpose} needs {package}: pip install {wanted}")
