"""A canonical state that is read by contraction in, the tile values of a chunk out: its entries are
computed at the chunk's ends alone, unless a later pass asks for them.

Notation: S0 the state a chunk starts from, S1 the one it leaves; q reads by contracting axis c of
the state, f is the other axis; writes x yᵀ with x on c; P[t, s] the decay from s to t. With a decay
on each axis

    o  =  (q · prefix_c) S0 · prefix_f  +  (Gram_c(q, x) ⊙ P) y          Gram and P over s <= t, or
    s < t before the update
    S1 =  whole · S0  +  Σ_t (x · suffix_c) (y · suffix_f)ᵀ
"""

from __future__ import annotations

from functools import cached_property

from lacc.tile.canonical import Canonical
from lacc.tile.scanned import Scanned


class Contracted(Canonical):
    """Reads by pairs of tokens."""

    def read_by(self, name: str, axis: int, query: int, strict: bool) -> int:
        f = self.f
        self.tag()
        query = f.expand(query, ("t",))
        gauge = self.gauged(strict)
        if gauge is not None and axis == self.gauge:
            query = f.mul(query, gauge)
        value = self.from_start(axis, query, strict)
        for write in self.writes():
            pairs = self.pairs(axis, query, write[axis], strict)
            rest = [a for a in range(len(self.own)) if a != axis]
            runs = self.runs(rest[0], strict) if rest else None
            if runs is None:
                value = f.add(value, self.summed(pairs, write[rest[0]] if rest else None))
            else:
                value = f.add(value, f.op("decayed", (pairs, write[rest[0]], runs)))
        return value if gauge is None or axis == self.gauge else f.mul(value, gauge)

    def shown(self, name: str, strict: bool) -> int:
        return self._entries.shown(name, strict)

    @cached_property
    def _entries(self) -> Scanned:
        return Scanned(self.reader, self.treatment)

    def next(self, name: str) -> int:
        f, own = self.f, self.own
        self.tag()
        value = self.start(name)
        sides = [side for side in (None, *range(len(own))) if self.runs(side, False) is not None]
        kept = {side: self._kept(side) for side in sides}
        for side in sides:
            value = f.mul(f.op("whole", (kept[side],)), value)
        for write in self.writes():
            parts = dict(write)
            for side in sides:
                on = side or 0
                parts[on] = f.mul(parts[on], f.op("suffix", (kept[side],)))
            if len(own) == 1:
                value = f.add(value, f.sum(parts[0], ("t",)))
            else:
                value = f.add(value, f.contract(parts[0], parts[1], ("t",)))
        if self.gauge is not None:
            levels = self.levels(self.gauge, False)
            assert levels is not None
            value = f.mul(f.op("whole", (levels,)), value)
        return value

    def _kept(self, side: int | None) -> int:
        """Levels for suffix and whole, which strict and inclusive ones share: the kind the reads
        use already."""
        strict, inclusive = self.runs(side, True), self.runs(side, False)
        used = {i for inst in self.f.body for i in inst.ins}
        runs = strict if strict in used and inclusive not in used else inclusive
        assert runs is not None
        return runs
