"""Typed expressions in, new interned typed expressions out: how passes after the checker write
expressions."""

from __future__ import annotations

from lacc.diagnostics import Span
from lacc.spec.model import Expr, Interner
from lacc.spec.shapes import ONE, Shape, Size


class Builder:
    """Builds nodes at one span, with the identities that keep results readable (1·x is x, --x is
    x)."""

    def __init__(self, span: Span) -> None:
        self._intern = Interner()
        self._span = span

    def node(self, op: str, args: tuple[Expr, ...], shape: Shape, value: object = None) -> Expr:
        """The interned node."""
        return self._intern(op, args, value, shape, args[0].span if args else self._span)

    def number(self, value: float) -> Expr:
        """A scalar constant."""
        return self.node("const", (), (), value)

    def size(self, size: Size) -> Expr:
        """The value of a size, as a number."""
        constant = size.constant
        return self.number(constant) if constant is not None else self.node("size", (), (), size)

    def mul(self, a: Expr, b: Expr) -> Expr:
        """Elementwise product; a scalar broadcasts."""
        for one, other in ((a, b), (b, a)):
            if one.op == "const" and one.value == 1 and not one.shape:
                return other
            if one.op == "const" and one.value == -1 and not one.shape:
                return self.neg(other)
        if a.op == "neg":
            return self.neg(self.mul(a.args[0], b))
        if b.op == "neg":
            return self.neg(self.mul(a, b.args[0]))
        return self.node("mul", (a, b), a.shape or b.shape)

    def add(self, a: Expr, b: Expr) -> Expr:
        """Elementwise sum; a scalar broadcasts."""
        if b.op == "neg":
            return self.node("sub", (a, b.args[0]), a.shape or b.shape)
        if a.op == "neg":
            return self.node("sub", (b, a.args[0]), a.shape or b.shape)
        return self.node("add", (a, b), a.shape or b.shape)

    def neg(self, a: Expr) -> Expr:
        """-a."""
        return a.args[0] if a.op == "neg" else self.node("neg", (a,), a.shape)

    def reciprocal(self, a: Expr) -> Expr:
        """1 / a."""
        return self.node("div", (self.number(1), a), a.shape)

    def choose(self, condition: Expr, a: Expr, b: Expr) -> Expr:
        """``where(condition, a, b)``; a scalar broadcasts."""
        return self.node("where", (condition, a, b), condition.shape or a.shape or b.shape)

    def transpose(self, a: Expr) -> Expr:
        """aᵀ; a column becomes a row."""
        if a.op == "T":
            return a.args[0]
        shape = (ONE, a.shape[0]) if len(a.shape) == 1 else (a.shape[1], a.shape[0])
        return self.node("T", (a,), shape)

    def column(self, a: Expr) -> Expr:
        """A vector, whichever way it lies."""
        if len(a.shape) == 2 and a.shape[0] == ONE:
            transposed = self.transpose(a)
            if len(transposed.shape) == 2:
                transposed = self.node("T", (a,), (a.shape[1],))
            return transposed
        return a

    def dot(self, a: Expr, b: Expr) -> Expr:
        """aᵀ b of two columns: a scalar."""
        return self.node("matmul", (self.transpose(a), b), ())

    def apply(self, matrix: Expr, x: Expr) -> Expr:
        """A x: a column."""
        return self.node("matmul", (matrix, x), (matrix.shape[0],))

    def compose(self, a: Expr, b: Expr) -> Expr:
        """A B of two matrices."""
        return self.node("matmul", (a, b), (a.shape[0], b.shape[1]))

    def entries(self, a: Expr) -> Expr:
        """The sum of all entries: a scalar."""
        return self.node("sum", (a,), ()) if a.shape else a


def inside_elu_plus_one(addends: tuple[Expr, ...]) -> Expr | None:
    """The x of ``elu(x) + 1``, which is `elu1`: through elu(x) its digits would cancel below 0."""
    for x, one in (addends, addends[::-1]):
        if x.op == "elu" and one.op == "const" and one.value == 1:
            return x.args[0]
    return None
