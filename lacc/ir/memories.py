"""A spec in, the same spec out with memories of one token only, and which of them make a field.

    plain, chains, attended = one_token_memories(spec)

A value (a state that reads no token of itself) stands for its right side wherever it is read at its
own token. What is read further back is a chain of states, each of which holds what the one before
it held a token ago:

    u[t-3]  is  u@3[t-1]        u@3[t] = u@2[t-1],  u@2[t] = u[t-1],  u[t] as written

So is an optional input that is read with a delay, of which `d@1[t] = d` is the first; one that must
be given has its delays from the arrays. The last value S[T] of a backward state is that of a copy
of it, `S@1[t] = S[t]`, that runs forward. No name of a spec has an @.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from lacc.ir.graph import expressions, nodes
from lacc.ir.reach import Past, key_of, pasts
from lacc.spec.model import Arg, Definition, Expr, Interner, Spec, State
from lacc.spec.names import memory

Chains = dict[str, tuple[str, ...]]
"""The memories, the oldest first, that make the field NAME_past; all by ASCII names."""


AttendPasts = dict[Expr, tuple[Past, Past]]
"""What is kept of the keys and of the values of each `attend`."""


def one_token_memories(spec: Spec) -> tuple[Spec, Chains, AttendPasts]:
    """``spec`` in the terms of states that are read at t, t-1, t+1 or T, the fields of what is none
    of its own, and what its attentions keep."""
    kept = pasts(spec)
    attended = {
        node: (kept[key_of(node.args[1])], kept[key_of(node.args[2])])
        for node in nodes(expressions(spec))
        if node.op == "attend"
    }
    rewriting = _Rewriting(spec)
    if not rewriting.values and not rewriting.reach:
        return spec, {}, attended
    plain = rewriting.spec()
    return plain, rewriting.chains(), {rewriting(n): both for n, both in attended.items()}


class _Rewriting:
    """The rewriting of one spec. ``reach``: how many memories each name needs, 1 for its last
    value; ``back``: how far it is read back."""

    def __init__(self, spec: Spec) -> None:
        self._spec = spec
        self.values = {s.name: s for s in spec.states if s.direction == "value"}
        self._owners: dict[str, Arg | State] = {
            **{a.name: a for a in spec.args if a.role == "input" and a.default is not None},
            **{s.name: s for s in spec.states if s.direction != "forward"},
        }
        self.back: dict[str, int] = {}
        self.reach: dict[str, int] = {}
        self._intern = Interner()
        for node in nodes([*expressions(spec), *(d.expr for d in spec.definitions)]):
            self._intern.keep(node)
            if node.op in ("state", "input"):
                self._count(*node.reference)
            elif node.op == "attend" and isinstance(node.value, int) and node.value > 1:
                for arg in node.args[1:3]:
                    self._count_start(arg)
        self._done: dict[Expr, Expr] = {}

    def _count(self, name: str, when: object) -> None:
        if name not in self._owners:
            return
        if isinstance(when, int) and when < 0:
            self.back[name] = max(self.back.get(name, 0), -when)
        if when == "T" or name in self.back:
            self.reach[name] = max(self.reach.get(name, 1), self.back.get(name, 1))

    def _count_start(self, arg: Expr) -> None:
        """A memory holds the declared start of a value, for the field of a window over it."""
        value = self.values.get(arg.reference[0]) if arg.op == "state" else None
        if value is not None and not (value.initial.op == "const" and value.initial.value == 0):
            self._count(value.name, -1)

    def spec(self) -> Spec:
        """The spec rewritten."""
        states: list[State] = []
        for arg in self._spec.args:
            if arg.name in self.reach:
                states += self._copies(arg, 1)
        for state in self._spec.states:
            update = self(state.update)
            if state.direction != "value":
                states.append(replace(state, update=update))
            elif state.name in self.reach:
                states.append(replace(state, update=update, direction="forward"))
            if state.name in self.reach:
                states += self._copies(state, 2 if state.direction == "value" else 1)
        values = (
            Definition("", f"{v.name}[t]", v.ascii, self(v.update), v.span, v.doc)
            for v in self.values.values()
        )
        definitions = (replace(d, expr=self(d.expr)) for d in self._spec.definitions)
        outputs = (replace(o, expr=self(o.expr)) for o in self._spec.outputs)
        return replace(
            self._spec,
            states=tuple(states),
            definitions=(*definitions, *values),
            outputs=tuple(outputs),
        )

    def chains(self) -> Chains:
        """The memories of each field, the oldest first."""
        return {
            f"{self._owners[name].ascii}_past": tuple(
                self._named(name, self._owners[name].ascii, age) for age in range(back, 0, -1)
            )
            for name, back in self.back.items()
        }

    def _named(self, name: str, spelling: str, age: int) -> str:
        """The memory of ``age`` tokens; the first of a value has its name."""
        return spelling if age == 1 and name in self.values else memory(spelling, age)

    def _copies(self, owner: Arg | State, first: int) -> Iterator[State]:
        """The memories of ``owner`` from the one of ``first`` tokens on."""
        zero = self._intern("const", (), 0, (), owner.span)
        for age in range(first, self.reach[owner.name] + 1):
            yield State(
                name=self._named(owner.name, owner.name, age),
                ascii=self._named(owner.name, owner.ascii, age),
                shape=owner.shape,
                per=owner.per,
                initial=owner.initial if isinstance(owner, State) else zero,
                update=self._memory(owner, age - 1) if age > 1 else self._now(owner),
                direction="forward",
                stabilized=False,
                span=owner.span,
            )

    def _now(self, owner: Arg | State) -> Expr:
        op = "state" if isinstance(owner, State) else "input"
        return self._intern(op, (), (owner.name, 0), owner.shape, owner.span)

    def _memory(self, owner: Arg | State, age: int, when: object = -1) -> Expr:
        name = self._named(owner.name, owner.name, age)
        return self._intern("state", (), (name, when), owner.shape, owner.span)

    def __call__(self, root: Expr) -> Expr:
        """``root`` over states with one token of memory."""
        for node in root.walk():
            if node not in self._done:
                self._done[node] = self._rewritten(node)
        return self._done[root]

    def _rewritten(self, node: Expr) -> Expr:
        if node.op in ("state", "input"):
            name, when = node.reference
            if when == 0 and name in self.values:
                return self(self.values[name].update)
            if when == "T" and name in self._owners:
                return self._memory(self._owners[name], 1, "T")
            if name in self.back and when < 0:
                return self._memory(self._owners[name], -when)
            return node
        args = tuple(self._done[arg] for arg in node.args)
        if args == node.args:
            return node
        return self._intern(node.op, args, node.value, node.shape, node.span)
