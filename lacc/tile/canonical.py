"""A recurrence in canonical form in, what its tokens write within a chunk out: decays over runs,
decayed products of pairs, and the solution of the system that low-rank terms make.

Notation: S0 the state a chunk starts from; P[t, s] the decay from s to t. A low-rank term
a (bᵀ S[t-1]) needs w_t = bᵀ S[t-1], which obeys

    (I - Gram(b, a)) W  =  b S0  +  Gram(b, x) y         Gram over s < t, decayed

so a wᵀ is one more write. Where a is the column of a write a yᵀ, U = W + y obeys the same system
with y in place of its share of Gram(b, x) y, and a uᵀ is all that the two write together. Terms of
rank r are r rows a token, solved as one system of r·C rows whose tokens are strictly ordered.

A decay on the axis that an erase does not contract is a gauge: S is kept as S~ ⊙ G, G the product
of that decay from the chunk's start on, and what is written on that axis is divided by G. It is
used where promises bound G from below.
"""

from __future__ import annotations

from collections.abc import Sequence

from lacc.analysis.transition import LowRank, Write
from lacc.tile.carried import Carried, Treatment
from lacc.tile.program import Axes, Tiles, rank_axes
from lacc.tile.reads import Reader

Term = dict[int, int]
"""What a token adds: a tile for each axis of the state; a product of rows and columns."""


class Canonical(Carried):
    """What `Contracted` and `Scanned` states have in common."""

    def __init__(self, reader: Reader, treatment: Treatment) -> None:
        super().__init__(reader, treatment)
        (self.name,) = self.recurrence.states
        self.own: Axes = self.axes_of(self.name)
        self.gauge = self.recurrence.gauge
        self._writes: list[Term] | None = None

    def tag(self) -> None:
        """What follows comes from the line of the update."""
        self.lower.tag(self.spec.state(self.name).update)

    # ---- decays
    # ----------------------------------------------------------------------------------------------

    def levels(self, axis: int | None, strict: bool) -> int | None:
        """The levels of the decay on one axis (None: the scalar one); None where there is none."""
        wanted = () if axis is None else (axis,)
        for decay in self.treatment.decays:
            if decay.axes == wanted:
                axes = tuple(self.own[a] for a in wanted)
                value = self.f.expand(self.lower.on(decay.expr, axes), ("t", *axes))
                self.tag()
                return self.f.op("levels", (value,), (decay.space == "log", strict))
        return None

    def runs(self, axis: int | None, strict: bool) -> int | None:
        """The levels of a decay that is no gauge."""
        return None if axis is not None and axis == self.gauge else self.levels(axis, strict)

    def gauged(self, strict: bool) -> int | None:
        """G at each token, without its own factor where ``strict``."""
        if self.gauge is None:
            return None
        levels = self.levels(self.gauge, strict)
        assert levels is not None
        return self.f.op("prefix", (levels,))

    def pairs(self, axis: int, x: int, y: int, strict: bool) -> int:
        """[t, s]: x[t] · y[s] over ``axis``, with the decay from s to t on that axis and the scalar
        one."""
        f, over = self.f, (self.own[axis],)
        channel, scalar = self.runs(axis, strict), self.runs(None, strict)
        if channel is not None:
            value = f.op("gram", (f.expand(x, ("t", *over)), f.expand(y, ("t", *over)), channel))
        else:
            value = f.contract(x, f.rename(y, {"t": "s"}), over)
        if scalar is not None:
            return f.mul(value, f.op("matrix", (scalar,)))
        return (
            value if channel is not None else f.op("mask", (f.expand(value, ("t", "s")),), strict)
        )

    def from_start(self, axis: int, query: int, strict: bool) -> int:
        """What the state that the chunk starts from gives to a read by ``axis``."""
        f, own = self.f, self.own
        for side in (axis, None):
            runs = self.runs(side, strict)
            if runs is not None:
                query = f.mul(query, f.op("prefix", (runs,)))
        value = f.contract(query, self.start(self.name), (own[axis],))
        for other in range(len(own)):
            runs = self.runs(other, strict) if other != axis else None
            if runs is not None:
                value = f.mul(value, f.op("prefix", (runs,)))
        return value

    # ---- writing
    # ---------------------------------------------------------------------------------------------

    def writes(self) -> list[Term]:
        """What the chunk's tokens add to the state; scalars are on the first axis."""
        if self._writes is None:
            self.tag()
            erases = self.recurrence.erases
            terms = [self._write(write) for write in self.recurrence.writes]
            self._writes = self._solved(erases, terms) if erases else terms
        return self._writes

    def _write(self, write: Write) -> Term:
        term: Term = {}
        for axis, label in enumerate(self.own):
            expr = write.on((axis,))
            value = self.f.const(1.0) if expr is None else self.lower.on(expr, (label,))
            term[axis] = self.f.expand(value, ("t", label))
        scalar = write.on(())
        if scalar is not None:
            merged = any(self.recurrence.partner(e) is write for e in self.recurrence.erases)
            on = 1 - self.recurrence.erases[0].axis if merged else 0
            term[on] = self.f.mul(term[on], self.lower(scalar))
        gauge = self.gauged(strict=False)
        if gauge is not None and self.gauge is not None:
            term[self.gauge] = self.f.div(term[self.gauge], gauge)
        return term

    def _solved(self, erases: Sequence[LowRank], terms: list[Term]) -> list[Term]:
        """The writes with all erases in them."""
        f, axis = self.f, erases[0].axis
        other, label = 1 - axis, self.own[axis]
        rows, columns = (
            [f.expand(self.lower.on(expr, (label,)), ("t", label)) for expr in exprs]
            for exprs in ([e.b for e in erases], [e.a for e in erases])
        )
        partners = [self.recurrence.partner(erase) for erase in erases]
        own = {id(w): t for w, t in zip(self.recurrence.writes, terms)}
        free = [t for w, t in zip(self.recurrence.writes, terms) if w not in partners]
        strict = True
        bare = self._before_decay(axis, rows[0]) if len(rows) == 1 and not free else None
        if bare is not None:
            rows, strict = [bare], False
        pairs = [[self.pairs(axis, b, a, strict) for a in columns] for b in rows]
        right = self.from_start(axis, ranked(f, rows), strict)
        known = []
        for row, partner in zip(rows, partners):
            total = None if partner is None else own[id(partner)][other]
            for term in free:
                value = self.summed(self.pairs(axis, row, term[axis], True), term.get(other))
                total = value if total is None else f.add(total, value)
            known.append(total)
        if any(total is not None for total in known):
            rest = tuple(a for n, a in enumerate(self.own) if n != axis)
            zero = f.const(0.0)
            given = [f.expand(zero if x is None else x, ("t", *rest)) for x in known]
            right = f.add(ranked(f, given), right)
        for column, value in zip(columns, solved(f, pairs, right)):
            if len(self.own) == 1:
                free.append({axis: f.mul(column, value)})
            else:
                free.append({axis: column, other: value})
        return free

    def _before_decay(self, axis: int, row: int) -> int | None:
        """``row`` without the token's own decay, where that is a factor of it: it then reads with
        the same runs as an output does, up to its token, and the solve leaves the token itself
        out. None where it is no factor, or there is no decay."""
        bare: int | None = None
        for decay in self.treatment.decays:
            if decay.axes in ((), (axis,)):
                label = tuple(self.own[a] for a in decay.axes)
                row_ = _divided(self.f, row, self.lower.on(decay.factor, label))
                if row_ is None:
                    return None
                bare = row = row_
        return bare


def ranked(f: Tiles, parts: Sequence[int], role: int = 0) -> int:
    """One tile of all ``parts``, with their rank as an axis; a single part as it is."""
    return parts[0] if len(parts) == 1 else f.stack(parts, rank_axes(len(parts))[role])


def solved(f: Tiles, pairs: Sequence[Sequence[int]], right: int) -> list[int]:
    """The w_r of (I - ``pairs``) W = ``right``, pairs [t, s] of every two ranks."""
    system = f.neg(ranked(f, [ranked(f, row, 1) for row in pairs]))
    found = f.op("solve", (system, right), False)
    rows, _ = rank_axes(len(pairs))
    return [found] if len(pairs) == 1 else [f.entry(found, rows, r) for r in range(len(pairs))]


def _divided(f: Tiles, product: int, factor: int) -> int | None:
    """``product`` without one ``factor`` of it; None where that is none of its factors."""
    if product == factor:
        return f.const(1.0)
    inst = f.body[product]
    if inst.op not in ("mul", "neg", "expand"):
        return None
    for at, i in enumerate(inst.ins):
        rest = _divided(f, i, factor)
        if rest is not None:
            if inst.op == "expand":
                return f.expand(rest, inst.axes)
            return f.neg(rest) if inst.op == "neg" else f.mul(rest, inst.ins[1 - at])
    return None
