"""blame: what a plan loses and to whom, why, and what would help."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import OptionError, PlanError
from ..measure.blame import ACTIVATIONS, WEIGHTS, changed, pairs, undone, with_ranges
from ..measure.context import Context
from ..measure.facts import layer_facts
from ..measure.work import Work, fill
from ..runs.opening import open_run
from ..runs.progress import Progress
from ..runs.run import Run
from ..solve.causes import WIDE_RANGE, causes
from ..solve.costs import cost_where_run
from ..values import FLOAT, INT8, Cost, Format, Goal, LatencyTable, Layer, Plan, Resources, matching
from ..values.blame import Array, Blame, Facts, Gain, LayerBlame, PairBlame, Remedy
from ..values.options import changed as with_options_of
from .asked import TERMS, Asked
from .forecast import passes_of_blame
from .keywords import with_options
from .latency import table_for
from .methods import destined
from .plans import parse_format, plan_for, same_task

SAMPLES = 256  # that are looked at where no more are asked for
PAIRED = 12  # layers whose pairs are measured: those that the plan loses most to
REMEDIED = 3  # layers for which remedies are tried
TRIED = 5  # formats for each of them, about
GROUPS = (128, 64, 32, 16)  # sizes of groups, the largest that divides a layer's inputs is tried


@with_options(resources=Resources)
def blame(
    run: str | Path,
    *,
    resources: Resources,
    plan: str | Path | Plan | None = None,
    format: str | Format | None = None,
    layer: str | None = None,
    samples: int = SAMPLES,
    latency: Any = None,
    destination: Any = None,
    task: Any = None,
    trust: bool = False,
    progress: Progress | None = None,
) -> Blame:
    """The layers and pairs that a plan loses most to, with causes and measured remedies; the worst first.

    What a layer is to blame for is the damage that is gone when it alone goes back to float, the other
    layers staying as the plan has them: the squared change of the outputs from those of the float
    network, with the standard error over samples. Nothing of the run's answers is changed.

    Arguments:
        run: the folder of a run.
        plan: the file of a plan, or what the run calls it; default: the run's own.
        format: or one format for all layers.
        layer: a layer, or a pattern such as blocks.*, to look at alone; default: all.
        samples: how many of the run's samples to look at.
        latency: a latency table, for what remedies cost: a100, onnxruntime, openvino or FILE.json.
        destination: or where the model will run, whose table it is; default: that of the run.
        task: the run's own task again, if that is a function of yours.
        trust, progress: as for `quantize`.
    """
    wanted = parse_format(plan, format)
    if samples < 1:
        raise OptionError(f"samples {samples} is not at least 1")
    where = {"latency": latency, "destination": destination}
    goal = Goal(**{name: value for name, value in where.items() if value is not None})
    goal = Asked.of(run).on_goal(goal, TERMS)
    _, settings, goal = destined(run, None, same_task(task), goal)
    with open_run(run, None, settings, resources, trust=trust, progress=progress) as opened:
        chosen = plan_for(opened, plan, wanted)
        rounded = [each for each in opened.layers if chosen[each.name].rounds(each)]
        looked_at = _chosen(rounded, opened.layers, layer)
        formats = tuple({*goal.formats, *chosen.values()} - {FLOAT})
        table, _ = table_for(opened, with_options_of(goal, formats=formats))
        found = _Blaming(opened, chosen, table, min(samples, len(opened.samples))).all(rounded, looked_at)
        if layer is None:
            opened.folder.write_json("blame.json", found.to_json())  # to look at
        return found


def _chosen(rounded: Sequence[Layer], layers: tuple[Layer, ...], pattern: str | None) -> list[str]:
    if not rounded:
        raise PlanError("the plan leaves every layer in float: there is nobody to blame")
    if pattern is None:
        return [layer.name for layer in rounded]
    found = {layer.name for layer in matching(pattern, layers)}
    if not found:
        raise PlanError(f"no layer is called '{pattern}': `bitsect layers` lists them")
    names = [layer.name for layer in rounded if layer.name in found]
    if not names:
        raise PlanError(f"the plan leaves '{pattern}' in float: it is not to blame")
    return names


@dataclass
class _Blaming:
    """A plan in a run, and what is measured about it; every finished piece is kept in the run."""

    run: Run
    plan: Plan
    table: LatencyTable | None
    samples: int

    def all(self, rounded: Sequence[Layer], names: list[str]) -> Blame:
        run, paired = self.run, min(PAIRED, len(names))
        run.progress.expect(passes_of_blame(self.samples, len(names), paired, TRIED * min(REMEDIED, paired)))
        context = self._context({*self.plan.values()})
        with run.progress.stage("float", self.samples):
            float_score = self._scores(Plan.uniform(run.layers))
        found = self._fill("layers", undone(context, self.plan, names))
        layers = sorted(
            (self._layer(name, row, found) for row, name in enumerate(names)),
            key=lambda each: -each.gain.mean,
        )
        with run.progress.stage("facts", len(context.starts())) as advance:
            journal = run.folder.journal("blame")
            facts = layer_facts(context, self.plan, names, journal, advance)
        layers = [replace(each, causes=causes(facts[each.name])) for each in layers]
        worst = [each.name for each in layers[:PAIRED]]
        found_pairs = self._pairs(context, worst)
        remedies = self._remedies(layers[:REMEDIED], facts, found["plan"])
        layers = [replace(each, remedies=remedies.get(each.name, ())) for each in layers]
        damage = Gain.of(found["plan"])
        assert damage is not None
        return Blame(
            self.plan,
            len(found["plan"]),
            float(float_score.mean()),
            float(found["plan_score"].mean()),
            damage,
            tuple(layers),
            found_pairs,
            tuple(self._notes(rounded, layers)),
        )

    def _context(self, formats: set[Format]) -> Context:
        return Context(self.run.evaluator(formats), self.samples)

    def _scores(self, plan: Plan) -> Array:
        evaluator = self.run.evaluator(None)
        scores: list[Array] = []
        for start in Context(evaluator, self.samples).starts():
            inputs, labels = evaluator.batch(start)
            outputs = self.run.program.run(inputs)
            scores.append(evaluator.task.outcome(outputs, labels).score.double().cpu().numpy())
        return np.concatenate(scores)

    def _fill(self, stage: str, work: Work) -> dict[str, Array]:
        """What the pieces hold, joined along the samples."""
        with self.run.progress.stage(stage, len(work.pieces)) as advance:
            found = list(fill(self.run.folder.journal("blame"), work, advance))
        return {name: np.concatenate([piece[name] for piece in found], axis=-1) for name in found[0]}

    def _layer(self, name: str, row: int, found: dict[str, Array]) -> LayerBlame:
        whole = found["plan"]
        gain = Gain.of(whole - found["float"][row])
        accuracy = Gain.of(found["score"][row] - found["plan_score"])
        assert gain is not None
        assert accuracy is not None
        return LayerBlame(
            name,
            self.plan[name],
            gain,
            gain.mean / float(whole.mean()) if whole.any() else 0.0,
            Gain.of(whole - found[WEIGHTS][row]),
            Gain.of(whole - found[ACTIVATIONS][row]),
            accuracy,
        )

    def _pairs(self, context: Context, names: list[str]) -> tuple[PairBlame, ...]:
        """The pairs of the worst layers, by what they do beyond what each does alone."""
        if len(names) < 2:
            return ()
        found = self._fill("pairs", pairs(context, self.plan, names))
        blamed = []
        for row, (i, j) in enumerate(combinations(range(len(names)), 2)):
            both, first, second = found["pair"][row], found["single"][i], found["single"][j]
            excess = Gain.of(both - first - second)
            assert excess is not None
            alone = (float(first.mean()), float(second.mean()))
            blamed.append(PairBlame(names[i], names[j], float(both.mean()), alone, excess))
        return tuple(sorted(blamed, key=lambda each: -each.excess.mean))

    def _remedies(
        self, layers: Sequence[LayerBlame], facts: dict[str, Facts], whole: Array
    ) -> dict[str, tuple[Remedy, ...]]:
        """What would help each of `layers`, measured."""
        tried = [(each.name, format) for each in layers for format in self._formats(each)]
        context = self._context({*self.plan.values(), *(format for _, format in tried)})
        damages = self._fill("remedies", changed(context, self.plan, tried))["damage"]
        gains = {each.name: each.gain.mean for each in layers}
        found: dict[str, list[Remedy]] = {each.name: [] for each in layers}
        before = cost_where_run(self.plan, self.run.layers, self.table)
        wide = {
            each.name: facts[each.name].largest
            for each in layers
            if any(cause.kind == WIDE_RANGE for cause in each.causes) and each.activations is not None
        }
        if wide:
            narrowed = self._fill("ranges", with_ranges(context, self.plan, wide))["damage"]
            for row, (name, amax) in enumerate(wide.items()):
                words = f"a range of {amax:.3g}, as its inputs need"
                found[name].append(_remedy(words, None, whole - narrowed[row], gains[name], before, before))
        for row, (name, format) in enumerate(tried):
            after = cost_where_run(self.plan.replace([name], format), self.run.layers, self.table)
            words = "keep float" if format.is_float else f"{format}"
            found[name].append(_remedy(words, format, whole - damages[row], gains[name], before, after))
        return {name: tuple(each) for name, each in found.items()}

    def _formats(self, blamed: LayerBlame) -> list[Format]:
        """The formats that might help a layer: more bits, float activations, scales for groups of weights."""
        now = blamed.format
        weight_bits = now.weight_bits
        assert weight_bits is not None
        layer = next(each for each in self.run.layers if each.name == blamed.name)
        wanted = [INT8, Format(8, None), FLOAT]
        if layer.weight_shape is not None:
            wanted.append(Format(weight_bits, None))
            wanted += [Format(weight_bits, now.activation_bits, size) for size in self._groups(layer)][:1]
        able = dict.fromkeys(each for each in wanted if each != now and (each.is_float or each.rounds(layer)))
        return list(able)

    def _groups(self, layer: Layer) -> Iterator[int]:
        """The sizes that divide the inputs of a channel."""
        weight = next((m.weight for m in self.run.program.multiplies if m.layer == layer.name), None)
        if weight is None or weight.layout is None:
            return
        kernels = weight.layout.to_kernels(self.run.program.constant(weight.node))
        for size in GROUPS:
            if kernels.shape[1] % size == 0 and kernels.shape[1] > size:
                yield size

    def _notes(self, rounded: Sequence[Layer], layers: Sequence[LayerBlame]) -> Iterator[str]:
        if any(each.weights is None for each in layers):
            yield (
                f"under the placement {self.run.settings.placement} weights and activations of a layer are "
                "multiplied as integers: its parts cannot be told apart"
            )
        if len(rounded) > PAIRED and len(layers) > PAIRED:
            yield f"pairs are those of the {PAIRED} layers that the plan loses most to"


def _remedy(
    words: str, format: Format | None, gained: Array, whole: float, before: Cost, after: Cost
) -> Remedy:
    gain = Gain.of(gained)
    assert gain is not None
    slower = None
    if before.latency_ratio is not None and after.latency_ratio is not None:
        slower = after.latency_ratio - before.latency_ratio
    recovers = gain.mean / whole if whole > 0 else 0.0
    return Remedy(words, format, gain, recovers, after.size_ratio - before.size_ratio, slower)
