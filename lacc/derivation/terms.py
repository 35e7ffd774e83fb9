"""The terms of equations, as data: what derivations are made of, printers write and `values`
evaluates.

Notation: t counts the tokens of a chunk from 1 to C; 0 is the state that a chunk starts from. A
vector is a column. `over` gives what runs from s to t a name: α[s→t] is the product of α[u], s < u
<= t.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from lacc.spec.model import Expr


@dataclass(frozen=True, slots=True)
class At:
    """A token: the index ``name`` (t, s, u, or the fixed 0, 1, C), ``offset`` tokens on."""

    name: str
    offset: int = 0

    def __sub__(self, by: int) -> At:
        return At(self.name, self.offset - by)

    def __add__(self, by: int) -> At:
        return At(self.name, self.offset + by)


T, S, U, ZERO, ONE, END = At("t"), At("s"), At("u"), At("0"), At("1"), At("C")


@dataclass(frozen=True, slots=True)
class Term:
    """One term.

    ======== ================================== =====================================
    op       value                              args
    ======== ================================== =====================================
    spec     (Expr, At): the spec's own, at t   ()
    symbol   (name, indices): in an equation    ()
    path     (name, from, to): name[s→t]        ()
    number   a number                           ()
    ones     None: the vector of ones           ()
    add      None                               two or more
    neg      None                               (x,)
    scale    None                               (scalar, x)
    had      None: entry by entry               two or more
    matmul   None                               two or more
    T diag   None                               (x,)
    d        None: its cotangent                (x,)
    named    (Expr, At): by its name            ()
    whole    (Expr, At): by its parts           ()
    jacobian the state of an update             (what outputs send,)
    matrix   how many columns                   entries, row by row
    sum max min lse prod   (index, low, high)   (body,)
    chain    (index, low, high): the last left  (body,)
    call     a function, entry by entry         arguments
    entry    the places of an entry, from 0     (matrix of states,)
    ======== ================================== =====================================
    """

    op: str
    args: tuple[Term, ...] = ()
    value: Any = None

    def walk(self) -> Iterator[Term]:
        """This term and all below it."""
        yield self
        for arg in self.args:
            yield from arg.walk()


def spec(expr: Expr, at: At) -> Term:
    """The spec's own expression at a token."""
    if expr.op == "const" and not expr.shape:
        return Term("number", (), expr.value)
    return Term("spec", (), (expr, at))


def symbol(name: str, *indices: At) -> Term:
    """What an equation defines, or a given state."""
    return Term("symbol", (), (name, indices))


def path(name: str, low: At, high: At) -> Term:
    """name[low→high]."""
    return Term("path", (), (name, low, high))


def number(value: float) -> Term:
    return Term("number", (), value)


def is_number(term: Term, value: float) -> bool:
    return term.op == "number" and term.value == value


def add(*terms: Term) -> Term:
    """A sum; of one term that term, of none 0."""
    flat = [t for term in terms for t in (term.args if term.op == "add" else (term,))]
    kept = tuple(term for term in flat if not is_number(term, 0))
    if len(kept) < 2:
        return kept[0] if kept else number(0)
    return Term("add", kept)


def neg(x: Term) -> Term:
    return x.args[0] if x.op == "neg" else Term("neg", (x,))


def scale(a: Term, x: Term) -> Term:
    """A number times anything."""
    if is_number(a, 1):
        return x
    if is_number(x, 1):
        return a
    if is_number(a, -1):
        return neg(x)
    if a.op == "neg":
        return neg(scale(a.args[0], x))
    return Term("scale", (a, x))


def had(*terms: Term) -> Term:
    """An entrywise product."""
    kept = tuple(term for term in terms if not is_number(term, 1))
    if len(kept) < 2:
        return kept[0] if kept else number(1)
    return _apart("had", kept)


def matmul(*terms: Term) -> Term:
    """A product of matrices."""
    return _apart("matmul", terms)


def _apart(op: str, terms: tuple[Term, ...]) -> Term:
    """A product, the numbers of its factors before it."""
    scalars: list[Term] = []
    parts: list[Term] = []
    for term in terms:
        while term.op in ("scale", "neg"):
            scalars.append(term.args[0] if term.op == "scale" else number(-1))
            term = term.args[-1]
        parts += term.args if term.op == op else (term,)
    found = Term(op, tuple(parts))
    for scalar in reversed(scalars):
        found = scale(scalar, found)
    return found


def transposed(x: Term) -> Term:
    """xᵀ, of a product factor by factor."""
    match x.op:
        case "T":
            return x.args[0]
        case "scale":
            return scale(x.args[0], transposed(x.args[1]))
        case "matmul":
            return matmul(*map(transposed, reversed(x.args)))
        case "diag":
            return x
    return Term("T", (x,))


def diag(x: Term) -> Term:
    return Term("diag", (x,))


def over(op: str, index: At, low: At, high: At, body: Term) -> Term:
    """``op`` over index = low, …, high."""
    return number(0) if is_number(body, 0) else Term(op, (body,), (index, low, high))


@dataclass(frozen=True, slots=True)
class Equation:
    """``left = right``, for the indices that ``where`` says; with ``share`` right is only a part of
    it (``left += right``)."""

    left: Term
    right: Term
    where: str = ""
    share: bool = False

    @property
    def name(self) -> str:
        """The name that it defines; "" where left is no name."""
        if self.left.op in ("symbol", "path"):
            assert isinstance(self.left.value, tuple)
            return str(self.left.value[0])
        return ""


Part = str | tuple[str | Term, ...] | Equation
"""A paragraph (with terms in it, perhaps) or an equation."""


@dataclass(frozen=True, slots=True)
class Section:
    """A step of a derivation."""

    title: str
    parts: tuple[Part, ...]

    @property
    def equations(self) -> tuple[Equation, ...]:
        return tuple(part for part in self.parts if isinstance(part, Equation))
