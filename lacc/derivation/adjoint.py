"""A recurrence in canonical form in, its backward form out: the adjoint, token by token and by
chunks, and the gradients of all factors.

What reads a state sends cotangents to it, as what writes adds to it: the adjoint fades backward by
the same decays, and what an erase reads is solved by the transposed system.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from lacc.analysis.decay import Decay
from lacc.analysis.transition import LowRank, Write
from lacc.derivation.axes import COLUMNS, ROWS, summed, times
from lacc.derivation.canonical import Forward, Of
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
    add,
    had,
    matmul,
    number,
    over,
    scale,
    spec,
    symbol,
    transposed,
)
from lacc.spec.model import Expr


@dataclass(frozen=True, slots=True)
class Sink:
    """What a token reads, seen from the cotangents: columns and rows that are added to dS, of the
    state as it is ``late`` tokens before."""

    rows: Of
    columns: Of | None
    late: int


class Canonical(Forward):
    """The derivation of one state."""

    def sinks(self) -> list[Sink]:
        """What sends cotangents to the state: reads, then erases."""
        found = []
        for read, rho in zip(self.reads, self.cotangents):
            found.append(self._sink(read.axis, read.query, rho, -read.when))
        for erase, name in zip(self.r.erases, self.back):
            found.append(self._sink(erase.axis, erase.b, name, 1))
        return found

    def _sink(self, axis: int, query: Expr, name: str, late: int) -> Sink:
        if self.rank == 1:
            return Sink(lambda t: scale(symbol(name, t), spec(query, t)), None, late)
        if axis == 0:
            return Sink(lambda t: spec(query, t), lambda t: symbol(name, t), late)
        return Sink(lambda t: symbol(name, t), lambda t: spec(query, t), late)

    def unrolled_back(self, t: At) -> Term:
        """dS at t from the end of the chunk."""
        parts = [self.faded(self.end(), t, END)]
        if self.direct:
            parts.append(over("sum", S, t, END, self.faded(symbol(self.direct, S), t, S)))
        for sink in self.sinks():
            body = self.pieces(sink.rows, sink.columns, S, t, S - sink.late)
            parts.append(over("sum", S, t + sink.late, END, body))
        return add(*parts)

    def backward(self) -> Section:
        """The adjoint recurrence, its chunk form, and the gradients of all factors."""
        parts: list[Part] = [
            (
                self.d(T),
                " is the derivative of the loss in the state after a token, by way of all that "
                "reads it. Given are ",
                *self._given(),
                self.end(),
                ", that of the state that leaves the chunk. From the last token to the first:",
            )
        ]
        parts.append(Equation(self.d(END), self._last(), ""))
        parts.append(Equation(self.d(T), self._adjoint(), "0 <= t < C"))
        for erase, name in zip(self.r.erases, self.back):
            parts.append(Equation(symbol(name, T), self._pulled(erase), "1 <= t <= C"))
        parts.append(
            "For all tokens of the chunk at once, with the same decays between tokens"
            + (" (and, for the rows of the erases, the transposed systems):" if self.back else ":")
        )
        for n, (erase, name) in enumerate(zip(self.r.erases, self.back)):
            value = self.pulled_back(erase.axis, spec(erase.a, T), ("erase", n))
            if erase.along is not None:
                value = had(spec(erase.along, T), value)
            parts.append(Equation(symbol(name, T), value, "1 <= t <= C"))
        parts.append(Equation(self.d(T), self.unrolled_back(T), "0 <= t <= C"))
        parts.append("Gradients of the factors:")
        parts += self.gradients()
        parts.append(
            "What tokens share (a parameter) has the sum over them; a gate that is kept as its log "
            "has the gradient of the factor times the factor; what a factor is made of gets its "
            "gradient by the factor's own formula."
        )
        if self.rank == 2 and (0, 1) not in self.paths and not self.direct:
            parts.append(
                ("The same by chunks, with ", self.at(T), " and ", self.d(T), " inserted:")
            )
            parts += self.chunk_gradients()
        return Section("Backward", tuple(parts))

    def _given(self) -> Iterator[str | Term]:
        """The cotangents that a chunk is given, in words."""
        for i, name in enumerate(self.cotangents):
            yield symbol(name, T)
            yield ", the cotangent of "
            yield self.read_equation(i, self.reads[i]).left
            yield ", "
        if self.direct:
            yield symbol(self.direct, T)
            yield ", what reads of entries send to "
            yield self.at(T)
            yield ", "
        if self.cotangents or self.direct:
            yield "and "

    def pulled_back(self, axis: int, x: Term, of: tuple[str, int] | None = None) -> Term:
        """What x, of token t, reads of dS[t], from the end of the chunk; ``of`` says whose column
        x is, so that the products of the forward pass stand for themselves."""
        side = self.on(axis, x, T, END)
        scalar = self._path((), T, END)
        side = side if scalar is None else scale(scalar, side)
        if self.rank == 1:
            start = matmul(transposed(self.end()), side)
        else:
            start = matmul(transposed(self.end()) if axis == 0 else self.end(), side)
            start = self.on(1 - axis, start, T, END)
        parts = [start]
        if self.direct:
            entries = self.faded(symbol(self.direct, S), T, S)
            if self.rank == 1 or axis == 0:
                entries = transposed(entries)
            parts.append(over("sum", S, T, END, matmul(entries, x)))
        for n, sink in enumerate(self.sinks()):
            near = sink.rows(S) if axis == 0 or sink.columns is None else sink.columns(S)
            weight = self._known_weight(n, axis, of)
            if self.rank == 1:
                parts.append(over("sum", S, T + sink.late, END, self._weighed(sink, x)))
                continue
            if weight is None:
                weight = self.gram(axis, x, near, T, S - sink.late)
            assert sink.columns is not None
            far = sink.columns(S) if axis == 0 else sink.rows(S)
            rest = self.on(1 - axis, far, T, S - sink.late)
            parts.append(over("sum", S, T + sink.late, END, scale(weight, rest)))
        return add(*parts)

    def _weighed(self, sink: Sink, x: Term) -> Term:
        """Of a vector: what x reads of one later token's cotangent."""
        return matmul(transposed(self.faded(sink.rows(S), T, S - sink.late)), x)

    def _known_weight(self, n: int, axis: int, of: tuple[str, int] | None) -> Term | None:
        """The forward product, transposed, of the n-th sink with a source's column."""
        if of is None:
            return None
        kind, source = of
        position = source + (len(self.free) if kind == "erase" else 0)
        if n < len(self.reads):
            name = self.pairs.get((n, position)) if self.reads[n].axis == axis else None
        else:
            row, count = n - len(self.reads), len(self.r.erases)
            if kind == "erase":
                name = self.system[row * count + source]
            else:
                name = self.known[row * len(self.free) + source]
            name = name if self.r.erases[row].axis == axis else None
        return None if name is None else symbol(name, S, T)

    def chunk_gradients(self) -> list[Equation]:
        """Gradients of what reads and what is written, as sums over tokens."""
        found = []
        for read, rho in zip(self.reads, self.cotangents):
            at, axis = T + read.when, 1 - read.axis
            row = self.on(axis, symbol(rho, T), ZERO, at)
            scalar = self._path((), ZERO, at)
            row = row if scalar is None else scale(scalar, row)
            parts = [self.on(1 - axis, self.read(axis, row, ZERO), ZERO, at)]
            for source in self.sources():
                near = self._side(source, axis, S)
                weight = self.gram(axis, symbol(rho, T), near, S, at)
                rest = self._otherside(source, axis, S, S, at)
                parts.append(over("sum", S, ONE, at, scale(weight, rest)))
            found.append(self._gradient(read.query, add(*parts)))
        for j, write in enumerate(self.free):
            source, rows, columns = self.source(write), write.on((0,)), write.on((1,))
            scalar_ = self._on(write, (), T)
            assert source.columns is not None
            if columns is not None:
                value = self.pulled_back(0, source.rows(T), ("write", j))
                found.append(self._gradient(columns, scale(scalar_ or number(1), value)))
            if rows is not None:
                value = self.pulled_back(1, source.columns(T), ("write", j))
                found.append(self._gradient(rows, value))
        for n, partner in enumerate(self.partners):
            erase = self.r.erases[n]
            row_ = None if partner is None else partner.on((1 - erase.axis,))
            if partner is not None and row_ is not None:
                value = self.pulled_back(erase.axis, spec(erase.a, T), ("erase", n))
                scalar_ = self._on(partner, (), T)
                found.append(self._gradient(row_, scale(scalar_ or number(1), value)))
        alone = {e.left for e in self.gradients() if e.right.op != "add"}
        return [e for e in found if e.left in alone]

    def _gradient(self, expr: Expr, value: Term) -> Equation:
        return Equation(Term("d", (spec(expr, T),)), value, "1 <= t <= C")

    def _last(self) -> Term:
        return add(self.end(), *self._sent(END, 0))

    def _sent(self, t: At, late: int) -> list[Term]:
        """What tokens send to dS[t] directly."""
        found = [symbol(self.direct, t)] if self.direct and late == 0 else []
        for sink in self.sinks():
            if sink.late == late:
                found.append(self.plain(sink.rows, sink.columns, t + late))
        return found

    def _adjoint(self) -> Term:
        return add(*self._sent(T, 0), self.kept(self.d(T + 1), T + 1), *self._sent(T, 1))

    def pulled(self, axis: int, x: Term, t: At) -> Term:
        """What x reads of dS, as a column (a number for a vector)."""
        if self.rank == 1:
            return matmul(transposed(self.d(t)), x)
        return matmul(transposed(self.d(t)), x) if axis == 0 else matmul(self.d(t), x)

    def _pulled(self, erase: LowRank) -> Term:
        value = self.pulled(erase.axis, spec(erase.a, T), T)
        return value if erase.along is None else had(spec(erase.along, T), value)

    def gradients(self) -> list[Equation]:
        """One equation for each factor, all its places added."""
        found: dict[Expr, list[Term]] = {}

        def send(expr: Expr | None, term: Term) -> None:
            if expr is not None and expr.op != "const":
                found.setdefault(expr, []).append(term)

        for read, rho in zip(self.reads, self.cotangents):
            send(read.query, self._against(read.axis, symbol(rho, T), self.at(T + read.when)))
        for n, (erase, back) in enumerate(zip(self.r.erases, self.back)):
            before, axis = self.at(T - 1), erase.axis
            taken = self.read(axis, spec(erase.b, T), T - 1)
            row = taken if erase.along is None else had(spec(erase.along, T), taken)
            partner = self.partners[n]
            if partner is not None:
                row = symbol(self.unknown[n], T)
            send(erase.a, self._against(axis, row, self.d(T)))
            send(erase.b, self._against(axis, symbol(back, T), before))
            if erase.along is not None:
                send(erase.along, had(self.pulled(axis, spec(erase.a, T), T), taken))
            if partner is not None:
                pulled = self.pulled(axis, spec(erase.a, T), T)
                self._send_rest(send, partner, axis, pulled)
        for write in self.free:
            self._send_write(send, write)
        for decay, _ in self.decays:
            send(decay.factor, self._decay_gradient(decay))
        return [
            Equation(Term("d", (spec(expr, T),)), add(*terms), "1 <= t <= C")
            for expr, terms in found.items()
        ]

    def _against(self, axis: int, row: Term, matrix: Term) -> Term:
        """The gradient of a column that meets ``row`` in ``matrix``."""
        if self.rank == 1:
            return scale(row, matrix)
        return matmul(matrix, row) if axis == 0 else matmul(transposed(matrix), row)

    def _send_rest(
        self, send: Callable[[Expr | None, Term], None], write: Write, axis: int, pulled: Term
    ) -> None:
        scalar, rest = write.on(()), write.on((1 - axis,))
        assert rest is not None
        send(rest, pulled if scalar is None else scale(spec(scalar, T), pulled))
        send(scalar, matmul(transposed(spec(rest, T)), pulled))

    def _send_write(self, send: Callable[[Expr | None, Term], None], write: Write) -> None:
        """Each factor's gradient is the sum of dS times all others, over the axes it lacks."""
        for factor in write.factors:
            value = self.d(T)
            rest = [f for f in write.factors if f is not factor]
            if (0, 1) not in {f.axes for f in write.factors} and self.rank == 2:
                value = self._product_gradient(write, factor.axes)
            else:
                for other in rest:
                    value = times(self.rank, other.axes, spec(other.expr, T), value)
                value = summed(self.rank, value, factor.axes)
            send(factor.expr, value)

    def _product_gradient(self, write: Write, axes: tuple[int, ...]) -> Term:
        rows = self._on(write, (0,), T) or ROWS
        columns = self._on(write, (1,), T) or COLUMNS
        scalar = self._on(write, (), T)
        value = {
            (0,): matmul(self.d(T), columns),
            (1,): matmul(transposed(self.d(T)), rows),
            (): matmul(transposed(rows), self.d(T), columns),
        }[axes]
        return value if scalar is None or axes == () else scale(scalar, value)

    def _decay_gradient(self, decay: Decay) -> Term:
        value = self.at(T - 1)
        for axes, factor in self.given.items():
            if axes != decay.axes:
                value = times(self.rank, axes, spec(factor, T), value)
        return summed(self.rank, had(self.d(T), value), decay.axes)
