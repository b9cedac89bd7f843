"""Blame measured: the outputs of a plan with one layer, or a part of it, changed back.

A change to layer i leaves everything before i as the plan has it, so each starts from the state that the
plan's own pass kept there. Pairs are measured the other way round: two layers in the plan's formats, all
others in float.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from typing import Any

import numpy as np

from ..network.parts import Rounding
from ..network.program import Program
from ..values import FLOAT, Format, Plan, Range
from ..values.grid import Grid
from ..values.pieces import Piece
from .context import Context
from .damage import damage_from
from .work import Work, shared

Array = np.ndarray[Any, Any]
WEIGHTS, ACTIVATIONS = "weights", "activations"  # the parts of a layer


@shared
def undone(context: Context, plan: Plan, layers: Sequence[str]) -> Work:
    """The plan, and with each of `layers` back in float, or only a part of it: a piece for each batch.

    Pieces hold `plan` [S], and [L, S] for each of `float`, `weights` and `activations`: damages;
    infinity where the parts cannot be told apart. `score` and `plan_score`: scores with a whole layer back.
    """
    return _by_batches(
        context, f"undone/{plan.key}/{'|'.join(layers)}", lambda s: _undone(context, plan, layers, s)
    )


@shared
def changed(context: Context, plan: Plan, changes: Sequence[tuple[str, Format]]) -> Work:
    """The damage [C, S] of the plan with one layer in another format each: a piece for each batch."""
    name = "|".join(f"{layer}={format}" for layer, format in changes)

    def piece(start: int) -> Piece:
        roundings = [(layer, context.evaluator.rounding(plan.replace([layer], f))) for layer, f in changes]
        return {"damage": _in_place_of(context, plan, start, roundings)[1]}

    return _by_batches(context, f"changed/{plan.key}/{name}", piece)


@shared
def with_ranges(context: Context, plan: Plan, ranges: Mapping[str, float]) -> Work:
    """The damage [C, S] of the plan with the input of one layer in another range each."""
    name = "|".join(f"{layer}={amax:g}" for layer, amax in ranges.items())

    def piece(start: int) -> Piece:
        whole = context.evaluator.rounding(plan)
        roundings = []
        for layer, amax in ranges.items():
            bits = plan[layer].activation_bits
            assert bits is not None
            nodes, inputs = _nodes(context.program, layer), dict(whole.inputs)
            for key, grid in whole.inputs.items():
                if key[0] in nodes:
                    inputs[key] = Grid.of(Range(amax, grid.low == 0), bits)
            roundings.append((layer, replace(whole, inputs=inputs)))
        return {"damage": _in_place_of(context, plan, start, roundings)[1]}

    return _by_batches(context, f"ranges/{plan.key}/{name}", piece)


@shared
def pairs(context: Context, plan: Plan, layers: Sequence[str]) -> Work:
    """`single` [L, S] and `pair` [L (L − 1) / 2, S]: damages with only these layers as the plan has them."""
    return _by_batches(
        context, f"pairs/{plan.key}/{'|'.join(layers)}", lambda s: _pairs(context, plan, layers, s)
    )


def has_parts(rounding: Rounding, program: Program, layer: str) -> bool:
    """Whether the weights and inputs of a layer are rounded apart, not by one integer kernel."""
    return not any(node in rounding.kernels for node in _nodes(program, layer))


def without(rounding: Rounding, program: Program, layer: str, part: str) -> Rounding:
    """`rounding` with a part of a layer left in float; a fitted bias goes with the weights it belongs to."""
    nodes = _nodes(program, layer)
    if part == ACTIVATIONS:
        return replace(rounding, inputs={k: v for k, v in rounding.inputs.items() if k[0] not in nodes})
    return replace(
        rounding,
        weights={k: v for k, v in rounding.weights.items() if k[0] not in nodes},
        biases={k: v for k, v in rounding.biases.items() if k not in nodes},
    )


def _nodes(program: Program, layer: str) -> set[str]:
    return {multiply.node.name for multiply in program.multiplies if multiply.layer == layer}


def _by_batches(context: Context, name: str, piece: Callable[[int], Piece]) -> Work:
    short = f"{name.partition('/')[0]}-{hashlib.sha256(name.encode()).hexdigest()[:16]}"
    pieces = tuple(f"{short}/{start}" for start in context.starts())
    return Work(pieces, lambda key: piece(int(key.rpartition("/")[2])))


def _undone(context: Context, plan: Plan, layers: Sequence[str], start: int) -> Piece:
    whole, program = context.evaluator.rounding(plan), context.program
    roundings: list[tuple[str, Rounding | None]] = []
    for layer in layers:
        apart = has_parts(whole, program, layer)
        roundings.append((layer, context.evaluator.rounding(plan.replace([layer], FLOAT))))
        roundings += [
            (layer, without(whole, program, layer, part) if apart else None)
            for part in (WEIGHTS, ACTIVATIONS)
        ]
    of_plan, damages, scores, plan_score = _in_place(context, plan, start, roundings)
    return {
        "plan": of_plan,
        "float": damages[0::3],
        WEIGHTS: damages[1::3],
        ACTIVATIONS: damages[2::3],
        "score": scores[0::3],
        "plan_score": plan_score,
    }


def _in_place_of(
    context: Context, plan: Plan, start: int, roundings: Sequence[tuple[str, Rounding]]
) -> tuple[Array, Array]:
    of_plan, damages, _, _ = _in_place(context, plan, start, roundings)
    return of_plan, damages


def _in_place(
    context: Context, plan: Plan, start: int, roundings: Sequence[tuple[str, Rounding | None]]
) -> tuple[Array, Array, Array, Array]:
    """Damage of the plan [S] and of each rounding from its layer on [C, S]; their scores; the plan's."""
    program, task, whole = context.program, context.evaluator.task, context.evaluator.rounding(plan)
    inputs, labels = context.evaluator.batch(start)
    base = program.run(inputs)
    context.check(inputs, base)
    outputs, states = program.run_keeping(inputs, {layer for layer, _ in roundings}, whole)
    context.check(inputs, outputs, whole)
    damage = damage_from(context, base, len(labels))
    damages = np.full((len(roundings), len(labels)), np.inf)
    scores = np.full(damages.shape, np.inf)
    for row, (layer, rounding) in enumerate(roundings):
        if rounding is not None:
            changed, _ = program.run_from(layer, states[layer], rounding)
            context.check(inputs, changed, rounding)
            damages[row] = damage(changed)
            scores[row] = task.outcome(changed, labels).score.double().cpu().numpy()
    plan_score = task.outcome(outputs, labels).score.double().cpu().numpy()
    return damage(outputs), damages, scores, plan_score


def _pairs(context: Context, plan: Plan, layers: Sequence[str], start: int) -> Piece:
    program, floats = context.program, Plan.uniform(context.program.layers)
    batch = context.float_batch(start)
    damage = damage_from(context, batch.outputs, len(batch.labels))

    def only(*names: str) -> Rounding:
        alone = floats
        for name in names:
            alone = alone.replace([name], plan[name])
        return context.evaluator.rounding(alone)

    order = sorted(layers, key=program.start)
    single: dict[str, Array] = {}
    both: dict[frozenset[str], Array] = {}
    for index, layer in enumerate(order):
        later = order[index + 1 :]
        outputs, states = program.run_from(layer, batch.states[layer], only(layer), later)
        single[layer] = damage(outputs)
        for other in later:
            outputs, _ = program.run_from(other, states.pop(other), only(layer, other))
            both[frozenset((layer, other))] = damage(outputs)
    rows = [both[frozenset(pair)] for pair in combinations(layers, 2)]
    width = len(batch.labels)
    return {
        "single": np.stack([single[layer] for layer in layers]),
        "pair": np.stack(rows) if rows else np.zeros((0, width)),
    }
