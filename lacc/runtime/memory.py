"""A typed spec in, what it remembers from token to token out: delays, windows, fields of its state.

A state has a field for each declared state (and the exponent of a `(stabilized)` one), the position
where tokens are counted, and past values of what is read with a delay or attended to.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from lacc.ir.graph import counts_tokens, expressions, nodes
from lacc.runtime.contract import Axis, Value
from lacc.spec.model import LEVELS, Arg, Expr, Spec, State
from lacc.spec.shapes import Shape, Size

Key = str | Expr
"""What is remembered: an input or state by its name in the file, or an argument of `attend`."""


@dataclass(frozen=True, slots=True)
class Reach:
    """How far from its token something is read: ``back`` tokens before it, ``ahead`` after it, and
    with ``grows`` all tokens so far."""

    back: int = 0
    ahead: int = 0
    grows: bool = False

    def __or__(self, other: Reach) -> Reach:
        return Reach(
            max(self.back, other.back), max(self.ahead, other.ahead), self.grows or other.grows
        )


@dataclass(frozen=True, slots=True)
class Field:
    """A field of the state: what the caller sees, and what it is of (None: the position)."""

    value: Value
    key: Key | None


def read(leaf: Expr) -> tuple[str, Any]:
    """The input or state that a leaf reads, and when: an offset, or "T"."""
    value: Any = leaf.value
    return value[0], value[1]


def key_of(argument: Expr) -> Key:
    """Where an argument of `attend` is kept: with the input or state that it is, or by itself."""
    if argument.op in ("input", "state"):
        name, when = read(argument)
        if when == 0:
            return name
    return argument


def reaches(spec: Spec, roots: list[Expr]) -> dict[Key, Reach]:
    """How far each input, state and attended expression is read in ``roots``, in declared order."""
    found: dict[Key, Reach] = {a.name: Reach() for a in spec.args if a.role == "input"}
    found |= {s.name: Reach() for s in spec.states}
    for node in nodes(roots):
        if node.op in ("input", "state"):
            name, when = read(node)
            if isinstance(when, int):
                found[name] |= Reach(max(-when, 0), max(when, 0))
        elif node.op == "attend":
            window = node.value
            reach = Reach(window - 1) if isinstance(window, int) else Reach(grows=True)
            for argument in node.args[1:3]:
                key = key_of(argument)
                found[key] = found.get(key, Reach()) | reach
    return found


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
    named = {a.name: a for a in spec.args} | {s.name: s for s in spec.states}
    attended = 0
    for key, reach in reaches(spec, expressions(spec)).items():
        if isinstance(key, Expr):
            attended += 1
            name, shape, per = f"attended{attended}", key.shape, level_of(spec, key)
        else:
            name, shape, per = named[key].ascii, named[key].shape, named[key].per
        owner = named.get(key) if isinstance(key, str) else None
        length = past_length(owner, reach)
        if length != 0:
            value = Value(f"{name}_past", "past", (length, *axes(shape)), per, starts(owner))
            found.append(Field(value, key))
    return tuple(found)


def starts(owner: Arg | State | None) -> bool:
    """Whether values before the first token are declared, rather than 0."""
    if not isinstance(owner, State):
        return False
    return owner.initial.op != "const" or owner.initial.value != 0


def past_length(owner: Arg | State | None, reach: Reach) -> int | None:
    """How many past values a field holds, beside the state itself; none of a backward state."""
    direction = owner.direction if isinstance(owner, State) else ""
    if direction == "backward":
        return 0
    return None if reach.grows else reach.back - (direction == "forward")


def level_of(spec: Spec, expr: Expr) -> str:
    """The finest level among what ``expr`` reads."""
    per = {a.name: a.per for a in spec.args} | {s.name: s.per for s in spec.states}
    found = {"layer"}
    for node in expr.walk():
        if node.op == "head":
            found.add("head")
        elif node.op in ("input", "state"):
            found.add(per[read(node)[0]])
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
