"""Typed operands go in, the typed result of an operation or a fault comes out: the rules of shapes.

A result with a fault is None, which silences whatever would be built on it. `I` takes its size from
its surroundings: until these are known, its axes are the size `OPEN`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from lacc.diagnostics import Diagnostic, Note, Span, error
from lacc.spec.fold import NoNumber, Number, fold, number_of
from lacc.spec.model import Expr, Interner
from lacc.spec.shapes import ONE, Shape, Size, flip, show

MAX_DEPTH = 400
OPEN = Size.of("?")
SIGNS = {"add": "+", "sub": "-", "mul": "*", "div": "/", "pow": "**"}


class Algebra:
    """Builds interned expressions; faults go to ``report``.

    ``dims`` are the values of dims, ``fixed`` collects those dims whose value is compiled in.
    """

    def __init__(self, dims: Mapping[str, int], report: Callable[[Diagnostic], None]) -> None:
        self.dims = dims
        self.report = report
        self.fixed: set[str] = set()
        self._make = Interner()
        self._depth: dict[int, int] = {}

    def fault(
        self, code: str, span: Span, /, *, notes: Sequence[Note] = (), **values: object
    ) -> None:
        """Reports an error of the catalogue."""
        self.report(error(code, span, notes=notes, **values))

    # ---- nodes

    def build(
        self, op: str, args: Sequence[Expr], value: object, shape: Shape, span: Span
    ) -> Expr | None:
        """The interned node, None (and a fault) where it is too deep."""
        node = self._make(op, tuple(args), value, shape, span)
        depth = self._depth.get(id(node))
        if depth is None:
            depth = 1 + max((self._depth[id(arg)] for arg in args), default=0)
            self._depth[id(node)] = depth
        if depth > MAX_DEPTH:
            self.fault("LA0308", span, why=f"it is more than {MAX_DEPTH} operations deep")
            return None
        return node

    def leaf(self, op: str, value: object, shape: Shape, span: Span) -> Expr:
        """A node without arguments."""
        node = self._make(op, (), value, shape, span)
        self._depth.setdefault(id(node), 1)
        return node

    def number(self, value: Number, span: Span) -> Expr:
        """A number."""
        return self.leaf("const", value, (), span)

    def identity(self, span: Span) -> Expr:
        """`I`, of a size that is still open."""
        return self.leaf("eye", None, (OPEN, OPEN), span)

    def values(self, shape: Shape) -> list[int]:
        """The numbers that a shape's sizes are."""
        return [size.evaluate(self.dims) for size in shape]

    def count(self, typed: Expr, span: Span) -> int | None:
        """A positive whole number that is compiled in: of tokens, say."""
        try:
            value = number_of(typed, self.dims)
        except (NoNumber, ValueError):
            value = None
        if value is None or not 1 <= value < float("inf") or value != int(value):
            self.fault("LA0309", span)
            return None
        for leaf in typed.walk():
            if isinstance(leaf.value, Size):
                self.fixed |= leaf.value.dims
        return int(value)

    # ---- operators

    def elementwise(self, op: str, args: Sequence[Expr], span: Span) -> Expr | None:
        """Scalars broadcast over anything; all other shapes are equal."""
        if all(arg.op == "const" for arg in args):
            return self._fold(op, args, span)
        shape = next((arg.shape for arg in args if arg.shape and not is_open(arg.shape)), None)
        if shape is not None:
            args = [self.close(arg, shape) for arg in args]
        shapes = [arg.shape for arg in args if arg.shape]
        for other in shapes:
            if other != shapes[0]:
                self.differ(op, shapes[0], other, span)
                return None
        return self.build(op, args, None, shapes[0] if shapes else (), span)

    def _fold(self, op: str, args: Sequence[Expr], span: Span) -> Expr | None:
        numbers = [arg.value for arg in args if isinstance(arg.value, int | float)]
        try:
            value = fold(op, numbers)
        except NoNumber as fault:
            self.fault("LA0307", span, why=str(fault))
            return None
        return self.build(op, args, None, (), span) if value is None else self.number(value, span)

    def differ(self, op: str, left: Shape, right: Shape, span: Span) -> None:
        """Reports two shapes that should be equal."""
        sign = SIGNS.get(op)
        text = (
            f"{show(left)} {sign} {show(right)}" if sign else f"{op}({show(left)}, {show(right)})"
        )
        if flip(left) == right:
            hint = "transpose one side with .T"
        elif op == "mul" and {len(left), len(right)} == {1, 2} and ONE in (left[0], right[0]):
            hint = "k @ v.T is the matrix of all products of two vectors"
        elif op == "mul" and {len(left), len(right)} == {1, 2}:
            hint = "diag(x) @ A scales the rows of A, A @ diag(x) its columns"
        elif op == "mul" and len(left) == len(right) == 1:
            hint = "dims are told apart by name; k @ v.T is the matrix of all products"
        elif op == "mul" and len(left) == len(right) == 2 and left[1] == right[0]:
            hint = "`@` multiplies matrices, `*` entry by entry"
        elif len(left) == len(right) and not is_open(left + right) and self._same(left, right):
            hint = "dims are told apart by name, even where their values are equal"
        else:
            hint = "elementwise operators need equal shapes, or a scalar on one side"
        self.fault("LA0301", span, shapes=text, hint=hint)

    def _same(self, left: Shape, right: Shape) -> bool:
        return self.values(left) == self.values(right)

    def matmul(self, left: Expr, right: Expr, span: Span) -> Expr | None:
        """The product of matrices, columns ([K]) and rows ([1, K]); a scalar is 1 x 1."""
        scales_row = not left.shape and right.shape[:1] == (ONE,)
        if scales_row or (not right.shape and len(left.shape) == 1):
            return self.build("mul", [left, right], None, left.shape or right.shape, span)
        hint = "`@` multiplies matrices: write `*` with a scalar"
        if left.shape and right.shape:
            rows, inner = left.shape if len(left.shape) == 2 else (left.shape[0], ONE)
            outer, columns = right.shape if len(right.shape) == 2 else (right.shape[0], None)
            if inner == OPEN != outer:
                left, rows, inner = self.close(left, (outer, outer)), outer, outer
            if outer == OPEN != inner:
                right, outer, columns = self.close(right, (inner, inner)), inner, inner
            if inner == outer:
                scalar = rows == ONE and len(left.shape) == 2 and columns in (None, ONE)
                shape = () if scalar else (rows,) if columns is None else (rows, columns)
                return self.build("matmul", [left, right], None, shape, span)
            hint = _product_hint(left.shape, right.shape)
        self.fault("LA0302", span, left=show(left.shape), right=show(right.shape), hint=hint)
        return None

    def transpose(self, x: Expr, span: Span) -> Expr | None:
        """A column becomes a row and back; a scalar stays."""
        if not x.shape:
            return x
        return x.args[0] if x.op == "T" else self.build("T", [x], None, flip(x.shape), span)

    def close(self, x: Expr, shape: Shape) -> Expr:
        """``x`` with its open axes those of the square ``shape`` (as it is where that does not
        fit).
        """
        if not is_open(x.shape) or is_open(shape) or len(shape) != 2 or shape[0] != shape[1]:
            return x
        closed: dict[int, Expr] = {}
        for node in x.walk():
            args = tuple(closed[id(arg)] for arg in node.args)
            new = shape if is_open(node.shape) else node.shape
            made = self._make(node.op, args, node.value, new, node.span)
            self._depth[id(made)] = self._depth[id(node)]
            closed[id(node)] = made
        return closed[id(x)]


def is_open(shape: Shape) -> bool:
    """Whether a size of an `I` is still unknown in it."""
    return any("?" in size.dims for size in shape)


def _product_hint(left: Shape, right: Shape) -> str:
    if len(left) == len(right) == 1:
        return "a.T @ b is the inner product, a @ b.T the outer one"
    if len(left) == 1 and left[0] == right[0]:
        return "a vector is a column: A.T @ x is one too, x.T @ A a row"
    if len(left) == 2 and left[0] == right[0]:
        return "transpose the left side with .T"
    if len(right) == 2 and right[1] == left[-1]:
        return "transpose the right side with .T"
    return "the last size on the left is to be the first on the right"
