"""Typed expressions in, the same ones out as they are best evaluated.

`β * k @ k.T @ S` becomes `(β * k) @ (k.T @ S)`, `diag(a) @ S` a product of rows, and
`(I - k @ k.T) @ S` the difference `S - k @ (k.T @ S)`: no matrix is made that the result does not
need. A product of rows is an elementwise `mul` of a column and a matrix, which a spec cannot write.
And `elu(x) + 1` becomes the one function that it is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from lacc.ir.build import inside_elu_plus_one
from lacc.spec.model import Expr, Interner
from lacc.spec.shapes import ONE, Shape, flip


class Products:
    """Rewrites expressions, shared nodes to shared ones; orders are compared under ``dims``."""

    def __init__(self, dims: Mapping[str, int]) -> None:
        self._dims = dims
        self._make = Interner()
        self._done: dict[Expr, Expr] = {}

    def __call__(self, root: Expr) -> Expr:
        """The economical form of ``root``."""
        for node in root.walk():
            if node not in self._done:
                args = tuple(self._done[arg] for arg in node.args)
                if node.op == "matmul":
                    self._done[node] = self._matmul(args[0], args[1], node)
                elif node.op == "T" and args:
                    self._done[node] = self._transpose(args[0], node)
                elif node.op == "add" and (x := inside_elu_plus_one(args)) is not None:
                    self._done[node] = self._node("elu1", (x,), node.shape, node)
                else:
                    self._done[node] = self._node(node.op, args, node.shape, node, node.value)
        return self._done[root]

    def _node(
        self, op: str, args: tuple[Expr, ...], shape: Shape, at: Expr, value: object = None
    ) -> Expr:
        return self._make(op, args, value, shape, at.span)

    def _transpose(self, x: Expr, at: Expr) -> Expr:
        if x.op == "T":
            return x.args[0]
        if x.op in ("eye", "diag"):
            return x
        if x.op == "matmul":
            a, b = x.args
            return self._matmul(self._transpose(b, at), self._transpose(a, at), at)
        if _structured(x) and all(len(arg.shape) in (0, 2) for arg in x.args):
            args = tuple(self._transpose(arg, at) if arg.shape else arg for arg in x.args)
            return self._node(x.op, args, at.shape, at)
        return self._node("T", (x,), flip(x.shape), at)

    def _matmul(self, a: Expr, b: Expr, at: Expr) -> Expr:
        """a @ b, for a and b in economical form."""
        if a.op == "eye":
            return b
        if b.op == "eye":
            return a
        shape = _product_shape(a.shape, b.shape)
        if a.op == "diag":
            return self._node("mul", (a.args[0], b), shape, at)
        if b.op == "diag":
            return self._node("mul", (a, self._transpose(b.args[0], at)), shape, at)
        if _structured(a):
            return self._spread(a, lambda term: self._matmul(term, b, at), shape, at)
        if _structured(b):
            return self._spread(b, lambda term: self._matmul(a, term, at), shape, at)
        return self._chain([*_factors(a), *_factors(b)], at)

    def _spread(self, x: Expr, apply: Callable[[Expr], Expr], shape: Shape, at: Expr) -> Expr:
        """A sum or a scalar multiple of matrices under a product: the product of each."""
        args = tuple(apply(arg) if arg.shape else arg for arg in x.args)
        return self._node(x.op, args, shape, at)

    def _chain(self, factors: list[Expr], at: Expr) -> Expr:
        """The product of ``factors`` in the order of fewest multiplications."""
        sizes = [self._size(factors[0], 0), *(self._size(f, 1) for f in factors)]
        count = len(factors)
        best: dict[tuple[int, int], tuple[int, Expr]] = {
            (i, i + 1): (0, factor) for i, factor in enumerate(factors)
        }
        for width in range(2, count + 1):
            for i in range(count - width + 1):
                j = i + width
                cost, cut = min(
                    (best[i, m][0] + best[m, j][0] + sizes[i] * sizes[m] * sizes[j], -m)
                    for m in range(i + 1, j)
                )
                left, right = best[i, -cut][1], best[-cut, j][1]
                shape = _product_shape(left.shape, right.shape)
                best[i, j] = cost, self._node("matmul", (left, right), shape, at)
        return best[0, count][1]

    def _size(self, x: Expr, axis: int) -> int:
        """Rows (0) or columns (1) of a matrix, a column having one."""
        return 1 if len(x.shape) <= axis else x.shape[axis].evaluate(self._dims)


def _factors(x: Expr) -> list[Expr]:
    return [*_factors(x.args[0]), *_factors(x.args[1])] if x.op == "matmul" else [x]


def _structured(x: Expr) -> bool:
    """A sum of matrices, or a multiple of one, with a part that is better applied than made."""
    if len(x.shape) != 2 or x.op not in ("add", "sub", "neg", "mul", "div"):
        return False
    matrices = [arg for arg in x.args if arg.shape]
    if len(matrices) != (2 if x.op in ("add", "sub") else 1) or (x.op == "div" and x.args[1].shape):
        return False
    if any(arg.shape != x.shape for arg in matrices):
        return False
    return any(arg.op in ("eye", "diag", "matmul") or _structured(arg) for arg in matrices)


def _product_shape(a: Shape, b: Shape) -> Shape:
    rows = a[0] if a else ONE
    if len(b) == 2 and not rows == b[1] == ONE:
        return (rows, b[1])
    return (rows,) if len(a) == 1 else () if rows == ONE else (rows,)
