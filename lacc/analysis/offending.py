"""States whose updates are not affine in them in, the terms that make them so out, and the same
states without these."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from lacc.analysis.affine import Affine, NotAffine
from lacc.ir.build import Builder
from lacc.spec.model import Expr, Interner, State

Instead = Callable[[Expr, set[str]], Expr]
"""What stands for a term in states of these names."""


def rid(states: Sequence[State], instead: Instead) -> tuple[list[State], list[NotAffine]]:
    """The states with ``instead`` of each term that is not affine, and the refusals of those terms
    that are not linear either, in the order of the spec."""
    names = {state.name for state in states}
    left, looked, found = list(states), list(states), list[NotAffine]()
    while (refusal := _first(looked, names)) is not None:
        term = refusal.obstacle.expr
        new = (linear if refusal.linear else instead)(term, names)
        looked = _with(looked, term, new)
        if not refusal.linear:
            found.append(refusal)
            left = _with(left, term, new)
    return left, found


def _with(states: Sequence[State], old: Expr, new: Expr) -> list[State]:
    return [replace(s, update=_replaced(s.update, old, new)) for s in states]


def free_of_states(term: Expr, names: set[str]) -> Expr:
    """A value of the token alone in place of ``term``."""
    return Builder(term.span).node("const", (), term.shape, 1)


def linear(term: Expr, names: set[str]) -> Expr:
    """``term`` as if it were linear: the argument of a function, a quotient without its divisor, a
    product with one factor, a choice that needs no state."""
    build = Builder(term.span)
    held = [arg for arg in term.args if _holds(arg, names)]
    if term.op in ("mul", "matmul", "div"):
        kept, other = term.args if _holds(term.args[0], names) else term.args[::-1]
        free = free_of_states(other, names)
        args = (kept, free) if kept is term.args[0] else (free, kept)
        return build.node("mul" if term.op == "div" else term.op, args, term.shape)
    if term.op == "where":
        condition = free_of_states(term.args[0], names)
        return build.node("where", (condition, *term.args[1:]), term.shape)
    total = held[0]
    for arg in held[1:]:
        total = build.node("add", (total, arg), total.shape or arg.shape)
    total = total if term.shape else build.entries(total)
    return total if total.shape == term.shape else free_of_states(term, names)


def term_around(states: Sequence[State], part: Expr) -> Expr:
    """The least term of an update that holds a state and ``part``: the node, or what stands there
    in the text; the whole update where there is none."""
    names = {state.name for state in states}
    for same in (_is, _covers):
        for state in states:
            held: dict[Expr, tuple[bool, bool]] = {}
            for node in state.update.walk():
                below = [held[arg] for arg in node.args]
                own = node.op == "state" and node.reference[0] in names
                held[node] = (
                    own or any(s for s, _ in below),
                    same(node, part) or any(p for _, p in below),
                )
                if all(held[node]):
                    return node
    return states[0].update


def _is(node: Expr, part: Expr) -> bool:
    return node is part


def _covers(node: Expr, part: Expr) -> bool:
    inner, outer = part.span, node.span
    return inner.source is outer.source and outer.start <= inner.start and inner.end <= outer.end


def _first(states: Sequence[State], names: set[str]) -> NotAffine | None:
    """The first refusal."""
    for state in states:
        affine = Affine(Builder(state.span), lambda leaf: leaf.reference[0] in names)
        try:
            affine.terms(state.update, affine.indices(state.update))
        except NotAffine as refusal:
            return refusal
    return None


def _holds(expr: Expr, names: set[str]) -> bool:
    return any(n.op == "state" and n.reference[0] in names for n in expr.walk())


def _replaced(root: Expr, old: Expr, new: Expr) -> Expr:
    """``root`` with ``new`` for ``old``."""
    done: dict[Expr, Expr] = {old: new}
    intern = Interner()
    for node in root.walk():
        if node not in done:
            args = tuple(done[arg] for arg in node.args)
            same = args == node.args
            done[node] = node if same else intern(node.op, args, node.value, node.shape, node.span)
    return done[root]
