"""A scalar or elementwise expression in, a polynomial in atoms out: equal quantities get equal
forms.

Notation: a `Poly` is Σ coefficient · mono, a `Mono` is Π atom^power (powers are fractions), an atom
is one of

    Node    any expression that is not a sum, product, quotient or power of others
    Total   Σ over the entries of a mono: ``sum(k * k)``, ``sum(k**2)`` and ``k.T @ k`` are one atom
    Group   a polynomial of several terms that stands under a power: ``(sum(k * k) + 1e-6)**-1/2``

Equality is structural, so expressions of different interners meet. Only what is true entry by entry
is used: columns and rows of vectors are alike, products of matrices are opaque. Values that would
be NaN (x/x at 0) have no say.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

from lacc.ir.tensors import NORMALIZE_EPS
from lacc.spec.model import Expr
from lacc.spec.shapes import ONE, Size

Mono = tuple[tuple[int, Fraction], ...]
Terms = tuple[tuple[Mono, float], ...]
_LARGEST = 24
_HALF = Fraction(1, 2)


@dataclass(frozen=True, slots=True)
class Poly:
    """Σ coefficient · mono, in canonical order: equal iff the same polynomial."""

    terms: Terms

    @property
    def constant(self) -> float | None:
        """The number it is, where it is one."""
        if not self.terms:
            return 0.0
        (mono, coefficient), *rest = self.terms
        return coefficient if not rest and not mono else None


@dataclass(frozen=True, slots=True, eq=False)
class Node:
    """An opaque expression; ``expr`` is the first of its structurally equal ones."""

    expr: Expr


@dataclass(frozen=True, slots=True, eq=False)
class Total:
    """The sum over the entries of ``mono``, a vector."""

    mono: Mono


@dataclass(frozen=True, slots=True, eq=False)
class Group:
    """A polynomial that stands under a power."""

    poly: Poly


Atom = Node | Total | Group


class Algebra:
    """Makes polynomials of expressions. ``size`` gives the value of a size where it is fixed,
    ``update`` the expression of a state's value at this token where it may be put in its place."""

    def __init__(
        self, size: Callable[[Size], float | None], update: Callable[[str], Expr | None]
    ) -> None:
        self.atoms: list[Atom] = []
        self._size = size
        self._update = update
        self._index: dict[object, int] = {}
        self._polys: dict[int, tuple[Expr, Poly]] = {}

    # ---- building -------------------------------------------------------------------------------

    def poly(self, expr: Expr) -> Poly:
        """The polynomial of an expression."""
        known = self._polys.get(id(expr))
        if known is None:
            for node in expr.walk():
                if id(node) not in self._polys:
                    self._polys[id(node)] = (node, self._of(node))
            known = self._polys[id(expr)]
        return known[1]

    def _of(self, e: Expr) -> Poly:
        """The polynomial of a node whose arguments have theirs."""
        args = [self.poly(a) for a in e.args]
        match e.op:
            case "const" if math.isfinite(e.value):
                return number(float(e.value))
            case "size":
                value = self._size(e.value)
                return number(value) if value is not None else self.node(e)
            case "add":
                return add(args[0], args[1])
            case "sub":
                return add(args[0], scaled(args[1], -1.0))
            case "neg":
                return scaled(args[0], -1.0)
            case "mul":
                return self.mul(args[0], args[1]) or self.node(e)
            case "div":
                inverse = self.power(args[1], Fraction(-1))
                return (inverse and self.mul(args[0], inverse)) or self.node(e)
            case "pow":
                exponent = args[1].constant
                if exponent is None or exponent != round(exponent * 4) / 4:
                    return self.node(e)
                return self.power(args[0], Fraction(exponent)) or self.node(e)
            case "sqrt":
                return self.power(args[0], _HALF) or self.node(e)
            case "rsqrt":
                return self.power(args[0], -_HALF) or self.node(e)
            case "stop_gradient":
                return args[0]
            case "T" if e.args and _is_vector(e.args[0]):
                return args[0]
            case "sum":
                return (self.total(args[0]) if _is_vector(e.args[0]) else None) or self.node(e)
            case "matmul" if not e.shape and all(map(_is_vector, e.args)):
                product = self.mul(args[0], args[1])
                return (product and self.total(product)) or self.node(e)
            case "matmul" if _is_vector(e):
                for matrix, other in ((0, 1), (1, 0)):
                    if _is_vector(e.args[other]) and e.args[matrix].op == "diag":
                        diagonal = self.poly(e.args[matrix].args[0])
                        return self.mul(diagonal, args[other]) or self.node(e)
                    if _is_vector(e.args[other]) and e.args[matrix].op == "eye":
                        return args[other]
            case "normalize":
                square = self.mul(args[0], args[0])
                squares = square and self.total(square)
                scale = squares and self.power(add(squares, number(NORMALIZE_EPS)), -_HALF)
                return (scale and self.mul(args[0], scale)) or self.node(e)
            case "state" if e.value[1] == 0 and len(e.shape) < 2:
                update = self._update(e.value[0])
                return self.poly(update) if update is not None else self.node(e)
        return self.node(e)

    def node(self, expr: Expr) -> Poly:
        """The atom of an opaque expression."""
        key = (expr.op, expr.value, expr.shape, *(self.poly(a) for a in expr.args))
        return self._atom(key, Node(expr))

    def total(self, poly: Poly) -> Poly | None:
        """The sum over the entries of a vector; scalars stand outside. None where a term is a
        scalar alone."""
        result = number(0.0)
        for mono, coefficient in poly.terms:
            outside = tuple(unit for unit in mono if not self.is_vector(unit[0]))
            inside = tuple(unit for unit in mono if self.is_vector(unit[0]))
            if not inside:
                return None
            atom = self._atom(("total", inside), Total(inside))
            term = self.mul(Poly(((outside, coefficient),)), atom)
            if term is None:
                return None
            result = add(result, term)
        return result

    def is_vector(self, atom: int) -> bool:
        """Whether an atom has a value of its own for each entry."""
        match self.atoms[atom]:
            case Node(expr):
                return bool(expr.shape)
            case Total():
                return False
            case Group(poly):
                return any(self.is_vector(a) for mono, _ in poly.terms for a, _ in mono)

    def mul(self, a: Poly, b: Poly) -> Poly | None:
        """The product; None where it has too many terms to be of use."""
        if len(a.terms) * len(b.terms) > _LARGEST:
            return None
        result = number(0.0)
        for m1, c1 in a.terms:
            for m2, c2 in b.terms:
                product = self.merged(m1, m2)
                if product is None:
                    return None
                result = add(result, scaled(product, c1 * c2))
        return result

    def merged(self, m1: Mono, m2: Mono) -> Poly | None:
        """The product of two monos. A group whose power became a whole one is multiplied out."""
        powers = dict(m1)
        for atom, power in m2:
            powers[atom] = powers.get(atom, Fraction(0)) + power
        result = Poly(
            ((tuple(sorted((a, p) for a, p in powers.items() if p and not self._ripe(a, p))), 1.0),)
        )
        for atom, power in powers.items():
            if power and self._ripe(atom, power):
                inner = self.atoms[atom]
                assert isinstance(inner, Group)
                factor = self.power(inner.poly, power)
                product = factor and self.mul(result, factor)
                if product is None:
                    return None
                result = product
        return result

    def _ripe(self, atom: int, power: Fraction) -> bool:
        inner = self.atoms[atom]
        if not isinstance(inner, Group) or power.denominator != 1:
            return False
        return power > 0 or len(inner.poly.terms) == 1

    def power(self, base: Poly, p: Fraction) -> Poly | None:
        """``base`` to the power ``p``; None where it has too many terms, or is a power of 0."""
        if base.constant is not None:
            value = base.constant
            if (value < 0 and p.denominator != 1) or (value == 0 and p <= 0):
                return None
            try:
                return number(value ** float(p))
            except OverflowError:
                return None
        if p.denominator == 1 and len(base.terms) == 1:
            ((mono, coefficient),) = base.terms
            return scaled(Poly(((tuple((a, q * p) for a, q in mono), 1.0),)), coefficient ** int(p))
        if p.denominator == 1 and p > 0:
            result: Poly | None = number(1.0)
            for _ in range(int(p)):
                result = result and self.mul(result, base)
            return result
        leading = abs(base.terms[0][1])
        monic = scaled(base, 1 / leading)
        atom = self._atom(("group", monic), Group(monic))
        return scaled(unit(atom.terms[0][0][0][0], p), leading ** float(p))

    def monomial(self, expr: Expr) -> tuple[Mono, float]:
        """An expression as one product: sums stay whole, as groups (at power 1 too)."""
        match expr.op:
            case "mul" | "div":
                m1, c1 = self.monomial(expr.args[0])
                m2, c2 = self.monomial(expr.args[1])
                sign = 1 if expr.op == "mul" else -1
                if sign < 0 and c2 == 0:
                    return self.poly_unit(self.node(expr))
                return times(m1, m2, Fraction(sign)), c1 * c2**sign
            case "neg":
                mono, coefficient = self.monomial(expr.args[0])
                return mono, -coefficient
        return self.poly_unit(self.poly(expr))

    def poly_unit(self, poly: Poly) -> tuple[Mono, float]:
        """A polynomial as one mono and its coefficient; of several terms, their group."""
        if not poly.terms:
            return (), 0.0
        if len(poly.terms) == 1:
            return poly.terms[0]
        leading = poly.terms[0][1]
        monic = scaled(poly, 1 / leading)
        return self._atom(("group", monic), Group(monic)).terms[0][0], leading

    def expanded(self, mono: Mono, coefficient: float = 1.0) -> Poly | None:
        """The polynomial of a mono whose groups may stand at whole powers."""
        product = self.merged(mono, ())
        return product and scaled(product, coefficient)

    def _atom(self, key: object, atom: Atom) -> Poly:
        index = self._index.get(key)
        if index is None:
            index = self._index[key] = len(self.atoms)
            self.atoms.append(atom)
        return unit(index)


def number(value: float) -> Poly:
    """A constant."""
    return Poly((((), value),)) if value else Poly(())


def unit(index: int, power: int | Fraction = 1) -> Poly:
    """One atom to a power."""
    return Poly(((((index, Fraction(power)),), 1.0),))


def add(a: Poly, b: Poly) -> Poly:
    """The sum."""
    total = dict(a.terms)
    for mono, coefficient in b.terms:
        total[mono] = total.get(mono, 0.0) + coefficient
    return Poly(tuple(sorted((m, c) for m, c in total.items() if c)))


def scaled(a: Poly, by: float) -> Poly:
    """The product with a number."""
    return Poly(tuple((m, c * by) for m, c in a.terms)) if by else Poly(())


def times(a: Mono, b: Mono, power: Fraction = Fraction(1)) -> Mono:
    """``a · b^power`` of monos, groups left as they are."""
    powers = dict(a)
    for atom, p in b:
        powers[atom] = powers.get(atom, Fraction(0)) + p * power
    return tuple(sorted((atom, p) for atom, p in powers.items() if p))


def _is_vector(expr: Expr) -> bool:
    """A column, or a row."""
    return len(expr.shape) == 1 or (len(expr.shape) == 2 and expr.shape[0] == ONE)
