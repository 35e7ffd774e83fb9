"""The name of a NumPy function in, the function out, loaded when it is first called with an array.

A range analysis calls functions with plain numbers only; these are answered here by IEEE
arithmetic, so that checking a spec does not load NumPy.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

INF, NAN = math.inf, math.nan


def _exp(x: float) -> float:
    try:
        return math.exp(x)
    except OverflowError:
        return INF


def _log(x: float) -> float:
    return math.log(x) if x > 0 else -INF if x == 0 else NAN


def _extreme(choose: Callable[[float, float], float]) -> Callable[[float, float], float]:
    return lambda a, b: NAN if math.isnan(a) or math.isnan(b) else choose(a, b)


_largest = _extreme(max)


def _logaddexp(a: float, b: float) -> float:
    top = _largest(a, b)
    return top if not math.isfinite(top) else top + math.log1p(_exp(-abs(a - b)))


def divide(a: float, b: float) -> float:
    """a / b as IEEE has it: of 0 an infinity with the signs of both, or NaN."""
    if b == 0:
        return NAN if a == 0 or math.isnan(a) else math.copysign(INF, a) * math.copysign(1, b)
    return a / b


def power(a: float, b: float) -> float:
    """a ** b as IEEE has it."""
    odd = float(b).is_integer() and b % 2 == 1
    try:
        return math.pow(a, b)
    except OverflowError:
        return -INF if a < 0 and odd else INF
    except ValueError:
        return NAN if a != 0 else math.copysign(INF, a) if odd else INF


def _wave(fn: Callable[[float], float]) -> Callable[[float], float]:
    return lambda x: fn(x) if math.isfinite(x) else NAN


NUMBERS: dict[str, Callable[..., Any]] = {
    "abs": abs,
    "add": lambda a, b: a + b,
    "cos": _wave(math.cos),
    "divide": divide,
    "equal": lambda a, b: a == b,
    "exp": _exp,
    "expm1": lambda x: _exp(x) - 1 if x > 700 else math.expm1(x),
    "greater": lambda a, b: a > b,
    "greater_equal": lambda a, b: a >= b,
    "less": lambda a, b: a < b,
    "less_equal": lambda a, b: a <= b,
    "log": _log,
    "log1p": lambda x: math.log1p(x) if x > -1 else -INF if x == -1 else NAN,
    "logaddexp": _logaddexp,
    "maximum": _largest,
    "minimum": _extreme(min),
    "multiply": lambda a, b: a * b,
    "negative": lambda x: -x,
    "power": power,
    "sign": lambda x: x if math.isnan(x) else float((x > 0) - (x < 0)),
    "sin": _wave(math.sin),
    "sqrt": lambda x: math.sqrt(x) if x >= 0 else NAN,
    "subtract": lambda a, b: a - b,
    "tanh": math.tanh,
    "where": lambda c, a, b: a if c else b,
}
ARRAYS = ("array", "mod")
"""Functions that rows of the op table name too, and that always work on arrays."""


class _Function:
    """One function: on plain numbers by `NUMBERS`, else NumPy's."""

    __slots__ = ("__name__", "_number", "_real")

    def __init__(self, name: str) -> None:
        self.__name__ = name
        self._number = NUMBERS.get(name)
        self._real: Any = None

    def __call__(self, *args: Any, **options: Any) -> Any:
        plain = self._number is not None and not options
        if plain and all(type(x) in (float, int, bool) for x in args):
            return self._number(*args)  # type: ignore[misc]
        if self._real is None:
            import numpy

            self._real = getattr(numpy, self.__name__)
        return self._real(*args, **options)


class _NumPy:
    """The module, as far as it is asked for."""

    def __getattr__(self, name: str) -> Any:
        if name in NUMBERS or name in ARRAYS:
            found: Any = _Function(name)
        else:
            import numpy

            found = getattr(numpy, name)
        setattr(self, name, found)
        return found


np: Any = _NumPy()
