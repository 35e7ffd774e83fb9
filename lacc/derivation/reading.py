"""A spec in, the contractions by which its outputs and its other states read each state out."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from lacc.analysis.affine import CONTRACTING
from lacc.spec.model import Expr
from lacc.tile.reads import reads, vector_first


@dataclass(frozen=True, slots=True)
class Contraction:
    """``query`` contracts ``axis`` of ``state`` as it is at the token (when 0) or the one before
    (-1)."""

    state: str
    axis: int
    query: Expr
    when: int


def contractions(roots: Iterable[Expr], names: set[str]) -> tuple[list[Contraction], set[str]]:
    """Every contraction of the states ``names`` in ``roots``, once; and those of the states that
    are read entry by entry somewhere."""
    found: dict[Contraction, None] = {}
    shown: set[str] = set()
    stack, seen = list(roots), set[Expr]()
    while stack:
        node = vector_first(stack.pop())
        if node in seen:
            continue
        seen.add(node)
        if node.op == "state" and node.reference[0] in names:
            if node.reference[1] in (0, -1):
                shown.add(node.reference[0])
            continue
        terms = None
        if node.op in CONTRACTING:
            terms = reads(node, lambda x: x.reference[0] in names and x.reference[1] != "T")
        if terms is None or all(term.product.state is None for term in terms):
            stack += node.args
            continue
        for term in terms:
            product = term.product
            stack += product.factors.values()
            if product.state is None:
                continue
            leaf, at = product.state
            live = [i for i in at if i is not None]
            axis = next(n for n, i in enumerate(live) if i not in term.free)
            query = product.factors.get((live[axis],))
            name, when = leaf.reference
            if query is None or when not in (0, -1):
                shown.add(name)
            else:
                found[Contraction(name, axis, query, when)] = None
    return list(found), shown
