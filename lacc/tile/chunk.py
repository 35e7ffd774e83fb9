"""Recurrences in canonical form in, the tile program of one chunk out: all states and outputs of
one pass over time.

Notation: S0 the state a chunk starts from, S1 the one it leaves; q reads by contracting axis c of
the state, f is the other axis; writes x yᵀ with x on c; P[t, s] the decay from s to t. With a decay
on each axis

    o  =  (q · prefix_c) S0 · prefix_f  +  (Gram_c(q, x) ⊙ P) y          Gram and P over s <= t, or
    s < t before the update
    S1 =  whole · S0  +  Σ_t (x · suffix_c) (y · suffix_f)ᵀ

A low-rank term a (bᵀ S) makes the written values the solution of a unit lower triangular system
(`_solved`). A state that is read entry by entry, not by contraction, is scanned along time instead
(`_scanned`), of what its system gives where it has an erase.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from lacc.analysis.decay import Decay
from lacc.analysis.stages import Stage, through_values
from lacc.analysis.transition import LowRank, Recurrence, Write
from lacc.spec.model import Expr, Spec
from lacc.tile.lower import Naming
from lacc.tile.program import Axes, Program, verify
from lacc.tile.reads import Read, Reader


@dataclass(frozen=True, slots=True)
class Form:
    """How the builder treats one recurrence: its canonical form, its decays, and whether it is read
    by contraction."""

    recurrence: Recurrence
    decays: tuple[Decay, ...]
    contracted: bool


class ChunkBuilder(Reader):
    """Builds stage ``number``. ``carrier`` finds the builder of the stage that carries a state."""

    def __init__(
        self,
        spec: Spec,
        number: int,
        stage: Stage,
        forms: Mapping[str, Form],
        naming: Naming,
        carrier: Callable[[str], ChunkBuilder],
    ) -> None:
        super().__init__(spec, naming, rows=True)
        self.number = number
        self.stage = stage
        self.forms = forms
        self.carrier = carrier
        self._outs: dict[str, int] = {}
        self._writes: dict[str, list[dict[int, int]]] = {}
        self._scans: dict[str, int] = {}
        self._parts: dict[str, tuple[int, int]] = {}

    def fill(self) -> None:
        """Lowers the stage's outputs and what it carries on; may store reads in earlier stages."""
        for out in self.spec.outputs:
            if out.name in self.stage.outputs:
                value = self.f.arrange(self.lower(out.expr), ("t", *self.naming.axes(out.shape)))
                self._outs[out.ascii] = self.f.named(value, out.ascii)
        for name in self.stage.states:
            value = self.f.arrange(self._next(name), self.axes_of(name))
            self._outs[f"state:{self.spec.state(name).ascii}"] = value

    def program(self) -> Program:
        """Outputs by name, "state:S" for what is carried on, "stored:x" for what later stages
        read."""
        return verify(self.f.finish(self._outs))

    # ---- reading
    # ---------------------------------------------------------------------------------------------

    def contracts(self, leaf: Expr) -> bool:
        name, when = leaf.reference
        return name in self.forms and self.forms[name].contracted and when != "T"

    def contracted(self, leaf: Expr, axis: int, query: int) -> int:
        name, when = leaf.reference
        if name not in self.stage.states:
            return self.f.contract(query, self.shown(leaf), (self.axes_of(name)[axis],))
        return self.read_by(name, axis, query, strict=when != 0)

    def term(self, read: Read, axes: Axes) -> int:
        state = read.product.state
        name = state[0].value[0] if state else None
        if name is None or name in self.stage.states or self._waits(read, self.carrier(name)):
            return super().term(read, axes)
        return self._stored(name, lambda carrier: carrier.term(read, axes), axes)

    def _waits(self, read: Read, carrier: ChunkBuilder) -> bool:
        """Whether a readout's factors are known only after the stage that carries its state."""
        return any(
            self.carrier(need.state).number + (need.when == "T") > carrier.number
            for expr in read.product.factors.values()
            for need in through_values(self.spec, expr)
        )

    def shown(self, leaf: Expr) -> int:
        name, when = leaf.reference
        state, axes = self.spec.state(name), self.axes_of(name)
        if when == "T":
            return self.f.load("last", state.ascii, axes)
        if name not in self.stage.states:
            return self._stored(name, lambda carrier: carrier.shown(leaf), axes)
        if when == 0:
            return self._scanned(name)
        before = self.f.op("place_row", (self.f.load("state", state.ascii, axes),), False)
        return self.f.add(self.f.op("shift", (self._scanned(name),), False), before)

    def _stored(self, name: str, lower: Callable[[ChunkBuilder], int], axes: Axes) -> int:
        carrier = self.carrier(name)
        return self.f.load("stored", carrier.store(lower(carrier), axes), ("t", *axes))

    def store(self, value: int, axes: Axes) -> str:
        """Adds a per-token value to what the stage gives, for a later stage; its name."""
        value = self.f.arrange(value, ("t", *axes))
        prefix = f"stored:{self.number}."
        known = [n for n in self._outs if n.startswith(prefix)]
        name = next((n for n in known if self._outs[n] == value), f"{prefix}{len(known)}")
        self._outs[name] = value
        return name.removeprefix("stored:")

    def read_by(self, name: str, axis: int, query: int, strict: bool) -> int:
        """Σ over ``axis`` of query · S[t] (S[t-1] where ``strict``), for all tokens of the
        chunk."""
        f, own = self.f, self.axes_of(name)
        self.lower.tag(self.spec.state(name).update)
        query = f.expand(query, ("t",))
        value = self._from_start(name, axis, query, strict)
        for write in self.writes(name):
            pairs = self.pairs(name, axis, query, write[axis], strict)
            rest = [a for a in range(len(own)) if a != axis]
            runs = self.runs(name, rest[0], strict) if rest else None
            if runs is None:
                value = f.add(value, self._sum_over_s(pairs, write[rest[0]] if rest else None))
            else:
                value = f.add(value, f.op("decayed", (pairs, write[rest[0]], runs)))
        return value

    def _from_start(self, name: str, axis: int, query: int, strict: bool) -> int:
        f, state = self.f, self.spec.state(name)
        own = self.axes_of(name)
        start = f.load("state", state.ascii, own)
        for side in (axis, None):
            runs = self.runs(name, side, strict)
            if runs is not None:
                query = f.mul(query, f.op("prefix", (runs,)))
        value = f.contract(query, start, (own[axis],))
        for other in range(len(own)):
            runs = self.runs(name, other, strict) if other != axis else None
            if runs is not None:
                value = f.mul(value, f.op("prefix", (runs,)))
        return value

    def pairs(self, name: str, axis: int, x: int, y: int, strict: bool) -> int:
        """[t, s]: x[t] · y[s] over ``axis``, with the decay from s to t on that axis and the scalar
        one."""
        f, own = self.f, self.axes_of(name)
        channel, scalar = self.runs(name, axis, strict), self.runs(name, None, strict)
        if channel is not None:
            size = (own[axis],)
            value = f.op("gram", (f.expand(x, ("t", *size)), f.expand(y, ("t", *size)), channel))
        else:
            value = f.contract(x, f.rename(y, {"t": "s"}), (own[axis],))
        if scalar is not None:
            return f.mul(value, f.op("matrix", (scalar,)))
        return (
            value if channel is not None else f.op("mask", (f.expand(value, ("t", "s")),), strict)
        )

    def runs(self, name: str, axis: int | None, strict: bool) -> int | None:
        """The levels of the decay on one axis of a state (None: the scalar one); None where there
        is none."""
        wanted = () if axis is None else (axis,)
        own = self.axes_of(name)
        for decay in self.forms[name].decays:
            if decay.axes == wanted:
                axes = tuple(own[a] for a in wanted)
                value = self.f.expand(self.lower.on(decay.expr, axes), ("t", *axes))
                self.lower.tag(self.spec.state(name).update)
                return self.f.op("levels", (value,), (decay.space == "log", strict))
        return None

    # ---- writing
    # ---------------------------------------------------------------------------------------------

    def writes(self, name: str) -> list[dict[int, int]]:
        """What the chunk's tokens add to the state: for each term a tile per axis; scalars are on
        the first."""
        if name not in self._writes:
            self.lower.tag(self.spec.state(name).update)
            recurrence = self.forms[name].recurrence
            terms = [self._write(name, write) for write in recurrence.writes]
            for erase in recurrence.erases:
                terms = self._solved(name, erase, recurrence.merged, terms)
            self._writes[name] = terms
        return self._writes[name]

    def _write(self, name: str, write: Write, scalar_on: int = 0) -> dict[int, int]:
        own = self.axes_of(name)
        term: dict[int, int] = {}
        for axis, label in enumerate(own):
            expr = write.on((axis,))
            value = self.f.const(1.0) if expr is None else self.lower.on(expr, (label,))
            term[axis] = self.f.expand(value, ("t", label))
        scalar = write.on(())
        if scalar is not None:
            if self.forms[name].recurrence.merged:
                scalar_on = 1 - self.forms[name].recurrence.erases[0].axis
            term[scalar_on] = self.f.mul(term[scalar_on], self.lower(scalar))
        return term

    def _solved(
        self, name: str, erase: LowRank, merged: bool, terms: list[dict[int, int]]
    ) -> list[dict[int, int]]:
        """Writes with the erase in them.

        w_t = bᵀ S_{t-1} obeys (I - Gram(b, a)) W = b S0 + Gram(b, x) y, both strict; a wᵀ is one
        more write. Where a is the column of the only write, U = W + y obeys the same system with y
        + b S0 on the right, and a uᵀ is all that is written.
        """
        f, axis = self.f, erase.axis
        other = 1 - axis
        own = self.axes_of(name)
        label = (own[axis],)
        row = f.expand(self.lower.on(erase.b, label), ("t", *label))
        column = f.expand(self.lower.on(erase.a, label), ("t", *label))
        system = f.neg(self.pairs(name, axis, row, column, strict=True))
        right = self._from_start(name, axis, row, strict=True)
        if merged:
            (term,) = terms
            solved = f.op("solve", (system, f.add(term[other], right)), False)
            return [{axis: column, other: solved}]
        for term in terms:
            pairs = self.pairs(name, axis, row, term[axis], strict=True)
            right = f.add(right, self._sum_over_s(pairs, term.get(other)))
        solved = f.op("solve", (system, right), False)
        if len(own) == 1:
            return [*terms, {axis: f.mul(column, solved)}]
        return [*terms, {axis: column, other: solved}]

    def _sum_over_s(self, pairs: int, written: int | None) -> int:
        """Σ over s of pairs[t, s] · written[s]; None: a vector state's writes, that are all in the
        pairs."""
        if written is None:
            return self.f.sum(pairs, ("s",))
        return self.f.contract(pairs, self.f.rename(written, {"t": "s"}), ("s",))

    def _next(self, name: str) -> int:
        """S1."""
        f, state = self.f, self.spec.state(name)
        own = self.axes_of(name)
        self.lower.tag(state.update)
        if not self.forms[name].contracted:
            self._scanned(name)
            local, prefix = self._parts[name]
            start = f.load("state", state.ascii, own)
            return f.add(f.op("row", (local,), True), f.mul(f.op("row", (prefix,), True), start))
        value = f.load("state", state.ascii, own)
        sides = [
            side for side in (None, *range(len(own))) if self.runs(name, side, False) is not None
        ]
        kept = {side: self._runs_any(name, side) for side in sides}
        for side in sides:
            value = f.mul(f.op("whole", (kept[side],)), value)
        for write in self.writes(name):
            parts = dict(write)
            for side in sides:
                on = side or 0
                parts[on] = f.mul(parts[on], f.op("suffix", (kept[side],)))
            if len(own) == 1:
                value = f.add(value, f.sum(parts[0], ("t",)))
            else:
                value = f.add(value, f.contract(parts[0], parts[1], ("t",)))
        return value

    def _runs_any(self, name: str, side: int | None) -> int:
        """Levels for suffix and whole, which strict and inclusive ones share: the kind the reads
        use already."""
        strict = self.runs(name, side, True)
        used = any(strict in inst.ins for inst in self.f.body)
        runs = (
            strict
            if used and not self._used(self.runs(name, side, False))
            else self.runs(name, side, False)
        )
        assert runs is not None
        return runs

    def _used(self, value: int | None) -> bool:
        return any(value in inst.ins for inst in self.f.body)

    def _scanned(self, name: str) -> int:
        """S[t] for all tokens of the chunk, entry by entry."""
        if name not in self._scans:
            self._scans[name] = self._scan(name)
        return self._scans[name]

    def _scan(self, name: str) -> int:
        f, state, form = self.f, self.spec.state(name), self.forms[name]
        own = self.axes_of(name)
        full = ("t", *own)
        flat = (*own, f"({' '.join(own)})") if len(own) == 2 else None
        start = f.load("state", state.ascii, own)
        added = f.expand(f.const(0.0), full)
        for factors in self._terms(name):
            term = f.const(1.0)
            for factor in factors:
                term = f.mul(term, factor)
            added = f.add(added, f.expand(term, full))
        factor_, prefix = f.expand(f.const(1.0), full), f.const(1.0)
        for n, decay in enumerate(form.decays):
            axes = tuple(own[a] for a in decay.axes)
            linear = self.lower.on(form.recurrence.decays[n].expr, axes)
            factor_ = f.mul(factor_, f.expand(linear, ("t", *axes)))
            value = f.expand(self.lower.on(decay.expr, axes), ("t", *axes))
            if len(axes) == 2 and flat:
                f.sizes[flat[2]] = f.sizes[own[0]] * f.sizes[own[1]]
                value = f.op("fold", (value,), flat)
            runs = f.op("prefix", (f.op("levels", (value,), (decay.space == "log", False)),))
            prefix = f.mul(prefix, f.op("unfold", (runs,), flat) if len(axes) == 2 else runs)
        local = f.op("scan", (f.expand(factor_, full), added))
        self._parts[name] = (local, f.expand(prefix, ("t",)))
        return f.named(f.add(local, f.mul(prefix, start)), state.ascii)

    def _terms(self, name: str) -> list[list[int]]:
        """The factors of each term that a token adds: with an erase those that solve its system."""
        own, recurrence = self.axes_of(name), self.forms[name].recurrence
        if recurrence.erases:
            return [list(write.values()) for write in self.writes(name)]
        return [
            [self.lower.on(f.expr, tuple(own[a] for a in f.axes)) for f in write.factors]
            for write in recurrence.writes
        ]
