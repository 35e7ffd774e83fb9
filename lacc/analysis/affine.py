"""A typed expression in, its sum of terms linear in states out, in index notation.

Every tensor gets index names for its axes and contraction is the only product of two of them, so
operators commute and the order of a matrix chain, or K x V against V x K, does not matter.
Linearity follows the op table's column. Parts that hold no state stay opaque, unless they span two
indices and are made of outer products, `diag` and `I`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from lacc.analysis.transition import Obstacle
from lacc.ir.build import Builder
from lacc.ir.ops import OPS
from lacc.spec.model import Expr
from lacc.spec.shapes import ONE, Size

CONTRACTING = ("matmul", "sum", "mean")

Index = int | None
Indices = tuple[Index, ...]
Part = tuple[Expr, Indices]
_DELTA = "eye"
TOO_LONG = "too long to expand"
MOST = 128
"""Terms that an update may have: seven erases one after another give 128 of the state."""


class NotAffine(Exception):
    """The expression has no canonical form; carries the `Obstacle`, and in ``linear`` whether it is
    linear in the states all the same: a dense map of their entries."""

    def __init__(
        self, reason: str, expr: Expr, linear: bool = False, cure: str = "", kind: str = ""
    ) -> None:
        super().__init__(reason)
        kind = kind or ("dense" if linear else "nonlinear")
        self.obstacle = Obstacle(reason, expr, kind, cure)
        self.linear = linear


def two_sided(expr: Expr) -> NotAffine:
    """The refusal of low-rank factors on both sides of a state."""
    reason = "low-rank factors on both sides of the state"
    cure = "with erases on one side only, the recurrence has chunks"
    return NotAffine(reason, expr, True, cure, "a two-sided erase")


@dataclass(frozen=True, slots=True)
class Term:
    """``Π coefficients · state[indices]``, summed over every index that is not free; state None: a
    write."""

    coefficients: tuple[Part, ...]
    state: Part | None = None

    def has(self, index: int) -> bool:
        """Whether it depends on ``index``."""
        parts = self.coefficients if self.state is None else (*self.coefficients, self.state)
        return any(index in at for _, at in parts)


@dataclass(frozen=True, slots=True)
class Product:
    """A term with its contractions done: one expression per set of indices, and the state it
    multiplies."""

    factors: dict[tuple[int, ...], Expr]
    state: Part | None


class Affine:
    """Expands expressions over the states that ``is_state`` picks. One instance numbers indices for
    one expansion. ``apart``: a vector or a scalar that was read from states is a coefficient, as it
    is in a readout that reads with what another one gave, or takes the mean of it."""

    def __init__(
        self, build: Builder, is_state: Callable[[Expr], bool], apart: bool = False
    ) -> None:
        self._build = build
        self._is_state = is_state
        self._apart = apart
        self._sizes: list[Size] = []
        self._dependent: dict[int, bool] = {}
        self._kept: list[Expr] = []

    def index(self, size: Size) -> Index:
        """A fresh index over ``size``; axes of size one have none."""
        if size == ONE:
            return None
        self._sizes.append(size)
        return len(self._sizes) - 1

    def indices(self, expr: Expr) -> Indices:
        """Fresh free indices for the axes of ``expr``."""
        return tuple(self.index(size) for size in expr.shape)

    def depends(self, expr: Expr) -> bool:
        """Whether a picked state occurs below ``expr``."""
        if id(expr) not in self._dependent:
            for node in expr.walk():
                if id(node) not in self._dependent:
                    self._kept.append(node)
                    opaque = self._apart and node.op == "attend"
                    self._dependent[id(node)] = (
                        node.op == "state" and self._is_state(node)
                    ) or any(self._dependent[id(arg)] for arg in node.args if not opaque)
        return self._dependent[id(expr)]

    # ---- expansion
    # -------------------------------------------------------------------------------------------

    def terms(self, expr: Expr, at: Indices, root: bool = False) -> list[Term]:
        """The terms of ``expr`` at ``at``; NotAffine where it is not linear in the states. The
        ``root`` is what terms are wanted of, itself never a coefficient."""
        if self._apart and not root and expr.op in CONTRACTING and _is_thin(expr):
            return [Term(((expr, at),))]
        if expr.op in ("add", "sub", "neg", "mul", "matmul", "T", "diag", "eye"):
            spans_two = sum(i is not None for i in at) > 1
            if self.depends(expr) or spans_two:
                return self._expand(expr, at)
        if not self.depends(expr):
            return [Term(tuple(_scalars_apart(self._build, expr, at)))]
        if expr.op == "state":
            return [Term((), (expr, at))]
        return self._expand(expr, at)

    def _expand(self, expr: Expr, at: Indices) -> list[Term]:
        build = self._build
        match expr.op, expr.args:
            case "add", (a, b):
                found = self._at(a, at) + self._at(b, at)
                self._count(expr, len(found))
                return found
            case "sub", (a, b):
                return self._at(a, at) + self._scaled(self._at(b, at), build.number(-1))
            case "neg", (a,):
                return self._scaled(self._at(a, at), build.number(-1))
            case "mul", (a, b):
                sides = at if a.shape else (), at if b.shape else ()
                return self._times(expr, a, sides[0], b, sides[1])
            case "div", (a, b) if not self.depends(b) or (self._apart and not b.shape):
                divided = (build.reciprocal(b), at if b.shape else ())
                return [Term((*t.coefficients, divided), t.state) for t in self._at(a, at)]
            case "div", _:
                cure = "without the division, or with it where the state is read"
                raise NotAffine("a state in a denominator", expr, cure=cure)
            case "matmul", (a, b):
                return self._matmul(expr, a, b, at)
            case "T", (a,):
                return self.terms(a, _transposed(a, at))
            case "diag", (a,):
                row, column = at
                delta = (build.node(_DELTA, (), expr.shape), (row, column))
                return [Term((*t.coefficients, delta), t.state) for t in self.terms(a, (row,))]
            case "eye", ():
                return [Term(((expr, at),))]
            case "sum" | "mean", (a,):
                over = self.indices(a)
                terms = self._summed(self.terms(a, over), over)
                if expr.op == "sum":
                    return terms
                for size in a.shape:
                    terms = self._scaled(terms, build.reciprocal(build.size(size)))
                return terms
            case "where", (condition, a, b) if not self.depends(condition):
                where = at if condition.shape else ()
                return [
                    self._chosen(condition, where, first, t)
                    for first, side in ((True, a), (False, b))
                    for t in self._at(side, at)
                ]
            case "where", _:
                cure = "with a condition that does without the state"
                raise NotAffine("a choice that depends on the state", expr, cure=cure)
        if self._is_linear(expr):
            cure = "with every entry of the state kept in its place"
            raise NotAffine(f"{expr.op} moves entries of the state", expr, linear=True, cure=cure)
        name = expr.op.removeprefix("reduce_")
        cure = f"without the {name}, or with it where the state is read"
        raise NotAffine(f"the nonlinear function {name} of the state", expr, cure=cure)

    def _is_linear(self, expr: Expr) -> bool:
        """Whether the op is linear in those of its arguments that hold a state."""
        held = [n for n, arg in enumerate(expr.args) if self.depends(arg)]
        match OPS[expr.op].linear:
            case "sum":
                return True
            case "each":
                return len(held) == 1
            case "first":
                return held == [0]
            case "second":
                return held == [1]
        return False

    def _at(self, expr: Expr, at: Indices) -> list[Term]:
        """Terms of an operand of an elementwise op: a scalar broadcasts."""
        return self.terms(expr, at if expr.shape else ())

    def _scaled(self, terms: list[Term], by: Expr) -> list[Term]:
        return [Term(((by, ()), *t.coefficients), t.state) for t in terms]

    def _times(self, expr: Expr, a: Expr, at_a: Indices, b: Expr, at_b: Indices) -> list[Term]:
        """Terms of the product of ``a`` and ``b``."""
        whole = not (self._apart and self.depends(a) and self.depends(b))
        if not whole and _is_thin(b):
            left, right = self.terms(a, at_a), [Term(((b, at_b),))]
        elif not whole and _is_thin(a):
            left, right = [Term(((a, at_a),))], self.terms(b, at_b)
        else:
            left, right = self.terms(a, at_a), self.terms(b, at_b)
        if any(t.state for t in left) and any(t.state for t in right):
            cure = "with one of the two factors free of the state"
            reason = "a product of two factors that both hold the state"
            raise NotAffine(reason, expr, cure=cure)
        self._count(expr, len(left) * len(right))
        return [
            Term((*a.coefficients, *b.coefficients), a.state or b.state)
            for a in left
            for b in right
        ]

    @staticmethod
    def _count(expr: Expr, terms: int) -> None:
        """Refuses to multiply out what doubles with every line that uses the one before twice."""
        if terms > MOST:
            reason = f"an update that multiplies out to more than {MOST} terms"
            cure = "with fewer erases a token, one after another, the recurrence has chunks"
            raise NotAffine(reason, expr, True, cure, TOO_LONG)

    def _matmul(self, expr: Expr, a: Expr, b: Expr, at: Indices) -> list[Term]:
        inner = None if len(a.shape) == 1 else self.index(a.shape[-1])
        free = list(at)
        left: Indices = (free.pop(0),) if len(a.shape) == 1 else (None, inner)
        if len(a.shape) == 2 and a.shape[0] != ONE:
            left = (free.pop(0), inner)
        right: Indices = (inner,) if len(b.shape) == 1 else (inner, free[-1] if free else None)
        return self._summed(self._times(expr, a, left, b, right), (inner,))

    def _summed(self, terms: list[Term], over: Indices) -> list[Term]:
        """The sum over some indices: a term that does not have one of them, as the scalar of ``h +
        s``, counts once for each of its values."""
        for index in over:
            if index is None:
                continue
            count = self._build.size(self._sizes[index])
            terms = [t if t.has(index) else self._scaled([t], count)[0] for t in terms]
        return terms

    def _chosen(self, condition: Expr, where: Indices, first: bool, term: Term) -> Term:
        """``term`` where ``condition`` (at ``where``) is as ``first`` says, else 0. Its factors are
        1 there, since what a choice leaves out may be no number."""
        build = self._build

        def chosen(expr: Expr, other: float) -> Expr:
            args = (expr, build.number(other))
            return build.choose(condition, *(args if first else args[::-1]))

        coefficients = []
        for expr, at in term.coefficients:
            spread = None if _is_finite(expr) else self._spread(expr, at, condition, where)
            guarded = (expr, at) if spread is None else (chosen(spread, 1), where or at)
            coefficients.append(guarded)
        return Term((*coefficients, (chosen(build.number(1), 0), where)), term.state)

    def _spread(self, expr: Expr, at: Indices, condition: Expr, where: Indices) -> Expr | None:
        """``expr`` in the shape that a choice by ``condition`` has; None where it has other
        indices."""
        build, live = self._build, [i for i in at if i is not None]
        if not condition.shape or not expr.shape or (expr.shape, at) == (condition.shape, where):
            return expr
        if len(live) != 1 or live[0] not in where:
            return None
        vector = build.column(expr)
        if len(where) == 1:
            return vector
        axis = where.index(live[0])
        ones = build.node("const", (), (condition.shape[1 - axis],), 1)
        rows, columns = (ones, vector) if axis else (vector, ones)
        return build.node("matmul", (rows, build.transpose(columns)), condition.shape)

    # ---- contraction
    # -----------------------------------------------------------------------------------------

    def product(self, term: Term, free: Indices) -> Product:
        """The term with its deltas and S-free contractions done. NotAffine where a factor spans too
        much."""
        parts = [(e, i) for e, i in term.coefficients]
        state = term.state
        kept = {i for i in free if i is not None}
        while (
            delta := next((p for p in parts if p[0].op == _DELTA and p[1][0] != p[1][1]), None)
        ) is not None:
            row, column = delta[1]
            old, new = (column, row) if column not in kept else (row, column)
            if old in kept:
                break
            parts.remove(delta)
            parts = [(e, tuple(new if i == old else i for i in at)) for e, at in parts]
            if state is not None:
                state = (state[0], tuple(new if i == old else i for i in state[1]))
        parts = [p for p in parts if not (p[0].op == _DELTA and p[1][0] == p[1][1])]
        touched = kept | {i for i in (state[1] if state else ()) if i is not None}
        factors = self._gather(parts)
        while (
            bound := next((i for k in factors for i in k if i not in touched), None)
        ) is not None:
            self._contract(factors, bound)
        return Product(factors, state)

    def _gather(self, parts: Iterable[Part]) -> dict[tuple[int, ...], Expr]:
        factors: dict[tuple[int, ...], Expr] = {}
        for expr, at in parts:
            self._put(factors, expr, at)
        return factors

    def _put(self, factors: dict[tuple[int, ...], Expr], expr: Expr, at: Indices) -> None:
        live = tuple(i for i in at if i is not None)
        if len(live) == 1 and len(at) == 2:
            expr = self._build.column(expr)
        if len(live) == 2 and live[0] > live[1]:
            expr, live = self._build.transpose(expr), (live[1], live[0])
        factors[live] = self._build.mul(factors[live], expr) if live in factors else expr

    def _contract(self, factors: dict[tuple[int, ...], Expr], bound: int) -> None:
        build = self._build
        keys = [k for k in factors if bound in k]
        vector = factors.pop((bound,), None)
        matrices = [(k, factors.pop(k)) for k in keys if k != (bound,)]
        if not matrices:
            assert vector is not None
            if vector.op == "mul" and vector.args[0].shape and vector.args[1].shape:
                self._put(factors, build.dot(*vector.args), ())
            else:
                self._put(factors, build.entries(vector), ())
            return
        (key, first), *others = matrices
        if len(others) > 1:
            cure = "with products of vectors in place of the matrices"
            reason = "a contraction of three matrices over one index"
            raise NotAffine(reason, first, linear=True, cure=cure)
        outer = key[0] if key[1] == bound else key[1]
        first = first if key[1] == bound else build.transpose(first)
        if vector is not None and others:
            vector_matrix = build.node("mul", (vector, others[0][1]), others[0][1].shape)
            cure = "with products of vectors in place of the matrices"
            raise NotAffine("a scaled product of two matrices", vector_matrix, True, cure)
        if others:
            other_key, second = others[0]
            last = other_key[1] if other_key[0] == bound else other_key[0]
            second = second if other_key[0] == bound else build.transpose(second)
            self._put(factors, build.compose(first, second), (outer, last))
        elif vector is not None:
            self._put(factors, build.apply(first, vector), (outer,))
        else:
            ones = build.node("const", (), (self._sizes[bound],), 1)
            self._put(factors, build.apply(first, ones), (outer,))


def _is_finite(expr: Expr) -> bool:
    """Whether it is a number, or a choice of numbers, and no infinity."""
    if expr.op == "const":
        return math.isfinite(expr.value)
    numbers = expr.op == "where" and all(arg.op == "const" for arg in expr.args[1:])
    return expr.op in ("size", "eye") or (numbers and all(map(_is_finite, expr.args[1:])))


def _is_thin(expr: Expr) -> bool:
    """A scalar, a column or a row."""
    return len(expr.shape) < 2 or expr.shape[0] == ONE


def _transposed(inner: Expr, at: Indices) -> Indices:
    """Indices of the operand of a transpose whose result is read at ``at``."""
    if len(inner.shape) == 1:
        return (at[-1],)
    if len(at) == 1:
        return (None, at[0])
    return (at[1], at[0])


def _scalars_apart(build: Builder, expr: Expr, at: Indices) -> list[Part]:
    """An S-free factor, its scalar factors and sign as factors of their own."""
    parts: list[Part] = []
    while expr.shape:
        match expr.op, expr.args:
            case "neg", (inner,):
                parts.append((build.number(-1), ()))
                expr = inner
            case "mul", (scalar, inner) if not scalar.shape:
                parts.append((scalar, ()))
                expr = inner
            case "mul", (inner, scalar) if not scalar.shape:
                parts.append((scalar, ()))
                expr = inner
            case "div", (inner, scalar) if not scalar.shape:
                parts.append((build.reciprocal(scalar), ()))
                expr = inner
            case _:
                break
    return [*parts, (expr, at if expr.shape else ())]
