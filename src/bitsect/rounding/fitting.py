"""The weights of a program fitted by GPTQ to the inputs that each layer reads in the float network.

What a weight becomes depends on its layer, its format and the samples, but on no plan: it is found once and
kept. The moments of the inputs are gathered in passes over the samples, for as many layers at a time as
memory allows; which positions of an output are looked at does not depend on how layers are shared out.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from ..errors import BitsectError
from ..network.parts import Multiply, Operand
from ..network.program import Program
from ..sources.data import Samples
from ..sources.data.samples import drawn
from ..values import Format
from ..values.grid import Grid
from ..values.pieces import Done, Piece
from .columns import Columns, are_known
from .gptq import InputMeans, Moments, fit
from .rounder import Rounder, is_fitted
from .weights import Codes, run_length

SAMPLES = 1024
POSITIONS = 64  # of each sample's output, at random
MEMORY_BYTES = 256 << 20  # of moments held at once; to fit a large weight takes a few times its own
CHUNK = 1 << 23  # numbers in the columns that are read at once


@dataclass(frozen=True)
class Use:
    """A weight, and the places that multiply their columns by it."""

    multiplies: tuple[Multiply, ...]

    @property
    def name(self) -> str:
        return self.multiplies[0].place.name

    @property
    def weight(self) -> Operand:
        weight = self.multiplies[0].weight
        assert weight is not None
        return weight

    @property
    def is_known(self) -> bool:
        return all(are_known(multiply) for multiply in self.multiplies)

    def kernels(self, program: Program) -> Tensor:
        """The weight as (channels, inputs, taps)."""
        assert self.weight.layout is not None
        return self.weight.layout.to_kernels(program.constant(self.weight.node))

    def matrix(self, program: Program) -> Tensor:
        """The weight as (groups, channels, columns), in at least float32."""
        kernels = self.kernels(program)
        groups = self.multiplies[0].place.signature.groups
        matrix = kernels.reshape(groups, len(kernels) // groups, -1)
        return matrix.to(torch.promote_types(matrix.dtype, torch.float32))


def uses_of(program: Program) -> tuple[Use, ...]:
    """The weights of a program; a weight that is also read the other way round is two."""
    found: list[Use] = []
    for multiply in program.multiplies:
        if multiply.weight is None:
            continue
        use = Use((multiply,))
        for index, other in enumerate(found):
            if other.multiplies[0].layer == multiply.layer and torch.equal(
                other.kernels(program), use.kernels(program)
            ):
                found[index] = Use((*other.multiplies, multiply))
                break
        else:
            found.append(use)
    return tuple(found)


def left_to_squant(program: Program) -> tuple[str, ...]:
    """The layers that GPTQ cannot fit, as it does not know what their weights are multiplied by."""
    looked_up = {layer.name for layer in program.layers if layer.is_look_up}  # nothing is multiplied by them
    unknown = [use.multiplies[0].layer for use in uses_of(program) if not use.is_known]
    return tuple(name for name in dict.fromkeys(unknown) if name not in looked_up)


@dataclass(frozen=True)
class Fitter:
    """Fits the weights of a rounder's program; `done` keeps each of them from the moment it is found."""

    rounder: Rounder
    samples: Samples
    done: Done
    refit: bool = True
    correct_bias: bool = True
    batch_size: int = 64
    progress: Callable[[int], None] = field(default=lambda count: None)

    @property
    def program(self) -> Program:
        return self.rounder.program

    def __call__(self, formats: Iterable[Format]) -> None:
        """Tell the rounder what every weight becomes in `formats`, as far as these are fitted."""
        wanted = sorted({format for format in formats if is_fitted(self.rounder.rounding, format)}, key=str)
        uses = uses_of(self.program)
        missing = [
            (use, [f for f in wanted if self._can_fit(use, f) and _key(use, f) not in self.done])
            for use in uses
        ]
        for part in self._parts([(use, formats) for use, formats in missing if formats]):
            self._fit(part)
        for use in uses:
            for format in wanted:
                self._tell(use, format)

    def _can_fit(self, use: Use, format: Format) -> bool:
        """Whether the columns of a weight are known; one that the format does not suit is refused in use."""
        inputs = use.kernels(self.program).shape[1]
        return use.is_known and inputs % min(format.group_size or inputs, inputs) == 0

    def _parts(self, missing: list[tuple[Use, list[Format]]]) -> Iterator[list[tuple[Use, list[Format]]]]:
        """Parts of what is missing, each of which memory holds; a weight too large for it is alone."""
        part: list[tuple[Use, list[Format]]] = []
        held = 0
        for use, formats in missing:
            groups, channels, columns = use.matrix(self.program).shape
            moments = groups * columns * (columns + self.refit * min(columns, channels))
            size = 8 * moments * len({format.activation_bits for format in formats})
            if part and held + size > MEMORY_BYTES:
                yield part
                part, held = [], 0
            part.append((use, formats))
            held += size
        if part:
            yield part

    def _fit(self, part: list[tuple[Use, list[Format]]]) -> None:
        """Fill `done` with what the weights in `part` become."""
        sums = [
            _Sums(use, use.matrix(self.program), grids, self.refit)
            for use, formats in part
            if (grids := {format.activation_bits: self._grids(use, format) for format in formats})
        ]
        see = {key: function for each in sums for key, function in each.see.items()}
        few = _few(self.samples)
        batch_size = min(self.batch_size, self.program.fixed_batch or self.batch_size)
        for batch in few.batches(batch_size):
            for each in sums:
                each.batch, each.rows = int(batch.indices[0]), len(batch.indices)
            self.program.observe_operands(batch.inputs, see)
        for (use, formats), each in zip(part, sums, strict=True):
            moments = {bits: each.moments(bits) for bits in each.grids}
            each.forget()
            for format in formats:
                self.done[_key(use, format)] = self._arrays(use, moments[format.activation_bits], format)
                self.progress(1)

    def _grids(self, use: Use, format: Format) -> list[Grid | None]:
        """What the input of each place is rounded to."""
        bits = format.activation_bits
        tensors = [multiply.activations[0].tensor for multiply in use.multiplies]
        return [None if bits is None or name is None else self.rounder.grid(name, bits) for name in tensors]

    def _arrays(self, use: Use, moments: Moments, format: Format) -> Piece:
        assert format.weight_bits is not None
        channels, inputs, taps = use.kernels(self.program).shape
        run = run_length(format, inputs) * taps
        qmax = 2 ** (format.weight_bits - 1) - 1
        matrix = use.matrix(self.program).cpu()
        if not bool(moments.covariance.isfinite().all()):
            raise BitsectError(
                f"the inputs of '{use.multiplies[0].layer}' are so large that their products overflow: "
                "normalise the samples, or pass [rounding=squant]"
            )
        made = fit(matrix, moments, qmax, run=run, correct_bias=self.correct_bias)
        arrays = {
            "codes": made.codes.to(torch.int8).reshape(channels, inputs, taps).numpy(),
            "scales": made.scales.reshape(channels, -1).numpy(),
        }
        if made.biases is not None:
            arrays["biases"] = torch.stack(made.biases).float().reshape(-1, channels).numpy()
        return arrays

    def _tell(self, use: Use, format: Format) -> None:
        """Tell the rounder what is kept of a weight, for each of its places."""
        fitted = self.rounder.fitted
        arrays = self.done[_key(use, format)] if self._can_fit(use, format) else {}
        for index, multiply in enumerate(use.multiplies):
            operand = multiply.weight
            assert operand is not None
            assert operand.layout is not None
            key = (operand.node, operand.layout, format)
            if key not in fitted.codes:
                fitted.codes[key] = self._codes(operand, arrays) if arrays else None
            if "biases" in arrays:
                fitted.biases[multiply.node, format] = torch.from_numpy(arrays["biases"][index])

    def _codes(self, operand: Operand, arrays: Piece) -> Codes:
        assert operand.layout is not None
        weight = self.program.constant(operand.node)
        kernels, scales = torch.from_numpy(arrays["codes"]), torch.from_numpy(arrays["scales"])
        spread = scales.repeat_interleave(kernels[0].numel() // scales.shape[1], 1).reshape(kernels.shape)
        codes, wide = (operand.layout.from_kernels(each, weight.shape) for each in (kernels, spread))
        return Codes(codes.to(weight.device, weight.dtype), wide.to(weight.device))


class _Sums:
    """Sums over the columns that a weight is multiplied by, rounded in one or more ways.

    All are about the means of the first columns, so that they lose no digits to a large mean: products and
    sums are of the network's own precision, and only added up in float64.
    """

    def __init__(
        self, use: Use, matrix: Tensor, grids: dict[int | None, list[Grid | None]], refit: bool
    ) -> None:
        self.use, self.matrix, self.grids = use, matrix, grids
        self.batch = self.rows = 0  # where the batch begins, and how many samples it has
        groups, channels, columns = matrix.shape
        self.through_weight = 2 * channels < columns  # W·(x − z) is then cheaper to sum up than x − z
        drifts = {bits: refit and bits is not None for bits in grids}
        height = channels if self.through_weight else columns
        self.gram = {bits: _zeros(groups, columns, columns) for bits in grids}
        self.cross = {bits: _zeros(groups, height, columns) for bits in grids if drifts[bits]}
        places = range(len(use.multiplies))
        self.counts = [0 for _ in places]
        self.shifts: dict[tuple[int | None, int], tuple[Tensor, Tensor]] = {}
        self.totals = {
            (bits, place): [_zeros(groups, columns), _zeros(groups, columns)]
            for bits in grids
            for place in places
        }

    @property
    def see(self) -> dict[tuple[str, int], Callable[[Tensor], None]]:
        """What looks at the operands of the weight's places."""
        return {
            (multiply.node.name, multiply.operands.index(multiply.activations[0])): self._look(place)
            for place, multiply in enumerate(self.use.multiplies)
        }

    def _look(self, place: int) -> Callable[[Tensor], None]:
        def look(value: Tensor) -> None:
            multiply = self.use.multiplies[place]
            columns = Columns.of(multiply, value)
            seed = hashlib.sha256(f"{multiply.place.name}/{self.batch}".encode()).digest()[:7]
            generator = torch.Generator().manual_seed(int.from_bytes(seed))
            positions = torch.randperm(len(columns), generator=generator)[: POSITIONS * self.rows]
            width = max(1, CHUNK // (self.matrix.shape[0] * self.matrix.shape[2]))
            for some in torch.split(positions.to(value.device), width):
                self._add(place, columns.take(some).to(self.matrix.dtype))

        return look

    def _add(self, place: int, x: Tensor) -> None:
        if not x.shape[1]:  # an expert that nothing was sent to
            return
        self.counts[place] += x.shape[1]
        for bits, grids in self.grids.items():
            grid = grids[place]
            z = x if grid is None else grid.round(x)
            error = x - z
            if (bits, place) not in self.shifts:
                self.shifts[bits, place] = (error.mean(1, keepdim=True), z.mean(1, keepdim=True))
            error, z = (
                each - shift for each, shift in zip((error, z), self.shifts[bits, place], strict=True)
            )
            for total, each in zip(self.totals[bits, place], (error, z), strict=True):
                total += each.sum(1).cpu()
            self.gram[bits] += (z.mT @ z).cpu()
            if bits in self.cross:
                left = error @ self.matrix.mT if self.through_weight else error
                self.cross[bits] += (left.mT @ z).cpu()

    def moments(self, bits: int | None) -> Moments:
        gram, cross = self.gram[bits], self.cross.get(bits)
        weight = self.matrix.double().cpu()
        count = max(1, sum(self.counts))
        places = []
        for place, own in enumerate(self.counts):
            if not own:  # nothing is known of this place: it asks for nothing
                unknown = torch.zeros_like(self.totals[bits, place][0])
                places.append(InputMeans(unknown, unknown, 0.0))
                continue
            means = [total / own for total in self.totals[bits, place]]
            gram -= own * means[1][:, :, None] * means[1][:, None]
            if cross is not None:
                left = weight @ means[0][..., None] if self.through_weight else means[0][..., None]
                cross -= own * left * means[1][:, None]
            error, z = (
                mean + shift[:, 0].double().cpu()
                for mean, shift in zip(means, self.shifts[bits, place], strict=True)
            )
            places.append(InputMeans(z + error, z, own / count))
        drift = cross if cross is None or self.through_weight else weight @ cross
        return Moments(gram.div_(count), None if drift is None else drift.div_(count), places)

    def forget(self) -> None:
        """Give the memory back."""
        self.gram, self.cross = {}, {}


def _zeros(*shape: int) -> Tensor:
    return torch.zeros(shape, dtype=torch.float64)


def _few(samples: Samples) -> Samples:
    """Some of the samples, in their order."""
    if len(samples) <= SAMPLES:
        return samples
    chosen = drawn(samples.spec, len(samples), SAMPLES, seed=0).sort().values
    return replace(samples, source=samples.source.select(chosen))


def _key(use: Use, format: Format) -> str:
    return f"{format}/{use.name}"
