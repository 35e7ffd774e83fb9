"""The outputs of a spec in, what is said of them out: what they divide by, and where they read
states.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from lacc.analysis.affine import Affine, NotAffine
from lacc.analysis.interval import number
from lacc.analysis.transition import Recurrence
from lacc.analysis.words import Words
from lacc.ir.build import Builder
from lacc.ir.graph import Need, needs
from lacc.spec.model import Expr
from lacc.spec.names import as_read


class Readouts(Words):
    """Rows of the sections on normalizers and readouts."""

    def normalizers(self, recurrences: Sequence[Recurrence]) -> Iterator[tuple[str, str]]:
        """Every divisor on the way to an output that holds a state."""
        found = {name: r for r in recurrences for name in r.states}
        divisors: dict[Expr, set[str]] = {}
        for output in self.spec.outputs:
            for node in output.expr.walk():
                if node.op == "div" and needs(node.args[1]):
                    divided = needs(node.args[0]) or needs(output.expr)
                    divisors.setdefault(node.args[1], set()).update(n.state for n in divided)
        for divisor, above in divisors.items():
            interval = self.ranges.of(divisor)
            floor = "may be 0"
            if interval.positive:
                floor = f"at least {number(interval.lo)}" if interval.lo > 0 else "positive"
            elif interval.lo < 0 < interval.hi:
                floor = "may change its sign"
            formula = self.formula(divisor)
            label = self.names.get(divisor, "divisor")
            yield label, f"{formula}, {floor}"
            below = {need.state for need in needs(divisor)}
            for name in sorted(below, key=list(found).index):
                for other in sorted(above - below, key=list(found).index):
                    if found[name].direction == found[other].direction:
                        yield name, self.relation(found[name], found[other])

    def relation(self, below: Recurrence, above: Recurrence) -> str:
        """How a normaliser's state goes with the state it normalises."""
        other = above.states[0]
        keys = [[w.on((0,)) for w in r.writes] for r in (below, above)]
        decays = [[f.expr for f in r.decays] for r in (below, above)]
        if any(r.kind != "affine" or r.form == "written" for r in (below, above)):
            return f"a state of its own beside {other}"
        decay = len(decays[0]) == len(decays[1]) and all(map(self.same, *decays))
        write = len(keys[0]) == len(keys[1]) and all(
            a is not None and b is not None and self.same(a, b) for a, b in zip(*keys)
        )
        if decay and write:
            return f"shares decay and keys with {other}: one more column of it, of ones"
        if decay:
            return f"shares the decay of {other}, with a write of its own"
        return f"has {'a' if below.decays else 'no'} decay of its own, unlike {other}"

    def readouts(self) -> Iterator[tuple[str, str]]:
        """Every output: its formula, where it reads, what else it adds."""
        order = [state.name for state in self.spec.states]
        for output in self.spec.outputs:
            read = {n for n in needs(output.expr) if as_read(n.state, n.when)[0] in order}
            parts = [self.say(output.expr)]
            when: dict[str, list[str]] = {}
            for need in sorted(read, key=lambda n: order.index(n.state)):
                when.setdefault(self.when(need), []).append(as_read(need.state, need.when)[0])
            parts += [f"reads {', '.join(states)} {time}" for time, states in when.items()]
            if not read:
                parts.append("reads no state")
            elif self.adds(output.expr):
                parts.append("plus a term of this token alone")
            yield output.name, "; ".join(parts)

    def when(self, need: Need) -> str:
        """When a state is read."""
        backward = self.spec.state(need.state).direction == "backward"
        _, time = as_read(need.state, need.when)
        if time == "T":
            return "at the last token (non-causal)"
        if time == 0:
            return "after the backward update (non-causal)" if backward else "after the update"
        assert isinstance(time, int)
        distance = time if backward else -time
        said = "before the update" if distance == 1 else f"of {distance} tokens ago"
        return f"{said} (backward, non-causal)" if backward else said

    def adds(self, expr: Expr) -> bool:
        """Whether a term without a state stands beside those with one, division left out."""
        while expr.op == "div":
            expr = expr.args[0]
        affine = Affine(Builder(expr.span), lambda leaf: True)
        try:
            terms = affine.terms(expr, affine.indices(expr))
        except NotAffine:
            return False
        return any(t.state is None for t in terms) and any(t.state for t in terms)
