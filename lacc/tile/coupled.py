"""States that need one another in, the tile values of a chunk out: the step of all of them is one
matrix a token.

Notation: states X_j, starts X_j0; A_t the n x n matrix of what a token keeps, its entries scalars
or one for each channel; P[t, s] = A_t … A_{s+1}, P[t] from the chunk's start on, P[C] that of the
whole chunk. All of these are chains h[t] = A_t h[t-1] + b[t]: sums of products, exact at 0 and at
any sign.

Read by contraction, where A is of scalars and c_s are the scalars of a term x yᵀ:

    o   =  Σ_i (q · P[t]_ji) X_i0  +  Σ_s (q xᵀ ⊙ (P[t, s] c_s)_j) y
    X_j =  Σ_i P[C]_ji X_i0  +  Σ_s (x · (P[C, s] c_s)_j) yᵀ

What w_t = Σ_j b_jᵀ X_j[t-1] reads solves a unit lower triangular system of such pairs, as in
`canonical`. Else entry by entry: the chain of what tokens add, and P[t] X_0.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from lacc.analysis.transition import Added
from lacc.spec.shapes import Size
from lacc.tile.canonical import ranked, solved
from lacc.tile.carried import Carried, Treatment
from lacc.tile.program import Axes, state_axes
from lacc.tile.reads import Reader


@dataclass(frozen=True, slots=True)
class AddedTerm:
    """What a token adds: the product of tiles, by the axes they are on, and a scalar for each
    state (None: nothing to that one)."""

    tiles: dict[tuple[int, ...], int]
    scales: tuple[int | None, ...]


class Coupled(Carried):
    """Carries all states of one recurrence."""

    def __init__(self, reader: Reader, treatment: Treatment) -> None:
        super().__init__(reader, treatment)
        assert self.recurrence.coupling is not None
        self.coupling = self.recurrence.coupling
        self.states = self.recurrence.states
        self.own: Axes = self.axes_of(self.states[0])
        self._reached = [sorted(found) for found in self.coupling.reached]
        self.row, self.column, self.at_start = state_axes(len(self.states))
        self.f.sizes |= dict.fromkeys(state_axes(len(self.states)), Size.of(len(self.states)))

    # ---- products of what tokens keep
    # ----------------------------------------------------------------------------------------------

    @cached_property
    def _kept(self) -> int:
        """A, over rows, columns, t and the axes of its entries."""
        f, rows = self.f, []
        for state, row in zip(self.states, self.coupling.kept):
            self.lower.tag(self.spec.state(state).update)
            entries = []
            for factors in row:
                value = f.const(0.0 if factors is None else 1.0)
                for factor in factors or ():
                    axes = tuple(self.own[a] for a in factor.axes)
                    value = f.mul(value, self.lower.on(factor.expr, axes))
                entries.append(f.expand(value, ("t",)))
            rows.append(f.stack(entries, self.column))
        return f.named(f.stack(rows, self.row), "kept")

    @cached_property
    def _identity(self) -> int:
        return self.f.op("eye", (), (self.row, self.at_start))

    def _chain(self, added: int, op: str = "chain") -> int:
        return self.f.op(op, (self._kept, added), (self.row, self.column))

    @cached_property
    def _prefix(self) -> int:
        """P[t]."""
        first = self.f.rename(self.f.op("row", (self._kept,), False), {self.column: self.at_start})
        return self.f.named(self._chain(self.f.op("place_row", (first,), False)), "from_start")

    @cached_property
    def _before(self) -> int:
        """P[t-1], I at first."""
        f, axes = self.f, self.f.axes(self._prefix)
        first = f.op("place_row", (f.expand(self._identity, (a for a in axes if a != "t")),), False)
        return f.add(f.op("shift", (self._prefix,), False), first)

    @cached_property
    def _between(self) -> int:
        """P[t, s]."""
        pairs = self._chain(self.f.mul(self.f.op("eye", (), ("t", "s")), self._identity))
        return self.f.named(pairs, "between")

    @cached_property
    def _suffix(self) -> int:
        """P[C, s], over t for s."""
        turned = self._chain(self.f.op("place_row", (self._identity,), True), "chain_back")
        return self.f.rename(
            self.f.named(turned, "to_end"), {self.row: self.at_start, self.at_start: self.row}
        )

    def _entry(self, products: int, j: int, i: int) -> int:
        return self.f.entry(self.f.entry(products, self.row, j), self.at_start, i)

    def _mixed(self, products: int, j: int, term: AddedTerm) -> int | None:
        """(P c)_j, with c where P's columns are; None where it is 0."""
        pairs = "s" in self.f.axes(products)
        found = []
        for i in self._reached[j]:
            scale = term.scales[i]
            if scale is not None:
                at = self.f.rename(scale, {"t": "s"}) if pairs else scale
                found.append(self.f.mul(self._entry(products, j, i), at))
        return self._sum(found)

    def _sum(self, parts: Iterable[int | None]) -> int | None:
        total: int | None = None
        for part in parts:
            if part is not None:
                total = part if total is None else self.f.add(total, part)
        return total

    # ---- reads by contraction
    # ----------------------------------------------------------------------------------------------

    def read_by(self, name: str, axis: int, query: int, strict: bool) -> int:
        if not self.treatment.contracted:
            return super().read_by(name, axis, query, strict)
        self.lower.tag(self.spec.state(name).update)
        query = self.f.expand(query, ("t",))
        j = self.states.index(name)
        value = self._sum(
            [
                self._from_start(j, axis, query, strict),
                *(self._from_term(j, axis, query, term, strict) for term in self._terms),
            ]
        )
        assert value is not None
        return value

    def _from_start(self, j: int, axis: int, query: int, strict: bool) -> int:
        f, products = self.f, self._before if strict else self._prefix
        parts = (
            f.contract(
                f.mul(query, self._entry(products, j, i)),
                self.start(self.states[i]),
                (self.own[axis],),
            )
            for i in self._reached[j]
        )
        total = self._sum(parts)
        assert total is not None
        return total

    def _from_term(
        self, j: int, axis: int, query: int, term: AddedTerm, strict: bool
    ) -> int | None:
        pairs = self._pairs(j, axis, query, term, strict)
        if pairs is None:
            return None
        return self.summed(pairs, None if len(self.own) == 1 else self._on(term, 1 - axis))

    def _pairs(self, j: int, axis: int, query: int, term: AddedTerm, strict: bool) -> int | None:
        """[t, s]: what query reads of x at s, in state j; None where that is 0."""
        f, weights = self.f, self._mixed(self._between, j, term)
        if weights is None:
            return None
        weights = f.op("shift", (weights,), False) if strict else weights
        column = f.rename(self._on(term, axis), {"t": "s"})
        return f.mul(f.contract(query, column, (self.own[axis],)), weights)

    def _on(self, term: AddedTerm, axis: int) -> int:
        return term.tiles.get((axis,), self.f.expand(self.f.const(1.0), ("t", self.own[axis])))

    # ---- what tokens add
    # ----------------------------------------------------------------------------------------------

    def _plain(self, added: Added) -> AddedTerm:
        """A term without its read."""
        tiles = {}
        for factor in added.factors:
            axes = tuple(self.own[a] for a in factor.axes)
            tiles[factor.axes] = self.f.expand(self.lower.on(factor.expr, axes), ("t", *axes))
        scales = (None if e is None else self.lower(e) for e in added.scales)
        return AddedTerm(tiles, tuple(scales))

    @cached_property
    def _terms(self) -> list[AddedTerm]:
        """Everything that is added, reads solved."""
        f, coupling, axis = self.f, self.coupling, self.coupling.axis
        partners = {a: coupling.partner(a) for a in coupling.added if a.read is not None}
        shared = [partner[0] for partner in partners.values() if partner]
        free = [self._plain(a) for a in coupling.added if a.read is None and a not in shared]
        if not coupling.reads:
            return free
        label = (self.own[axis],)
        rows = [
            {
                j: f.expand(self.lower.on(row, label), ("t", *label))
                for j, row in enumerate(reads)
                if row is not None
            }
            for reads in coupling.reads
        ]
        columns = [(a, self._plain(a)) for a in partners]
        rest = tuple(label for n, label in enumerate(self.own) if n != axis)
        none = f.expand(f.const(0.0), ("t", "s"))
        system, right = [], []
        for r, row in enumerate(rows):
            pairs = [
                self._sum(
                    self._pairs(j, axis, b, term, True)
                    for a, term in columns
                    for j, b in row.items()
                    if a.read == n
                )
                for n in range(len(rows))
            ]
            system.append([none if p is None else p for p in pairs])
            parts = [
                *(self._from_start(j, axis, b, True) for j, b in row.items()),
                *(self._from_term(j, axis, b, t, True) for t in free for j, b in row.items()),
            ]
            for a, partner in partners.items():
                if a.read == r and partner is not None:
                    write, sign = partner
                    written = self._on(self._plain(write), 1 - axis)
                    parts.insert(0, written if sign > 0 else f.neg(written))
            total = self._sum(parts)
            assert total is not None
            right.append(f.expand(total, ("t", *rest)))
        read = solved(f, system, ranked(f, right))
        for a, term in columns:
            assert a.read is not None
            tiles = dict(term.tiles)
            if rest:
                tiles[1 - axis,] = read[a.read]
            else:
                tiles[axis,] = f.mul(tiles[axis,], read[a.read])
            free.append(AddedTerm(tiles, term.scales))
        return free

    # ---- entry by entry
    # ----------------------------------------------------------------------------------------------

    @cached_property
    def _local(self) -> int:
        """The chain of what the chunk's tokens add."""
        f, full = self.f, ("t", *self.own)
        added = []
        for j in range(len(self.states)):
            parts = []
            for term in self._terms:
                scale = term.scales[j]
                if scale is not None:
                    value = scale
                    for tile in term.tiles.values():
                        value = f.mul(value, tile)
                    parts.append(value)
            total = self._sum(parts)
            added.append(f.expand(f.const(0.0) if total is None else total, full))
        return f.named(self._chain(f.stack(added, self.row)), "local")

    def shown(self, name: str, strict: bool) -> int:
        f, j = self.f, self.states.index(name)
        parts = [f.entry(self._local, self.row, j)]
        parts += [
            f.mul(self._entry(self._prefix, j, i), self.start(self.states[i]))
            for i in self._reached[j]
        ]
        value = self._sum(parts)
        assert value is not None
        value = f.named(value, self.spec.state(name).ascii)
        return self.before(name, value) if strict else value

    def next(self, name: str) -> int:
        f, j = self.f, self.states.index(name)
        self.lower.tag(self.spec.state(name).update)
        parts = [
            f.mul(f.op("row", (self._entry(self._prefix, j, i),), True), self.start(self.states[i]))
            for i in self._reached[j]
        ]
        if not self.treatment.contracted:
            parts.append(f.op("row", (f.entry(self._local, self.row, j),), True))
        for term in self._terms if self.treatment.contracted else ():
            weights = self._mixed(self._suffix, j, term)
            if weights is not None:
                column = f.mul(self._on(term, 0), weights)
                if len(self.own) == 1:
                    parts.append(f.sum(column, ("t",)))
                else:
                    parts.append(f.contract(column, self._on(term, 1), ("t",)))
        value = self._sum(parts)
        assert value is not None
        return value
