"""States that need one another linearly in, their chunked, backward and decode forms out.

The step of all of them is one matrix a token, whose entries multiply whole states; from one token
to a later one leads the product of these matrices.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product

from lacc.analysis.transition import Added, Factor, Recurrence
from lacc.derivation.axes import summed, times
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
from lacc.spec.model import Expr, State


class Coupled:
    """The derivation of several states at once."""

    def __init__(
        self,
        recurrence: Recurrence,
        states: Sequence[State],
        reads: Sequence[Contraction],
        shown: bool,
        names: Names,
    ) -> None:
        assert recurrence.coupling is not None
        self.c, self.states = recurrence.coupling, [s.name for s in states]
        self.reads, self.rank, self.shown = list(reads), len(states[0].shape), shown
        self.count = range(len(states))
        self.reached = self.c.reached
        self.step_name = names.fresh("A", "Λ")
        self.rows = names.several(len(self.c.reads), "w", "u")
        self.back = names.several(len(self.c.reads), "v", "η")
        self.direct = [names.fresh(f"G_{name}") for name in self.states]
        count = len(self.c.added)
        pairs = names.several(count * len(self.reads), "P", "Q")
        systems = names.several(count * len(self.c.reads), "L", "B")
        self.pairs = [pairs[i : i + count] for i in range(0, len(pairs), count or 1)]
        self.systems = [systems[i : i + count] for i in range(0, len(systems), count or 1)]

    def at(self, j: int, t: At) -> Term:
        return symbol(self.states[j], t)

    def d(self, j: int, t: At) -> Term:
        return symbol(f"d {self.states[j]}", t)

    # ---- one token

    def _entry(self, factors: Sequence[Factor] | None, t: At) -> Term:
        """An entry of the step: what multiplies a state along its axes."""
        if factors is None:
            return number(0)
        parts = (
            transposed(spec(f.expr, t)) if f.axes == (1,) else spec(f.expr, t) for f in factors
        )
        return had(*parts)

    def kept(self, i: int, j: int, x: Term, t: At) -> Term:
        """What state i takes of ``x``, the value of state j."""
        factors = self.c.kept[i][j]
        if factors is None:
            return number(0)
        for factor in factors:
            x = times(self.rank, factor.axes, spec(factor.expr, t), x)
        return x

    def body(self, added: Added, t: At) -> Term:
        """What a term adds, before the number that each state takes of it."""
        whole, rows, columns = (added.on(axes) for axes in ((0, 1), (0,), (1,)))
        if added.read is not None:
            row = symbol(self.rows[added.read], t)
            if self.rank == 1:
                return scale(row, spec(rows, t) if rows else number(1))
            if self.c.axis == 0:
                return matmul(spec(rows, t) if rows else Term("ones", (), 0), transposed(row))
            return matmul(row, transposed(spec(columns, t) if columns else Term("ones", (), 1)))
        x = spec(whole, t) if whole else None
        if whole is None and self.rank == 2:
            x = matmul(
                spec(rows, t) if rows else Term("ones", (), 0),
                transposed(spec(columns, t) if columns else Term("ones", (), 1)),
            )
        elif whole is None:
            x = spec(rows, t) if rows else Term("ones", (), 0) if self.rank else number(1)
        elif rows or columns:
            for expr, axes in ((rows, (0,)), (columns, (1,))):
                if expr is not None and x is not None:
                    x = times(self.rank, axes, spec(expr, t), x)
        assert x is not None
        return x

    def reading(self, r: int, t: At) -> Term:
        """What the r-th read has of the states before token t."""
        return add(
            *(
                self._against(self.c.axis, spec(row, t), self.at(j, t - 1))
                for j, row in enumerate(self.c.reads[r])
                if row is not None
            )
        )

    def _against(self, axis: int, x: Term, state: Term) -> Term:
        if self.rank == 1:
            return matmul(transposed(x), state)
        return matmul(transposed(state), x) if axis == 0 else matmul(state, x)

    def steps(self) -> list[Equation]:
        """One token."""
        found = [Equation(symbol(name, T), self.reading(r, T)) for r, name in enumerate(self.rows)]
        for i in self.count:
            taken = [self.kept(i, j, self.at(j, T - 1), T) for j in self.count]
            added = [self._share(a, i, T) for a in self.c.added]
            found.append(Equation(self.at(i, T), add(*taken, *added)))
        return found

    def _share(self, added: Added, i: int, t: At) -> Term:
        scalar = added.scales[i]
        return number(0) if scalar is None else scale(spec(scalar, t), self.body(added, t))

    # ---- chunk

    def weigh(self, entry: Term, x: Term) -> Term:
        """``x`` times an entry of a step or of a product of steps."""
        return scale(entry, x) if self.c.scalar else had(entry, x)

    @property
    def contracts(self) -> bool:
        """Whether reads go by products of pairs of tokens."""
        return self.c.scalar and self.c.separable and self.rank == 2

    def between(self, j: int, i: int, low: At, high: At) -> Term:
        """What state j at ``high`` has of state i at ``low``."""
        return Term("entry", (path(self.step_name, low, high),), (j, i))

    def chunk(self) -> Section:
        """The products of the steps, the systems, the carry."""
        n = len(self.states)
        entries = tuple(self._entry(self.c.kept[i][j], T) for i, j in product(self.count, repeat=2))
        names = ", ".join(self.states)
        parts: list[Part] = [
            "The step of all states as one matrix, in the order of their names here, whose entries "
            f"multiply states entry by entry ({names}), and the products of the steps between two "
            "tokens, the empty one being I:",
            Equation(symbol(self.step_name, T), Term("matrix", entries, n), "1 <= t <= C"),
            Equation(
                path(self.step_name, S, T),
                over("chain", U, S + 1, T, symbol(self.step_name, U)),
                "0 <= s <= t <= C",
            ),
        ]
        parts += self._system()
        parts.append("The states that leave the chunk:")
        parts += [Equation(self.at(j, END), self.unrolled(j, END)) for j in self.count]
        if self.contracts and self.reads:
            parts.append("What is read, for all tokens of the chunk at once:")
            for n, read in enumerate(self.reads):
                j, query = self.states.index(read.state), spec(read.query, T)
                value = self._read(read.axis, {j: query}, T + read.when, self.pairs[n])
                parts += value[:-1]
                left = self._against(read.axis, query, self.at(j, T + read.when))
                parts.append(Equation(left, value[-1].right, "1 <= t <= C"))
        if self.shown or not self.reads or not self.contracts:
            parts.append("The states at every token, to be read by the outputs:")
            parts += [
                Equation(self.at(j, T), self.unrolled(j, T), "1 <= t <= C") for j in self.count
            ]
        return Section("Chunk form", tuple(parts))

    def unrolled(self, j: int, t: At) -> Term:
        """State j at t from the start of the chunk."""
        reached = sorted(self.reached[j])
        parts = [self.weigh(self.between(j, i, ZERO, t), self.at(i, ZERO)) for i in reached]
        for added in self.c.added:
            shares = [
                self.weigh(self.between(j, i, S, t), self._share(added, i, S))
                for i in reached
                if added.scales[i] is not None
            ]
            if shares:
                parts.append(over("sum", S, ONE, t, add(*shares)))
        return add(*parts)

    def _system(self) -> list[Part]:
        """The rows that are read of the states before their token."""
        if not self.rows:
            return []
        parts: list[Part] = [
            "What is read of the states before a token is one more row to write; the rows of a "
            "chunk solve a unit lower triangular system:"
        ]
        for r, name in enumerate(self.rows):
            queries = {j: spec(x, T) for j, x in enumerate(self.c.reads[r]) if x is not None}
            if self.contracts:
                parts += self._read(self.c.axis, queries, T - 1, self.systems[r], name)
                continue
            value = (
                self._against(self.c.axis, x, self.unrolled(j, T - 1)) for j, x in queries.items()
            )
            parts.append(Equation(symbol(name, T), add(*value), "1 <= t <= C"))
        return parts

    def _read(
        self, axis: int, queries: dict[int, Term], high: At, weights: list[str], name: str = ""
    ) -> list[Equation]:
        """What columns read of states as they are at ``high``: the products with what is written,
        then the sum over tokens."""
        start = [
            self.weigh(self.between(j, i, ZERO, high), self._against(axis, x, self.at(i, ZERO)))
            for j, x in queries.items()
            for i in sorted(self.reached[j])
        ]
        found, parts = [], [add(*start)]
        where = "1 <= s <= t <= C" if high == T else "1 <= s < t <= C"
        for added, weight in zip(self.c.added, weights):
            near, far = self._sides(added, axis)
            value = [
                scale(
                    spec(scalar, S),
                    scale(self.between(j, i, S, high), matmul(transposed(x), near)),
                )
                for j, x in queries.items()
                for i, scalar in enumerate(added.scales)
                if scalar is not None and i in self.reached[j]
            ]
            if value:
                found.append(Equation(symbol(weight, T, S), add(*value), where))
                parts.append(over("sum", S, ONE, high, scale(symbol(weight, T, S), far)))
        return [*found, Equation(symbol(name or "r", T), add(*parts), "1 <= t <= C")]

    def _sides(self, added: Added, axis: int) -> tuple[Term, Term]:
        """What a term of a matrix has on an axis, and on the other one."""
        sides = [
            spec(expr, S) if (expr := added.on((side,))) is not None else Term("ones", (), side)
            for side in (0, 1)
        ]
        if added.read is not None:
            sides[1 - self.c.axis] = symbol(self.rows[added.read], S)
        return sides[axis], sides[1 - axis]

    def decode(self) -> Section:
        return Section("Decode step", ("One token, from the states before it:", *self.steps()))

    # ---- backward

    def backward(self) -> Section:
        """The adjoint recurrence, its chunk form, and the gradients of all factors."""
        parts: list[Part] = [
            (
                "The cotangents of the states, given those that the outputs send them, ",
                *(x for name in self.direct for x in (symbol(name, T), ", ")),
                "and those of the states that leave the chunk. From the last token to the first:",
            )
        ]
        for i in self.count:
            last = add(self.d(i, At("out")), symbol(self.direct[i], END))
            parts.append(Equation(self.d(i, END), last))
            taken = [self._transposed(i, j, self.d(j, T + 1), T + 1) for j in self.count]
            sent = [self._read_back(r, i, T + 1) for r in range(len(self.rows))]
            direct = symbol(self.direct[i], T)
            parts.append(Equation(self.d(i, T), add(direct, *taken, *sent), "1 <= t < C"))
        for r, name in enumerate(self.back):
            parts.append(Equation(symbol(name, T), self._pulled(r), "1 <= t <= C"))
        parts.append("For all tokens of the chunk at once, by the same products, transposed:")
        parts += [
            Equation(self.d(i, T), self.unrolled_back(i, T), "1 <= t <= C") for i in self.count
        ]
        parts.append("Gradients of the factors:")
        parts += self.gradients()
        return Section("Backward", tuple(parts))

    def _transposed(self, i: int, j: int, x: Term, t: At) -> Term:
        return self.kept(j, i, x, t)

    def _read_back(self, r: int, i: int, t: At) -> Term:
        """What the r-th read of token t sends to state i before it."""
        row = self.c.reads[r][i]
        if row is None:
            return number(0)
        back = symbol(self.back[r], t)
        if self.rank == 1:
            return scale(back, spec(row, t))
        if self.c.axis == 0:
            return matmul(spec(row, t), transposed(back))
        return matmul(back, transposed(spec(row, t)))

    def _pulled(self, r: int) -> Term:
        """The cotangent of the r-th read."""
        parts = []
        for added in self.c.added:
            if added.read == r:
                column = added.on((self.c.axis,))
                x = spec(column, T) if column else Term("ones", (), self.c.axis)
                for i, scalar in enumerate(added.scales):
                    if scalar is not None:
                        pulled = self._against(self.c.axis, x, self.d(i, T))
                        parts.append(scale(spec(scalar, T), pulled))
        return add(*parts)

    def unrolled_back(self, i: int, t: At) -> Term:
        """The cotangent of state i at t from the end of the chunk."""
        users = [j for j in self.count if i in self.reached[j]]
        parts = [self.weigh(self.between(j, i, t, END), self.d(j, At("out"))) for j in users]
        sent = [self.weigh(self.between(j, i, t, S), symbol(self.direct[j], S)) for j in users]
        parts.append(over("sum", S, t, END, add(*sent)))
        for r in range(len(self.rows)):
            reads = [
                self.weigh(self.between(j, i, t, S - 1), self._read_back(r, j, S))
                for j in users
                if self.c.reads[r][j] is not None
            ]
            parts.append(over("sum", S, t + 1, END, add(*reads)))
        return add(*parts)

    def gradients(self) -> list[Equation]:
        """One equation for each factor, all its places added."""
        found: dict[Expr, list[Term]] = {}

        def send(expr: Expr | None, term: Term) -> None:
            if expr is not None and expr.op != "const":
                found.setdefault(expr, []).append(term)

        for i, j in product(self.count, repeat=2):
            factors = self.c.kept[i][j] or ()
            for factor in factors:
                x = self.at(j, T - 1)
                for other in factors:
                    if other is not factor:
                        x = times(self.rank, other.axes, spec(other.expr, T), x)
                send(factor.expr, summed(self.rank, had(self.d(i, T), x), factor.axes))
        for added in self.c.added:
            self._added(added, send)
        for r, rows in enumerate(self.c.reads):
            for j, row in enumerate(rows):
                back, before = symbol(self.back[r], T), self.at(j, T - 1)
                if self.rank == 1:
                    send(row, scale(back, before))
                elif self.c.axis == 0:
                    send(row, matmul(before, back))
                else:
                    send(row, matmul(transposed(before), back))
        return [
            Equation(Term("d", (spec(expr, T),)), add(*terms), "1 <= t <= C")
            for expr, terms in found.items()
        ]

    def _added(self, added: Added, send: Callable[[Expr | None, Term], None]) -> None:
        pulled = add(
            *(
                scale(spec(scalar, T), self.d(i, T))
                for i, scalar in enumerate(added.scales)
                if scalar is not None
            )
        )
        for i, scalar in enumerate(added.scales):
            if scalar is not None:
                value = had(self.d(i, T), self.body(added, T))
                send(scalar, summed(self.rank, value, ()))
        for factor in added.factors:
            x = pulled
            for other in added.factors:
                if other is not factor:
                    x = times(self.rank, other.axes, spec(other.expr, T), x)
            if added.read is not None:
                row, axis = symbol(self.rows[added.read], T), (1 - self.c.axis,)
                x = scale(row, x) if self.rank == 1 else times(self.rank, axis, row, x)
            send(factor.expr, summed(self.rank, x, factor.axes))
