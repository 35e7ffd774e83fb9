"""A spec in, the same spec out with each `(stabilized)` state as a scaled value and its exponent.

    plain, exponents, attended = stabilized(spec, attended)

A state S of decays α, erases a (bᵀ S) and writes w is kept as S · e^-m, with the running maximum of
all exponents,

    m[t]  =  max(m[t-1] + log α, m[t-1] + log ab, log w, FLOOR)
    S[t]  =  exp(log α + (m[t-1] - m[t])) S[t-1]
             +  exp(log ab + (m[t-1] - m[t])) (a bᵀ e^-log ab) S[t-1]
             +  exp(log w - m[t]) (w e^-log w)

a max-plus recurrence of its own; log w and log ab are the exponents that the factors of a write and
of an erase have (`lacc.analysis.scaled`), log α for the decay that an erase may hold, as that of
α (I - β k kᵀ) S does. What reads S reads the two. m is a constant to the gradient, since nothing
depends on it. It is one number, or one for each row (column) of a state without erases where all
exponents of writes are on that axis; states of equal exponents share one.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from lacc.analysis.affine import NotAffine
from lacc.analysis.classify import affine_step
from lacc.analysis.decay import decay_of
from lacc.analysis.kept_terms import without
from lacc.analysis.ranges import Ranges
from lacc.analysis.scaled import Interning, Scaled, Scaling
from lacc.analysis.transition import Axes, Factor, LowRank, Recurrence
from lacc.ir.graph import components
from lacc.ir.memories import AttendPasts
from lacc.spec.model import Expr, Spec, State
from lacc.spec.names import exponent
from lacc.spec.shapes import ONE

FLOOR = -1e4
"""The exponent of a state that holds nothing: no weight that a float can have is below it."""
LEAST = 1e-30
"""The least |decay| whose log an exponent follows; a state's value follows every decay."""

Exponents = dict[str, tuple[str, Axes]]
"""The state that holds the exponent of each scaled one, and the axes of the latter that it has; by
ASCII names."""


def stabilized(spec: Spec, attended: AttendPasts) -> tuple[Spec, Exponents, AttendPasts]:
    """``spec`` with the `(stabilized)` states that are decays, erases and writes scaled, and its
    attentions; others stay as they are."""
    if not any(state.stabilized for state in spec.states):
        return spec, {}, attended
    rewriting = _Rewriting(spec)
    plain, exponents = rewriting.result()
    return plain, exponents, {rewriting.true(node): both for node, both in attended.items()}


@dataclass(frozen=True, slots=True)
class _Term:
    """A write: its factors without the exponents on them, the exponent of the whole on the axes of
    the state's, and where it goes."""

    factors: dict[Axes, Expr]
    exponent: Expr | None


@dataclass(frozen=True, slots=True)
class _Erase:
    """An erase without the exponents on its factors, and the exponent of the whole, which may be on
    the axis that it leaves; ``follows``: whether it grows no more than the decay."""

    term: LowRank
    exponent: Expr | None
    follows: bool


class _Rewriting:
    """The rewriting of one spec."""

    def __init__(self, spec: Spec) -> None:
        self.spec = spec
        self.build = Interning(spec.states[0].span)
        self.scaling = Scaling(self.build, self._leaf)
        self.ranges = Ranges(spec)
        self.found: dict[str, Recurrence] = {}
        for names in components(spec):
            state = spec.state(names[0])
            if state.stabilized and len(names) == 1 and (recurrence := _scalable(state)):
                self.found[state.name] = recurrence
        self.axes: dict[str, Axes] = {}
        self.owner: dict[str, str] = {}  # of a scaled state: whose exponent it has
        self._updates: dict[str, Expr] = {}  # of the owner's exponent
        for name in self.found:
            self.axes[name] = self._axes_of(name)
            self._share(name)

    def result(self) -> tuple[Spec, Exponents]:
        """The spec rewritten, and the exponents of its states."""
        states: list[State] = []
        for state in self.spec.states:
            if state.name not in self.found:
                states.append(replace(state, update=self.true(state.update)))
                continue
            states.append(replace(state, update=self._update(state), stabilized=False))
            if self.owner[state.name] == state.name:
                states.append(self._exponent(state))
        spec = replace(
            self.spec,
            states=tuple(states),
            definitions=tuple(replace(d, expr=self.true(d.expr)) for d in self.spec.definitions),
            outputs=tuple(replace(o, expr=self.true(o.expr)) for o in self.spec.outputs),
        )
        spelled = {s.name: s.ascii for s in self.spec.states}
        return spec, {
            spelled[name]: (exponent(spelled[owner]), self.axes[name])
            for name, owner in self.owner.items()
        }

    def true(self, expr: Expr) -> Expr:
        """``expr`` over scaled states."""
        return self.scaling.true(self.build.adopt(expr))

    # ---- exponents ------------------------------------------------------------------------------

    def _leaf(self, leaf: Expr) -> Scaled | None:
        name, when = leaf.reference
        if name not in self.found:
            return None
        m = self.scaling.constant(self._at(name, when))
        match self.axes[name]:
            case ():
                return Scaled(leaf, every=m)
            case (0,):
                return Scaled(leaf, rows=m)
        return Scaled(leaf, columns=m)

    def _at(self, name: str, when: object) -> Expr:
        """The exponent of a state."""
        owner = self.spec.state(self.owner.get(name, name))
        shape = tuple(owner.shape[axis] for axis in self.axes[owner.name])
        return self.build.node("state", (), shape, (exponent(owner.name), when))

    def _axes_of(self, name: str) -> Axes:
        """The axis that the exponents of all writes are on; none where they are on several, or an
        erase sums over one."""
        if self.found[name].erases:
            return ()
        on = {
            axis
            for write in self.found[name].writes
            for axis in self._exponents(write.factors)
            if axis is not None
        }
        return (on.pop(),) if len(on) == 1 else ()

    def _exponents(self, factors: Iterable[Factor]) -> dict[int | None, Expr]:
        """The exponents on each axis of a product, and (None) that of all entries."""
        total: dict[int | None, Expr] = {}
        for factor in factors:
            e = self._scaled(factor.expr)
            first = factor.axes[0] if factor.axes else 0
            for axis, part in ((None, e.every), (first, e.rows), (first + 1, e.columns)):
                if part is not None:
                    total[axis] = self.build.add(total[axis], part) if axis in total else part
        return total

    def _scaled(self, expr: Expr) -> Scaled:
        return self.scaling(self.build.adopt(expr))

    def _share(self, name: str) -> None:
        """Takes the exponent of an earlier state where both are equal."""
        state, self.owner[name] = self.spec.state(name), name
        mine = self._grown(name)
        for other, update in self._updates.items():
            before = self.spec.state(other)
            alike = (state.per, state.direction) == (before.per, before.direction)
            starts = all(s.initial.op == "const" and not s.initial.value for s in (state, before))
            sizes = {tuple(s.shape[a] for a in self.axes[s.name]) for s in (state, before)}
            if alike and starts and len(sizes) == 1 and self._grown(name, other) is update:
                self.owner[name] = other
                return
        self._updates[name] = mine

    def _grown(self, name: str, owner: str = "") -> Expr:
        """The update of the exponent of a state, as that of ``owner``."""
        build, state = self.build, self.spec.state(name)
        self.owner[name] = owner or name
        m = self._at(name, 1 if state.direction == "backward" else -1)
        absorbed, before = self._absorbed(name), m
        if absorbed is not None:
            m = build.add(m, absorbed)
        erased = [e.exponent for e in self._erases(name) if not e.follows]
        met = [before if e is None else build.add(before, self._top(e)) for e in erased]
        met += [term.exponent or build.number(0) for term in self._terms(name)]
        for part in (*(part for part in dict.fromkeys(met) if part is not m), build.number(FLOOR)):
            m = build.node("max", (m, part), m.shape or part.shape)
        self.owner[name] = name
        return m

    def _exponent(self, state: State) -> State:
        """The state that holds the exponent of ``state``."""
        zero = state.initial.op == "const" and state.initial.value == 0
        return replace(
            state,
            name=exponent(state.name),
            ascii=exponent(state.ascii),
            shape=tuple(state.shape[axis] for axis in self.axes[state.name]),
            initial=self.build.number(FLOOR if zero else 0),
            update=self._updates[state.name],
            stabilized=False,
            doc="",
        )

    # ---- updates --------------------------------------------------------------------------------

    def _taken(self, name: str) -> tuple[Factor, Expr | None] | None:
        """The decay that the exponent follows, and its log where one is known."""
        own = self.axes[name]
        followed = [f for f in self.found[name].decays if not own or f.axes in (own, ())]
        followed.sort(key=lambda factor: factor.axes != own)
        for factor in followed:
            decay = decay_of(factor, self.ranges)
            if decay.space == "log":
                return factor, self.true(decay.expr)
        return next(((f, None) for f in followed if f.axes in (own, ())), None)

    def _absorbed(self, name: str) -> Expr | None:
        """What is added to the exponent at each token; None for 0."""
        taken = self._taken(name)
        if taken is None:
            return None
        factor, log = taken
        build = self.build
        if log is None:
            size = build.node("abs", (self.true(factor.expr),), factor.expr.shape)
            size = build.node("max", (size, build.number(LEAST)), size.shape)
            log = build.node("log", (size,), size.shape)
        return log if self.axes[name] else self._top(log)

    def _top(self, exponent: Expr) -> Expr:
        """The largest entry."""
        return self.scaling.largest(exponent) if exponent.shape else exponent

    def _update(self, state: State) -> Expr:
        """The update of the scaled value."""
        name, build = state.name, self.build
        step = 1 if state.direction == "backward" else -1
        now, before = (self.scaling.constant(self._at(name, when)) for when in (0, step))
        moved = build.add(before, build.neg(now))
        own, taken = self.axes[name], self._taken(name)
        factors: dict[Axes, Expr] = {}
        for factor in self.found[name].decays:
            if taken is not None and factor is taken[0] and taken[1] is not None:
                log, moved_ = build.add(taken[1], moved), factor.axes or own
                self._multiply(factors, moved_, build.node("exp", (log,), log.shape))
            else:
                self._multiply(factors, factor.axes, self.true(factor.expr))
        if taken is None or taken[1] is None:
            self._multiply(factors, own, build.node("exp", (moved,), moved.shape))
        kept = build.node("state", (), state.shape, (name, step))
        total = self._decayed(kept, factors)
        for erase in self._erases(name):
            total = build.add(total, self._erased(kept, erase, moved))
        for term in self._terms(name):
            less = (
                build.neg(now)
                if term.exponent is None
                else build.add(term.exponent, build.neg(now))
            )
            factors = dict(term.factors)
            self._multiply(factors, own, build.node("exp", (less,), less.shape))
            total = build.add(total, self._written(state, factors))
        return total

    def _multiply(self, factors: dict[Axes, Expr], axes: Axes, by: Expr) -> None:
        factors[axes] = self.build.mul(by, factors[axes]) if axes in factors else by

    def _erases(self, name: str) -> list[_Erase]:
        """The erases of a state."""
        found, absorbed, build = [], self._absorbed(name), self.build
        decay, log = self._taken(name) or (None, None)
        for erase in self.found[name].erases:
            b, along = erase.b, erase.along
            exponent: Expr | None = None
            across = decay is not None and along is decay.expr
            rest = None if across or decay is None else without(build, b, decay.expr)
            if log is not None and across:
                along, exponent = None, log
            elif log is not None and decay is not None and rest is not None:
                known = decay_of(decay, self.ranges).expr
                b = build.mul(build.node("exp", (known,), known.shape), rest)
            sides = [self.scaling.level(self._scaled(side)) for side in (erase.a, b)]
            for side in sides:
                exponent = self.scaling.plus(exponent, side.every)
            top = None if exponent is None else self._top(exponent)
            follows = (across or rest is not None) and top is (None if log is None else absorbed)
            along = None if along is None else self.true(along)
            term = LowRank(erase.axis, sides[0].value, sides[1].value, along)
            found.append(_Erase(term, exponent, follows))
        return found

    def _erased(self, kept: Expr, erase: _Erase, moved: Expr) -> Expr:
        """What an erase adds to the scaled value."""
        build, term, shape = self.build, erase.term, kept.shape
        row, column = build.transpose(term.b), build.transpose(term.a)
        if len(shape) < 2:
            value = build.mul(build.node("matmul", (row, kept), ()), term.a)
        elif term.axis == 0:
            read = build.node("matmul", (row, kept), (ONE, shape[1]))
            value = build.node("matmul", (term.a, read), shape)
        else:
            read = build.node("matmul", (kept, term.b), (shape[0],))
            value = build.node("matmul", (read, column), shape)
        log = moved if erase.exponent is None else build.add(erase.exponent, moved)
        by, other = build.node("exp", (log,), log.shape), (1 - term.axis,)
        factors: dict[Axes, Expr] = {} if term.along is None else {other: term.along}
        self._multiply(factors, other if by.shape else (), by)
        return self._decayed(value, factors)

    def _terms(self, name: str) -> list[_Term]:
        """The writes of a state."""
        build, own, found = self.build, self.axes[name], []
        for write in self.found[name].writes:
            factors: dict[Axes, Expr] = {}
            total: Expr | None = None
            for axis, part in self._exponents(write.factors).items():
                if axis is not None and axis not in own:
                    top = self.scaling.largest(part)
                    less = build.add(part, build.neg(top))
                    self._multiply(factors, (axis,), build.node("exp", (less,), less.shape))
                    part = top
                total = self.scaling.plus(total, part)
            for factor in write.factors:
                value = self._scaled(factor.expr).value
                if value.op != "const" or value.value != 1:
                    self._multiply(factors, factor.axes, value)
            found.append(_Term(factors, total))
        return found

    def _decayed(self, kept: Expr, factors: dict[Axes, Expr]) -> Expr:
        build, shape = self.build, kept.shape
        for axes, factor in factors.items():
            if len(shape) < 2 or axes in ((), (0, 1)):
                kept = build.mul(factor, kept)
            else:
                matrix = build.node("diag", (factor,), factor.shape * 2)
                sides = (matrix, kept) if axes == (0,) else (kept, matrix)
                kept = build.node("matmul", sides, shape)
        return kept

    def _written(self, state: State, factors: dict[Axes, Expr]) -> Expr:
        build, shape = self.build, state.shape
        ones = [build.node("const", (), (size,), 1) for size in shape]
        if len(shape) < 2:
            value = factors.get((0,), ones[0] if ones else build.number(1))
        else:
            rows, columns = factors.get((0,), ones[0]), factors.get((1,), ones[1])
            value = build.node("matmul", (rows, build.transpose(columns)), shape)
            if (0, 1) in factors:
                value = build.mul(factors[0, 1], value)
        return build.mul(factors[()], value) if () in factors else value


def _scalable(state: State) -> Recurrence | None:
    """The canonical form of a state that is decays, erases and writes."""
    try:
        found = affine_step(state)
    except NotAffine:
        return None
    if found.form == "written" or any(size == ONE for size in state.shape):
        return None
    return found
