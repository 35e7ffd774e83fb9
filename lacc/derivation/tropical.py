"""A running maximum, minimum or log-sum-exp in, its chunked, backward and decode forms out."""

from __future__ import annotations

from lacc.analysis.transition import Recurrence
from lacc.derivation.axes import summed
from lacc.derivation.naming import Names
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
    neg,
    number,
    over,
    path,
    spec,
    symbol,
)
from lacc.spec.model import State

_FOLDS = {"max": "max", "min": "min", "logaddexp": "lse"}


class Tropical:
    """The derivation of m[t] = (m[t-1] + f) ⊕ i."""

    def __init__(self, recurrence: Recurrence, state: State, names: Names) -> None:
        assert recurrence.tropical is not None
        self.form, self.name, self.rank = recurrence.tropical, state.name, len(state.shape)
        self.sum = names.of(self.form.f, "F", "Φ")
        self.slope = names.fresh("p", "π")
        self.direct = names.fresh("G", "Ḡ")

    def at(self, t: At) -> Term:
        return symbol(self.name, t)

    def d(self, t: At) -> Term:
        return symbol(f"d {self.name}", t)

    def step(self) -> Equation:
        """One token."""
        kept = add(self.at(T - 1), spec(self.form.f, T))
        return Equation(self.at(T), Term("call", (kept, spec(self.form.i, T)), self.form.op))

    def unrolled(self, t: At) -> Term:
        """m at t from the start of the chunk."""
        start = add(path(self.sum, ZERO, t), self.at(ZERO))
        written = add(path(self.sum, S, t), spec(self.form.i, S))
        local = over(_FOLDS[self.form.op], S, ONE, t, written)
        return Term("call", (start, local), self.form.op)

    def chunk(self) -> Section:
        """Only a sum waits for the chunk before."""
        return Section(
            "Chunk form",
            (
                "Sums between two tokens of a chunk, the empty one being 0:",
                Equation(
                    path(self.sum, S, T),
                    over("sum", U, S + 1, T, spec(self.form.f, U)),
                    "0 <= s <= t <= C",
                ),
                "Addition distributes over the operation, so that the chunk has a part of its own "
                "and one that waits for the value before it:",
                Equation(self.at(T), self.unrolled(T), "1 <= t <= C"),
                "What leaves the chunk:",
                Equation(self.at(END), self.unrolled(END)),
            ),
        )

    def decode(self) -> Section:
        return Section("Decode step", ("One token, from the value before it:", self.step()))

    def backward(self) -> Section:
        """The slopes, the adjoint recurrence, the gradients."""
        kept, given = add(self.at(T - 1), spec(self.form.f, T)), spec(self.form.i, T)
        if self.form.op == "logaddexp":
            slope = Term("call", (add(kept, neg(self.at(T))),), "exp")
        else:
            sign = (kept, given) if self.form.op == "max" else (given, kept)
            slope = Term("call", sign, "larger")
        p = symbol(self.slope, T)
        between = over("prod", U, T + 1, S, symbol(self.slope, U))
        whole = over("prod", U, T + 1, END, symbol(self.slope, U))
        sent = over("sum", S, T, END, had(between, symbol(self.direct, S)))
        next = had(symbol(self.slope, T + 1), self.d(T + 1))
        parts: list[Part] = [
            (
                "The slope of ",
                self.at(T),
                " in ",
                self.at(T - 1),
                " (1 where the comparison holds, 1/2 at a tie):"
                if slope.value == "larger"
                else ":",
            ),
            Equation(p, slope, "1 <= t <= C"),
            ("The adjoint, given the cotangents ", symbol(self.direct, T), " that reads send:"),
            Equation(self.d(END), add(self.d(At("out")), symbol(self.direct, END))),
            Equation(self.d(T), add(symbol(self.direct, T), next), "1 <= t < C"),
            "For all tokens of the chunk at once:",
            Equation(self.d(T), add(had(whole, self.d(At("out"))), sent), "1 <= t <= C"),
            "Gradients:",
        ]
        for expr, value in (
            (self.form.f, had(p, self.d(T))),
            (self.form.i, had(add(number(1), neg(p)), self.d(T))),
        ):
            if expr.op != "const":
                value = value if expr.shape else summed(self.rank, value, ())
                parts.append(Equation(Term("d", (spec(expr, T),)), value, "1 <= t <= C"))
        return Section("Backward", tuple(parts))
