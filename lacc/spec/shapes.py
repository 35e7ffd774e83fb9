"""Sizes and shapes: polynomials over named dims in, equal-or-not and integers out.

Dims are nominal: `K` and `V` differ even when both are 64. A dim that is declared as an expression
of others (`F = 1 + K + K**2`) is that polynomial.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

Monomial = tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class Size:
    """A polynomial with rational coefficients in dim names, in canonical form: equal iff the same
    size.
    """

    terms: tuple[tuple[Monomial, Fraction], ...]

    @staticmethod
    def of(value: int | str) -> Size:
        """The size of a literal number or of one dim's name."""
        if isinstance(value, str):
            return Size(((((value, 1),), Fraction(1)),))
        return Size(()) if value == 0 else Size((((), Fraction(value)),))

    @staticmethod
    def _collect(pairs: list[tuple[Monomial, Fraction]]) -> Size:
        total: dict[Monomial, Fraction] = {}
        for monomial, coefficient in pairs:
            total[monomial] = total.get(monomial, Fraction(0)) + coefficient
        return Size(tuple(sorted((m, c) for m, c in total.items() if c)))

    def __add__(self, other: Size) -> Size:
        return Size._collect([*self.terms, *other.terms])

    def __mul__(self, other: Size) -> Size:
        pairs = []
        for m1, c1 in self.terms:
            for m2, c2 in other.terms:
                powers: dict[str, int] = {}
                for name, power in (*m1, *m2):
                    powers[name] = powers.get(name, 0) + power
                pairs.append((tuple(sorted(powers.items())), c1 * c2))
        return Size._collect(pairs)

    def __sub__(self, other: Size) -> Size:
        return self + Size.of(-1) * other

    def divided(self, divisor: int) -> Size:
        """This size over a whole number; whether it comes out even is known once dims have
        values.
        """
        return Size(tuple((m, c / divisor) for m, c in self.terms))

    @property
    def constant(self) -> int | None:
        """The number it is, where no dim is in it (None otherwise, or where it is not whole)."""
        if not self.terms:
            return 0
        if len(self.terms) == 1 and not self.terms[0][0] and self.terms[0][1].denominator == 1:
            return int(self.terms[0][1])
        return None

    @property
    def dims(self) -> frozenset[str]:
        """Names of the dims in it."""
        return frozenset(name for monomial, _ in self.terms for name, _ in monomial)

    def evaluate(self, dims: Mapping[str, int]) -> int:
        """The number of it under ``dims``; ValueError where that is not a whole number."""
        total = Fraction(0)
        for monomial, coefficient in self.terms:
            product = coefficient
            for name, power in monomial:
                product *= dims[name] ** power
            total += product
        if total.denominator != 1:
            raise ValueError(f"{self} is {total}, not a whole number")
        return int(total)

    def __str__(self) -> str:
        if not self.terms:
            return "0"
        parts = []
        for monomial, coefficient in sorted(
            self.terms, key=lambda term: sum(p for _, p in term[0])
        ):
            factors = [name if power == 1 else f"{name}**{power}" for name, power in monomial]
            if coefficient != 1 or not factors:
                factors.insert(0, str(coefficient))
            parts.append("*".join(factors))
        return " + ".join(parts)


Shape = tuple[Size, ...]
ONE = Size.of(1)


def show(shape: Shape) -> str:
    """``[K, V]`` or ``scalar``, as a spec would write it."""
    return "[" + ", ".join(map(str, shape)) + "]" if shape else "scalar"


def flip(shape: Shape) -> Shape:
    """The shape of the transpose: [K] becomes the row [1, K] and back, a scalar stays."""
    if len(shape) == 1:
        return (ONE, shape[0])
    return (shape[1],) if shape[:1] == (ONE,) else shape[::-1]
