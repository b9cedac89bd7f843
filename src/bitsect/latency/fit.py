"""How the times of pieces add up to the time of a whole network, found from a handful of whole ones.

A kernel alone also pays for bringing its operands into the layout that it likes, which within a network its
neighbours share; its weights lie in a cache, which those of a whole network may not fit into; and a network
computes more than its layers. So the time of a plan is taken to be

    t(plan) = rest + Σ layers f[kernel, format] · t(layer, format)
                   + c[quantize] · Σ t(rounding)  +  c[dequantize] · Σ t(un-rounding)

with factors f that lie near one c[kind, format] for each kind of layer; all of them and `rest` are fitted to
measured networks by least squares of the relative error: in one format, mixed, and with one kernel at a time
left in float.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..values import FLOAT, Format, LatencyTable, Layer, Plan
from ..values.boundary import Boundary, step_key
from ..values.latency_table import place_key

Numbers = NDArray[np.float64]
Class = tuple[str, str]  # what shares a factor: a kind of layer in a format, or a step between layers
REST: Class = ("rest", "")
TRUST = 0.02  # in the pieces, against that in one whole network
UNIFORM = 3.0  # how much more the networks in one format count than mixed ones
LEAST = 0.02  # no factor is below, of what it is expected to be
STEPS = ("quantize", "dequantize")


KINDS = ("convolution", "depthwise", "product")


def kind_of(layer: Layer) -> str:
    """The kinds of layers whose kernels behave alike."""
    if layer.kind == "depthwise":
        return "depthwise"
    return "convolution" if layer.kind.startswith("conv") else "product"


@dataclass(frozen=True)
class Pieces:
    """The times of the pieces of one network, in milliseconds."""

    layers: Sequence[Layer]
    boundaries: Sequence[Boundary]
    rows: Mapping[str, Mapping[Format, float | None]]

    @property
    def fitted(self) -> Iterator[Layer]:
        """The layers that have factors: look-ups take too little to tell theirs from noise."""
        return (layer for layer in self.layers if not layer.is_look_up)

    def ms(self, layer: Layer, format: Format) -> float | None:
        """Of one layer in all its places; None where it does not run."""
        times = [self.rows[place_key(place)].get(format) for place in layer.places]
        known = [ms for ms in times if ms is not None]
        return sum(known) if len(known) == len(times) else None

    def sums(self, plan: Plan) -> dict[Class, float]:
        """The times of all pieces of a plan, by what shares a factor."""
        found: dict[Class, float] = {REST: 1.0}
        for layer in self.fitted:
            format, ms = plan[layer.name], self.ms(layer, plan[layer.name]) or 0.0
            for name in (kind_of(layer), place_key(layer.places[0])):
                found[name, format.name] = found.get((name, format.name), 0.0) + ms
        formats: dict[str | None, Format] = {None: FLOAT}
        formats.update(plan.items())
        for boundary in self.boundaries:
            step = boundary.step(formats[boundary.before], formats[boundary.after])
            if step is not None:
                (between,) = self.rows[step_key(step, boundary.elements)].values()
                found[step, ""] = found.get((step, ""), 0.0) + (between or 0.0)
        return found


def fitted(pieces: Pieces, measured: Mapping[Plan, float]) -> dict[Class, float]:
    """The factors that best make the measured times of whole networks out of their pieces.

        min Σ w·((x·f − t)/t)² + trust · Σ (share·(f − c))² + trust · Σ (share·(c − c₀))²

    where c₀ makes the networks in one format right by one factor for each format, and share is how much of a
    network a factor decides.
    """
    kinds = {(place_key(layer.places[0]), kind_of(layer)) for layer in pieces.fitted}
    sums = [pieces.sums(plan) for plan in measured]
    classes = sorted({name for each in sums for name in each})
    column = {name: index for index, name in enumerate(classes)}
    x = np.array([[each.get(name, 0.0) for name in classes] for each in sums])
    times = np.array(list(measured.values()))
    relative = x / times[:, None]
    share = np.maximum(relative.max(axis=0), 1e-6) * TRUST**0.5
    near, prior = np.diag(share), _prior(classes, pieces, measured)
    aim, least = share * prior, LEAST * prior
    for kernel, kind in kinds:
        for format in {name[1] for name in classes if name[0] == kernel}:
            own, shared = column[kernel, format], column[kind, format]
            near[own, shared], aim[own] = -share[own], 0.0
            relative[:, shared] = 0.0  # its kernels make up its time
            least[own] = least[shared]
    weights = np.array([UNIFORM if len(set(plan.values())) == 1 else 1.0 for plan in measured])
    left = np.concatenate([relative * weights[:, None] ** 0.5, near])
    found = _bounded(left, np.concatenate([weights**0.5, aim]), least)
    return dict(zip(classes, found.tolist(), strict=True))


def _prior(classes: Sequence[Class], pieces: Pieces, measured: Mapping[Plan, float]) -> Numbers:
    """One factor for each format: what a network in it takes besides the rest, against what its pieces do."""
    whole: dict[str, tuple[float, float]] = {}
    for plan, ms in measured.items():
        formats = {format.name for format in plan.values()}
        if len(formats) == 1:
            total = sum(value for key, value in pieces.sums(plan).items() if key[0] in (*KINDS, *STEPS))
            whole[formats.pop()] = ms, total
    rest = max(0.0, min((ms - total for ms, total in whole.values()), default=0.0))
    first = {REST: rest, **{(step, ""): 1.0 for step in STEPS}}
    for name, (ms, total) in whole.items():
        first |= {(kind, name): (ms - rest) / total if total else 1.0 for kind in KINDS}
    return np.array([first.get(key, 1.0) for key in classes])


def _bounded(left: Numbers, right: Numbers, least: Numbers) -> Numbers:
    """Least squares with no factor below its `least`: those that want to be are held there."""
    held = np.zeros(len(least), dtype=bool)
    while True:
        found = least.copy()
        rest = right - left[:, held] @ least[held] if held.any() else right
        found[~held] = np.linalg.lstsq(left[:, ~held], rest, rcond=None)[0]
        below = (found < least) & ~held
        if not below.any():
            return found
        held |= below


def fit_table(
    pieces: Pieces,
    measured: Mapping[Plan, float],
    spread: Mapping[str, Mapping[Format, float]],
    formats: tuple[Format, ...],
    device: str,
    machine: str,
) -> LatencyTable:
    """The table of a network: its pieces, each times the factor that it has in the whole."""
    factors = fitted(pieces, measured)
    kinds = {place_key(place): kind_of(layer) for layer in pieces.fitted for place in layer.places}

    def factor(key: str, format: Format) -> float:
        if key not in kinds:
            return factors.get((key.partition(" ")[0], ""), 1.0)
        return factors.get((key, format.name), factors.get((kinds[key], format.name), 1.0))

    def scaled(rows: Mapping[str, Mapping[Format, float | None]]) -> dict[str, dict[Format, float | None]]:
        return {
            key: {f: None if ms is None else ms * factor(key, f) for f, ms in row.items()}
            for key, row in rows.items()
        }

    rows = scaled(pieces.rows)
    for key in {place_key(place) for layer in pieces.layers for place in layer.places}:
        # What was not timed has no kernel there.
        rows[key] = {format: rows[key].get(format) for format in formats}
    return LatencyTable(
        device,
        f"timed here: {machine}",
        formats,
        rows,
        spread={
            key: {f: ms for f, ms in row.items() if ms is not None} for key, row in scaled(spread).items()
        },
        rest_ms=factors[REST],
        boundaries=tuple(pieces.boundaries),
    )
