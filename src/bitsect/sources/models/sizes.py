"""Sizes of a saved program's inputs: numbers, symbols, their sums and products, read by a grammar of our own.

    size   = "Integer(" number ")" | "Symbol('" name "'" flags ")" | ("Add" | "Mul") "(" size {"," size} ")"
    flags  = {", " assumption "=True"}

Nothing is evaluated: each symbol becomes one of ours, and torch adds and multiplies those.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

import sympy  # type: ignore[import-untyped]
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.utils._sympy.numbers import int_oo
from torch.utils._traceback import CapturedTraceback

from .archive import SAVE, DamagedError, UnsafeError, shown, whole

LONGEST = 500  # characters
DEEPEST = 8
MOST_SYMBOLS = 32
TOKEN = re.compile(
    r"(Integer|Add|Mul)\(|Symbol\('(\w{1,40})'(?:, \w{1,20}=True){0,4}\)|(-?\d{1,18}(?!\d))|, |\)"
)


class Sizes:
    """The open sizes of a program, as torch computes with them."""

    def __init__(self, ranges: Mapping[str, Any]) -> None:
        self.env = ShapeEnv(assume_static_by_default=True)
        self.ranges, self.symbols = ranges, dict[str, Any]()

    def size(self, data: Mapping[str, Any]) -> Any:
        """A number, or a size that torch computes with."""
        if "as_int" in data:
            return whole(data["as_int"])
        text, hint = data["as_expr"]["expr_str"], data["as_expr"]["hint"]
        parts = parse(text)
        return self._made(parts, whole(hint["as_int"]) if hint else None)

    def _made(self, parts: Any, hint: int | None) -> Any:
        if isinstance(parts, int):
            return parts
        if isinstance(parts, str):
            return self._symbol(parts, hint)
        kind, *each = parts
        made = [self._made(part, None) for part in each]
        return sum(made[1:], made[0]) if kind == "Add" else math.prod(made)

    def _symbol(self, name: str, hint: int | None) -> Any:
        if name not in self.symbols:
            if len(self.symbols) >= MOST_SYMBOLS:
                raise DamagedError(f"more than {MOST_SYMBOLS} of its sizes are open: {SAVE}")
            symbol = sympy.Symbol(f"s{len(self.symbols)}", positive=True, integer=True)
            limits = self.ranges.get(name) or {}
            least, most = limits.get("min_val"), limits.get("max_val")
            value = hint if hint is not None else max(2, least or 2)
            self.env.add_backed_var_to_val(symbol, value)
            self.env.constrain_symbol_range(
                symbol,
                compiler_min=0 if least is None else whole(least),
                compiler_max=int_oo if most is None else whole(most),
            )
            self.env.var_to_stack[symbol] = CapturedTraceback.extract(skip=1)  # type: ignore[no-untyped-call]
            self.symbols[name] = self.env.create_symintnode(symbol, hint=value)
        return self.symbols[name]

    @property
    def constraints(self) -> dict[Any, Any]:
        """The range of every symbol, for torch's own checks of inputs."""
        symbols = (size.node.expr for size in self.symbols.values())
        return {symbol: self.env.var_to_range[symbol] for symbol in symbols}


def parse(text: Any) -> Any:
    """The expression as nested lists: ["Mul", 2, "s0"].

    >>> parse("Mul(Integer(2), Symbol('s0', integer=True))")
    ['Mul', 2, 's0']
    """
    if not isinstance(text, str) or len(text) > LONGEST:
        raise UnsafeError(f"a size is given as {shown(str(text))}")
    stack: list[list[Any]] = [[]]
    place = 0
    while place < len(text):
        token = TOKEN.match(text, place)
        if token is None or len(stack) > DEEPEST:
            raise UnsafeError(f"a size is given as {shown(text)}, not as a sum or product")
        place = token.end()
        function, name, number = token.groups()
        if function:
            stack.append([function])
        elif name or number:
            stack[-1].append(name or int(number))
        elif token.group() == ")":
            done = stack.pop()
            if len(done) < 2 or not stack or (done[0] == "Integer" and len(done) > 2):
                raise UnsafeError(f"a size is given as {shown(text)}")
            stack[-1].append(done[1] if done[0] == "Integer" else done)
    if len(stack) != 1 or len(stack[0]) != 1:
        raise UnsafeError(f"a size is given as {shown(text)}")
    return stack[0][0]
