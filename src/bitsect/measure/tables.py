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
from .pairs import (
    exact_pairs,
    linear_pairs,
    read_exact_pairs,
    read_float,
    read_linear_pairs,
    read_rows,
    single_losses,
)
from .traces import hessian_traces
from .work import Progress, Work, fill

Array = np.ndarray[Any, Any]
Stage = Callable[[str, int | None], AbstractContextManager[Progress]]
LOSS_TABLES = {"pair", "single", "base"}
NOISE_TABLES = {"signal", "noise"}


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
            done, pairs = self._losses(format, scoring.pairs if "pair" in wanted else None)
            if wanted & LOSS_TABLES:
                losses = self._loss_tables(done, pairs, scoring.loss)
            signal, noise = read_float(context, done, "signal"), read_rows(context, done, "noise")
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

    def _losses(self, format: Format, pairs: str | None) -> tuple[Done, Callable[[str], Array] | None]:
        """Where single losses are kept, and a function that reads the pair losses, if they are asked for."""
        context = self.context
        if pairs == "exact":
            self._fill(f"exact-{format}", "pairs", exact_pairs(context, format))
            exact = self.journal(f"exact-{format}")
            return exact, lambda loss: read_exact_pairs(context, exact, loss)
        # Outputs take far more room than losses: they are kept only where pairs are made of them.
        name = f"single-{format}" if pairs is None else f"outputs-{format}"
        self._fill(name, "singles", single_losses(context, format, outputs=pairs is not None))
        single = self.journal(name)
        if pairs is None:
            return single, None
        self._fill(f"linear-{format}", "linear pairs", linear_pairs(context, single))
        linear = self.journal(f"linear-{format}")
        return single, lambda loss: read_linear_pairs(context, linear, loss)

    def _loss_tables(self, done: Done, pairs: Callable[[str], Array] | None, loss: str) -> Losses:
        if loss not in done["0/float"]:
            other = "kl" if loss == "task" else "task"
            name = self.context.evaluator.task.name
            raise BitsectError(f"task '{name}' has no {loss} loss: pass [loss={other}]")
        base = read_float(self.context, done, loss)
        single = read_rows(self.context, done, loss)
        return Losses(base if loss == "task" else np.zeros_like(base), single, pairs and pairs(loss))


def _elements(layer: Layer) -> int:
    """What a layer's trace runs over: its weights, or both operands of one sample."""
    if layer.weights:
        return layer.weights
    return sum(int(np.prod(p.signature.input)) + int(np.prod(p.signature.operand)) for p in layer.places)
