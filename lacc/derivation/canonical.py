"""A recurrence in canonical form in, its chunked, backward and decode forms out.

A token fades the state by decays, takes out low-rank terms and writes. Every form follows from one:
what is at s is at t what it was, faded by all decays between. A low-rank term a (bᵀ S) is one more
write, of a row that a triangular system gives.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from lacc.analysis.decay import Decay
from lacc.analysis.transition import LowRank, Recurrence, Write
from lacc.derivation.axes import COLUMNS, ROWS
from lacc.derivation.naming import Names
from lacc.derivation.reading import Contraction
from lacc.derivation.terms import (
    END,
    ONE,
    ZERO,
    At,
    Equation,
    Part,
    S,
    Section,
    T,
    Term,
    U,
    add,
    diag,
    had,
    matmul,
    number,
    over,
    path,
    scale,
    spec,
    symbol,
    transposed,
)
from lacc.spec.model import State

Of = Callable[[At], Term]


@dataclass(frozen=True, slots=True)
class Source:
    """What a token adds: a column on the rows' axis and a row on the other (None for a vector), or
    a whole; ``scalar`` before it."""

    rows: Of
    columns: Of | None
    scalar: Term | Of | None = None


class Forward:
    """The forward forms of one state, and what its backward forms are made of."""

    def __init__(
        self,
        recurrence: Recurrence,
        decays: Sequence[Decay],
        state: State,
        reads: Sequence[Contraction],
        shown: bool,
        names: Names,
    ) -> None:
        self.r, self.state, self.reads = recurrence, state, list(reads)
        self.name, self.rank = state.name, len(state.shape)
        self.shown = shown or not recurrence.separable or self.rank == 0
        if not recurrence.separable:
            self.reads = []
        letters = {(): ("γ", "δ"), (0,): ("α", "a"), (1,): ("β", "b"), (0, 1): ("Λ", "D")}
        self.decays = [(d, names.of(d.factor, *letters[d.axes], "δ")) for d in decays]
        self.given = {d.axes: d.factor for d in decays}
        self.paths = {d.axes: name for d, name in self.decays}
        self.partners = [
            recurrence.partner(e) if self.rank == 2 else None for e in recurrence.erases
        ]
        self.unknown = names.several(len(recurrence.erases), "w", "h")
        self.back = names.several(len(recurrence.erases), "v", "η", "ζ")
        self.free = [w for w in recurrence.writes if not any(w is p for p in self.partners)]
        pairs = len(self.reads) * (len(self.free) + len(recurrence.erases))
        self.pair = iter(names.several(pairs, "P", "Q"))
        self.system = names.several(len(recurrence.erases) ** 2, "A", "L")
        self.known = names.several(len(recurrence.erases) * len(self.free), "B", "M")
        self.local = names.several(len(recurrence.erases), "f", "ũ")
        self.start = names.several(len(recurrence.erases), "z", "h")
        self.cotangents = names.several(len(self.reads), "ρ", "r̄")
        self.direct = names.fresh("G", "Ḡ") if self.shown else ""
        self.pairs: dict[tuple[int, int], str] = {}

    # ---- small things

    def at(self, t: At) -> Term:
        return symbol(self.name, t)

    def d(self, t: At) -> Term:
        return symbol(f"d {self.name}", t)

    def end(self) -> Term:
        """The cotangent of the state that leaves the chunk."""
        return symbol(f"d {self.name}", At("out"))

    def _faded(self, x: Term, by: Callable[[tuple[int, ...]], Term | None]) -> Term:
        """``x``, of the state's shape, times a factor on each set of axes."""
        rows, columns, scalar, entries = (by(axes) for axes in ((0,), (1,), (), (0, 1)))
        if rows is not None:
            x = matmul(diag(rows), x) if self.rank == 2 else had(rows, x)
        if columns is not None:
            x = matmul(x, diag(columns))
        if entries is not None:
            x = had(entries, x)
        return x if scalar is None else scale(scalar, x)

    def kept(self, x: Term, t: At) -> Term:
        """``x`` faded by the token t."""
        return self._faded(
            x, lambda axes: spec(self.given[axes], t) if axes in self.given else None
        )

    def faded(self, x: Term, low: At, high: At) -> Term:
        """``x`` faded by the tokens after low, up to high."""
        return self._faded(x, lambda axes: self._path(axes, low, high))

    def _path(self, axes: tuple[int, ...], low: At, high: At) -> Term | None:
        return path(self.paths[axes], low, high) if axes in self.paths else None

    def on(self, axis: int, x: Term, low: At, high: At) -> Term:
        """``x``, on one axis, faded there."""
        along = self._path((axis,), low, high)
        return x if along is None else had(along, x)

    def plain(self, rows: Of, columns: Of | None, s: At) -> Term:
        return rows(s) if columns is None else matmul(rows(s), transposed(columns(s)))

    def pieces(self, rows: Of, columns: Of | None, at: At, low: At, high: At) -> Term:
        """A column and a row of the token ``at``, faded from low to high."""
        if columns is None or (0, 1) in self.paths:
            return self.faded(self.plain(rows, columns, at), low, high)
        both = matmul(
            self.on(0, rows(at), low, high), transposed(self.on(1, columns(at), low, high))
        )
        scalar = self._path((), low, high)
        return both if scalar is None else scale(scalar, both)

    def gram(self, axis: int, x: Term, y: Term, low: At, high: At) -> Term:
        """xᵀ y over an axis, faded there and by the scalar decay."""
        value = matmul(transposed(x), self.on(axis, y, low, high))
        scalar = self._path((), low, high)
        return value if scalar is None else scale(scalar, value)

    # ---- what tokens add

    def _on(self, write: Write, axes: tuple[int, ...], t: At) -> Term | None:
        expr = write.on(axes)
        return None if expr is None else spec(expr, t)

    def source(self, write: Write) -> Source:
        """A write as columns and rows; scalars stand with the rows of a matrix."""

        def scaled(t: At, x: Term) -> Term:
            scalar = self._on(write, (), t)
            return x if scalar is None else scale(scalar, x)

        if self.rank == 2:
            return Source(
                lambda t: self._on(write, (0,), t) or ROWS,
                lambda t: scaled(t, self._on(write, (1,), t) or COLUMNS),
            )
        if self.rank == 1:
            return Source(lambda t: scaled(t, self._on(write, (0,), t) or ROWS), None)
        return Source(lambda t: scaled(t, number(1)), None)

    def erased(self, n: int) -> Source:
        """A low-rank term as columns and rows."""
        erase, name = self.r.erases[n], self.unknown[n]
        if self.rank == 1:
            return Source(lambda t: scale(symbol(name, t), spec(erase.a, t)), None)
        if erase.axis == 0:
            return Source(lambda t: spec(erase.a, t), lambda t: symbol(name, t))
        return Source(lambda t: symbol(name, t), lambda t: spec(erase.a, t))

    def sources(self) -> list[Source]:
        return [
            *(self.source(w) for w in self.free if w.on((0, 1)) is None),
            *(self.erased(n) for n in range(len(self.r.erases))),
        ]

    def entries(self, t: At) -> list[Term]:
        """Writes that are given entry by entry."""
        found = []
        for write in self.free:
            whole = self._on(write, (0, 1), t)
            if whole is not None:
                rows, columns = self._on(write, (0,), t), self._on(write, (1,), t)
                x = matmul(diag(rows), whole) if rows else whole
                x = matmul(x, diag(columns)) if columns else x
                scalar = self._on(write, (), t)
                found.append(scale(scalar, x) if scalar else x)
        return found

    # ---- the state

    def step(self) -> Equation:
        """One token."""
        state = self.at(T)
        added = [self._plainly(write) for write in self.r.writes]
        erased = [self._taken(erase) for erase in self.r.erases]
        return Equation(state, add(self.kept(self.at(T - 1), T), *erased, *added))

    def _taken(self, erase: LowRank) -> Term:
        a, before = spec(erase.a, T), self.at(T - 1)
        if self.rank == 1:
            return scale(matmul(transposed(spec(erase.b, T)), before), a)
        read = self.read(erase.axis, spec(erase.b, T), T - 1)
        if erase.along is not None:
            read = had(spec(erase.along, T), read)
        if erase.axis == 0:
            return matmul(a, transposed(read))
        return matmul(read, transposed(a))

    def _plainly(self, write: Write) -> Term:
        if write.on((0, 1)) is not None:
            saved, self.free = self.free, [write]
            (found,) = self.entries(T)
            self.free = saved
            return found
        source = self.source(write)
        return self.plain(source.rows, source.columns, T)

    def read(self, axis: int, x: Term, t: At) -> Term:
        """What x reads of the state, as a column."""
        if self.rank == 1:
            return matmul(transposed(x), self.at(t))
        return matmul(transposed(self.at(t)), x) if axis == 0 else matmul(self.at(t), x)

    def unrolled(self, t: At, low: At = ZERO) -> Term:
        """S at t from the start of the chunk."""
        parts = [self.faded(self.at(low), low, t)]
        for source in self.sources():
            parts.append(over("sum", S, ONE, t, self.pieces(source.rows, source.columns, S, S, t)))
        parts += [over("sum", S, ONE, t, self.faded(x, S, t)) for x in self.entries(S)]
        return add(*parts)

    # ---- chunk

    def chunk(self) -> Section:
        """Local products, the carry, the outputs."""
        parts: list[Part] = [*self.path_parts()]
        if self.reads and self.sources():
            parts.append("Products of what reads with what is written:")
        for i, read in enumerate(self.reads):
            for j, source in enumerate(self.sources()):
                parts.append(self.pair_equation(i, read, j, source))
        if self.r.erases:
            parts += self.system_parts()
        parts.append(
            "The state that leaves the chunk, all that is carried from one chunk to the next:"
        )
        parts.append(Equation(self.at(END), self.unrolled(END)))
        if self.reads:
            parts.append("What is read, for all tokens of the chunk at once:")
            parts += [self.read_equation(i, read) for i, read in enumerate(self.reads)]
        if self.shown or not self.reads:
            parts.append("The state at every token, where it is read entry by entry (a scan):")
            parts.append(Equation(self.at(T), self.unrolled(T), "1 <= t <= C"))
        return Section("Chunk form", tuple(parts))

    def path_parts(self) -> Iterator[Part]:
        """The products of the decays."""
        if self.decays:
            yield "Decays between two tokens of a chunk, the empty product being 1:"
        for decay, name in self.decays:
            body = spec(decay.factor, U)
            yield Equation(path(name, S, T), over("prod", U, S + 1, T, body), "0 <= s <= t <= C")
        if any(decay.space == "log" for decay, _ in self.decays):
            yield (
                "Each is the exponential of a segment sum of logs, formed without a difference of "
                "two cumulative sums: it is exact where a gate is 0."
            )

    def other(self, erase: LowRank, x: Term, low: At, high: At) -> Term:
        """``x``, on the axis that an erase leaves, faded there."""
        return x if self.rank == 1 else self.on(1 - erase.axis, x, low, high)

    @property
    def splits(self) -> bool:
        """Whether the system is one for all columns, so that it is solved before the carry."""
        return all(e.along is None and (1 - e.axis,) not in self.paths for e in self.r.erases)

    def system_parts(self) -> Iterator[Part]:
        """The rows that low-rank terms write."""
        erases, count = self.r.erases, len(self.r.erases)
        yield (
            "What an erase reads of the state before its token is one more row to write. Their "
            "products with what was written before, strictly lower triangular in (t, s):"
        )
        for n, erase in enumerate(erases):
            for m, other in enumerate(erases):
                value = self.gram(erase.axis, spec(erase.b, T), spec(other.a, S), S, T - 1)
                yield Equation(symbol(self.system[n * count + m], T, S), value, "1 <= s < t <= C")
            for j, write in enumerate(self.free):
                column = self._column(write, erase.axis, S)
                value = self.gram(erase.axis, spec(erase.b, T), column, S, T - 1)
                name = self.known[n * len(self.free) + j]
                yield Equation(symbol(name, T, S), value, "1 <= s < t <= C")
        if any(self.partners):
            yield (
                "An erase and a write share their column: one row stands for both, and one solve "
                "serves both."
            )
        if not self.splits:
            yield (
                "The other axis decays, too: each of its entries has a system of its own, which "
                "is one for all once the state is kept relative to that decay since the start of "
                "the chunk."
            )
            for n in range(count):
                yield Equation(symbol(self.unknown[n], T), self._row(n), "1 <= t <= C")
            return
        yield (
            "Unit lower triangular systems, solved by forward substitution: the part that the "
            "chunk has by itself, and the one that waits for the state before it."
        )
        for n in range(count):
            yield Equation(symbol(self.local[n], T), self._local(n), "1 <= t <= C")
            yield Equation(symbol(self.start[n], T), self._start(n), "1 <= t <= C")
        yield "Once the state is there:"
        for n, erase in enumerate(erases):
            value = add(symbol(self.local[n], T), self.read_start(erase, symbol(self.start[n], T)))
            yield Equation(symbol(self.unknown[n], T), value, "1 <= t <= C")

    def read_start(self, erase: LowRank, x: Term) -> Term:
        if self.rank == 1:
            return matmul(transposed(x), self.at(ZERO))
        if erase.axis == 0:
            return matmul(transposed(self.at(ZERO)), x)
        return matmul(self.at(ZERO), x)

    def _column(self, write: Write, axis: int, t: At) -> Term:
        source = self.source(write)
        if axis == 0:
            return source.rows(t)
        assert source.columns is not None
        return source.columns(t)

    def _rest(self, write: Write, axis: int, t: At) -> Term:
        """A write's factor on the axis that an erase leaves."""
        if self.rank == 1:
            return number(1)
        source = self.source(write)
        assert source.columns is not None
        return source.columns(t) if axis == 0 else source.rows(t)

    def _partner(self, n: int, t: At) -> Term:
        partner = self.partners[n]
        return number(0) if partner is None else self._merged(partner, self.r.erases[n].axis, t)

    def _merged(self, write: Write, axis: int, t: At) -> Term:
        """The factor of a merged write on the axis that its erase leaves, with its scalar."""
        rest, scalar = self._on(write, (1 - axis,), t), self._on(write, (), t)
        assert rest is not None
        return rest if scalar is None else scale(scalar, rest)

    def _before(self, n: int, known: Callable[[int], Term]) -> Term:
        """The sum over earlier tokens of a system's products with ``known`` rows."""
        count = len(self.r.erases)
        return add(
            *(
                over("sum", S, ONE, T - 1, scale(symbol(name, T, S), known(m)))
                for m, name in enumerate(self.system[n * count : (n + 1) * count])
            )
        )

    def _local(self, n: int) -> Term:
        erase = self.r.erases[n]
        written = (
            over(
                "sum",
                S,
                ONE,
                T - 1,
                scale(
                    symbol(self.known[n * len(self.free) + j], T, S),
                    self._rest(write, erase.axis, S),
                ),
            )
            for j, write in enumerate(self.free)
        )
        before = self._before(n, lambda m: symbol(self.local[m], S))
        return add(self._partner(n, T), *written, before)

    def _start(self, n: int) -> Term:
        erase = self.r.erases[n]
        row = self.on(erase.axis, spec(erase.b, T), ZERO, T - 1)
        scalar = self._path((), ZERO, T - 1)
        row = row if scalar is None else scale(scalar, row)
        return add(row, self._before(n, lambda m: symbol(self.start[m], S)))

    def _row(self, n: int) -> Term:
        """The unknown row of an erase beside which the other axis decays."""
        erase, count = self.r.erases[n], len(self.r.erases)
        row = self.on(erase.axis, spec(erase.b, T), ZERO, T - 1)
        scalar = self._path((), ZERO, T - 1)
        row = row if scalar is None else scale(scalar, row)
        parts = [self.other(erase, self.read_start(erase, row), ZERO, T - 1)]
        for j, write in enumerate(self.free):
            rest = self.other(erase, self._rest(write, erase.axis, S), S, T - 1)
            weight = symbol(self.known[n * len(self.free) + j], T, S)
            parts.append(over("sum", S, ONE, T - 1, scale(weight, rest)))
        for m in range(count):
            rest = self.other(erase, symbol(self.unknown[m], S), S, T - 1)
            weight = symbol(self.system[n * count + m], T, S)
            parts.append(over("sum", S, ONE, T - 1, scale(weight, rest)))
        value = add(*parts)
        if erase.along is not None:
            value = had(spec(erase.along, T), value)
        return add(self._partner(n, T), value)

    # ---- reads

    def pair_equation(self, i: int, read: Contraction, j: int, source: Source) -> Equation:
        name = self.pairs[i, j] = next(self.pair)
        high = T + read.when
        column = self._side(source, read.axis, S)
        where = "1 <= s <= t <= C" if read.when == 0 else "1 <= s < t <= C"
        value = self.gram(read.axis, spec(read.query, T), column, S, high)
        return Equation(symbol(name, T, S), value, where)

    def _side(self, source: Source, axis: int, t: At) -> Term:
        if axis == 0 or source.columns is None:
            return source.rows(t)
        return source.columns(t)

    def _otherside(self, source: Source, axis: int, t: At, low: At, high: At) -> Term:
        if source.columns is None:
            return number(1)
        x = source.columns(t) if axis == 0 else source.rows(t)
        return self.on(1 - axis, x, low, high)

    def read_equation(self, i: int, read: Contraction) -> Equation:
        """Of one read, at all tokens."""
        high, axis = T + read.when, read.axis
        query = self.on(axis, spec(read.query, T), ZERO, high)
        scalar = self._path((), ZERO, high)
        query = query if scalar is None else scale(scalar, query)
        start = self.read(axis, query, ZERO)
        parts = [start if self.rank == 1 else self.on(1 - axis, start, ZERO, high)]
        for j, source in enumerate(self.sources()):
            rest = self._otherside(source, axis, S, S, high)
            weight = symbol(self.pairs[i, j], T, S)
            parts.append(over("sum", S, ONE, high, scale(weight, rest)))
        left = self.read(axis, spec(read.query, T), T + read.when)
        return Equation(left, add(*parts), "1 <= t <= C")

    # ---- decode

    def decode(self) -> Section:
        """One token, without a system."""
        return Section("Decode step", ("One token, from the state before it:", self.step()))
