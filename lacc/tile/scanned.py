"""A canonical state that is read entry by entry in, its value at all tokens of a chunk out: a scan
along time, of what its system gives where it has an erase."""

from __future__ import annotations

from lacc.tile.canonical import Canonical
from lacc.tile.carried import Entrywise


class Scanned(Entrywise, Canonical):
    """S[t] = decay[t] ⊙ S[t-1] + what is written at t."""

    def after(self, name: str) -> int:
        f, own = self.f, self.own
        self.tag()
        full = ("t", *own)
        added, kept = f.const(0.0), f.const(1.0)
        for factors in self._terms():
            term = f.const(1.0)
            for factor in factors:
                term = f.mul(term, factor)
            added = f.add(added, term)
        for decay in self.recurrence.decays:
            kept = f.mul(kept, self.lower.on(decay.expr, tuple(own[a] for a in decay.axes)))
        ins = (f.arrange(kept, full), f.arrange(added, full), self.start(self.name))
        return f.named(f.op("scan", ins), self.spec.state(self.name).ascii)

    def _terms(self) -> list[list[int]]:
        """The factors of each term that a token adds: with an erase those that solve its system."""
        if self.recurrence.erases:
            gauge = self.gauged(strict=False)
            back = [] if gauge is None else [gauge]
            return [[*write.values(), *back] for write in self.writes()]
        return [
            [self.lower.on(f.expr, tuple(self.own[a] for a in f.axes)) for f in write.factors]
            for write in self.recurrence.writes
        ]
