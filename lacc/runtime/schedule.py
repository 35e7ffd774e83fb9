"""A typed spec in, the order of its evaluation out: what runs token by token, and what at once.

States that need themselves or each other at other tokens form a `Loop`; everything else has its
values for all tokens at once, before or after the loops that it needs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from lacc.ir.apply import Apply
from lacc.ir.graph import components, expressions, nodes
from lacc.ir.reach import Key, key_of, reaches
from lacc.runtime.products import Products
from lacc.runtime.state_fields import Field, fields
from lacc.spec.model import Expr, Spec


@dataclass(frozen=True, slots=True)
class Step:
    """One thing to do at a token; every step but "store" appends its value to the values so far.

    ======= ===================================================================== ============
    kind    what it does                                                          ins
    ======= ===================================================================== ============
    apply   an operation                                                          arguments
    read    the value of ``keys[0]``, ``offset`` tokens away                      ()
    attend  attention to ``keys[0]`` with values ``keys[1]``, over ``offset``     query (, sink)
    store   keeps a value as that of ``keys[0]`` at this token                    the value
    ======= ===================================================================== ============
    """

    kind: str
    ins: tuple[int, ...] = ()
    apply: Apply | None = None
    keys: tuple[Key, ...] = ()
    offset: Any = None


@dataclass(slots=True)
class Loop:
    """States that run token by token together, up or down in time. ``outside`` are the nodes whose
    values are there before (the first slots), ``stored`` what the steps fill in."""

    ascending: bool
    outside: list[Expr] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    stored: list[Key] = field(default_factory=list)


class Schedule:
    """The evaluation of ``spec`` under ``dims``: economical expressions by name, and ``groups`` of
    states in order, each a `Loop` or the name of a state that needs none."""

    def __init__(self, spec: Spec, dims: Mapping[str, int]) -> None:
        economical = Products(dims)
        self.spec, self.dims = spec, dims
        self.updates = {s.name: economical(s.update) for s in spec.states}
        self.initials = {s.name: economical(s.initial) for s in spec.states}
        self.outputs = {o.name: economical(o.expr) for o in spec.outputs}
        self.defaults = {a.name: economical(a.default) for a in spec.args if a.default is not None}
        self.promises = [
            (a.ascii, p, economical(p.left), economical(p.right))
            for a in spec.args
            for p in a.promises
        ]
        self.fields = [
            Field(f.value, economical(f.key) if isinstance(f.key, Expr) else f.key)
            for f in fields(spec)
        ]
        self.reach = {
            economical(key) if isinstance(key, Expr) else key: reach
            for key, reach in reaches(spec, expressions(spec)).items()
        }
        self._applies: dict[Expr, Apply] = {}
        self.groups = [group for members in components(spec) for group in self._plan(members)]

    def apply(self, node: Expr) -> Apply:
        """The operation of ``node``."""
        if node not in self._applies:
            self._applies[node] = Apply(node, self.dims)
        return self._applies[node]

    def _plan(self, members: tuple[str, ...]) -> list[Loop | str]:
        """One loop over ``members``, or a state by itself that does not need itself."""
        shifts = [
            node.reference[1]
            for node in nodes([self.updates[name] for name in members])
            if node.op == "state" and node.reference[0] in members
        ]
        if not shifts:
            return list(members)
        loop = Loop(ascending=not any(isinstance(shift, int) and shift > 0 for shift in shifts))
        _Steps(self, loop, members).build()
        return [loop]


class _Steps:
    """Writes the steps of a loop over ``members``."""

    def __init__(self, schedule: Schedule, loop: Loop, members: tuple[str, ...]) -> None:
        self.schedule, self.loop = schedule, loop
        self.updates = {name: schedule.updates[name] for name in members}
        self.inside: set[Expr] = set()
        for node in nodes(list(self.updates.values())):
            if self._member(node) or any(arg in self.inside for arg in node.args):
                self.inside.add(node)
        self.slots: dict[Expr, int] = {}

    def _member(self, node: Expr) -> str | None:
        """The member that a node reads."""
        name = node.reference[0] if node.op == "state" else None
        return name if name in self.updates else None

    def build(self) -> None:
        order = self._order()
        outside = {arg: None for node in order for arg in node.args if arg not in self.inside}
        self.loop.outside = list(outside)
        self.slots = {node: i for i, node in enumerate(outside)}
        kept: dict[Expr, list[Key]] = {}
        for name, update in self.updates.items():
            kept.setdefault(update, []).append(name)
        for node in order:
            for argument in node.args[1:3] if node.op == "attend" else ():
                key = key_of(argument)
                if argument in self.inside and isinstance(key, Expr):
                    kept[argument] = [*dict.fromkeys([*kept.get(argument, []), key])]
        self.loop.stored = [key for keys in kept.values() for key in keys]
        for node in order:
            self._step(node)
            for key in kept.get(node, ()):
                self.loop.steps.append(Step("store", (self.slots[node],), keys=(key,)))

    def _order(self) -> list[Expr]:
        """The nodes inside, each after what it needs at the same token."""
        order: dict[Expr, None] = {}
        stack = [(update, False) for update in self.updates.values()]
        while stack:
            node, ready = stack.pop()
            if ready:
                order[node] = None
            elif node in self.inside and node not in order:
                stack.append((node, True))
                name = self._member(node)
                if name and node.reference[1] == 0:
                    stack.append((self.updates[name], False))
                stack.extend((arg, False) for arg in node.args)
        return list(order)

    def _step(self, node: Expr) -> None:
        name = self._member(node)
        if name and node.reference[1] == 0:
            self.slots[node] = self.slots[self.updates[name]]
            return
        if name:
            step = Step("read", keys=(name,), offset=node.reference[1])
        elif node.op == "attend":
            q, k, v, *sink = node.args
            ins = tuple(self.slots[arg] for arg in (q, *sink))
            step = Step("attend", ins, None, (key_of(k), key_of(v)), node.value)
        else:
            ins = tuple(self.slots[arg] for arg in node.args)
            step = Step("apply", ins, self.schedule.apply(node))
        steps = [s for s in self.loop.steps if s.kind != "store"]
        self.slots[node] = len(self.loop.outside) + len(steps)
        self.loop.steps.append(step)
