"""Where the multiplies of a program ended up in the ONNX graph."""

from __future__ import annotations

from dataclasses import dataclass

from ...network.parts import Multiply
from ...values import Format
from .grouped import GROUPED
from .marks import Marked
from .nodes import Node

KERNELS = ("Conv", "ConvTranspose", "Gemm", "MatMul", "Einsum", "Gather", GROUPED)
LONGEST_ROUTE = 4


@dataclass
class Site:
    """A multiply, its marks and its kernel, which bears the name of the place."""

    multiply: Multiply
    format: Format
    marks: list[Node]  # of its operands
    routes: list[list[Node]]  # from each mark, the nodes up to and with the kernel
    kernel: Node  # None where none of the known ones is found

    @classmethod
    def of(cls, multiply: Multiply, format: Format, marked: Marked) -> Site:
        marks = [marked.operands[multiply.node.name, index] for index in range(len(multiply.operands))]
        routes = [_route(mark) for mark in marks]
        kernel = next((route[-1] for route in routes if _ends_in_kernel(route)), None)
        if kernel is not None:
            kernel.name = multiply.place.name
        return cls(multiply, format, marks, routes, kernel)

    @property
    def name(self) -> str:
        return self.multiply.place.name

    @property
    def op_type(self) -> str:
        return "" if self.kernel is None else str(self.kernel.op_type)

    def turns(self, index: int) -> list[tuple[int, ...]] | None:
        """The transposes between an operand and the kernel; None if other nodes lie there, or no kernel.

        A weight repeated along the batch needs no repeating: MatMul broadcasts.
        """
        route = self.routes[index]
        if not _ends_in_kernel(route):
            return None
        *between, kernel = route
        passable = ("Transpose", "Expand") if kernel.op_type == "MatMul" else ("Transpose",)
        if any(node.op_type not in passable for node in between):
            return None
        return [tuple(node.attributes["perm"].value) for node in between if node.op_type == "Transpose"]

    def position(self, index: int) -> int:
        """Which input of the kernel an operand is."""
        last = (self.marks[index], *self.routes[index])[-2]
        return int(self.kernel.inputs.index(last.outputs[0]))


def _route(mark: Node) -> list[Node]:
    """The nodes that read a marked value, one after the other, up to its kernel."""
    route: list[Node] = []
    node = mark
    while len(route) < LONGEST_ROUTE and len(uses := node.outputs[0].uses()) == 1:
        node = uses[0].node
        route.append(node)
        if node.op_type in KERNELS:
            break
    return route


def _ends_in_kernel(route: list[Node]) -> bool:
    return bool(route) and route[-1].op_type in KERNELS
