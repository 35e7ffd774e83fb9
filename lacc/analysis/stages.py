"""A spec in, its passes over time out: which states run together, in which direction, what is
attended to, and where each output is read.

A state that needs another one of the other direction, or another's last value (`S[T]`), runs in a
later pass. An `attend` is a pass of its own, between the one that gives its arguments and those
that need it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from lacc.ir.graph import Need
from lacc.spec.model import Expr, Spec

FORWARD, BACKWARD, ATTEND = range(3)
"""The kinds of passes of one level, in the order they run."""


@dataclass(frozen=True, slots=True)
class Stage:
    """One pass: ``direction`` "forward" or "backward", the states it carries and the outputs it
    gives; or ``attend``, an attention whose arguments the pass ``home`` gives."""

    direction: str
    states: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    attend: Expr | None = None
    home: int = 0


Source = Need | Expr
"""A state that is needed, and when, or an attention."""


def sources(spec: Spec, *exprs: Expr) -> tuple[Source, ...]:
    """The states and the attentions that ``exprs`` need, also by way of defaults."""
    found: dict[Source, None] = {}
    stack, seen = list(exprs), set[Expr]()
    while stack:
        node = stack.pop()
        if node in seen:
            continue
        seen.add(node)
        if node.op == "attend":
            found[node] = None
            continue
        stack += node.args
        if node.op == "state":
            found[Need(*node.reference)] = None
        elif node.op == "input" and (default := spec.arg(node.reference[0]).default):
            stack.append(default)
    return tuple(found)


def at_hand(spec: Spec, argument: Expr) -> bool:
    """Whether the values of ``argument`` at all tokens are there without a pass: an input's, or
    those of another attention."""
    if argument.op == "input":
        name, offset = argument.reference
        return offset == 0 and spec.arg(name).default is None
    return argument.op == "attend"


def stages(spec: Spec, order: Sequence[tuple[str, ...]]) -> tuple[Stage, ...]:
    """The passes in order; ``order`` lists the states, those that need one another together, after
    those they need. At least one pass."""
    when = _Order(spec)
    for names in order:
        when.place(names)
    needed = {out.name: sources(spec, out.expr) for out in spec.outputs}
    for found in needed.values():
        when.ready(found)
    for arg in spec.args:
        if arg.default is not None:
            when.ready(sources(spec, arg.default))
    attended = [what for what in when.keys if isinstance(what, Expr)]
    keys = set(when.keys.values())
    for node in attended:
        level, *_ = when.keys[node]
        carrying = {(level, FORWARD, 0), (level, BACKWARD, 0)} & keys
        if not carrying and not all(at_hand(spec, arg) for arg in node.args):
            keys.add((level, FORWARD, 0))
    passes = sorted(keys)
    at = {what: passes.index(key) for what, key in when.keys.items()}
    last = {
        name: max((at[_made(need)] + _after(need) for need in found), default=0)
        for name, found in needed.items()
    }
    for name, n in last.items():
        while n < len(passes) and passes[n][1] == ATTEND:
            n += 1
        last[name] = n
    passes += [(0, FORWARD, 0)] * (1 + max([*last.values(), *at.values()]) - len(passes))
    home = 0
    found_stages = []
    for n, (_, kind, _) in enumerate(passes):
        home = home if kind == ATTEND else n
        found_stages.append(
            Stage(
                "backward" if kind == BACKWARD else "forward",
                tuple(name for names in order for name in names if at[name] == n),
                tuple(name for name, where in last.items() if where == n),
                next((node for node in attended if at[node] == n), None),
                home,
            )
        )
    return tuple(found_stages)


def _made(need: Source) -> str | Expr:
    """What is needed, whenever."""
    return need.state if isinstance(need, Need) else need


def _after(need: Source) -> bool:
    """Whether what is needed is there only after the pass that makes it."""
    return isinstance(need, Expr) or need.when == "T"


class _Order:
    """``keys`` sort the passes of states and attentions: how many passes in a row must have run
    before, the kind, and which of several attentions."""

    def __init__(self, spec: Spec) -> None:
        self.spec = spec
        self.keys: dict[str | Expr, tuple[int, int, int]] = {}
        self.direction = {s.name: s.direction for s in spec.states}

    def place(self, names: tuple[str, ...]) -> None:
        """Places the states of one recurrence in one pass, after all that they need."""
        direction = self.direction[names[0]]
        updates = (self.spec.state(name).update for name in names)
        level = self.ready(sources(self.spec, *updates), direction)
        kind = BACKWARD if direction == "backward" else FORWARD
        self.keys |= dict.fromkeys(names, (level, kind, 0))

    def ready(self, needed: Iterable[Source], direction: str = "") -> int:
        """The level at which all of ``needed`` is there, for a pass of that direction."""
        return max((self._ready(need, direction) for need in needed), default=0)

    def _ready(self, need: Source, direction: str) -> int:
        if isinstance(need, Expr) and need not in self.keys:
            level = self.ready(sources(self.spec, *need.args))
            self.keys[need] = (level, ATTEND, len(self.keys))
        if _made(need) not in self.keys:
            return 0
        turned = isinstance(need, Need) and direction not in ("", self.direction[need.state])
        return self.keys[_made(need)][0] + (_after(need) or turned)
