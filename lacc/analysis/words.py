"""Expressions of a spec in, the text that a paper would have for them out: its names for parts,
sizes, products."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations

from lacc.analysis.ranges import Ranges
from lacc.analysis.stability import named
from lacc.analysis.transition import Write
from lacc.ir.build import Builder
from lacc.spec.format import show
from lacc.spec.model import Expr, Spec
from lacc.spec.shapes import Shape, Size


class Words:
    """How things of one spec are said."""

    def __init__(self, spec: Spec, ranges: Ranges) -> None:
        self.spec, self.ranges = spec, ranges
        self.names = named(spec)
        self.sizes = {dim.size: name for name, dim in reversed(spec.dims.items())}

    def say(self, expr: Expr) -> str:
        """An expression, with the spec's names for its parts."""
        return show(expr, self.names)

    def shape(self, shape: Shape) -> str:
        """A shape in the names of dims."""
        if not shape:
            return "scalar"
        return f"[{', '.join(map(self.size, shape))}]"

    def size(self, size: Size) -> str:
        """A size: the dim that is declared as it, else its formula."""
        return self.sizes.get(size, str(size))

    def formula(self, expr: Expr) -> str:
        """What stands behind the name of an expression."""
        return show(expr, {e: n for e, n in self.names.items() if e != expr})

    def same(self, a: Expr, b: Expr) -> bool:
        """Whether two expressions are equal as polynomials."""
        return self.ranges.algebra.poly(a) == self.ranges.algebra.poly(b)

    def write(self, write: Write) -> str:
        """The product that is added, and its rank."""
        sides = {factor.axes: factor.expr for factor in write.factors}
        scalars, keys = self.keys(sides.get(()), sides.get((0,)))
        rows, columns = keys, self.factor(sides.get((1,)))
        entries = self.factor(sides.get((0, 1)))
        parts = [part for part in (*scalars, entries) if part]
        if rows and columns:
            parts.append(f"{rows} @ {columns}.T")
        else:
            parts += [part for part in (rows, columns) if part]
        said = " * ".join(parts)
        if (0, 1) in sides:
            return f"{said}, entry by entry"
        return f"{said}, rank 1" if rows and columns else said

    def keys(self, scalar: Expr | None, rows: Expr | None) -> tuple[list[str], str]:
        """Scalar factors and the factor on the rows; a named product of some of both by its
        name."""
        scalars = list(_factors(scalar)) if scalar else []
        if rows is None or rows in self.names:
            return [self.factor(e) for e in scalars], self.factor(rows)
        algebra = self.ranges.algebra
        named = {
            algebra.monomial(e): name for e, name in self.names.items() if e.shape == rows.shape
        }
        for count in range(len(scalars) + 1):
            for inside in combinations(scalars, count):
                product = rows
                for e in inside:
                    product = Builder(rows.span).mul(e, product)
                if (name := named.get(algebra.monomial(product))) is not None:
                    return [self.factor(e) for e in scalars if e not in inside], name
        return [self.factor(e) for e in scalars], self.factor(rows)

    def factor(self, expr: Expr | None) -> str:
        """A factor of a product, in brackets where it is a sum."""
        if expr is None:
            return ""
        said = self.say(expr)
        return f"({said})" if expr.op in ("add", "sub", "neg") and expr not in self.names else said


def _factors(expr: Expr) -> Iterator[Expr]:
    """The factors of a product, in order."""
    if expr.op == "mul":
        for arg in expr.args:
            yield from _factors(arg)
    else:
        yield expr
