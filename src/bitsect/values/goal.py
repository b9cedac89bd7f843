"""Goal: what must be kept, what may be spent, and what a plan may be made of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..errors import OptionError
from ..names import listed
from .budget import Budget
from .format import FLOAT, INT4, INT8, Format, high_to_low
from .options import check_options, option, options
from .target import Target

GOAL = "Goal"
LABELS, EXPECTED = "labels", "expected"


@options
class Goal:
    """What a plan must keep and may cost; stored with every result.

    >>> goal = Goal(target="99.9%", formats="int8")
    >>> str(goal.target), [str(format) for format in goal.formats]
    ('99.9%', ['int8'])
    """

    target: Any = option(
        "Share of the float accuracy to keep, as 99.9%.",
        GOAL,
        default=None,
        python="Target | str | float | None",
    )
    max_drop: float | None = option("Or: percentage points that may be lost.", GOAL, default=None, type=float)
    max_perplexity: str | None = option(
        "Or, of a language model: the perplexity at most, as 1.01x of float's.", GOAL, default=None
    )
    destination: Any = option(
        "Where it will run: onnxruntime or openvino (timed on this machine), a100, bits, portable, or the "
        "latency table FILE.json; default: onnxruntime, or the run's own; bits for the method paper.",
        GOAL,
        default=None,
        python="str | Path | None",
    )
    latency: Any = option(
        "Latency table: a100 (fitted to the paper's totals), onnxruntime or openvino (timed here) or "
        "FILE.json; default: the destination's.",
        GOAL,
        default=None,
        python="LatencyTable | str | Path | None",
    )
    runtime_threads: int = option(
        "Threads that the model will run in, where it is timed.", GOAL, default=1, type=int, least=1
    )
    budget: str | None = option("Latency at most: 0.8x of 16 bit, or 3ms.", GOAL, default=None)
    max_size: str | None = option("Size at most: 12MB, or 0.5x of 16 bit.", GOAL, default=None)
    objective: str = option(
        "With a latency table, what a format must save", GOAL, default="latency", choices=("latency", "size")
    )
    formats: Any = option(
        "Formats to choose from, besides float, if not the destination's.",
        GOAL,
        default=(INT8, INT4),
        python="str | Format | Sequence[str | Format]",
    )
    keep: Sequence[str] = option(
        "PATTERN=FORMAT[,FORMAT…] limits layers to formats; PATTERN is a name, a glob, first, last or "
        "kind:depthwise.",
        GOAL,
        default=(),
        type=list[str],
    )
    search: str = option(
        "How the plan is searched",
        GOAL,
        default="bisection",
        choices="bitsect.solve.search:SEARCHES",
        own=True,
    )

    evaluations: int = option(
        "Plans that the frontier search may judge; uniform plans and a budget may add a few.",
        GOAL,
        default=16,
        type=int,
        least=3,
    )
    guide: str = option(
        "What the search goes by: the labels, or what the float network's own probabilities expect",
        GOAL,
        default=LABELS,
        choices=(LABELS, EXPECTED),
    )
    confidence: Any = option(
        "Promise the target only where samples held out from the search prove it with this confidence, "
        "as 95%.",
        GOAL,
        default=None,
        python="str | float | None",
    )

    def __post_init__(self) -> None:
        check_options(self)
        ways = {"target": self.target, "max_drop": self.max_drop, "max_perplexity": self.max_perplexity}
        if len({str(self._kept_by(name)) for name, value in ways.items() if value is not None}) > 1:
            raise OptionError("pass one of [target=99.9%], [max_drop=0.5] and [max_perplexity=1.01x]")
        if self.budget and self.latency is None and self.destination in ("bits", "portable"):
            raise OptionError(
                f"a latency budget of {self.budget} needs a latency table: pass [latency=a100] or a file"
            )
        for name in ("latency", "budget", "max_size"):
            if getattr(self, name) == "none":  # in place of what the destination or an earlier search has
                object.__setattr__(self, name, None)
        keep = (self.keep,) if isinstance(self.keep, str) else tuple(self.keep or ())
        keep = () if keep == ("none",) else keep
        if isinstance(self.keep, Mapping) or not all(isinstance(pin, str) for pin in keep):
            raise OptionError(f"keep {self.keep!r}: expected texts such as 'first=float,int8'")
        object.__setattr__(self, "confidence", parse_confidence(self.confidence))
        for name, value in (
            ("formats", parse_formats(self.formats)),
            ("keep", keep),
            ("target", self._kept()),
        ):
            object.__setattr__(self, name, value)
        if self.budget or self.max_size:
            Budget.parse(latency=self.budget, size=self.max_size)

    def _kept(self) -> Target | None:
        if self.target is None and self.max_perplexity is not None:
            return self._kept_by("max_perplexity")
        return self._kept_by("target" if self.max_drop is None else "max_drop")

    def _kept_by(self, option: str) -> Target | None:
        """The target that one of the three options asks for."""
        value = getattr(self, option)
        if value is None or isinstance(value, Target):
            return value
        ways = {"target": Target.parse, "max_drop": Target.drop, "max_perplexity": Target.of_perplexity}
        return ways[option](value)

    @property
    def limits(self) -> Budget | None:
        """What may be spent, if that is limited."""
        if not self.budget and not self.max_size:
            return None
        return Budget.parse(latency=self.budget, size=self.max_size)

    def check(self) -> None:
        """Refuse a goal that asks for nothing."""
        if self.target is None and self.limits is None:
            raise OptionError(
                "what must be kept? pass [target=99.9%], [max_drop=0.5], [budget=0.8x] or [max_size=12MB]"
            )


def parse_confidence(confidence: Any) -> float | None:
    """The confidence as a number above 0.5 and below 1; None, or the word none, for a bare comparison."""
    if confidence is None or confidence == "none":
        return None
    text = str(confidence).strip()
    try:
        number = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        number = 0.0
    if not 0.5 < number < 1:
        raise OptionError(f"confidence '{confidence}' is not above 50% and below 100%, such as 95% or 0.95")
    return number


def parse_formats(formats: Any) -> tuple[Format, ...]:
    """The formats to choose from besides float, from high to low; text may hold several, with commas."""
    formats = (INT8, INT4) if formats is None else tuple(listed(formats))
    if not all(isinstance(each, str | Format) for each in formats):
        raise OptionError(f"formats {formats!r}: expected names such as 'int8,int4'")
    parsed = high_to_low(Format.parse(each) if isinstance(each, str) else each for each in formats)
    lower = tuple(format for format in parsed if format != FLOAT)
    if not lower:
        raise OptionError("no format to try besides float: name one, such as int8 or w4a16")
    return lower
