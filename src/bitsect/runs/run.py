"""A run: a network with its samples, task and settings, and everything found out about it so far."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from typing import Any

import torch

from ..errors import DataError
from ..measure.context import Context
from ..measure.damage import output_damage
from ..measure.evaluator import Evaluator
from ..measure.prefixes import Prefixes
from ..measure.tables import Measuring
from ..network.exported_program import shapes_of
from ..network.program import Program
from ..rounding.fitting import Fitter, left_to_squant
from ..rounding.ranges import calibrate
from ..rounding.rounder import GPTQ, Rounder, is_fitted
from ..solve.metrics import metric_named
from ..solve.reliability import halves_agree, score
from ..sources.data import Samples, load_samples
from ..sources.preparation import NOTHING, Preparation, Reading
from ..sources.room import Room
from ..sources.tasks.task import Task
from ..values import Damage, Format, Layer, Ranges, Resources, Scores, Scoring, Settings, placement_named
from ..values.damage import Change
from ..values.options import on_top_of, to_json
from ..values.shown import Interaction
from .disk import fingerprint_json, reading
from .estimate import Needs, doubts, spare_bytes
from .folder import RunFolder
from .memory import give_memory_back, keep_freed_memory
from .progress import Progress
from .worker import Desk
from .workers import AtDesk, Workers

FEWEST = 64  # samples that a stable damage rests on at least


class Run:
    """A network on its samples, and the folder that keeps what was found out about it.

    While it is open nobody else works in its folder. Closed, it measures and judges no more, but still
    rounds as before.
    """

    preparation: Preparation = NOTHING  # what makes inputs of texts and images
    resources: Resources = Resources()  # what it may use
    workers: Workers | None = None  # who share its work

    def __init__(
        self,
        folder: RunFolder,
        program: Program,
        samples: Samples,
        task: Task,
        settings: Settings,
        progress: Progress | None = None,
        temporary: bool = False,
        held_out: Samples | None = None,
    ) -> None:
        self.folder, self.program, self.samples, self.task = folder, program, samples, task
        self.held_out = held_out  # from calibration and search: what a promise is proven on
        self.settings, self.progress = settings, progress or Progress()
        self.temporary = temporary  # its folder goes with it
        self._rounder: Rounder | None = None
        self._fitted: set[Format] = set()
        self._crews: dict[Any, tuple[Evaluator, AtDesk]] = {}
        self._within: Run | None = None  # the run whose workers it shares
        self._doubted: set[str] = set()  # stages that were said to need more memory than there is
        assert settings.threads is not None
        assert settings.batch_size is not None
        self.batch_size: int = settings.batch_size
        keep_freed_memory()
        self._threads_outside = torch.get_num_threads()
        torch.set_num_threads(settings.threads)

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        if self.workers is not None and self._within is None:
            self.workers.close()
        self.workers = None
        torch.set_num_threads(self._threads_outside)
        self.folder.close()
        give_memory_back()

    @property
    def layers(self) -> tuple[Layer, ...]:
        return self.program.layers

    def reopened(self) -> Run:
        """The same run, open again."""
        folder = RunFolder(self.folder.path, self.folder.run)
        return self._in(folder, self.settings)

    def under(self, placement: str) -> Run:
        """This network on these samples under another placement; what is found is kept in the same folder."""
        sign = self.settings.sign
        if (
            sign == placement_named(self.settings.placement).sign
        ):  # nobody chose it: it came with the placement
            sign = placement_named(placement).sign
        settings = on_top_of(self.settings, Settings(placement=placement, sign=sign))
        of = fingerprint_json({"run": self.folder.run, **to_json(settings)})
        folder = RunFolder(self.folder.inside(f"under-{placement}"), of)
        return self._in(folder, settings).within(self)

    def within(self, run: Run) -> Run:
        """This run, with the workers of the one that it is a part of, and read as that is."""
        self.workers, self.resources, self._within = run.workers, run.resources, run
        self.preparation = run.preparation
        return self

    def _in(self, folder: RunFolder, settings: Settings) -> Run:
        run = Run(
            folder, self.program, self.samples, self.task, settings, self.progress, held_out=self.held_out
        )
        run.preparation = self.preparation
        return run

    def load(self, data: Any, **drawn: Any) -> Samples:
        """Other samples for this network, prepared as the run's own are."""
        pixels = {} if isinstance(data, Samples) else self.settings.pixels
        room = Room(self.resources.memory_bytes, shapes_of(self.program.exported, None))
        reading = Reading(self.preparation, self.task.name, **self.settings.texts, room=room)
        samples = load_samples(data, reading=reading, **pixels, **drawn)
        samples = replace(samples, floats=self.samples.floats)
        return samples if self.program.any_length else samples.at_length(self.program.length)

    def check_memory(self, stage: str) -> None:
        """Refuse a stage that needs more memory than was allowed; say so where nobody set a limit."""
        if stage != "evaluate":
            self._prefixes.forget()
        doubt = doubts(self._needs, stage, self.batch_size, self.resources)
        if doubt is not None and stage not in self._doubted:
            self._doubted.add(stage)
            self.progress.say(doubt)

    @cached_property
    def _needs(self) -> Needs:
        held = sum(part.source.held for part in (self.samples, self.held_out) if part is not None)
        return Needs.of(self.program, held)

    @cached_property
    def _prefixes(self) -> Prefixes:
        """What plans share, of all that are judged in this process."""
        on_cpu = self.program.device.type == "cpu"  # another device has memory of its own
        room = spare_bytes(self._needs, self.batch_size, self.resources) if on_cpu else 0.0
        return Prefixes(self.program, room)

    # Stages; each keeps what it finds.

    def calibrate(self, formats: Iterable[Format]) -> Rounder:
        """The rounder of this run's placement, with ranges and fitted weights for `formats`."""
        formats = set(formats)
        ranges = self.ranges(formats)
        if self._rounder is None or self._rounder.ranges != ranges:
            placement = placement_named(self.settings.placement)
            self._rounder = Rounder(self.program, ranges, placement, self.settings.rounding)
            self._fitted = set()
        missing = {format for format in formats if is_fitted(self.settings.rounding, format)} - self._fitted
        if missing:
            self._fit(self._rounder, missing)
            self._fitted |= missing
        return self._rounder

    def ranges(self, formats: Iterable[Format] = ()) -> Ranges:
        """Ranges that serve `formats`; calibrated where they are not there yet."""
        known = self.folder.read_json("ranges.json")
        widths = {each.activation_bits for each in formats if each.activation_bits and each.has_ranges}
        if known is not None:
            with reading(self.folder.path / "ranges.json", "remove it, and it is made again"):
                ranges = Ranges.from_json(known)
            have = set(next(iter(ranges.table.values()), {}))
            if widths <= have:
                return ranges
            widths |= have
        with self.progress.stage("calibrate", len(self.samples)) as advance:
            ranges = calibrate(self.program, self.samples, self.settings, {8, 4, *widths}, advance)
        self.folder.write_json("ranges.json", ranges.to_json())
        return ranges

    def _fit(self, rounder: Rounder, formats: Iterable[Format]) -> None:
        """Let `rounder` know what GPTQ makes of the weights in `formats`."""
        formats = list(formats)
        weights = sum(layer.weight_shape is not None for layer in self.layers)
        with self.progress.stage("gptq", weights * len(formats)) as advance:
            fitter = Fitter(
                rounder,
                self.samples,
                self.folder.journal("gptq"),
                refit=self.settings.refit,
                correct_bias=self.settings.bias_correction,
                batch_size=self.batch_size,
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
        evaluator = Evaluator(
            self.program,
            None if formats is None else self.calibrate(formats),
            samples or self.samples,
            self.task,
            batch_size=self.batch_size,
            done=done,
        )
        if self.workers is not None:
            evaluator.crew = self._crew(evaluator, formats is None)
        evaluator.prefixes = self._prefixes
        return evaluator

    def _crew(self, evaluator: Evaluator, in_float: bool) -> AtDesk:
        """The workers, at a desk for this evaluator: the same one where that has not changed."""
        assert self.workers is not None
        rounding = None if in_float else (id(self._rounder), frozenset(self._fitted))
        key = rounding, id(evaluator.samples)
        if key not in self._crews:
            crew = self.workers.at(lambda: self._desk(evaluator, in_float))
            self._crews[key] = evaluator, crew
        return self._crews[key][1]

    def _desk(self, evaluator: Evaluator, in_float: bool) -> Desk:
        """Everything that a worker needs to make `evaluator` again."""
        assert self.workers is not None
        labels = None
        if evaluator.samples.labels is None and not self.task.reference:
            with suppress(DataError):  # a task that cannot answer is refused where it is asked
                labels = evaluator.labels
        formats = () if in_float else tuple(sorted(self._fitted, key=str))
        names = {str(format) for format in formats}
        fitted = self.folder.journal("gptq") if formats else {}
        return Desk(
            self.workers.put(self.program),
            self.workers.put(evaluator.samples),
            self.task,
            self.batch_size,
            labels,
            self.settings.placement,
            self.settings.rounding,
            None if in_float else evaluator.rounder.ranges,
            self.workers.put({key: fitted[key] for key in fitted if key.partition("/")[0] in names}),
            formats,
            self._prefixes.room,
        )

    def score(self, scoring: Scoring, format: Format) -> Scores:
        """The scores of all layers at `format`, with their standard errors.

        Where they are asked to be stable, samples and probes are doubled until two halves agree.
        """
        wanted = scoring.until_stable
        most = {"samples": len(self.samples), "probes": scoring.probes}
        fewest = {"samples": min(self.batch_size, most["samples"]), "probes": min(2, most["probes"])}
        draws = most if wanted is None else fewest
        while True:
            scores = self._scores(scoring, format, **draws)
            if wanted is None or draws == most or (scores.split_half or 0.0) >= wanted:
                break
            draws = {name: min(2 * draws[name], most[name]) for name in most}
        self._keep_scores(scores, scoring)
        return scores

    def _keep_scores(self, scores: Scores, scoring: Scoring) -> None:
        options = to_json(scoring)
        name = f"scores-{scores.metric}-{scores.format}-{fingerprint_json(options)[:8]}.json"
        self.folder.write_json(name, {**scores.to_json(), "scoring": options})

    def _keep_pairs(self, found: Interaction) -> None:
        """Keep how layers hurt together, to look at."""
        name = f"pairs-{found.measure.replace(' ', '-')}-{found.format}.json"
        self.folder.write_json(name, found.to_json())

    def _scores(self, scoring: Scoring, format: Format, samples: int, probes: int) -> Scores:
        metric = metric_named(scoring.metric)
        for table, stage in {"pair": scoring.pairs, "traces": scoring.estimator, "damage": "damage"}.items():
            if table in metric.needs:
                self.check_memory("traces" if stage == "gauss-newton" else stage)
        measuring = Measuring(
            Context(self.evaluator((format,)), samples), self.folder.journal, self.progress.stage
        )
        drawn = on_top_of(scoring, Scoring(probes=probes))
        measured = measuring.tables(metric.needs, format, drawn)
        losses = measured.losses.get(format.name)
        pairs = None
        if losses is not None and losses.pair is not None:
            pairs = Interaction.of_losses(losses, format.name, measured.layers)
            self._keep_pairs(pairs)
        return replace(score(measured, metric, format, drawn), pairs=pairs)

    def damage(
        self, changes: Sequence[Change], most: int | None = None, until_stable: float | None = None
    ) -> Damage:
        """The predicted damage of every plan made of `changes`, on the first `most` samples.

        Where it is to be stable, it rests on the first 64 alone, and samples are doubled until two
        halves agree on the order of the layers in every format.
        """
        most = min(most or len(self.samples), len(self.samples))
        samples = most if until_stable is None else min(FEWEST, most)
        while True:
            damage = self._damage(changes, samples)
            if samples == most or (damage.split_half or 0.0) >= (until_stable or 0.0):
                return damage
            samples = min(2 * samples, most)

    def _damage(self, changes: Sequence[Change], samples: int) -> Damage:
        """The damage on the first `samples`, measured once, with the agreement of its halves."""
        self.check_memory("damage")
        context = Context(self.evaluator({format for _, format in changes}), samples)
        with self.progress.stage("damage", len(context.starts())) as advance:
            damage, single = output_damage(context, changes, self.folder.journal("damage"), progress=advance)
        formats = dict.fromkeys(format for _, format in changes)
        found = [halves_agree(single[[f == format for _, f in changes]]) for format in formats]
        agreement = min((value for value in found if value is not None), default=None)
        error = single.std(axis=1, ddof=1) / single.shape[1] ** 0.5 if single.shape[1] > 1 else None
        damage = replace(damage, split_half=agreement, standard_error=error)
        for format in formats:
            names = [layer.name for layer in self.layers]
            self._keep_scores(damage.scores(names, format), Scoring(metric="damage"))
            self._keep_pairs(Interaction.of_damage(damage, format))
        return damage
