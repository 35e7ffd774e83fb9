"""Terms of an update that keep each entry of a state where it is in, their sum as one decay
out; and what a product is without a decay."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from lacc.analysis.transition import Axes, Factor
from lacc.ir.build import Builder
from lacc.spec.model import Expr
from lacc.spec.shapes import Shape


def factors_of(factors: Mapping[Axes, Expr], axis: Mapping[int, int]) -> tuple[Factor, ...]:
    """The factors of a product, those of fewest axes first; ``axis`` gives the axis of an index."""
    placed = [Factor(tuple(axis[i] for i in key), expr) for key, expr in factors.items()]
    return tuple(sorted(placed, key=lambda factor: (len(factor.axes), factor.axes)))


def sum_of(
    build: Builder, shape: Shape, decays: Sequence[tuple[Factor, ...]]
) -> tuple[Factor, ...]:
    """Several kept terms are one decay: their sum, on the axes that any of them has."""
    if not decays:
        return (Factor((), build.number(0)),)
    if len(decays) > 1:
        spread = tuple(sorted({axis for factors in decays for f in factors for axis in f.axes}))
        if len(spread) <= 1:
            total: Expr | None = None
            for factors in decays:
                product = product_of(build, factors)
                total = product if total is None else build.add(total, product)
            assert total is not None
            return (Factor(spread, total),)
        common = _common(build, decays)
        if common is not None:
            return common
        return (Factor(spread, _entrywise(build, shape, decays)),)
    return tuple(f for f in decays[0] if not (f.expr.op == "const" and f.expr.value == 1))


def product_of(build: Builder, factors: Iterable[Factor]) -> Expr:
    """The product of factors, as one expression."""
    expr = build.number(1)
    for factor in factors:
        expr = build.mul(expr, factor.expr)
    return expr


def _common(build: Builder, decays: Sequence[tuple[Factor, ...]]) -> tuple[Factor, ...] | None:
    """``(a1 + a2) ⊙ b`` where all terms share all but one set of axes."""
    tables = [{f.axes: f.expr for f in factors} for factors in decays]
    keys: set[Axes] = {key for table in tables for key in table}
    differing = [k for k in keys if len({id(t.get(k)) for t in tables}) > 1] or [()]
    if len({axis for key in differing for axis in key}) > 1:
        return None
    spread = tuple(sorted({axis for key in differing for axis in key}))
    total: Expr | None = None
    for table in tables:
        part = product_of(build, [Factor(k, table[k]) for k in differing if k in table])
        total = part if total is None else build.add(total, part)
    assert total is not None
    shared = [Factor(k, tables[0][k]) for k in keys if k not in differing and k in tables[0]]
    return tuple(sorted([Factor(spread, total), *shared], key=lambda f: (len(f.axes), f.axes)))


def _entrywise(build: Builder, shape: Shape, decays: Sequence[tuple[Factor, ...]]) -> Expr:
    """The sum of kept terms as one matrix of the state's shape."""
    total: Expr | None = None
    for factors in decays:
        rows, columns = build.node("const", (), (shape[0],), 1), None
        matrix: Expr | None = None
        for factor in factors:
            if factor.axes == (0, 1):
                matrix = factor.expr if matrix is None else build.mul(matrix, factor.expr)
            elif factor.axes == (1,):
                columns = factor.expr if columns is None else build.mul(columns, factor.expr)
            else:
                rows = build.mul(rows, factor.expr)
        columns = columns or build.node("const", (), (shape[1],), 1)
        outer = build.node("matmul", (rows, build.transpose(columns)), shape)
        part = outer if matrix is None else build.mul(outer, matrix)
        total = part if total is None else build.add(total, part)
    assert total is not None
    return total


def without(build: Builder, product: Expr, factor: Expr) -> Expr | None:
    """``product`` without the factors of ``factor``; None where a term of it does not have them,
    or nothing of its shape is left."""
    left: Expr | None = product
    for leaf in _factors(factor):
        left = None if left is None else _divided(build, left, leaf)
    return left if left is not None and left.shape == product.shape else None


def _factors(product: Expr) -> Iterator[Expr]:
    if product.op == "mul":
        for arg in product.args:
            yield from _factors(arg)
    else:
        yield product


def _divided(build: Builder, e: Expr, leaf: Expr) -> Expr | None:
    if e is leaf:
        return build.number(1)
    parts = [_divided(build, arg, leaf) for arg in e.args if e.op in ("neg", "mul", "add", "sub")]
    match e.op, parts:
        case "neg", [Expr() as x]:
            return build.neg(x)
        case "mul", [Expr() as x, _]:
            return build.mul(x, e.args[1])
        case "mul", [_, Expr() as y]:
            return build.mul(e.args[0], y)
        case "add", [Expr() as x, Expr() as y]:
            return build.add(x, y)
        case "sub", [Expr() as x, Expr() as y]:
            return build.add(x, build.neg(y))
    return None
