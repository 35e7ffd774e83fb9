"""A polynomial of the algebra in, its range out, under what is known of atoms, products and sums.

Several sound bounds are taken and met: the terms one by one; the corners of the box of what is
multiplied (exact where each factor stands once: ``a + (1 - a) b``); a factor common to all terms; a
promise about the whole or about a difference; ``max(a, b) >= a``; and ``t / (t + rest) <= 1``.
"""

from __future__ import annotations

import itertools
import math
from abc import ABC, abstractmethod
from fractions import Fraction
from typing import TypeGuard

from lacc.analysis.algebra import (
    Algebra,
    Atom,
    Group,
    Mono,
    Node,
    Poly,
    Total,
    add,
    number,
    scaled,
    times,
    unit,
)
from lacc.analysis.interval import REALS, Interval
from lacc.ir import intervals
from lacc.spec.model import Expr

_CONTRACTING = {"relu", "tanh", "sin", "elu", "silu", "gelu", "erf", "abs", "neg", "stop_gradient"}
_ABOVE_ARGUMENTS = {"max", "logaddexp", "relu", "softplus", "abs"}
_CORNERS, _TERMS, _MOST = 7, 12, 48
_NONE = Fraction(0)


class Bounds(ABC):
    """Ranges of polynomials. A subclass says what the atoms are: `_by_op`, `_now`, `_count` and
    `of`."""

    def __init__(self, algebra: Algebra, promised: dict[Poly, Interval]) -> None:
        self.algebra = algebra
        self._promised = promised
        self._polys: dict[tuple[Poly, bool], Interval] = {}
        self._atoms: dict[tuple[int, bool], Interval] = {}
        self._related = True

    @abstractmethod
    def of(self, expr: Expr) -> Interval:
        """The range of every entry of ``expr``."""

    @abstractmethod
    def _by_op(self, e: Expr) -> Interval:
        """The range of a node from those of its arguments."""

    @abstractmethod
    def _now(self, expr: Expr) -> Expr | None:
        """The input that ``expr`` is an earlier value of; None for any other expression."""

    @abstractmethod
    def _count(self, expr: Expr) -> int | None:
        """How many entries a vector has, where its size is fixed."""

    def norm2(self, expr: Expr) -> float:
        """An upper bound of ``sum(x * x)`` of a vector; inf where nothing bounds it."""
        poly = self.algebra.poly(expr)
        square = self.algebra.mul(poly, poly)
        squares = square and self.algebra.total(square)
        return self.of_poly(squares).hi if squares else math.inf

    def of_poly(self, poly: Poly) -> Interval:
        """The range of a polynomial of the algebra; no bound of one with very many terms."""
        if len(poly.terms) > _MOST:
            return Interval()
        key = poly, self._related
        if key not in self._polys:
            self._polys[key] = REALS
            self._polys[key] = self._bound(poly, depth=2)
        return self._polys[key]

    # ---- polynomials ----------------------------------------------------------------------------

    def _bound(self, poly: Poly, depth: int) -> Interval:
        total = Interval.point(0.0)
        pieces = [(self._pieces(mono), coefficient) for mono, coefficient in poly.terms]
        for parts, coefficient in pieces:
            total = total + self._product(parts).scaled(coefficient)
        bound = total.meet(self._by_promise(poly)).meet(self._at_corners(pieces))
        if depth and 1 < len(poly.terms) <= _TERMS:
            bound = bound.meet(self._common(poly, depth)).meet(self._by_dominance(poly, depth))
        return bound.meet(self._by_relation(poly))

    def _by_promise(self, poly: Poly) -> Interval:
        constant = dict(poly.terms).get((), 0.0)
        linear = add(poly, number(-constant))
        if not linear.terms:
            return Interval.point(constant)
        leading = linear.terms[0][1]
        promised = self._promised.get(scaled(linear, 1 / leading))
        return promised.scaled(leading).shifted(constant) if promised else Interval()

    def _by_relation(self, poly: Poly) -> Interval:
        """``a <= b`` bounds a by b: the poly is the promised difference and what then remains."""
        bound, mine = Interval(), {mono for mono, _ in poly.terms if mono}
        if not self._related:
            return bound
        self._related = False
        for relation, interval in self._promised.items():
            if len(relation.terms) < 2:
                continue
            for mono, coefficient in relation.terms:
                if mono in mine:
                    factor = dict(poly.terms)[mono] / coefficient
                    rest = self.of_poly(add(poly, scaled(relation, -factor)))
                    bound = bound.meet(rest + interval.scaled(factor))
        self._related = True
        return bound

    def _common(self, poly: Poly, depth: int) -> Interval:
        """``c · (a + b)`` bounded as a product."""
        shared = dict(poly.terms[0][0])
        for mono, _ in poly.terms[1:]:
            powers = dict(mono)
            shared = {a: p for a, p in shared.items() if powers.get(a) == p}
        if not shared:
            return Interval()
        factor: Mono = tuple(sorted(shared.items()))
        rest = Poly(tuple(sorted((times(m, factor, Fraction(-1)), c) for m, c in poly.terms)))
        return self._product(self._pieces(factor)) * self._bound(rest, depth - 1)

    def _by_dominance(self, poly: Poly, depth: int) -> Interval:
        """max(a, b) is at least a: a term that is one may be replaced by a, for a bound."""
        bound = Interval()
        for mono, coefficient in poly.terms:
            if len(mono) != 1 or mono[0][1] != 1:
                continue
            atom = self.algebra.atoms[mono[0][0]]
            if not isinstance(atom, Node) or atom.expr.op not in _ABOVE_ARGUMENTS | {"min"}:
                continue
            above = atom.expr.op != "min"
            rest = add(poly, Poly(((mono, -coefficient),)))
            below = [self.algebra.poly(arg) for arg in atom.expr.args]
            if atom.expr.op == "abs":
                below.append(scaled(below[0], -1.0))
            if len(below) < 2 or atom.expr.op == "abs":
                below.append(number(0.0))
            for other in below:
                replaced = self._bound(add(rest, scaled(other, coefficient)), depth - 1)
                if (coefficient < 0) == above:
                    bound = bound.meet(Interval(hi=replaced.hi))
                else:
                    bound = bound.meet(Interval(lo=replaced.lo))
        return bound

    def _at_corners(self, terms: list[tuple[list[Mono], float]]) -> Interval:
        """A polynomial linear in each piece takes its extremes at the corners of their box (where
        no piece stands twice, the terms one by one give the same)."""
        uses = [piece for parts, _ in terms for piece in parts]
        pieces = sorted(set(uses))
        if len(pieces) == len(uses):
            return Interval()
        if len(pieces) > _CORNERS or any(len(set(parts)) < len(parts) for parts, _ in terms):
            return Interval()
        box = [self._piece(piece) for piece in pieces]
        if not all(side.bounded for side in box):
            return Interval()
        values = {}
        for corner in itertools.product((0, 1), repeat=len(pieces)):
            at = {p: (side.hi if up else side.lo) for p, side, up in zip(pieces, box, corner)}
            values[corner] = sum(c * math.prod(at[p] for p in parts) for parts, c in terms)
        lo, hi = min(values.values()), max(values.values())
        return Interval(lo, hi, not _reached(values, box, lo), not _reached(values, box, hi))

    # ---- products -------------------------------------------------------------------------------

    def _product(self, pieces: list[Mono]) -> Interval:
        result = Interval.point(1.0)
        for piece in pieces:
            result = result * self._piece(piece)
        return result

    def _pieces(self, mono: Mono) -> list[Mono]:
        """``mono`` cut into products that are known as a whole, and single powers."""
        pieces: list[Mono] = []
        rest = mono
        known = [poly.terms[0][0] for poly in self._promised if len(poly.terms) == 1]
        for candidate in [m for m in known if len(m) > 1] + self._ratios(mono):
            powers = dict(rest)
            if all(_covers(powers.get(a, _NONE), p) for a, p in candidate):
                pieces.append(candidate)
                rest = times(rest, candidate, Fraction(-1))
        return pieces + [(one,) for one in rest]

    def _ratios(self, mono: Mono) -> list[Mono]:
        """Products ``t^p · D^-p`` in ``mono``, where t is a term of D and no term is below 0."""
        return [candidate for candidate, _ in self._fractions(mono)]

    def _fractions(self, mono: Mono) -> list[tuple[Mono, Interval]]:
        found: list[tuple[Mono, Interval]] = []
        powers = dict(mono)
        for index, power in mono:
            if power >= 0:
                continue
            atom = self.algebra.atoms[index]
            below = (index, power)
            for term, coefficient, strict in self._parts(index):
                raised = self.algebra.merged(tuple((a, p * -power) for a, p in term), ())
                if raised is None or len(raised.terms) != 1 or raised.terms[0][1] != 1:
                    continue
                ((numerator, _),) = raised.terms
                limit = coefficient ** float(power)
                for candidate in (numerator, self._entrywise(numerator)):
                    if candidate and all(_covers(powers.get(a, _NONE), p) for a, p in candidate):
                        bound = Interval(-limit, limit, strict, strict)
                        if self._product([(one,) for one in candidate]).lo >= 0:
                            bound = Interval(0.0, limit, False, strict)
                        found.append((times(candidate, (below,)), bound))
            if _is_norm(atom):
                entry = (atom.mono[0][0], -2 * power)
                if _covers(powers.get(entry[0], _NONE), entry[1]):
                    bound = Interval(0.0 if entry[1] % 2 == 0 else -1.0, 1.0)
                    found.append((tuple(sorted((entry, below))), bound))
        return found

    def _parts(self, index: int) -> list[tuple[Mono, float, bool]]:
        """Terms t ≥ 0 with D ≥ c t for the atom D: the term, c, and whether D > c t."""
        atom = self.algebra.atoms[index]
        if isinstance(atom, Node) and atom.expr.op == "max":
            args = [self.algebra.poly(arg) for arg in atom.expr.args]
            singles = [arg for arg in args if len(arg.terms) == 1 and self.of_poly(arg).lo >= 0]
            return [
                (mono, c, False) for ((mono, c),) in (a.terms for a in singles) if mono and c > 0
            ]
        if not isinstance(atom, Group):
            return []
        result = []
        for mono, coefficient in atom.poly.terms:
            rest = self.of_poly(add(atom.poly, Poly(((mono, -coefficient),))))
            alone = self._product([(one,) for one in mono])
            if mono and coefficient > 0 and rest.lo >= 0 and alone.lo >= 0:
                result.append((mono, coefficient, rest.positive))
        return result

    def _entrywise(self, mono: Mono) -> Mono:
        """``mono`` with ``sum(x²)`` replaced by x², which is no larger; empty where it holds
        none."""
        for index, power in mono:
            atom = self.algebra.atoms[index]
            if _is_norm(atom) and power > 0:
                entry = ((atom.mono[0][0], 2 * power),)
                return times(times(mono, ((index, -power),)), entry)
        return ()

    def _piece(self, piece: Mono) -> Interval:
        bound = self._by_promise(Poly(((piece, 1.0),)))
        if len(piece) == 1:
            ((index, power),) = piece
            return self._atom(index).power(power).meet(bound)
        for candidate, interval in self._fractions(piece):
            if candidate == piece:
                bound = bound.meet(interval)
        return bound.meet(self._product([(one,) for one in piece]))

    # ---- atoms ----------------------------------------------------------------------------------

    def _atom(self, index: int) -> Interval:
        key = index, self._related
        if key in self._atoms:
            return self._atoms[key]
        self._atoms[key] = REALS
        match self.algebra.atoms[index]:
            case Node(expr):
                bound = self._by_op(expr).meet(self._by_norm(index, expr))
            case Total(mono):
                bound = self._total(mono)
            case Group(poly):
                bound = self.of_poly(poly)
        one = unit(index)
        self._atoms[key] = bound.meet(self._by_promise(one)).meet(self._by_relation(one))
        return self._atoms[key]

    def _by_norm(self, index: int, expr: Expr) -> Interval:
        """An entry is no larger than a promised norm of its vector."""
        squares = self.algebra.total(unit(index, 2)) if len(expr.shape) == 1 else None
        promised = squares and self._promised.get(squares)
        if not promised:
            return Interval()
        bound = math.sqrt(max(promised.hi, 0.0))
        return Interval(-bound, bound, promised.hi_open, promised.hi_open)

    def _total(self, mono: Mono) -> Interval:
        """The sum over a vector of Π atom^power."""
        atoms = [(self.algebra.atoms[index], power) for index, power in mono]
        earlier = self._earlier(mono)
        if earlier is not None:
            return self.of_poly(earlier).hull(Interval.point(0.0))
        entry = self._product(self._pieces(mono))
        bound = Interval(*intervals.total((entry.lo, entry.hi)))
        if entry.positive:
            bound = bound.meet(Interval(0.0, lo_open=True))
        vectors = [atom.expr for atom, _ in atoms if isinstance(atom, Node)]
        count = self._count(vectors[0]) if vectors else None
        if count is not None:
            bound = bound.meet(entry.scaled(count))
        for position, (atom, power) in enumerate(atoms):
            others = self._product([(one,) for n, one in enumerate(mono) if n != position])
            if isinstance(atom, Node) and atom.expr.op == "softmax" and power == 1:
                bound = bound.meet(others)
            if power == 2 and len(mono) > 1 and others.lo >= 0:
                squares = self._squares(mono[position][0])
                bound = bound.meet(Interval(0.0, squares) * Interval(0.0, others.hi))
        if len(mono) == 1 and mono[0][1] == 2:
            bound = bound.meet(Interval(0.0, self._structural(mono[0][0])))
        if len(mono) == 2 and mono[0][1] == mono[1][1] == 1:
            limit = math.sqrt(self._squares(mono[0][0])) * math.sqrt(self._squares(mono[1][0]))
            if not math.isnan(limit):
                bound = bound.meet(Interval(-limit, limit))
        return bound

    def _earlier(self, mono: Mono) -> Poly | None:
        """A sum over one delayed input, as the sum over the input now; None for any other."""
        atom = self.algebra.atoms[mono[0][0]]
        now = self._now(atom.expr) if isinstance(atom, Node) and len(mono) == 1 else None
        if now is None:
            return None
        ((one, _),) = self.algebra.poly(now).terms
        return self.algebra.total(unit(one[0][0], mono[0][1]))

    def _squares(self, index: int) -> float:
        """A bound of ``sum(x²)`` of one atom."""
        squares = self.algebra.total(unit(index, 2))
        return self.of_poly(squares).hi if squares else math.inf

    def _structural(self, index: int) -> float:
        """A bound of ``sum(x²)`` that comes from how x was made."""
        atom = self.algebra.atoms[index]
        if not isinstance(atom, Node):
            return math.inf
        expr = atom.expr
        if expr.op == "softmax":
            return 1.0
        if expr.op in _CONTRACTING | {"roll", "rotate", "T"}:
            return self.norm2(expr.args[0])
        if expr.op == "concat":
            return sum(
                self.norm2(arg) if arg.shape else self.of(arg).magnitude ** 2 for arg in expr.args
            )
        if expr.op == "where":
            return sum(self.norm2(arg) if arg.shape else math.inf for arg in expr.args[1:])
        return math.inf


def _is_norm(atom: Atom) -> TypeGuard[Total]:
    """Whether an atom is ``sum(x²)``."""
    return isinstance(atom, Total) and len(atom.mono) == 1 and atom.mono[0][1] == 2


def _covers(have: Fraction, want: Fraction) -> bool:
    """Whether a power ``want`` can be taken out of ``have``."""
    return have == want or (want > 0 and have > want and have.denominator == want.denominator == 1)


def _reached(values: dict[tuple[int, ...], float], box: list[Interval], extreme: float) -> bool:
    """Whether a corner value is taken: a side without a closed end counts with both its corners."""
    choices: list[list[tuple[int, ...]]] = []
    for side in box:
        ends = ((0, side.lo_open), (1, side.hi_open))
        closed: list[tuple[int, ...]] = [(end,) for end, is_open in ends if not is_open]
        choices.append(closed or [(0, 1)])
    return any(
        all(values[corner] == extreme for corner in itertools.product(*choice))
        for choice in itertools.product(*choices)
    )
