"""The errors that bitsect raises on purpose: one family, so that a caller catches one class."""


class BitsectError(Exception):
    """Something a user can mend; the message says what, where, and the way out."""


class CaptureError(BitsectError):
    """The network cannot be made into a program of layers."""


class DataError(BitsectError):
    """Samples, labels or their files are not what the network needs."""


class PlanError(BitsectError):
    """A plan, format or pattern does not fit the network."""


class RunError(BitsectError):
    """A run folder holds something else than what was asked for."""


class TargetError(BitsectError):
    """No allowed plan keeps the target."""


class ExportError(BitsectError):
    """A written model cannot be proven equal to the one that was judged."""


class MissingExtraError(BitsectError):
    """An optional dependency is needed: `pip install 'bitsect[EXTRA]'`."""

    def __init__(self, package: str, extra: str, purpose: str) -> None:
        super().__init__(f"{purpose} needs {package}: pip install 'bitsect[{extra}]'")
