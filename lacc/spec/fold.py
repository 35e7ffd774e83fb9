"""Arithmetic on the numbers of a spec, bounded: operands in, a number or the reason why there is
none out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from lacc.spec.model import Expr
from lacc.spec.shapes import Size

Number = int | float
LARGEST = 2**63 - 1


class NoNumber(ArithmeticError):
    """An operation on numbers has no (finite, representable) result; ``str`` says why."""


def _power(base: Number, exponent: Number) -> Number:
    if isinstance(base, int) and isinstance(exponent, int) and exponent >= 0:
        if abs(base) > 1 and exponent * abs(base).bit_length() > 4096:
            raise NoNumber("the number is too large")
        whole: int = base**exponent
        return whole
    if base < 0 and not float(exponent).is_integer():
        raise NoNumber("a negative number has no fractional power")
    power: float = float(base) ** float(exponent)
    return power


def _divide(a: Number, b: Number) -> Number:
    whole = isinstance(a, int) and isinstance(b, int) and b != 0 and a % b == 0
    return int(a) // int(b) if whole else a / b


FOLDS: Mapping[str, Callable[..., Number]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "div": _divide,
    "pow": _power,
    "neg": lambda a: -a,
    "exp": math.exp,
    "log": math.log,
    "sqrt": math.sqrt,
    "rsqrt": lambda a: 1 / math.sqrt(a),
    "abs": abs,
    "sin": math.sin,
    "cos": math.cos,
    "tanh": math.tanh,
    "max": max,
    "min": min,
}


def fold(op: str, numbers: list[Number]) -> Number | None:
    """The number that ``op`` makes of numbers, None where it is left to run time; raises
    `NoNumber`.
    """
    rule = FOLDS.get(op)
    if rule is None:
        return None
    try:
        value = rule(*numbers)
        if isinstance(value, int) and abs(value) > LARGEST:
            value = float(value)
    except ZeroDivisionError:
        raise NoNumber("division by zero") from None
    except OverflowError:
        raise NoNumber("the number is too large") from None
    except ValueError:
        raise NoNumber(f"{op} is not defined at {numbers[0]}") from None
    if value != value:
        raise NoNumber("the result is not a number")
    if math.isinf(value) and not any(map(math.isinf, numbers)):
        raise NoNumber("the number is too large")
    return value


def number_of(expr: Expr, dims: Mapping[str, int]) -> Number | None:
    """The value of an expression of numbers and dims, None where it holds anything else; raises
    `NoNumber`.
    """
    values: dict[int, Number] = {}
    for node in expr.walk():
        if node.op == "const" and isinstance(node.value, int | float):
            values[id(node)] = node.value
        elif node.op == "size" and isinstance(node.value, Size):
            values[id(node)] = node.value.evaluate(dims)
        else:
            value = fold(node.op, [values[id(arg)] for arg in node.args]) if node.args else None
            if value is None:
                return None
            values[id(node)] = value
    return values[id(expr)]
