"""What is compiled and its modes in, what was found in the spec out, in the words of papers: plain
data, and its text.

    sections = report(plain(spec), modes(plain(spec)))
    print(text(sections))

Everything is said of the structure that was found, never of a variant that it looks like. States
are those that were written; how a `(stabilized)` one is kept is a row of its own.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from textwrap import wrap

from lacc.analysis import rotations
from lacc.analysis.affine import Affine, NotAffine
from lacc.analysis.algebra import times
from lacc.analysis.decay import Decay, decays_of, learned, varies
from lacc.analysis.interval import number
from lacc.analysis.modes import Modes
from lacc.analysis.plain import Plain
from lacc.analysis.ranges import Ranges
from lacc.analysis.stability import Stability, stability
from lacc.analysis.transition import Coupling, LowRank, Obstacle, Recurrence
from lacc.analysis.tropical import written
from lacc.analysis.words import Words
from lacc.ir.build import Builder
from lacc.ir.graph import Need, needs
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
_INTERVAL = re.compile(r"([\[(][-\d.inf]+,) ")
_WIDTH, _LABEL = 100, 16
_MODES = ("recurrent", "step", "chunk", "parallel")


@dataclass(frozen=True, slots=True)
class Section:
    """A part of the report: rows of a label and what is said."""

    title: str
    rows: tuple[tuple[str, str], ...]


def report(plain: Plain, modes: Modes) -> tuple[Section, ...]:
    """What was found."""
    teller, spec, recurrences = _Teller(plain, modes), plain.unscaled, plain.written
    sections = [Section("spec", tuple(teller.spec_rows()))]
    features = tuple(teller.features())
    sections += [Section("feature map", features)] if features else []
    for recurrence in recurrences:
        own = [name for name in recurrence.states if not is_memory(name)]
        if not own:
            continue
        noun = "state" if len(own) == 1 else "states"
        names = ", ".join(f"{name} {teller.shape(spec.state(name).shape)}" for name in own)
        sections.append(Section(f"{noun} {names}", tuple(teller.recurrence(recurrence))))
    sections += [Section("normalizer", tuple(teller.normalizers(recurrences)))]
    sections += [Section("readout", tuple(teller.readouts()))]
    sections += [Section("modes", tuple(teller.mode_rows()))]
    return tuple(section for section in sections if section.rows)


def text(sections: Sequence[Section]) -> str:
    """The report as text: rows under the title of their section, long ones wrapped."""
    labels = [label for section in sections for label, _ in section.rows]
    width = max((len(label) for label in labels if len(label) <= _LABEL), default=0)
    lines = []
    for section in sections:
        lines.append(section.title)
        for label, said in section.rows:
            lines += wrap(
                _INTERVAL.sub("\\1\N{NO-BREAK SPACE}", said),
                _WIDTH,
                initial_indent=f"  {label:<{width}}  ",
                subsequent_indent=" " * (width + 4),
                break_long_words=False,
                break_on_hyphens=False,
            )
    return "\n".join(lines).replace("\N{NO-BREAK SPACE}", " ")


class _Teller(Words):
    """Rows of each section."""

    def __init__(self, plain: Plain, modes: Modes) -> None:
        super().__init__(plain.unscaled, Ranges(plain.unscaled))
        self.plain, self.modes = plain, modes
        self.refused = {name: why for states, why in modes.refused for name in states}

    def spec_rows(self) -> Iterator[tuple[str, str]]:
        """Name, first line of its documentation, sizes."""
        yield "variant", self.spec.name
        if self.spec.doc:
            yield "source", " ".join(self.spec.doc.split("\n\n")[0].split())
        sizes = [f"{dim.name} = {dim.default}" for dim in self.spec.dims.values()]
        if sizes:
            yield "sizes", ", ".join(sizes)

    # ---- feature maps ---------------------------------------------------------------------------

    def features(self) -> Iterator[tuple[str, str]]:
        """One row for each application: what it is, its size, its sign."""
        for definition in self.spec.definitions:
            if definition.role != "feature":
                continue
            interval = self.ranges.of(definition.expr)
            said = f"{self.formula(definition.expr)}: {self.shape(definition.expr.shape)}"
            if interval.positive:
                said += ", positive"
            elif interval.lo >= 0:
                said += ", not negative"
            else:
                said += ", of either sign"
            yield definition.name, said

    # ---- recurrences ----------------------------------------------------------------------------

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
            parts.append(f"kept as its log {self.say(decay.expr)}, {logs.words}")
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

    # ---- normalizers and readouts ---------------------------------------------------------------

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

    def mode_rows(self) -> Iterator[tuple[str, str]]:
        """Which modes exist, and the term that prevents each of the others."""
        longest = self.modes.longest
        for mode in _MODES:
            obstacle = self.modes.by_name[mode]
            if obstacle is None:
                bounded = mode == "chunk" and longest is not None
                yield mode, f"yes, of up to {longest} tokens" if bounded else "yes"
                continue
            line, _ = obstacle.expr.span.source.position(obstacle.expr.span.start)
            term = self.say(obstacle.expr)
            where = "" if term in obstacle.reason else f": {term}"
            yield mode, f"no: {obstacle.reason}{where} (line {line})"
