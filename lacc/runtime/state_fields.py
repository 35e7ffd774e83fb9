"""A typed spec in, what it remembers from token to token out: delays, windows, fields of its state.

A state has a field for each declared state (and the exponent of a `(stabilized)` one), the position
where tokens are counted, and past values of what is read with a delay or attended to.
"""

from __future__ import annotations

from dataclasses import dataclass

from lacc.ir.graph import counts_tokens
from lacc.ir.reach import Key, pasts
from lacc.runtime.contract import Axis, Value
from lacc.spec.model import LEVELS, Arg, Expr, Spec, State
from lacc.spec.shapes import Shape, Size


@dataclass(frozen=True, slots=True)
class Field:
    """A field of the state: what the caller sees, and what it is of (None: the position)."""

    value: Value
    key: Key | None


def fields(spec: Spec) -> tuple[Field, ...]:
    """The fields of the state, in order. A past of length None grows with every token."""
    found = []
    for s in spec.states:
        if s.direction != "value":
            found.append(Field(Value(s.ascii, "state", axes(s.shape), s.per), s.name))
            if s.stabilized:
                exponent = axes(s.shape) if len(s.shape) < 2 else ()
                found.append(Field(Value(f"{s.ascii}_log", "log", exponent, s.per), s.name))
    if counts_tokens(spec):
        found.append(Field(Value("position", "position", (), "layer"), None))
    named: dict[str, Arg | State] = {a.name: a for a in spec.args}
    named |= {s.name: s for s in spec.states}
    for key, past in pasts(spec).items():
        if past.length == 0:
            continue
        owner = None if isinstance(key, Expr) else named[key]
        shape = key.shape if isinstance(key, Expr) else named[key].shape
        per = level_of(spec, key) if isinstance(key, Expr) else named[key].per
        value = Value(past.name, "past", (past.length, *axes(shape)), per, starts(owner))
        found.append(Field(value, key))
    return tuple(found)


def starts(owner: Arg | State | None) -> bool:
    """Whether values before the first token are declared, rather than 0."""
    if not isinstance(owner, State):
        return False
    return owner.initial.op != "const" or owner.initial.value != 0


def level_of(spec: Spec, expr: Expr) -> str:
    """The finest level among what ``expr`` reads."""
    per = {a.name: a.per for a in spec.args} | {s.name: s.per for s in spec.states}
    found = {"layer"}
    for node in expr.walk():
        if node.op == "head":
            found.add("head")
        elif node.op in ("input", "state"):
            found.add(per[node.reference[0]])
        elif node.op in ("param", "buffer"):
            found.add(per[str(node.value)])
    return next(level for level in LEVELS if level in found)


def axes(shape: Shape) -> tuple[Axis, ...]:
    """A shape as the API writes it."""
    return tuple(_axis(size) for size in shape)


def _axis(size: Size) -> Axis:
    if size.constant is not None:
        return size.constant
    if len(size.dims) == 1 and size == Size.of(*size.dims):
        return next(iter(size.dims))
    return tuple(
        (
            int(c) if c.denominator == 1 else str(c),
            *(name for name, power in monomial for _ in range(power)),
        )
        for monomial, c in size.terms
    )
