"""A spec in, how far back each of its values is read out: delays, windows of attention, and the
fields of the state that hold them from call to call."""

from __future__ import annotations

from dataclasses import dataclass

from lacc.ir.graph import expressions, nodes
from lacc.spec.model import Arg, Expr, Spec, State

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
class Past:
    """The values before a call: the field ``name`` of the state holds ``length`` of them (None:
    all), the newest last. That of a forward state comes before the state itself, ``state``."""

    name: str
    length: int | None
    state: str | None = None


def key_of(argument: Expr) -> Key:
    """Where an argument of `attend` is kept: with the input or state that it is, or by itself."""
    if argument.op in ("input", "state"):
        name, when = argument.reference
        if when == 0:
            return name
    return argument


def reaches(spec: Spec, roots: list[Expr]) -> dict[Key, Reach]:
    """How far each input, state and attended expression is read in ``roots``, in declared order."""
    found: dict[Key, Reach] = {a.name: Reach() for a in spec.args if a.role == "input"}
    found |= {s.name: Reach() for s in spec.states}
    for node in nodes(roots):
        if node.op in ("input", "state"):
            name, when = node.reference
            if isinstance(when, int):
                found[name] |= Reach(max(-when, 0), max(when, 0))
        elif node.op == "attend":
            window = node.value
            reach = Reach(window - 1) if isinstance(window, int) else Reach(grows=True)
            for argument in node.args[1:3]:
                key = key_of(argument)
                found[key] = found.get(key, Reach()) | reach
    return found


def pasts(spec: Spec) -> dict[Key, Past]:
    """Past values of what is read with a delay or attended to, in the order of their fields; of
    length 0 where the state itself, or the token, is all that is needed."""
    named: dict[str, Arg | State] = {a.name: a for a in spec.args}
    named |= {s.name: s for s in spec.states}
    found: dict[Key, Past] = {}
    attended = 0
    for key, reach in reaches(spec, expressions(spec)).items():
        owner = named.get(key) if isinstance(key, str) else None
        attended += owner is None
        name = f"attended{attended}" if owner is None else owner.ascii
        direction = owner.direction if isinstance(owner, State) else ""
        forward = direction == "forward"
        length = None if reach.grows else reach.back - forward
        past = Past(f"{name}_past", 0 if direction == "backward" else length)
        found[key] = Past(past.name, past.length, name) if forward else past
    return found
