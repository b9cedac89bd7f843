"""What plans share: two that round alike up to a layer have the same values before it, to the last bit.

The values before a few layers are kept of the plans that were judged last, batch by batch; a plan that begins
like one of them goes on from there.
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import torch.utils._pytree as pytree
from torch import Tensor

from ..network.binding import Inputs
from ..network.footprint import footprint
from ..network.parts import Rounding, State
from ..network.program import Program
from ..sources.data import Samples

CUTS = 8  # layers before which values are kept, at most
PLANS = 4  # of which there shall be room, at least


class Prefixes:
    """The beginnings of plans on the samples that were judged last, in no more than `room` bytes."""

    def __init__(self, program: Program, room: float) -> None:
        self.program, self.room = program, room
        self._samples: Samples | None = None
        self._cuts: list[str] = []  # the layers before which values are kept
        self._kept: dict[int, OrderedDict[tuple[str, int], State]] = {}  # by batch; cut and number
        self._known: dict[tuple[Any, ...], int] = {}  # the number of every beginning
        self._held: list[Rounding] = []  # so that no other tensor comes to lie where a known one does

    def run(self, samples: Samples, start: int, inputs: Inputs, rounding: Rounding) -> Any:
        """What `program.run(inputs, rounding)` gives, for the batch of `samples` that begins with `start`."""
        if samples is not self._samples:
            self._begin(samples)
        if not self._cuts:
            return self.program.run(inputs, rounding)
        kept, numbers = self._kept[start], self._numbers(rounding)
        known = [cut for cut in self._cuts if (cut, numbers[cut]) in kept]
        if known:
            last = known[-1]
            for cut in known:
                kept.move_to_end((cut, numbers[cut]))
            later = self._cuts[self._cuts.index(last) + 1 :]
            outputs, states = self.program.run_from(last, kept[last, numbers[last]], rounding, later)
        else:
            outputs, states = self.program.run_keeping(inputs, self._cuts, rounding)
        kept.update({(cut, numbers[cut]): state for cut, state in states.items()})
        self._make_room(kept)
        return outputs

    def forget(self) -> None:
        """Give up what is kept, for others need the memory."""
        self._samples = None
        self._kept, self._known, self._held = defaultdict(OrderedDict), {}, []

    def _begin(self, samples: Samples) -> None:
        """Choose the layers before which values of `samples` are kept."""
        self.forget()
        self._samples, self._cuts = samples, cuts(self.program, self.room / max(1, len(samples)))

    def _numbers(self, rounding: Rounding) -> dict[str, int]:
        """For each cut a number that only those roundings share which are alike before it."""
        marks, steps = _marks(rounding), self.program.step_nodes
        numbers: dict[str, int] = {}
        begin, number, known = 0, 0, len(self._known)
        for cut in self._cuts:
            end = self.program.start(cut)
            span = tuple((i, *marks[steps[i].name]) for i in range(begin, end) if steps[i].name in marks)
            number = self._known.setdefault((cut, number, span), len(self._known) + 1)
            numbers[cut], begin = number, end
        if len(self._known) > known:
            self._held.append(rounding)
        return numbers

    def _make_room(self, kept: OrderedDict[tuple[str, int], State]) -> None:
        """Drop what was not needed for longest: every batch has its share of the room."""
        assert self._samples is not None
        sizes = {key: _bytes(state) for key, state in kept.items()}
        total = sum(sizes.values())
        for key, state in list(kept.items()):
            if total * len(self._samples) <= self.room * state.rows:
                break
            total -= sizes[key]
            del kept[key]


def cuts(program: Program, room: float) -> list[str]:
    """The layers before which values are kept, where each sample has `room` bytes.

    Between equal parts of the work, each before the layer where least is alive; without room for all of
    them, the largest are left out.
    """
    sizes = footprint(program).before
    layers = sorted(program.layers, key=lambda layer: program.start(layer.name))
    work, done = max(1, sum(layer.macs for layer in layers)), 0
    least: dict[int, str] = {}
    for layer in layers:
        span = CUTS * done // work
        if done and sizes[layer.name] < sizes.get(least.get(span, ""), float("inf")):
            least[span] = layer.name
        done += layer.macs
    chosen = list(least.values())
    while chosen and PLANS * sum(sizes[name] for name in chosen) > room:
        chosen.remove(max(chosen, key=sizes.__getitem__))
    return chosen


def _marks(rounding: Rounding) -> Mapping[str, list[Any]]:
    """What is rounded at every step, in a form that can be compared."""
    found: dict[str, list[Any]] = defaultdict(list)
    for role in ("weights", "inputs"):
        for (name, position), value in getattr(rounding, role).items():
            found[name].append((role, position, _mark(value)))
    for role in ("biases", "results", "kernels"):
        for name, value in getattr(rounding, role).items():
            found[name].append((role, _mark(value)))
    for name in rounding.done:
        found[name].append("done")
    return found


def _mark(value: Any) -> Any:
    """Equal for values that compute alike; tensors do so where they are the same memory."""
    if isinstance(value, Tensor):
        return value.data_ptr(), value.dtype, tuple(value.shape), value.stride()
    if is_dataclass(value):
        return type(value), *(_mark(getattr(value, each.name)) for each in fields(value))
    return value if isinstance(value, int | float | str | None) else id(value)


def _bytes(state: State) -> int:
    leaves: Iterable[Any] = pytree.tree_leaves(list(state.values.values()))
    blocks = {leaf.untyped_storage().data_ptr(): leaf for leaf in leaves if isinstance(leaf, Tensor)}
    return sum(leaf.untyped_storage().nbytes() for leaf in blocks.values())
