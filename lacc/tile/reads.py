"""Readouts in, tile values out: an expression over states becomes contractions of states and
token-wise work around them.

`Reader` is what the builders of a chunk and of a single token share; they differ in how a state is
contracted or shown.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

from lacc.analysis.affine import CONTRACTING, Affine, NotAffine, Product
from lacc.ir.build import Builder
from lacc.spec.model import Expr, Spec
from lacc.spec.shapes import ONE
from lacc.tile.lower import Lower, Naming
from lacc.tile.program import Axes


@dataclass(frozen=True, slots=True)
class Read:
    """One term of a readout: ``Π factors · state[indices]`` at ``when``, over free indices ``free``
    (in axis order)."""

    product: Product
    free: tuple[int, ...]


def reads(expr: Expr, is_state: Callable[[Expr], bool]) -> list[Read] | None:
    """The terms of a contraction ``expr`` over states; None where it is not one, or a state keeps
    all its axes."""
    affine = Affine(Builder(expr.span), is_state, apart=True)
    at = affine.indices(expr)
    free = tuple(i for i in at if i is not None)
    try:
        products = [affine.product(term, at) for term in affine.terms(expr, at, root=True)]
    except NotAffine:
        return None
    for product in products:
        if product.state is not None:
            live = [i for i in product.state[1] if i is not None]
            bound = [i for i in live if i not in free]
            if (
                not bound
                or any(len(key) > 1 for key in product.factors)
                or len(set(live)) < len(live)
            ):
                return None
    return [Read(product, free) for product in products]


def vector_first(node: Expr) -> Expr:
    """``X @ (Y @ b)`` for ``X @ Y @ b``, where b is a column: no product of two matrices."""
    build = Builder(node.span)
    while node.op == "matmul" and node.args[0].op == "matmul" and len(node.args[1].shape) == 1:
        (x, y), b = node.args[0].args, node.args[1]
        if any(len(z.shape) < 2 or z.shape[0] == ONE for z in (x, y)):
            break
        node = build.node("matmul", (x, build.node("matmul", (y, b), y.shape[:1])), node.shape)
    return node


class Reader(ABC):
    """Lowers expressions over the states of a spec into ``f``, at the tokens of a chunk (``rows``)
    or at one token."""

    def __init__(self, spec: Spec, naming: Naming, rows: bool) -> None:
        self.spec = spec
        self.naming = naming
        self.f = naming.tiles()
        self.lower = Lower(self.f, naming, spec, rows, self._read)

    @abstractmethod
    def contracts(self, leaf: Expr) -> bool:
        """Whether this state leaf is read by contraction."""

    @abstractmethod
    def contracted(self, leaf: Expr, axis: int, query: int) -> int:
        """Σ over ``axis`` of query · state."""

    @abstractmethod
    def shown(self, leaf: Expr) -> int:
        """The state itself, entry by entry."""

    @abstractmethod
    def attended(self, node: Expr) -> int:
        """The value of an `attend`."""

    def axes_of(self, name: str) -> Axes:
        """The axes of a state."""
        return self.naming.axes(self.spec.state(name).shape)

    def _read(self, node: Expr) -> int | None:
        if node.op == "state":
            return self.shown(node)
        if node.op == "attend":
            return self.attended(node)
        if node.op not in CONTRACTING:
            return None
        ordered = vector_first(node)
        if ordered is not node:
            return self.lower(ordered)
        found = reads(node, self.contracts)
        if found is None or all(r.product.state is None for r in found):
            return None
        total: int | None = None
        for read in found:
            value = self.term(read, self.naming.axes(node.shape))
            total = value if total is None else self.f.add(total, value)
        return total

    def term(self, read: Read, axes: Axes) -> int:
        """One term of a readout, its free axes named ``axes``."""
        names = dict(zip(read.free, axes))
        product = read.product
        value = None if product.state is None else self._contraction(product, names)
        for key, expr in product.factors.items():
            if all(i in names for i in key):
                factor = self.lower.on(expr, tuple(names[i] for i in key))
                value = factor if value is None else self.f.mul(factor, value)
        return self.f.const(1.0) if value is None else value

    def _contraction(self, product: Product, names: dict[int, str]) -> int:
        assert product.state is not None
        leaf, at = product.state
        own = self.naming.axes(leaf.shape)
        live = [i for i in at if i is not None]
        axis, *others = [n for n, i in enumerate(live) if i not in names]
        value = self.contracted(leaf, axis, self._query(product, live[axis], own[axis]))
        for other in others:
            factor = self._query(product, live[other], own[other])
            value = self.f.contract(value, factor, (own[other],))
        return self.f.rename(value, {own[n]: names[i] for n, i in enumerate(live) if i in names})

    def _query(self, product: Product, index: int, axis: str) -> int:
        expr = product.factors.get((index,))
        if expr is None:
            return self.f.expand(self.f.const(1.0), (axis,))
        return self.lower.on(expr, (axis,))
