"""A recurrence in, what is said of it out: its transition, gates, erases, writes, start, direction
and stability, each with its label.
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction

from lacc.analysis import rotations
from lacc.analysis.algebra import times
from lacc.analysis.decay import Decay, decays_of, learned, varies
from lacc.analysis.modes import Modes
from lacc.analysis.plain import Plain
from lacc.analysis.ranges import Ranges
from lacc.analysis.stability import Stability, stability
from lacc.analysis.transition import Coupling, LowRank, Obstacle, Recurrence
from lacc.analysis.tropical import written
from lacc.analysis.words import Words
from lacc.ir.build import Builder
from lacc.spec.model import Expr, State
from lacc.spec.names import as_read, is_memory

_CLASSES = {
    "none": "none: a value of each token, kept for later ones",
    "identity": "the identity: the state only accumulates",
    "scalar": "a scalar decay",
    "diagonal (rows)": "a diagonal decay on the side of {rows}",
    "diagonal (columns)": "a diagonal decay on the side of {columns}",
    "diagonal (both sides)": "a diagonal decay on both sides, {rows} and {columns}",
    "elementwise": "a decay of its own for every entry",
    "dense": "dense: entries of the state are mixed",
    "coupled": "two or more states that need one another",
}
_KINDS = {
    "maxplus": "a running maximum (max-plus)",
    "minplus": "a running minimum (min-plus)",
    "logsumexp": "a running log-sum-exp",
    "nonlinear": "nonlinear in the state",
}
_COUNTS = {2: "two", 3: "three", 4: "four"}
_ARGUMENTS = ("input", "param", "buffer")


class States(Words):
    """Rows of the sections on states."""

    def __init__(self, plain: Plain, modes: Modes, ranges: Ranges) -> None:
        super().__init__(plain.unscaled, ranges)
        self.plain = plain
        self.refused = {name: why for states, why in modes.refused for name in states}

    def recurrence(self, recurrence: Recurrence) -> Iterator[tuple[str, str]]:
        """Transition, gates, erases, writes, start, direction, stability."""
        states = [self.spec.state(name) for name in recurrence.states if not is_memory(name)]
        yield "transition", self.transition(recurrence, states[0])
        kept = recurrence.form != "written"
        for decay in decays_of(recurrence, self.ranges) if kept else ():
            yield "gate", self.gate(decay, states[0])
        for erase in recurrence.erases:
            yield "erase", self.erase(erase, recurrence)
        for write in recurrence.writes if kept else ():
            yield "write", self.write(write)
        for state in states:
            yield from self.exponent(state)
        if recurrence.form not in ("canonical", "tropical"):
            for state in states:
                yield "update", f"{state.name}[t] = {self.formula(state.update)}"
        for state in states:
            if state.initial.value != 0:
                yield "start", f"{state.name} starts at {self.say(state.initial)}"
        if recurrence.direction == "backward":
            yield "direction", "backward: from the last token to the first"
        if (refused := self.refused.get(states[0].name)) is not None:
            yield "no chunks", self.obstacle(refused)
        if kept:
            yield "stability", self.stable(stability(self.spec, recurrence, self.ranges))

    def obstacle(self, obstacle: Obstacle) -> str:
        """The terms that keep a recurrence from chunks, and what would have them."""
        terms = "; ".join(term.span.words for term in (obstacle.expr, *obstacle.more))
        said = f"{obstacle.reason}: {terms}"
        return f"{said}; {obstacle.cure}" if obstacle.cure else said

    def exponent(self, state: State) -> Iterator[tuple[str, str]]:
        """How a `(stabilized)` state is scaled."""
        owner, _ = self.plain.exponents.get(state.ascii, ("", ()))
        held = next((s for s in self.plain.spec.states if s.ascii == owner), None)
        if held is None:
            return
        name, _ = as_read(held.name, 0)
        said = f"kept as {state.name} * exp(-{name}), {name}[t] = {self.say(held.update)}"
        count = f", one for each entry of {self.shape(held.shape)}" if held.shape else ""
        yield "exponent", said + count

    def transition(self, recurrence: Recurrence, state: State) -> str:
        """The class, in words."""
        if recurrence.tropical is not None:
            form = self.say(written(recurrence.tropical, state))
            return f"{_KINDS[recurrence.kind]}, {state.name}[t] = {form}"
        if recurrence.kind in _KINDS:
            return _KINDS[recurrence.kind]
        if recurrence.coupling is not None:
            return self.coupling(recurrence.coupling, state)
        sides = {name: self.size(s) for name, s in zip(("rows", "columns"), state.shape)}
        if not recurrence.erases:
            return _CLASSES[recurrence.transition].format(**sides)
        side = self.size(state.shape[recurrence.erases[0].axis])
        axes = {axis for factor in recurrence.decays for axis in factor.axes}
        decay = "the identity"
        if recurrence.decays:
            decay = "a diagonal decay" if axes else "a scalar decay"
        return f"{decay} and an erase of rank {recurrence.rank} on the side of {side}"

    def coupling(self, coupling: Coupling, state: State) -> str:
        """How many states, what their step is, and what is read from them."""
        count = len(coupling.kept)
        step = "a matrix"
        if rotations.rotation(coupling, self.ranges) is not None:
            step = "a rotation times a decay"
        elif coupling.triangular:
            step = "a triangular matrix"
        kept = [f.axes for row in coupling.kept for factors in row for f in factors or ()]
        side = "one for all entries"
        if len({axis for axes in kept for axis in axes}) > 1:
            side = "one for each entry"
        elif not coupling.scalar:
            side = f"one for each channel of {self.size(state.shape[max(kept)[0]])}"
        said = f"{_COUNTS.get(count, str(count))} states that need one another: {step}, {side}"
        if coupling.reads:
            axis = self.size(state.shape[coupling.axis])
            said += f", and an erase of rank {len(coupling.reads)} on the side of {axis}"
        return said

    def gate(self, decay: Decay, state: State) -> str:
        """One decay: its name and formula, how many there are, what it depends on, range, space."""
        formula = self.formula(decay.factor)
        name = self.names.get(decay.factor)
        parts = [f"{name} = {formula}" if name and name != formula else formula]
        parts.append(self.per(decay, state))
        parts.append(self.source(decay.factor))
        interval = self.ranges.of(decay.factor)
        parts.append(interval.words)
        if decay.space == "log":
            logs = self.ranges.of(decay.expr)
            known = "" if logs.lo == logs.hi else f"{self.say(decay.expr)}, "
            parts.append(f"kept as its log {known}{logs.words}")
        else:
            parts.append("kept as it is, in linear space")
        if not decay.bounded:
            parts.append("not bounded by 1")
        return f"{parts[0]}: {', '.join(parts[1:])}"

    def per(self, decay: Decay, state: State) -> str:
        """How many values a decay has, and for what each."""
        count = "a scalar"
        if len(decay.axes) == 2:
            count = "one per entry"
        elif decay.axes:
            count = f"one per channel of {self.size(state.shape[decay.axes[0]])}"
        nodes = list(decay.factor.walk())
        read = {n.value[0] if n.op == "input" else n.value for n in nodes if n.op in _ARGUMENTS}
        levels = {arg.per for arg in self.spec.args if arg.name in read}
        levels |= {state.per for n in nodes if n.op == "state"}
        if "head" in levels or any(n.op in ("head", "H") for n in nodes):
            return f"{count} and head" if decay.axes else f"{count} per head"
        if "group" in levels:
            return f"{count} and group" if decay.axes else f"{count} per group"
        return count

    def source(self, expr: Expr) -> str:
        """What a factor depends on."""
        nodes = list(expr.walk())
        if any(node.op == "input" for node in nodes):
            return "data dependent"
        if any(node.op == "state" for node in nodes):
            return "driven by another state"
        if varies(expr, self.spec):
            return "of the position"
        return "learned, the same at every token" if learned(expr) else "fixed"

    def erase(self, erase: LowRank, recurrence: Recurrence) -> str:
        """What is read from the state and where it is taken out, against the write."""
        algebra = self.ranges.algebra
        a, b = algebra.monomial(erase.a), algebra.monomial(erase.b)
        ratio = times(b[0], a[0], Fraction(-1))
        symmetric = not any(algebra.is_vector(atom) for atom, _ in ratio)
        state = recurrence.states[0]
        column = self.say(erase.a)
        build = Builder(erase.b.span)
        row, sign = (erase.b.args[0], "-") if erase.b.op == "neg" else (erase.b, "")
        along = self.say(build.transpose(row))
        said = f"{sign}{column} @ ({along} @ {state})"
        if erase.axis == 1:
            said = f"{sign}({state} @ {self.factor(row)}) @ {self.say(build.transpose(erase.a))}"
        said += f": reads the state along {self.say(row)}"
        said = said if symmetric else f"{said}, changes it along {column}"
        keys = [write.on((erase.axis,)) for write in recurrence.writes]
        if recurrence.partner(erase) is not None:
            return f"{said}; what {column} holds is taken out before the write (delta rule)"
        if any(key is not None and self.same(key, erase.a) for key in keys):
            return f"{said}; on the same column as a write"
        return said

    def stable(self, verdict: Stability) -> str:
        """The verdict and why."""
        return f"{verdict.verdict}: {verdict.why}" + (f"; {verdict.help}" if verdict.help else "")
