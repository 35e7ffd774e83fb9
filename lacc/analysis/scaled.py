"""An expression over scaled states in, its value and its exponent out, as expressions: e stands for
``value · exp(exponent)``, and no value overflows that e does not make.

An exponent has a part for all entries, one for each row and one for each column. Products add
exponents and quotients subtract them; what is added or compared is brought to the larger exponent
first, each value times an exp of at most 0; a sum over entries whose exponents differ as well.
``exp(x)`` is 1 with the exponent x. Every other function takes the true value. No result depends on
which exponent stands beside a value, so the larger one is a constant to the gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from lacc.ir.build import Builder
from lacc.ir.ops import OPS
from lacc.spec.model import Expr
from lacc.spec.shapes import ONE, Shape

_HOMOGENEOUS = ("neg", "abs", "relu")
_ALIGNED = ("add", "sub", "max", "min")
_REDUCED = ("sum", "mean", "rms", "reduce_max", "reduce_min")
_POWERS = {"sqrt": 0.5, "rsqrt": -0.5}


@dataclass(frozen=True, slots=True)
class Scaled:
    """``value · exp(every)``, its rows times exp(rows) and its columns times exp(columns), which
    are column vectors; None is 0."""

    value: Expr
    every: Expr | None = None
    rows: Expr | None = None
    columns: Expr | None = None

    @property
    def exponents(self) -> tuple[Expr | None, Expr | None, Expr | None]:
        """All three."""
        return self.every, self.rows, self.columns

    @property
    def plain(self) -> bool:
        """Whether the value is what is meant."""
        return self.exponents == (None, None, None)


class Interning(Builder):
    """A builder that equal expressions of other builders meet in."""

    def adopt(self, root: Expr) -> Expr:
        """``root`` of this builder's own nodes."""
        done: dict[Expr, Expr] = {}
        for node in root.walk():
            args = tuple(done[arg] for arg in node.args)
            done[node] = self._intern(node.op, args, node.value, node.shape, node.span)
        return done[root]


class Scaling:
    """Scaled expressions; ``leaf`` gives that of a state leaf that is scaled, None for others."""

    def __init__(self, build: Interning, leaf: Callable[[Expr], Scaled | None]) -> None:
        self.build = build
        self._leaf = leaf
        self._done: dict[Expr, Scaled] = {}
        self._held: dict[Expr, bool] = {}

    def holds(self, root: Expr) -> bool:
        """Whether a scaled state stands below ``root``."""
        for node in root.walk():
            if node not in self._held:
                scaled = node.op == "state" and self._leaf(node) is not None
                self._held[node] = scaled or any(self._held[arg] for arg in node.args)
        return self._held[root]

    def true(self, root: Expr) -> Expr:
        """``root`` as an expression of scaled states; itself where it holds none."""
        return self.value(self(root)) if self.holds(root) else root

    def __call__(self, root: Expr) -> Scaled:
        """The scaled form of ``root``."""
        for node in root.walk():
            if node not in self._done:
                self._done[node] = self._of(node)
        return self._done[root]

    def value(self, e: Scaled) -> Expr:
        """What a scaled expression stands for."""
        return self.times(e.value, *e.exponents)

    # ---- arithmetic of exponents ----------------------------------------------------------------

    def plus(self, a: Expr | None, b: Expr | None) -> Expr | None:
        """The sum of exponents, without what cancels."""
        if a is None or b is None:
            return b if a is None else a
        left, right = _summands(a), _summands(b)
        for term, sign in list(right):
            if (term, -sign) in left:
                left.remove((term, -sign))
                right.remove((term, sign))
        kept = left + right
        shape = a.shape or b.shape
        if not kept:
            return None
        if len(kept) == len(_summands(a)) + len(_summands(b)) or all(
            term.shape != shape for term, _ in kept
        ):
            return self.build.add(a, b)
        total: Expr | None = None
        for term, sign in sorted(kept, key=lambda pair: -pair[1]):
            part = term if sign > 0 else self.build.neg(term)
            total = part if total is None else self.build.add(total, part)
        return total

    def minus(self, a: Expr | None, b: Expr | None) -> Expr | None:
        """The difference of exponents."""
        return a if b is None else self.plus(a, self.build.neg(b))

    def larger(self, parts: Sequence[Expr | None]) -> Expr | None:
        """The largest of several exponents."""
        if all(part is None for part in parts):
            return None
        total: Expr | None = None
        for part in dict.fromkeys(self.build.number(0) if p is None else p for p in parts):
            shape = part.shape or (total.shape if total is not None else ())
            total = part if total is None else self.build.node("max", (total, part), shape)
        return total

    def largest(self, exponent: Expr) -> Expr:
        """The largest entry of an exponent, a constant to the gradient."""
        return self.constant(self.build.node("reduce_max", (exponent,), ()))

    def constant(self, e: Expr) -> Expr:
        """``e`` without its gradient."""
        return e if e.op == "stop_gradient" else self.build.node("stop_gradient", (e,), e.shape)

    def times(
        self, value: Expr, every: Expr | None, rows: Expr | None, columns: Expr | None
    ) -> Expr:
        """``value`` times the exp of exponents."""
        build, shape = self.build, value.shape
        if len(shape) == 1:
            every, rows = None, self.plus(rows, every)
        if rows is not None and len(shape) == 1:
            value = self._product(self._exp(rows), value)
        elif rows is not None:
            value = build.node("matmul", (self._diag(rows), value), shape)
        if columns is not None and shape[0] == ONE:
            value = build.mul(build.transpose(self._exp(columns)), value)
        elif columns is not None:
            value = build.node("matmul", (value, self._diag(columns)), shape)
        return value if every is None else self._product(self._exp(every), value)

    def _exp(self, x: Expr) -> Expr:
        return self.build.node("exp", (x,), x.shape)

    def _diag(self, x: Expr) -> Expr:
        return self.build.node("diag", (self._exp(x),), x.shape * 2)

    def _product(self, factor: Expr, value: Expr) -> Expr:
        return self._multiplied(factor, value, value.shape)

    def _multiplied(self, a: Expr, b: Expr, shape: Shape) -> Expr:
        """The product, of which ones are no part."""
        for one, other in ((a, b), (b, a)):
            if one.op == "const" and one.value == 1 and other.shape == shape:
                return other
        return self.build.node("mul", (a, b), shape)

    def level(self, e: Scaled) -> Scaled:
        """``e`` with one exponent for all entries."""
        tops = [None if part is None else self.largest(part) for part in (e.rows, e.columns)]
        rows, columns = (self.minus(*pair) for pair in zip((e.rows, e.columns), tops))
        every = self.plus(e.every, self.plus(*tops))
        return Scaled(self.times(e.value, None, rows, columns), every)

    def aligned(self, parts: Sequence[Scaled]) -> tuple[list[Expr], Scaled]:
        """Values of one exponent, and that exponent (beside no value of its own)."""
        first = parts[0]
        if all(part.exponents == first.exponents for part in parts):
            return [part.value for part in parts], first
        shape = max((part.value.shape for part in parts), key=len)
        parts = [replace(part, value=self._filled(part.value, shape)) for part in parts]
        if any(part.rows is not None for part in parts):
            parts = [replace(p, every=None, rows=self._spread(p)) for p in parts]
        tops = [self.larger(each) for each in zip(*(part.exponents for part in parts))]
        common = [top and self.constant(top) for top in tops]
        values = []
        for part in parts:
            every, rows, columns = map(self.minus, part.exponents, common)
            values.append(self.times(part.value, every, rows, columns))
        return values, Scaled(first.value, *common)

    def _filled(self, value: Expr, shape: Shape) -> Expr:
        """A number as every entry of ``shape``: exponents of rows and columns need entries."""
        if value.shape == shape:
            return value
        return self.build.node("mul", (self.build.node("const", (), shape, 1), value), shape)

    def _spread(self, e: Scaled) -> Expr | None:
        return self.plus(e.rows, e.every)

    # ---- expressions -----------------------------------------------------------------------------

    def _of(self, e: Expr) -> Scaled:
        build, args = self.build, [self._done[arg] for arg in e.args]
        if e.op == "state":
            return self._leaf(e) or Scaled(e)
        if e.op == "exp" and (len(e.shape) < 2 or e.shape[0] == ONE):
            return self._raised(self.value(args[0]))
        if all(a.plain and a.value is arg for a, arg in zip(args, e.args)):
            return Scaled(e)
        match e.op, args:
            case op, [a] if op in _HOMOGENEOUS:
                return replace(a, value=build.node(op, (a.value,), e.shape))
            case "stop_gradient", [a]:
                parts = (p and self.constant(p) for p in a.exponents)
                return Scaled(self.constant(a.value), *parts)
            case "mul", [a, b]:
                sums = (self.plus(x, y) for x, y in zip(a.exponents, b.exponents))
                return Scaled(self._multiplied(a.value, b.value, e.shape), *sums)
            case "div", [a, b]:
                parts = (self.minus(x, y) for x, y in zip(a.exponents, b.exponents))
                return Scaled(build.node("div", (a.value, b.value), e.shape), *parts)
            case op, [a] if op in _POWERS:
                return self._power(build.node(op, (a.value,), e.shape), a, _POWERS[op])
            case "pow", [a, p] if p.value.op == "const":
                raised = build.node("pow", (a.value, p.value), e.shape)
                return self._power(raised, a, float(p.value.value))
            case op, [a, b] if op in _ALIGNED or OPS[op].kind == "compare":
                (x, y), common = self.aligned((a, b))
                value = build.node(op, (x, y), e.shape)
                return replace(common, value=value) if op in _ALIGNED else Scaled(value)
            case "where", [c, a, b]:
                (x, y), common = self.aligned((a, b))
                return replace(common, value=build.node("where", (c.value, x, y), e.shape))
            case op, [a] if op in _REDUCED:
                level = self.level(a)
                return Scaled(build.node(op, (level.value,), ()), level.every)
            case "log", [a] if len(e.shape) < 2 and a.columns is None:
                total = self.plus(a.rows, a.every)
                value = build.node("log", (a.value,), e.shape)
                return Scaled(value if total is None else build.add(total, value))
            case "sign", [a]:
                return Scaled(build.node("sign", (a.value,), e.shape))
            case "T", [a]:
                value = build.node("T", (a.value,), e.shape)
                return Scaled(value, a.every, a.columns, a.rows)
            case "diag", [a]:
                return replace(a, value=build.node("diag", (a.value,), e.shape))
            case "matmul", [a, b]:
                return self._matmul(e, a, b)
        return Scaled(build.node(e.op, tuple(map(self.value, args)), e.shape, e.value))

    def _raised(self, x: Expr) -> Scaled:
        one = self.build.node("const", (), x.shape, 1)
        if not x.shape:
            return Scaled(one, every=x)
        return Scaled(one, rows=x) if len(x.shape) == 1 else Scaled(one, columns=self._column(x))

    def _column(self, row: Expr) -> Expr:
        return row.args[0] if row.op == "T" else self.build.node("T", (row,), (row.shape[1],))

    def _power(self, value: Expr, e: Scaled, p: float) -> Scaled:
        by = self.build.number(p)
        return Scaled(value, *(x and self.build.mul(by, x) for x in e.exponents))

    def _matmul(self, e: Expr, a: Scaled, b: Scaled) -> Scaled:
        """A product; where it sums over entries with exponents, these are brought to the
        largest."""
        every, left, right = self.plus(a.every, b.every), a.value, b.value
        inner = None if len(left.shape) == 1 else self.plus(a.columns, b.rows)
        if inner is not None:
            top = self.largest(inner)
            every, less = self.plus(every, top), self.minus(inner, top)
            if len(right.shape) == 2 and left.shape[0] == ONE:
                left = self.times(left, None, None, less)
            else:
                right = self.times(right, None, less, None)
        value = self.build.node("matmul", (left, right), e.shape)
        return Scaled(value, every, a.rows, b.columns)


def _summands(e: Expr, sign: int = 1) -> list[tuple[Expr, int]]:
    """The terms of a sum, and their signs."""
    match e.op, e.args:
        case "add", (a, b):
            return _summands(a, sign) + _summands(b, sign)
        case "sub", (a, b):
            return _summands(a, sign) + _summands(b, -sign)
        case "neg", (a,):
            return _summands(a, -sign)
    return [(e, sign)]
