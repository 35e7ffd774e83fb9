"""A canonical state that is read entry by entry in, its value at all tokens of a chunk out: a scan
along time, of what its system gives where it has an erase."""

from __future__ import annotations

from functools import cached_property

from lacc.tile.canonical import Canonical


class Scanned(Canonical):
    """S[t] = local scan + prefix · S0, so that only the chunk's last row waits for S0."""

    @cached_property
    def _parts(self) -> tuple[int, int]:
        """The scan from 0, and the decay from the chunk's start, at all tokens."""
        f, own = self.f, self.own
        self.tag()
        full = ("t", *own)
        flat = (*own, f"({' '.join(own)})") if len(own) == 2 else None
        added = f.expand(f.const(0.0), full)
        for factors in self._terms():
            term = f.const(1.0)
            for factor in factors:
                term = f.mul(term, factor)
            added = f.add(added, f.expand(term, full))
        kept, prefix = f.expand(f.const(1.0), full), f.const(1.0)
        for n, decay in enumerate(self.form.decays):
            axes = tuple(own[a] for a in decay.axes)
            linear = self.lower.on(self.recurrence.decays[n].expr, axes)
            kept = f.mul(kept, f.expand(linear, ("t", *axes)))
            value = f.expand(self.lower.on(decay.expr, axes), ("t", *axes))
            if len(axes) == 2 and flat:
                f.sizes[flat[2]] = f.sizes[own[0]] * f.sizes[own[1]]
                value = f.op("fold", (value,), flat)
            runs = f.op("prefix", (f.op("levels", (value,), (decay.space == "log", False)),))
            prefix = f.mul(prefix, f.op("unfold", (runs,), flat) if len(axes) == 2 else runs)
        return f.op("scan", (f.expand(kept, full), added)), f.expand(prefix, ("t",))

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

    @cached_property
    def _after(self) -> int:
        local, prefix = self._parts
        value = self.f.add(local, self.f.mul(prefix, self.start(self.name)))
        return self.f.named(value, self.spec.state(self.name).ascii)

    def shown(self, name: str, strict: bool) -> int:
        return self.before(name, self._after) if strict else self._after

    def next(self, name: str) -> int:
        f = self.f
        local, prefix = self._parts
        self.tag()
        end = f.mul(f.op("row", (prefix,), True), self.start(name))
        return f.add(f.op("row", (local,), True), end)
