"""Scoring: how layers are scored."""

from __future__ import annotations

import math

from ..errors import OptionError
from .format import Format
from .options import check_options, option, options
from .probing import ESTIMATORS

SENSITIVITY = "Sensitivity"
EACH = "each"


@options
class Scoring:
    """How layers are scored; stored with every file of scores."""

    metric: str = option(
        "What orders the layers",
        SENSITIVITY,
        default="aughessian",
        choices="bitsect.solve.metrics:METRICS",
        own=True,
    )
    score_format: str | None = option(
        "Format that layers are scored in; each: every step in its own; default: the highest.",
        SENSITIVITY,
        default=None,
    )
    pairs: str = option(
        "Pair losses, exact or estimated at linear cost",
        SENSITIVITY,
        default="exact",
        choices=("exact", "linear"),
    )
    loss: str = option(
        "What pairs are judged by, the task's loss or its divergence",
        SENSITIVITY,
        default="task",
        choices=("task", "kl"),
    )
    clip: str = option(
        "Where excess loss is cut at zero", SENSITIVITY, default="pair", choices=("pair", "sum")
    )
    trace: str = option(
        "The Hessian's trace, or its mean per weight",
        SENSITIVITY,
        default="mean_trace",
        choices=("mean_trace", "trace"),
    )
    estimator: str = option(
        "How the Hessian's traces are estimated", SENSITIVITY, default="gauss-newton", choices=ESTIMATORS
    )
    probes: int = option(
        "Hessian probes at most, each through all samples.", SENSITIVITY, default=64, type=int, least=1
    )
    tolerance: float = option(
        "Relative standard error of the median trace that ends probing.",
        SENSITIVITY,
        default=0.05,
        type=float,
        least=0,
    )
    size_penalty: float = option(
        "λ of the penalty on a layer's weights.", SENSITIVITY, default=0.0, type=float, least=0
    )
    until_stable: float | None = option(
        "Double samples and probes until two halves of them agree on the order this well, as 0.9.",
        SENSITIVITY,
        default=None,
        type=float,
        least=0,
    )
    probe_seed: int = option(
        "Seed of the Hessian's probes and of the random metric.", SENSITIVITY, default=0, type=int, least=0
    )

    def __post_init__(self) -> None:
        check_options(self)
        if self.score_format not in (None, EACH):
            Format.parse(str(self.score_format))
        if not math.isfinite(self.size_penalty):
            raise OptionError(f"size penalty {self.size_penalty} is not a number")
        if self.until_stable is not None and self.until_stable > 1:
            raise OptionError(f"until stable {self.until_stable} is not an agreement from 0 to 1")
