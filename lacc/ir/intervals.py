"""Interval rules of the op table: bounds of the arguments in, sound bounds of the result out.

Bounds are a pair (lo, hi) of extended reals, lo ≤ hi, that hold for every element. 0·inf counts as
0 here: an infinite bound stands for "as large as you like", never for a value that is reached.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from lacc.ir.late import divide, np
from lacc.ir.late import power as raised

Bounds = tuple[float, float]
ALL: Bounds = (-math.inf, math.inf)


def rising(fn: Callable[..., float]) -> Callable[..., Bounds]:
    """The rule of an op that rises in every argument."""

    def rule(*xs: Bounds) -> Bounds:
        lo, hi = float(fn(*(x[0] for x in xs))), float(fn(*(x[1] for x in xs)))
        return (-math.inf if math.isnan(lo) else lo), (math.inf if math.isnan(hi) else hi)

    return rule


def dip(fn: Callable[..., float], where: float, least: float) -> Callable[[Bounds], Bounds]:
    """The rule of an op that falls to ``least`` (a lower bound) at ``where`` and rises after."""

    def rule(x: Bounds) -> Bounds:
        ends = [float(fn(e)) if math.isfinite(e) else max(e, 0.0) for e in x]
        lo = ends[0] if x[0] > where else ends[1] if x[1] < where else least
        return lo, max(ends)

    return rule


def span(*bounds: Bounds) -> Bounds:
    """The least bounds around all of them."""
    return min(b[0] for b in bounds), max(b[1] for b in bounds)


def neg(x: Bounds) -> Bounds:
    return -x[1], -x[0]


def sub(a: Bounds, b: Bounds) -> Bounds:
    return rising(np.add)(a, neg(b))


def _times(a: float, b: float) -> float:
    return 0.0 if a == 0 or b == 0 else a * b


def mul(a: Bounds, b: Bounds) -> Bounds:
    corners = [_times(x, y) for x in a for y in b]
    return min(corners), max(corners)


def div(a: Bounds, b: Bounds) -> Bounds:
    """A divisor that reaches 0 from above gives infinities of one sign; from below, of either."""
    if b[0] < 0 <= b[1] or b == (0, 0):
        return ALL
    corners = [divide(x, abs(y) if y == 0 else y) for x in a for y in b]
    corners = [0.0 if math.isnan(c) else c for c in corners]
    return min(corners), max(corners)


def power(x: Bounds, p: Bounds) -> Bounds:
    """Bases from 0 on with any exponent; any base with one whole exponent."""
    whole = p[0] == p[1] and float(p[0]).is_integer()
    if whole and p[0] < 0:
        return ALL if x[0] < 0 < x[1] and p[0] % 2 else div((1.0, 1.0), power(x, neg(p)))
    if whole and p[0] % 2 == 0:
        x = absolute(x)
    elif whole:
        return rising(lambda e: raised(e, p[0]))(x)
    if x[0] < 0:
        return ALL
    corners = [raised(b, e) for b in x for e in p]
    if x[0] <= 1 <= x[1] or p[0] <= 0 <= p[1]:
        corners.append(1.0)
    return min(corners), max(corners)


def absolute(x: Bounds) -> Bounds:
    ends = abs(x[0]), abs(x[1])
    return (0.0 if x[0] <= 0 <= x[1] else min(ends)), max(ends)


def log(x: Bounds) -> Bounds:
    return (math.log(x[0]) if x[0] > 0 else -math.inf), rising(np.log)((x[1], x[1]))[1]


def sqrt(x: Bounds) -> Bounds:
    return math.sqrt(max(x[0], 0.0)), math.sqrt(max(x[1], 0.0))


def rsqrt(x: Bounds) -> Bounds:
    return div((1.0, 1.0), sqrt(x))


def mod(a: Bounds, b: Bounds) -> Bounds:
    """The result has the sign of the divisor and is nearer to 0."""
    return min(b[0], 0.0), max(b[1], 0.0)


def total(x: Bounds) -> Bounds:
    """A sum of one or more elements."""
    return (x[0] if x[0] >= 0 else -math.inf), (x[1] if x[1] <= 0 else math.inf)


def product(a: Bounds, b: Bounds) -> Bounds:
    return total(mul(a, b))


def normalized(x: Bounds) -> Bounds:
    return (0.0 if x[0] >= 0 else -1.0), (0.0 if x[1] <= 0 else 1.0)


def rotated(x: Bounds, angle: Bounds) -> Bounds:
    longest = math.sqrt(2) * absolute(x)[1]
    return -longest, longest
