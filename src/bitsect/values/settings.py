"""Settings: what decides the bits of a run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..errors import OptionError
from .options import check_options, option, options
from .placement import PLACEMENTS

SAMPLES, ROUNDING, MACHINE = "Samples", "Rounding", "Network and machine"
SIGNS = ("signed", "auto")
ROWS = 64  # samples that run at once, where they are small


@options
class Settings:
    """What decides the bits of a run: fixed when it is made, and a change is refused by name.

    >>> Settings(range="mse").rounding
    'squant'
    """

    draw: int | None = option(
        "Take so many samples, drawn at random; default: all.", SAMPLES, default=None, type=int, least=1
    )
    seed: int = option(
        "Seed of the random order in which samples are taken.", SAMPLES, default=0, type=int, least=0
    )
    hold_out: bool = option(
        "Hold samples back from calibration and search, to prove the target on.",
        SAMPLES,
        default=False,
        type=bool,
    )
    mean: float | Sequence[float] | None = option(
        "Pixels become (x·scale − mean)/std; repeat it for each channel.",
        SAMPLES,
        default=None,
        type=list[float],
    )
    std: float | Sequence[float] | None = option("See mean.", SAMPLES, default=None, type=list[float])
    scale: float | None = option("See mean; default: 1/255.", SAMPLES, default=None, type=float)
    columns: Sequence[str] = option(
        "ROLE=NAME says which column of texts is what; ROLE is text, pair, label, question, context, answers "
        "or tokens.",
        SAMPLES,
        default=(),
        type=list[str],
    )
    max_length: int | None = option(
        "Tokens of a text at most: longer ones are cut, or read in windows.",
        SAMPLES,
        default=None,
        type=int,
        least=2,
    )
    stride: int | None = option(
        "Tokens by which two windows of a long text overlap; default: 128.",
        SAMPLES,
        default=None,
        type=int,
        least=0,
    )
    group_by: str | None = option(
        "Samples that may be wrong together, kept together and counted as one: a column of a table (SQuAD: "
        "title), or what a regular expression finds in the paths of images.",
        SAMPLES,
        default=None,
    )
    processor: Any = option(
        "Tokenizer or image processor, as hf:FOLDER; default: the network's own.",
        SAMPLES,
        default=None,
        python="Any",
    )
    task: Any = option(
        "How outputs are judged",
        SAMPLES,
        default="classification",
        choices="bitsect.sources.tasks:TASKS",
        own=True,
        aside="without it, outputs where they are no classes (99% lets their squared error be 1% of the "
        "float outputs' squares)",
        python="str | Task | Callable[..., Any]",
    )
    output: str | None = option(
        "The output that is judged, where the network gives several.", SAMPLES, default=None
    )
    placement: str = option("Where values are rounded", ROUNDING, default="paper", choices=tuple(PLACEMENTS))
    rounding: str = option(
        "How weights are rounded", ROUNDING, default="squant", choices="bitsect.rounding:ROUNDINGS"
    )
    refit: bool = option("With gptq, fit weights to the rounded inputs.", ROUNDING, default=True, type=bool)
    bias_correction: bool = option(
        "With gptq, let a bias take the mean error of each channel away.", ROUNDING, default=True, type=bool
    )
    range: str = option(
        "How ranges are set", ROUNDING, default="percentile", choices="bitsect.rounding:RANGES"
    )
    percentile: float = option(
        "Of |x|, for the range method percentile.", ROUNDING, default=99.999, type=float
    )
    sign: str | None = option(
        "Codes of values that are never negative: signed, or unsigned with auto; default: as the placement "
        "has it",
        ROUNDING,
        default=None,
        choices=SIGNS,
    )
    batch_size: int | None = option(
        "Samples that run at once; bits depend on it; default: up to 64, as memory allows.",
        MACHINE,
        default=None,
        type=int,
        least=1,
    )
    threads: int | None = option(
        "Bits depend on it; default: as many as torch takes.", MACHINE, default=None, type=int, least=1
    )
    embeddings: bool = option(
        "Count embeddings as layers too; default: where files for a runtime are written.",
        MACHINE,
        default=False,
        type=bool,
    )
    device: str | None = option("cpu, cuda or mps; default: where the network is.", MACHINE, default=None)

    def __post_init__(self) -> None:
        check_options(self)
        if not 0 < self.percentile <= 100:
            raise OptionError(f"percentile {self.percentile:g} is not above 0 and up to 100")
        columns = (self.columns,) if isinstance(self.columns, str) else tuple(self.columns or ())
        object.__setattr__(self, "columns", columns)
        for name in ("mean", "std"):  # JSON gives a list back
            value = getattr(self, name)
            if isinstance(value, Sequence) and not isinstance(value, str):
                object.__setattr__(self, name, tuple(value))

    def check(self) -> None:
        """Refuse settings that do not go together."""
        for name in ("refit", "bias_correction"):
            if not getattr(self, name) and self.rounding != "gptq":
                raise OptionError(f"[{name}=False] is for [rounding=gptq], not {self.rounding}: leave it out")

    @property
    def texts(self) -> dict[str, Any]:
        """How rows become samples."""
        names = ("columns", "max_length", "stride", "group_by")
        return {name: getattr(self, name) for name in names}

    @property
    def pixels(self) -> dict[str, Any]:
        """How pixels become inputs, where that was asked for."""
        chosen = {"mean": self.mean, "std": self.std, "scale": self.scale}
        return {name: value for name, value in chosen.items() if value is not None}
