"""What a program was asked, as tables of numbers: whatever is missing is measured, and kept."""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..errors import BitsectError
from ..values import Format, Layer, Scoring
from ..values.measured import Losses, Measured, Noise
from ..values.pieces import Done
from .context import Context
from .damage import output_damage
from .noise import fisher_terms, weight_errors
from .pairs import ByBatches, ByRows, exact_pairs, linear_pairs, single_losses
from .traces import hessian_traces
from .work import Progress, Work, fill

Array = np.ndarray[Any, Any]
Stage = Callable[[str, int | None], AbstractContextManager[Progress]]
LOSS_TABLES = {"pair", "single", "base"}
NOISE_TABLES = {"signal", "noise"}
EXACT = ("exact", "pairs", exact_pairs)


@dataclass(frozen=True)
class Measuring:
    """Where measurements are kept, and how their progress is shown."""

    context: Context
    journal: Callable[[str], Done]
    stage: Stage

    def tables(self, needs: Collection[str], format: Format, scoring: Scoring) -> Measured:
        """The tables `needs` of every layer in `format`."""
        context, wanted = self.context, set(needs)
        traces = probing = losses = signal = noise = fisher = errors = damage = None
        if "traces" in wanted:
            with self.stage("traces", None) as advance:
                traces, probing = hessian_traces(
                    context,
                    lambda name: self.journal(f"traces-{name}-{scoring.probe_seed}"),
                    estimator=scoring.estimator,
                    probes=scoring.probes,
                    tolerance=scoring.tolerance,
                    seed=scoring.probe_seed,
                    progress=advance,
                )
        if wanted & (LOSS_TABLES | NOISE_TABLES):
            found = self._losses(format, scoring.pairs if "pair" in wanted else None)
            if wanted & LOSS_TABLES:
                losses = self._loss_tables(found, scoring.loss, pairs="pair" in wanted)
            signal, noise = found.float("signal"), found.rows("noise")
        if "fisher" in wanted:
            pieces = self._fill(f"fisher-{format}", "fisher", fisher_terms(context, format))
            fisher = np.stack([piece["fisher"] for piece in pieces], axis=1)
        if "weight_error" in wanted:
            errors = weight_errors(context, format)
        if "damage" in wanted:
            damage = self._damage(format)
        layers = context.program.layers
        return Measured(
            context.layers,
            np.array([layer.weights for layer in layers]),
            np.array([_elements(layer) for layer in layers]),
            traces,
            {format.name: losses} if losses is not None else {},
            {format.name: Noise(signal, noise, fisher, errors, damage)},
            probing,
        )

    def _damage(self, format: Format) -> Array:
        """The damage of each layer alone on each sample; none where the format rounds nothing."""
        context = self.context
        changes = [(layer.name, format) for layer in context.program.layers if format.rounds(layer)]
        with self.stage("damage", len(context.starts())) as advance:
            _, single = output_damage(context, changes, self.journal("damage"), progress=advance)
        rows = dict(zip((name for name, _ in changes), single, strict=True))
        nothing = np.zeros(single.shape[1])
        return np.stack([rows.get(name, nothing) for name in context.layers])

    def _fill(self, journal: str, stage: str, work: Work) -> Any:
        with self.stage(stage, len(work.pieces)) as advance:
            return fill(self.journal(journal), work, advance)

    def _losses(self, format: Format, pairs: str | None) -> ByRows | ByBatches:
        """Single losses, and pair losses where they are asked for."""
        context = self.context
        if pairs == "linear":
            self._fill(f"linear-{format}", "linear pairs", linear_pairs(context, format))
            return ByBatches(context, self.journal(f"linear-{format}"))
        name, stage, measure = ("single", "singles", single_losses) if pairs is None else EXACT
        self._fill(f"{name}-{format}", stage, measure(context, format))
        return ByRows(context, self.journal(f"{name}-{format}"))

    def _loss_tables(self, found: ByRows | ByBatches, loss: str, *, pairs: bool) -> Losses:
        try:
            base = found.float(loss)
        except KeyError:
            other = "kl" if loss == "task" else "task"
            name = self.context.evaluator.task.name
            raise BitsectError(f"task '{name}' has no {loss} loss: pass [loss={other}]") from None
        zero = base if loss == "task" else np.zeros_like(base)
        return Losses(zero, found.rows(loss), found.pairs(loss) if pairs else None)


def _elements(layer: Layer) -> int:
    """What a layer's trace runs over: its weights, or both operands of one sample."""
    if layer.weights:
        return layer.weights
    return sum(int(np.prod(p.signature.input)) + int(np.prod(p.signature.operand)) for p in layer.places)
