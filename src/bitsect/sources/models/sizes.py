"""Sizes and guards of a saved program: the texts that torch evaluates, admitted only as small arithmetic."""

from __future__ import annotations

import ast
import keyword
import math
import re

LONGEST = 10_000  # characters
HIGHEST_POWER = 8
MOST_FACTORS = 64  # numbers and symbols multiplied together in one term
MOST_TERMS = 1000  # once everything is multiplied out
LARGEST_NUMBER = 2**64

# Classes of sympy and of torch's own algebra as they are written into a file. Each costs little.
FUNCTION = re.compile(
    "Add|Mul|Pow|Max|Min|Mod|Abs|floor|ceiling|max|min|Rational|Where|Identity|Piecewise|ExprCondPair"
    "|Eq|Ne|Lt|Le|Gt|Ge|Equality|Unequality|LessThan|GreaterThan|StrictLessThan|StrictGreaterThan|And|Or|Not"
    "|FloorDiv|CleanDiv|CeilDiv|FloatTrueDiv|IntTrueDiv|PythonMod|ModularIndexing|PowByNatural|FloatPow"
    "|LShift|RShift|CeilToInt|FloorToInt|TruncToFloat|TruncToInt|RoundToInt|RoundDecimal|ToFloat"
    "|IsNonOverlappingAndDenseIndicator"
)
POWERS = ("Pow", "PowByNatural", "FloatPow")
SHIFTS = ("LShift", "RShift")
OF_TENSORS = ("size", "shape", "stride", "storage_offset")
OPERATORS = (ast.Add, ast.Sub, ast.Mult, ast.Div, ast.FloorDiv, ast.Mod, ast.Pow)


class NotArithmeticError(ValueError):
    """A text that is more than small arithmetic."""


def is_arithmetic(text: object, *, guard: bool = False) -> bool:
    """Whether `text` is arithmetic of numbers and symbols that is soon evaluated, whoever wrote it.

    A guard may also read sizes of inputs: `L['x'].size()[0]`.

    >>> is_arithmetic("Mod(Symbol('s0', integer=True), Integer(2))")
    True
    >>> is_arithmetic("9**9**9**9"), is_arithmetic("__import__('os').getcwd()")
    (False, False)
    """
    if not isinstance(text, str) or len(text) > LONGEST:
        return False
    try:
        factors, terms = _Bound(guard)(ast.parse(text.strip(), mode="eval").body)
    except (NotArithmeticError, SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return factors <= MOST_FACTORS and terms <= MOST_TERMS


Cost = tuple[int, int]  # factors of the longest term, and terms, both when multiplied out
LEAF: Cost = (1, 1)


class _Bound:
    """How large an expression can become; raises NotArithmeticError for anything that is none."""

    def __init__(self, guard: bool) -> None:
        self.guard = guard

    def __call__(self, node: ast.AST) -> Cost:
        match node:
            case ast.Constant(value=bool()):
                return LEAF
            case ast.Constant(value=int(value) | float(value)):
                if not abs(value) <= LARGEST_NUMBER:  # so that NaN and infinity are refused too
                    raise NotArithmeticError
                return LEAF
            case ast.Name(id=name) if "__" not in name and not keyword.iskeyword(name):
                return LEAF
            case ast.UnaryOp(op=ast.USub() | ast.UAdd() | ast.Not(), operand=operand):
                return self(operand)
            case ast.BoolOp(values=values):
                return self._together(values)
            case ast.Compare(left=left, comparators=others):
                return self._together([left, *others])
            case ast.BinOp(left=left, op=operator, right=right) if isinstance(operator, OPERATORS):
                return self._operation(type(operator).__name__, [left, right])
            case ast.Call(func=ast.Name(id=name), args=args, keywords=keywords):
                return self._call(name, args, keywords)
        if self.guard and self._reads_a_size(node):
            return LEAF
        raise NotArithmeticError

    def _operation(self, name: str, args: list[ast.expr]) -> Cost:
        if name in POWERS and len(args) == 2:
            power = abs(_literal(args[1]))
            factors, terms = self(args[0])
            if power > HIGHEST_POWER:
                raise NotArithmeticError
            power = math.ceil(power)
            return _kept(factors * max(1, power), terms**power)
        if name in SHIFTS and not 0 <= _literal(args[-1]) < 64:
            raise NotArithmeticError
        if name in ("Add", "Sub"):
            return self._together(args)
        costs = [self(arg) for arg in args]
        return _kept(sum(cost[0] for cost in costs), math.prod(cost[1] for cost in costs))

    def _call(self, name: str, args: list[ast.expr], keywords: list[ast.keyword]) -> Cost:
        match name, args:
            case "Symbol" | "Dummy", [ast.Constant(value=str(text))]:
                if not (text.isidentifier() and "__" not in text):
                    raise NotArithmeticError
                self._flags(keywords)
            case "Integer", [number] if not keywords:
                _literal(number)
            case "Float", [number]:
                _literal(number)
                self._flags(keywords)
            case _ if FUNCTION.fullmatch(name) and not keywords:
                return self._operation(name, args)
            case _:
                raise NotArithmeticError
        return LEAF

    def _flags(self, keywords: list[ast.keyword]) -> None:
        """Only assumptions, as `integer=True`, and the precision of a float."""
        for each in keywords:
            if not isinstance(each.value, ast.Constant) or not isinstance(each.value.value, bool | int):
                raise NotArithmeticError
            if not 0 <= each.value.value <= 64:
                raise NotArithmeticError

    def _together(self, nodes: list[ast.expr]) -> Cost:
        costs = [self(node) for node in nodes]
        return _kept(max((cost[0] for cost in costs), default=1), sum(cost[1] for cost in costs))

    def _reads_a_size(self, node: ast.AST) -> bool:
        """Whether `node` is a path such as `L['x'].size()[0]`, made of nothing else."""
        match node:
            case ast.Name(id=name):
                return "__" not in name
            case ast.Subscript(value=inner, slice=ast.Constant(value=int())):
                return self._reads_a_size(inner)
            case ast.Subscript(value=inner, slice=ast.Constant(value=str(key))):
                return re.fullmatch(r"[\w.+ -]*", key) is not None and self._reads_a_size(inner)
            case ast.Attribute(value=inner, attr=name):
                return name in OF_TENSORS and self._reads_a_size(inner)
            case ast.Call(func=ast.Attribute() as inner, args=args, keywords=[]):
                return self._reads_a_size(inner) and all(isinstance(arg, ast.Constant) for arg in args)
        return False


def _kept(factors: int, terms: int) -> Cost:
    """The cost, refused as soon as it is too high, so that adding it up takes no time either."""
    if factors > MOST_FACTORS or terms > MOST_TERMS:
        raise NotArithmeticError
    return factors, terms


def _literal(node: ast.AST) -> float:
    """The number that `node` is: 2, -1, Integer(2), Rational(1, 2) or the text of a Float."""
    match node:
        case ast.Constant(value=bool()):
            raise NotArithmeticError
        case ast.Constant(value=int(value) | float(value)):
            number = value
        case ast.Constant(value=str(text)) if len(text) < 100:
            number = float(text)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            number = -_literal(operand)
        case ast.Call(func=ast.Name(id="Integer" | "Float"), args=[inner, *_]):
            number = _literal(inner)
        case ast.Call(func=ast.Name(id="Rational"), args=[upper, lower]) if _literal(lower):
            number = _literal(upper) / _literal(lower)
        case _:
            raise NotArithmeticError
    if not abs(number) <= LARGEST_NUMBER:
        raise NotArithmeticError
    return number
