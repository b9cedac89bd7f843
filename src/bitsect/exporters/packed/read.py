"""Reading packed files: the identical model, of the file and a network of the same architecture."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor, nn
from torch.export import ExportedProgram
from torch.fx import Node

from ...errors import BitsectError, CaptureError
from ...files import parse_json, reading
from ...network.capture import capture
from ...network.layout import Layout
from ...network.parts import Operand
from ...network.program import Program
from ...rounding.model import QuantizedModel
from ...rounding.rounder import Fitted, Rounder
from ...rounding.weights import Codes
from ...values import Format, Plan, Ranges, placement_named
from ..constants import needed_constants, rounded_weights
from .codes import HeldCodes, packed_size
from .graph import architecture
from .write import KEY, VERSION, digest

AGAIN = "write it again with `bitsect export`"
Key = tuple[Node, Layout]
LARGEST_EXAMPLE = 10**8  # numbers in the example of a network
TYPES = ["float32", "float64", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool"]


@dataclass(frozen=True)
class Packed:
    """What a packed file holds."""

    path: Path
    about: Mapping[str, Any]
    tensors: Mapping[str, Tensor]

    @classmethod
    def read(cls, path: Path) -> Packed:
        """The file at `path`, whole and unchanged since it was written."""
        with reading(path, what="packed model", way_out=AGAIN):
            with safe_open(path, framework="pt") as file:
                about = parse_json((file.metadata() or {}).get(KEY, "null"))
                if not isinstance(about, dict) or about.get("bitsect") != "packed model":
                    raise BitsectError(f"{path}: not a packed model: `bitsect export RUN -o FILE` writes one")
                if about.get("version") != VERSION:
                    raise BitsectError(
                        f"{path}: packed model version {about.get('version')} is not {VERSION}: {AGAIN}"
                    )
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 – no mapping
            if digest(tensors) != about["digest"]:
                raise BitsectError(f"{path}: damaged: its tensors are not those that were written: {AGAIN}")
            return cls(path, about, tensors)

    def model(self, network: nn.Module | ExportedProgram) -> QuantizedModel:
        """The quantised network; of `network` only the architecture is used."""
        with reading(self.path, what="packed model", way_out=AGAIN):
            program = self._captured(network)
        return self.of_program(program)

    def of_program(self, program: Program) -> QuantizedModel:
        """The same of a program: all its parameters are taken from the file."""
        with reading(self.path, what="packed model", way_out=AGAIN):
            return self._of(program)

    def _of(self, program: Program) -> QuantizedModel:
        if architecture(program) != self.about["architecture"]:
            raise BitsectError(
                f"{self.path}: is of another network than this one: give the one that was quantised"
            )
        plan = Plan.from_json(self.about["plan"], program.layers, str(self.path))
        needed, used = needed_constants(program, plan), set[str]()
        fitted, made = Fitted(), dict[Key, Codes]()
        for multiply, operand in rounded_weights(program, plan):
            format, name = plan[multiply.layer], str(self.about["weights"][multiply.place.name])
            value = program.constant(operand.node)
            assert operand.layout is not None
            held = HeldCodes(value.shape, value.dtype, operand.layout, format)
            made[operand.node, operand.layout] = self._codes(name, held)
            bias = f"{multiply.place.name}.fitted_bias"
            if bias in self.tensors:
                fitted.biases[multiply.node, format] = self._numbers(bias, None)
            used |= {f"{name}.codes", f"{name}.scales", bias}
        strange = self.tensors.keys() - used - needed.keys()
        if strange:
            raise BitsectError(
                f"{self.path}: holds '{min(strange)}', which the network does not have: {AGAIN}"
            )
        values = {node: self._like(name, value) for name, (node, value) in needed.items()}
        placement = placement_named(str(self.about["placement"]))
        rounder = _AsRead(
            program.with_constants(values),
            self._ranges(program),
            placement,
            str(self.about["rounding"]),
            fitted,
        )
        rounder.made = made
        return QuantizedModel(rounder.program, rounder(plan))

    def _captured(self, network: nn.Module | ExportedProgram) -> Program:
        options: dict[str, Any] = {"embeddings": bool(self.about["embeddings"])}
        if isinstance(network, ExportedProgram):
            return capture(network, **options)
        example = _example(self.about["example"], [LARGEST_EXAMPLE])
        return capture(network, example, sequences=bool(self.about["sequences"]), **options)

    def _ranges(self, program: Program) -> Ranges | None:
        """The ranges by the names that tensors have in `program`: torch numbers them anew at each capture."""
        if self.about["ranges"] is None:
            return None
        ranges = Ranges.from_json(self.about["ranges"])
        now = dict(zip(self.about["tensors"], program.tensors, strict=True))
        return replace(ranges, table={now.get(name, name): row for name, row in ranges.table.items()})

    def _codes(self, name: str, held: HeldCodes) -> Codes:
        codes, kind = self._tensor(f"{name}.codes"), torch.int8 if held.bits > 4 else torch.uint8
        if codes.shape != (packed_size(held.shape.numel(), held.bits),) or codes.dtype != kind:
            raise BitsectError(f"{self.path}: '{name}.codes' are not the codes of {held.format}: {AGAIN}")
        made = held.unpack(codes, self._numbers(f"{name}.scales", held.scale_count))
        if made.codes.numel() and made.codes.abs().max() > 2 ** (held.bits - 1) - 1:
            raise BitsectError(f"{self.path}: '{name}.codes' hold more than {held.bits} bits can: {AGAIN}")
        return made

    def _numbers(self, name: str, size: int | None) -> Tensor:
        """A row of finite numbers."""
        values = self._tensor(name)
        fits = values.ndim <= 1 and (size is None or values.shape == (size,))
        if not fits or not values.is_floating_point() or not bool(values.isfinite().all()):
            raise BitsectError(f"{self.path}: '{name}' does not hold the numbers that it should: {AGAIN}")
        return values

    def _like(self, name: str, expected: Tensor) -> Tensor:
        value = self._tensor(name)
        narrow = expected.dtype == torch.float32 and value.dtype in (torch.float16, torch.bfloat16)
        value = value.to(expected.dtype) if narrow else value
        if value.shape != expected.shape or value.dtype != expected.dtype:
            raise BitsectError(
                f"{self.path}: '{name}' is {value.dtype} of {tuple(value.shape)}, in the network "
                f"{expected.dtype} of {tuple(expected.shape)}: {AGAIN}"
            )
        return value

    def _tensor(self, name: str) -> Tensor:
        if name not in self.tensors:
            raise BitsectError(f"{self.path}: lacks the tensor '{name}': {AGAIN}")
        return self.tensors[name]


class _AsRead(Rounder):
    """A rounder whose codes were read, not made."""

    made: Mapping[Key, Codes]

    def codes(self, layer: str, operand: Operand, format: Format) -> Codes:
        assert operand.layout is not None
        return self.made[operand.node, operand.layout]


def _example(described: Any, room: list[int]) -> Any:
    """Zeros as an example was described; `room` is for how many numbers there may be in all."""
    if "by_name" in described:
        return {str(name): _example(each, room) for name, each in described["by_name"]}
    if "in_order" in described:
        return tuple(_example(each, room) for each in described["in_order"])
    if "value" in described:
        return described["value"]
    shape = [int(size) for size in described["shape"]]
    room[0] -= math.prod(shape)
    if min(shape, default=0) < 0 or room[0] < 0:
        raise CaptureError(f"an example of shape {shape} is not one to be made")
    if described["dtype"] not in TYPES:
        raise CaptureError(f"an example of {described['dtype']} is not one to be made")
    return torch.zeros(shape, dtype=getattr(torch, described["dtype"]))
