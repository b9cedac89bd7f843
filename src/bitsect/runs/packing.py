"""Objects for other processes: small things pickled, large arrays beside them, shared and never copied.

`pack` parts an object into a pickle and its large arrays; whoever gets both puts it together again with the
arrays where they lie. Two tensors of one memory stay so. Workers are children of the process that packs, or
of a cluster that its user trusts: no pickle is ever read from a file that someone else wrote.
"""

from __future__ import annotations

import io
import pickle
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ..network.capture import capture
from ..network.program import Program
from ..network.quiet import quiet

Bytes = np.ndarray[Any, np.dtype[np.uint8]]
SMALL_BYTES = 1 << 14  # what takes less is pickled with the rest
ALIGNED = 64


@dataclass(frozen=True)
class PackedObject:
    """An object in two parts."""

    rest: bytes
    arrays: tuple[Bytes, ...]


def pack(value: Any) -> PackedObject:
    """`value` in two parts."""
    file = io.BytesIO()
    pickler = _Pickler(file)
    pickler.dump(value)
    return PackedObject(file.getvalue(), tuple(pickler.arrays))


def unpack(packed: PackedObject) -> Any:
    """What was packed, its arrays where they lie."""
    return _Unpickler(packed).load()


class _Pickler(pickle.Pickler):
    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file, protocol=pickle.HIGHEST_PROTOCOL)
        self.arrays: list[Bytes] = []
        self._known: dict[int, int] = {}  # memory → its array
        self._held: list[Any] = []  # so that no address is used twice

    def persistent_id(self, obj: Any) -> Any:
        if isinstance(obj, np.ndarray) and obj.nbytes > SMALL_BYTES and obj.dtype != object:
            whole = np.ascontiguousarray(obj)
            return "array", self._kept(whole.reshape(-1).view(np.uint8), id(obj)), obj.dtype.str, obj.shape
        if not _is_plain(obj) or obj.untyped_storage().nbytes() <= SMALL_BYTES:
            return None
        memory = obj.untyped_storage()
        flat = torch.empty(0, dtype=torch.uint8).set_(memory).numpy()
        about = obj.dtype, tuple(obj.shape), obj.stride(), obj.storage_offset()
        free = isinstance(obj, nn.Parameter), obj.requires_grad
        return "tensor", self._kept(flat, memory.data_ptr()), about, free

    def _kept(self, flat: Bytes, known_by: int) -> int:
        if known_by not in self._known:
            self._known[known_by] = len(self.arrays)
            self.arrays.append(flat)
            self._held.append(flat)
        return self._known[known_by]


def _is_plain(obj: Any) -> bool:
    plain = type(obj) in (Tensor, nn.Parameter) and obj.device.type == "cpu" and obj.layout == torch.strided
    return plain and obj.is_leaf


class _Unpickler(pickle.Unpickler):
    def __init__(self, packed: PackedObject) -> None:
        super().__init__(io.BytesIO(packed.rest))
        self._arrays = packed.arrays
        self._memory: dict[int, Any] = {}

    def persistent_load(self, pid: Any) -> Any:
        kind, index, *about = pid
        if kind == "array":
            dtype, shape = about
            return self._arrays[index].view(dtype).reshape(shape)
        if index not in self._memory:
            with warnings.catch_warnings():  # nobody writes into what all share
                warnings.simplefilter("ignore")
                self._memory[index] = torch.from_numpy(self._arrays[index]).untyped_storage()
        (dtype, shape, stride, offset), (is_parameter, requires_grad) = about
        tensor = torch.empty(0, dtype=dtype).set_(self._memory[index], offset, shape, stride)
        if is_parameter:
            return nn.Parameter(tensor, requires_grad)
        return tensor.requires_grad_(requires_grad)


class Shelf:
    """A file that holds packed objects for the workers of this machine, who map it into their memory."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def put(self, value: Any) -> Callable[[], Any]:
        """A function that travels, and gives `value` wherever this file can be read."""
        packed, places = pack(value), []
        with self.path.open("ab") as file:
            for array in packed.arrays:
                file.write(bytes(-file.tell() % ALIGNED))
                places.append((file.tell(), array.nbytes))
                file.write(array.data)
        return OnShelf(self.path, packed.rest, tuple(places))

    def close(self) -> None:
        self.path.unlink(missing_ok=True)


@dataclass(frozen=True)
class OnShelf:
    """A packed object whose arrays are in a file."""

    path: Path
    rest: bytes
    places: Sequence[tuple[int, int]]  # offset and length of each array

    def __call__(self) -> Any:
        # Mapped so that a write would be this process's own; memory is shared until then.
        arrays = [
            np.memmap(self.path, np.uint8, "c", offset, (length,)).view(np.ndarray)
            for offset, length in self.places
        ]
        return unpack(PackedObject(self.rest, tuple(arrays)))


# Programs


@dataclass(frozen=True)
class PackedProgram:
    """A program as torch.export writes it, but without its weights, which are shared."""

    graph: bytes
    weights: dict[str, Tensor]
    embeddings: bool
    example: Any


def pack_program(program: Program) -> PackedProgram:
    """`program` as something that can be packed."""
    exported = program.exported
    weights = dict(exported.state_dict)
    light = type(exported).__new__(type(exported))
    vars(light).update(vars(exported))
    vars(light)["_state_dict"] = {name: _hollow(weight) for name, weight in weights.items()}
    buffer = io.BytesIO()
    with quiet():
        torch.export.save(light, buffer)
    kinds = {layer.kind for layer in program.layers}
    return PackedProgram(buffer.getvalue(), weights, "embedding" in kinds, program.example)


def unpack_program(packed: PackedProgram) -> Program:
    """The same program, on the weights that are shared."""
    with quiet():
        exported = torch.export.load(io.BytesIO(packed.graph))
    exported.state_dict.update(packed.weights)
    return capture(exported, packed.example, embeddings=packed.embeddings)


def _hollow(weight: Tensor) -> Tensor:
    """One number in the shape of `weight`."""
    hollow = torch.zeros((), dtype=weight.dtype).expand(weight.shape)
    return nn.Parameter(hollow, weight.requires_grad) if isinstance(weight, nn.Parameter) else hollow
