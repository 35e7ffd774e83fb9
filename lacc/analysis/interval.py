"""Intervals of reals in, intervals out: the arithmetic of ranges, with ends that are reached or
only approached.

`lacc.ir.intervals` gives each op's bounds as closed pairs; here an end also knows whether it is
attained, so that ``sigmoid(x)`` is (0, 1) and its logarithm is finite. An infinite end is open
where only finite values occur, closed where infinity itself may come (a log gate of -inf is a hard
reset, and its `exp` is exactly 0).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

End = tuple[float, bool]


@dataclass(frozen=True, slots=True)
class Interval:
    """All values from ``lo`` to ``hi``; an end that is open is not a value."""

    lo: float = -math.inf
    hi: float = math.inf
    lo_open: bool = False
    hi_open: bool = False

    @staticmethod
    def point(value: float) -> Interval:
        """One value."""
        return Interval(value, value)

    def __contains__(self, value: float) -> bool:
        above = value > self.lo or (value == self.lo and not self.lo_open)
        return above and (value < self.hi or (value == self.hi and not self.hi_open))

    def within(self, lo: float, hi: float) -> bool:
        """Whether every value is in the closed interval from ``lo`` to ``hi``."""
        return lo <= self.lo and self.hi <= hi

    @property
    def positive(self) -> bool:
        """Every value is > 0."""
        return self.lo > 0 or (self.lo == 0 and self.lo_open)

    @property
    def bounded(self) -> bool:
        """Both ends are finite."""
        return math.isfinite(self.lo) and math.isfinite(self.hi)

    @property
    def magnitude(self) -> float:
        """The least bound of |x|."""
        return max(abs(self.lo), abs(self.hi))

    def __neg__(self) -> Interval:
        return Interval(-self.hi, -self.lo, self.hi_open, self.lo_open)

    def __add__(self, other: Interval) -> Interval:
        lo, hi = self.lo + other.lo, self.hi + other.hi
        return Interval(
            -math.inf if math.isnan(lo) else lo,
            math.inf if math.isnan(hi) else hi,
            self.lo_open or other.lo_open,
            self.hi_open or other.hi_open,
        )

    def __mul__(self, other: Interval) -> Interval:
        ends = [_times(a, b) for a in self._ends for b in other._ends]
        return _around(ends)

    def scaled(self, by: float) -> Interval:
        """Every value times the number ``by``."""
        return self * Interval.point(by)

    def shifted(self, by: float) -> Interval:
        """Every value plus the number ``by``."""
        return self + Interval.point(by)

    def hull(self, other: Interval) -> Interval:
        """The least interval around both."""
        return _around([*self._ends, *other._ends])

    def meet(self, other: Interval) -> Interval:
        """What is in both. Of two sound bounds whose meet is empty (their promises clash), the
        first."""
        lo, lo_open = max((self.lo, self.lo_open), (other.lo, other.lo_open))
        hi, hi_closed = min((self.hi, not self.hi_open), (other.hi, not other.hi_open))
        return self if lo > hi else Interval(lo, hi, lo_open, not hi_closed)

    def power(self, p: Fraction) -> Interval:
        """Every value to the power ``p``; with a ``p`` that is not whole, of the values from 0
        on."""
        if p < 0:
            return self.power(-p).reciprocal()
        if p.denominator != 1:
            base = self.meet(Interval(0.0)) if self.hi >= 0 else Interval(0.0, 0.0)
        elif p % 2:
            base = self
        else:
            base = self.magnitudes()
        return Interval(_pow(base.lo, p), _pow(base.hi, p), base.lo_open, base.hi_open)

    def magnitudes(self) -> Interval:
        """|x| of every value."""
        if self.lo >= 0:
            return self
        if self.hi <= 0:
            return -self
        ends = max((self.hi, not self.hi_open), (-self.lo, not self.lo_open))
        return Interval(0.0, ends[0], False, not ends[1])

    def reciprocal(self) -> Interval:
        """1 / x; everything where 0 is inside, or is reached from below: 1 / 0 is +inf then too."""
        if self.lo < 0 < self.hi or (self.hi == 0 and not self.hi_open):
            return Interval()
        low = (-math.inf, self.hi_open) if self.hi == 0 else (1 / self.hi, self.hi_open)
        high = (math.inf, self.lo_open) if self.lo == 0 else (1 / self.lo, self.lo_open)
        return Interval(low[0], high[0], low[1], high[1])

    @property
    def _ends(self) -> tuple[End, End]:
        return (self.lo, self.lo_open), (self.hi, self.hi_open)

    @property
    def words(self) -> str:
        """``in [0, 1]``, or the number that it is."""
        return number(self.lo) if self.lo == self.hi else f"in {self}"

    def __str__(self) -> str:
        left, right = "(" if self.lo_open else "[", ")" if self.hi_open else "]"
        return f"{left}{number(self.lo)}, {number(self.hi)}{right}"


REALS = Interval(-math.inf, math.inf, True, True)


def number(value: float) -> str:
    """A number as a report shows it: short, whole numbers without a point."""
    if math.isinf(value):
        return "inf" if value > 0 else "-inf"
    return f"{value + 0.0:.6g}"


def _times(a: End, b: End) -> End:
    if a[0] == 0 or b[0] == 0:
        reached = (a[0] == 0 and not a[1]) or (b[0] == 0 and not b[1])
        return 0.0, not reached
    return a[0] * b[0], a[1] or b[1]


def _around(ends: list[End]) -> Interval:
    lo, hi = min(e[0] for e in ends), max(e[0] for e in ends)
    lo_open = all(opened for value, opened in ends if value == lo)
    hi_open = all(opened for value, opened in ends if value == hi)
    return Interval(lo, hi, lo_open, hi_open)


def _pow(base: float, p: Fraction) -> float:
    if math.isinf(base):
        return -math.inf if base < 0 and p % 2 == 1 else math.inf
    try:
        return float(base ** (int(p) if p.denominator == 1 else float(p)))
    except OverflowError:
        return -math.inf if base < 0 and p % 2 == 1 else math.inf
