"""A run: a network with its samples, task and settings, and everything found out about it so far."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from difflib import get_close_matches
from typing import Any, Self

import numpy as np
import torch

from ..errors import BitsectError
from ..measure import (
    Context,
    exact_pairs,
    fisher_terms,
    hessian_traces,
    linear_pairs,
    output_damage,
    single_losses,
    weight_errors,
)
from ..measure.evaluator import Evaluator
from ..network.program import Program
from ..rounding.fitting import Fitter, left_to_squant
from ..rounding.ranges import METHODS, SIGNS, calibrate
from ..rounding.rounder import Rounder, is_fitted
from ..rounding.squant import GPTQ, ROUNDING_NAMES
from ..solve.metrics import Metric, Options
from ..solve.reliability import score
from ..sources.data import Samples, load_samples
from ..sources.tasks import Task
from ..values import PLACEMENTS, Damage, Format, Ranges, Scores, placement_named
from ..values.measured import Losses, Measured, Noise
from ..values.probing import ESTIMATORS
from .disk import fingerprint_json, reading
from .folder import Folder, Journal
from .progress import Progress

PAIRS = ("exact", "linear")
LOSSES = ("task", "kl")
PROBES = 64  # of the Hessian at most, each through all samples, where nothing else is asked for


class _Given:
    """Remembers which fields were written out, so that a default is told from a choice."""

    __slots__ = ("given",)
    given: frozenset[str]

    def __new__(cls, *args: Any, **options: Any) -> Self:
        made = super().__new__(cls)
        names = tuple(cls.__dataclass_fields__)  # type: ignore[attr-defined]
        object.__setattr__(made, "given", frozenset(names[: len(args)]) | options.keys())
        return made


@dataclass(frozen=True)
class Settings(_Given):
    """What decides the bits of a run: stored in it, and refused when changed. None: chosen for you."""

    placement: str = "paper"
    rounding: str = "squant"
    range: str = "percentile"
    percentile: float = 99.999
    sign: str | None = None  # None: as the placement has it
    batch_size: int = 64
    threads: int | None = None  # None: as many as torch takes
    embeddings: bool = False
    refit: bool = True  # of gptq: weights are fitted to the rounded inputs
    bias_correction: bool = True  # of gptq: a bias takes the mean error of each channel away

    def __post_init__(self) -> None:
        one_of("placement", self.placement, PLACEMENTS)
        one_of("rounding", self.rounding, ROUNDING_NAMES)
        one_of("range", self.range, METHODS)
        one_of("sign", self.sign, (*SIGNS, None))
        if not is_number(self.percentile) or not 0 < self.percentile <= 100:
            raise BitsectError(f"percentile {self.percentile} is not a number above 0 and up to 100")
        for name, count in (("batch size", self.batch_size), ("threads", self.threads or 1)):
            if not is_number(count, int) or count < 1:
                raise BitsectError(f"{name} {count} is not a whole number of at least 1")
        for name in ("embeddings", "refit", "bias_correction"):
            if not isinstance(getattr(self, name), bool):
                raise BitsectError(f"{name} {getattr(self, name)} is neither true nor false")

    def resolved(self) -> Settings:
        sign = self.sign or placement_named(self.placement).sign
        return replace(self, sign=sign, threads=self.threads or torch.get_num_threads())


def settings_of(given: Settings | Mapping[str, Any] | None) -> dict[str, Any]:
    """The settings that were given, by their names, each of them one that can be."""
    chosen = {name: getattr(given, name) for name in given.given} if isinstance(given, Settings) else given
    known_names("setting", chosen or {}, [field.name for field in fields(Settings)])
    chosen = {name: value for name, value in (chosen or {}).items() if value is not None}
    Settings(**chosen)
    return chosen


def is_number(value: object, kind: type = float) -> bool:
    """Whether `value` is a number of this kind; whole numbers are floats too, True and False are neither."""
    return isinstance(value, (int, kind)) and not isinstance(value, bool)


def known_names(what: str, given: Iterable[str], known: Collection[str]) -> None:
    """Refuse a name that is none of the `known`."""
    for name in given:
        if name not in known:
            close = get_close_matches(str(name), list(known), n=1)
            hint = f"did you mean '{close[0]}'?" if close else f"use {', '.join(known)}"
            raise BitsectError(f"unknown {what} '{name}': {hint}")


def one_of(what: str, value: object, choices: Collection[str | None]) -> None:
    """Refuse a `value` that is none of the `choices`."""
    if not isinstance(value, str | None) or value not in choices:
        *most, last = (choice for choice in choices if choice is not None)
        expected = f"{', '.join(most)} or {last}" if most else last
        raise BitsectError(f"unknown {what} '{value}': use {expected}")


class Run:
    """Everything that is known of one network on one set of samples; what is missing is measured once.

    While it is open nobody else works in its folder. Closed, it measures and judges no more, but still
    rounds as before.
    """

    def __init__(
        self,
        folder: Folder,
        program: Program,
        samples: Samples,
        task: Task,
        settings: Settings,
        progress: Progress | None = None,
        temporary: bool = False,
    ) -> None:
        self.folder, self.program, self.samples, self.task = folder, program, samples, task
        self.settings, self.progress = settings, progress or Progress()
        self.temporary = temporary  # its folder goes with it
        assert settings.threads is not None
        self._threads_outside = torch.get_num_threads()
        torch.set_num_threads(settings.threads)

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        torch.set_num_threads(self._threads_outside)
        self.folder.close()

    def reopened(self) -> Run:
        """The same run, open again."""
        folder = Folder(self.folder.path, self.folder.run)
        return Run(folder, self.program, self.samples, self.task, self.settings, self.progress)

    def under(self, placement: str) -> Run:
        """This network on these samples under another placement; what is found is kept in the same folder."""
        sign = self.settings.sign
        if sign == placement_named(self.settings.placement).sign:
            sign = None  # nobody chose it: it came with the placement
        settings = replace(self.settings, placement=placement, sign=sign).resolved()
        of = fingerprint_json({"run": self.folder.run, **asdict(settings)})
        folder = Folder(self.folder.inside(f"under-{placement}"), of)
        return Run(folder, self.program, self.samples, self.task, settings, self.progress)

    def load(self, data: Any, **draw: Any) -> Samples:
        """Other samples for this network, with pixels normalised as the run's own are."""
        pixels = {} if isinstance(data, Samples) else self.pixels
        return load_samples(data, **pixels, **draw)

    @property
    def pixels(self) -> dict[str, Any]:
        """How the pixels of this run's images are normalised, where that was asked for."""
        return {
            name: value for name, value in self.samples.options.items() if name in ("mean", "std", "scale")
        }

    # Stages

    def ranges_for(self, formats: Iterable[Format]) -> Ranges:
        """Ranges that serve `formats`; calibrated where they are not there yet."""
        known = self.folder.read_json("ranges.json")
        widths = {format.activation_bits for format in formats if format.activation_bits is not None}
        if known is not None:
            with reading(self.folder.path / "ranges.json", "remove it, and it is made again"):
                ranges = Ranges.from_json(known)
            have = set(next(iter(ranges.table.values()), {}))
            if widths <= have:
                return ranges
            widths |= have
        settings = self.settings
        assert settings.sign is not None
        with self.progress.stage("calibrate", len(self.samples)) as advance:
            ranges = calibrate(
                self.program,
                self.samples,
                method=settings.range,
                percentile=settings.percentile,
                sign=settings.sign,
                bits={8, 4, *widths},
                rounding=settings.rounding,
                batch_size=settings.batch_size,
                progress=advance,
            )
        self.folder.write_json("ranges.json", ranges.to_json())
        return ranges

    def rounder(self, formats: Iterable[Format] = ()) -> Rounder:
        """The rounder of this run's placement, with ranges and fitted weights for `formats`."""
        formats = set(formats)
        ranges = self.ranges_for(formats)
        if self._rounder is None or self._rounder.ranges != ranges:
            placement = placement_named(self.settings.placement)
            self._rounder = Rounder(self.program, ranges, placement, self.settings.rounding)
            self._fitted = set()
        missing = {format for format in formats if is_fitted(self.settings.rounding, format)} - self._fitted
        if missing:
            self._fit(self._rounder, missing)
            self._fitted |= missing
        return self._rounder

    _rounder: Rounder | None = None
    _fitted: set[Format]

    def _fit(self, rounder: Rounder, formats: Collection[Format]) -> None:
        """Let `rounder` know what GPTQ makes of the weights in `formats`."""
        settings = self.settings
        weights = sum(layer.weight_shape is not None for layer in self.program.layers)
        with self.progress.stage("gptq", weights * len(formats)) as advance:
            fitter = Fitter(
                rounder,
                self.samples,
                self.folder.journal("gptq"),
                refit=settings.refit,
                correct_bias=settings.bias_correction,
                batch_size=settings.batch_size,
                progress=advance,
            )
            fitter(formats)

    @property
    def left_to_squant(self) -> tuple[str, ...]:
        """The layers whose weights round by SQuant although GPTQ was asked for."""
        return left_to_squant(self.program) if self.settings.rounding == GPTQ else ()

    def evaluator(self, formats: Iterable[Format] | None = (), samples: Samples | None = None) -> Evaluator:
        """Judges plans on this run's samples, or on others under the same rounding.

        With None for formats it judges the float network alone, and nothing is calibrated.
        """
        if samples is None:
            done = self.folder.journal("evaluated")
        else:
            whole = samples.fingerprint()
            done = self.folder.journal(f"evaluated-{whole[:16]}", samples=whole)
        return Evaluator(
            self.program,
            None if formats is None else self.rounder(formats),
            samples or self.samples,
            self.task,
            batch_size=self.settings.batch_size,
            done=done,
        )

    def measured(
        self,
        needs: Collection[str],
        format: Format,
        *,
        pairs: str = "exact",
        loss: str = "task",
        samples: int | None = None,
        estimator: str = "gauss-newton",
        probes: int = PROBES,
        tolerance: float = 0.05,
    ) -> Measured:
        """The tables `needs`, on the first `samples`; whatever is missing is measured and kept."""
        one_of("pairs", pairs, PAIRS)
        one_of("loss", loss, LOSSES)
        one_of("estimator", estimator, ESTIMATORS)
        context = Context(self.evaluator((format,)), samples)
        pieces = len(context.starts()) * len(context.layers)
        traces = probing = losses = None
        signal = noise = fisher = errors = None
        if "traces" in needs:
            with self.progress.stage("traces") as advance:
                traces, probing = hessian_traces(
                    context,
                    lambda name: self.folder.journal(f"traces-{name}"),
                    estimator=estimator,
                    probes=probes,
                    tolerance=tolerance,
                    progress=advance,
                )
        if {"pair", "single", "base", "signal", "noise"} & set(needs):
            journal, pair = self._losses(context, format, "pair" in needs and pairs, pieces)
            if {"pair", "single", "base"} & set(needs):
                if loss not in journal["0/float"]:
                    other = "kl" if loss == "task" else "task"
                    raise BitsectError(f"task '{self.task.name}' has no {loss} loss: pass --loss {other}")
                base = _joined(journal, context, "float", loss)
                single = np.stack([_joined(journal, context, i, loss) for i in range(len(context.layers))])
                losses = Losses(base if loss == "task" else np.zeros_like(base), single, pair and pair(loss))
            signal = _joined(journal, context, "float", "signal")
            noise = np.stack([_joined(journal, context, i, "noise") for i in range(len(context.layers))])
        if "fisher" in needs:
            journal = self.folder.journal(f"fisher-{format}")
            with self.progress.stage("fisher", min(256, context.count)) as advance:
                count = fisher_terms(context, format, journal, progress=advance)
            fisher = np.stack([journal[str(sample)]["fisher"] for sample in range(count)], axis=1)
        if "weight_error" in needs:
            errors = weight_errors(context, format)
        return Measured(
            context.layers,
            np.array([layer.weights for layer in self.program.layers]),
            np.array([_elements(layer) for layer in self.program.layers]),
            traces,
            {format.name: losses} if losses is not None else {},
            {format.name: Noise(signal, noise, fisher, errors)},
            probing,
        )

    def damage(self, changes: Sequence[tuple[str, Format]], samples: int | None = None) -> Damage:
        """The predicted damage of every plan made of `changes`, on the first `samples`; measured once."""
        context = Context(self.evaluator({format for _, format in changes}), samples)
        with self.progress.stage("damage", len(context.starts())) as advance:
            return output_damage(context, changes, self.folder.journal("damage"), progress=advance)

    def _losses(
        self, context: Context, format: Format, pairs: str | bool, pieces: int
    ) -> tuple[Journal, Callable[[str], np.ndarray[Any, Any]] | None]:
        """The journal that holds single losses, and a function that reads the pair losses, if asked for."""
        exact = self.folder.journal(f"exact-{format}")
        if pairs == "exact":
            with self.progress.stage("pairs", pieces) as advance:
                exact_pairs(context, format, exact, advance)
            return exact, lambda loss: np.concatenate(
                [_joined(exact, context, i, f"pair_{loss}") for i in range(len(context.layers) - 1)]
                or [np.zeros((0, context.count))]
            )
        single = self.folder.journal(f"single-{format}")
        with self.progress.stage("singles", pieces) as advance:
            single_losses(context, format, single, advance)
        if not pairs:
            return single, None
        linear = self.folder.journal(f"linear-{format}")
        with self.progress.stage("linear pairs", len(context.starts())) as advance:
            linear_pairs(context, format, single, linear, advance)
        return (
            single,
            lambda loss: (
                np.concatenate([linear[str(start)][f"pair_{loss}"] for start in context.starts()], axis=1)
                if len(context.layers) > 1
                else np.zeros((0, context.count))
            ),
        )

    def scores(
        self, metric: Metric, format: Format, options: Options | None = None, **measuring: Any
    ) -> Scores:
        """The scores of all layers at `format`, with their standard errors."""
        return score(self.measured(metric.needs, format, **measuring), metric, format, options)


def _joined(journal: Journal, context: Context, row: int | str, name: str) -> np.ndarray[Any, Any]:
    return np.concatenate([journal[f"{start}/{row}"][name] for start in context.starts()], axis=-1)


def _elements(layer: Any) -> int:
    """What a layer's trace runs over: its weights, or both operands of one sample."""
    if layer.weights:
        return int(layer.weights)
    return sum(int(np.prod(p.signature.input)) + int(np.prod(p.signature.operand)) for p in layer.places)
