"""An `attend` in, softmax attention over time by blocks, its gradients and its decode step out."""

from __future__ import annotations

from lacc.derivation.naming import Names
from lacc.derivation.terms import (
    END,
    ONE,
    At,
    Equation,
    Part,
    S,
    Section,
    T,
    Term,
    U,
    add,
    matmul,
    neg,
    over,
    scale,
    spec,
    symbol,
    transposed,
)
from lacc.spec.model import Expr


class Attention:
    """The derivation of one attention."""

    def __init__(self, node: Expr, names: Names) -> None:
        self.node = node
        self.q, self.k, self.v, *sink = node.args
        self.sink = sink[0] if sink else None
        self.window = None if node.value is None else int(node.value)
        self.out = names.fresh("y", "o'")
        self.log = names.fresh("L", "ℓ")
        self.p = names.fresh("p", "P")
        self.mean = names.fresh("D", "Δ")
        self.ct = f"d {self.out}"
        self.totals, self.values = names.several(2, "E", "Z"), names.several(2, "m", "n", "Y")

    def low(self) -> At:
        return ONE if self.window is None else T - (self.window - 1)

    def logit(self, t: At, s: At) -> Term:
        return matmul(transposed(spec(self.q, t)), spec(self.k, s))

    def weight(self, t: At, s: At) -> Term:
        return symbol(self.p, t, s)

    def forward(self) -> Section:
        """Two passes: the sums of exponentials, then the values."""
        low = self.low()
        total = over("lse", S, low, T, self.logit(T, S))
        if self.sink is not None:
            total = Term("call", (total, spec(self.sink, T)), "logaddexp")
        weight = Term("call", (add(self.logit(T, S), neg(symbol(self.log, T))),), "exp")
        value = over("sum", S, low, T, scale(self.weight(T, S), spec(self.v, S)))
        return Section(
            "Attention",
            (
                "Softmax attention over time; t counts the tokens of the sequence, and "
                + ("the first is 1:" if self.window is None else "there is none before 1:"),
                Equation(symbol(self.log, T), total, "1 <= t"),
                Equation(symbol(self.p, T, S), weight, "1 <= s <= t"),
                Equation(symbol(self.out, T), value, "1 <= t"),
            ),
        )

    def chunk(self) -> Section:
        """Two blocks of keys as one: those up to u, and those after it."""
        parts: list[Part] = [
            "Keys come in blocks, and of those before only a sum of exponentials and a value are "
            "kept for each query. For the keys up to u and those after it:"
        ]
        scaled = []
        ends, where = ((self.low(), U), (U + 1, T)), "1 <= u < t"
        if self.window is not None:  # else none are up to u, and some after it out of sight
            where = f"1 <= u, t - {self.window} < u < t"
        for (low, high), total, value in zip(ends, self.totals, self.values):
            log, mean = symbol(total, T, U), symbol(value, T, U)
            weight = Term("call", (add(self.logit(T, S), neg(log)),), "exp")
            parts += [
                Equation(log, over("lse", S, low, high, self.logit(T, S)), where),
                Equation(mean, over("sum", S, low, high, scale(weight, spec(self.v, S))), where),
            ]
            share = Term("call", (add(log, neg(symbol(self.log, T))),), "exp")
            scaled.append(scale(share, mean))
        first, second = (symbol(total, T, U) for total in self.totals)
        whole = Term("call", (first, second), "logaddexp")
        if self.sink is not None:
            whole = Term("call", (whole, spec(self.sink, T)), "logaddexp")
        parts += [
            "Both together, where no exponent is positive:",
            Equation(symbol(self.log, T), whole, where),
            Equation(symbol(self.out, T), add(*scaled), where),
        ]
        return Section("Chunk form", tuple(parts))

    def backward(self) -> Section:
        """From the weights, which are formed anew."""
        high = END if self.window is None else T + (self.window - 1)
        ct = symbol(self.ct, T)
        gap = add(
            matmul(transposed(ct), spec(self.v, S)),
            neg(symbol(self.mean, T)),
        )
        later = add(
            matmul(transposed(symbol(self.ct, S)), spec(self.v, T)),
            neg(symbol(self.mean, S)),
        )
        parts: list[Part] = [
            ("Given ", ct, ", with the weights formed again from ", symbol(self.log, T), ":"),
            Equation(symbol(self.mean, T), matmul(transposed(ct), symbol(self.out, T)), "1 <= t"),
        ]
        gathered: dict[Expr, list[Term]] = {}
        for expr, value in (
            (self.q, over("sum", S, self.low(), T, self._pair(T, S, gap, self.k))),
            (self.k, over("sum", S, T, high, self._pair(S, T, later, self.q))),
            (self.v, over("sum", S, T, high, scale(self.weight(S, T), symbol(self.ct, S)))),
        ):
            gathered.setdefault(expr, []).append(value)
        if self.sink is not None and self.sink.op != "const":
            mass = Term("call", (add(spec(self.sink, T), neg(symbol(self.log, T))),), "exp")
            gathered.setdefault(self.sink, []).append(neg(scale(mass, symbol(self.mean, T))))
        for expr, values in gathered.items():
            parts.append(Equation(Term("d", (spec(expr, T),)), add(*values), "1 <= t"))
        return Section("Backward", tuple(parts))

    def _pair(self, t: At, s: At, gap: Term, other: Expr) -> Term:
        """What the pair of the tokens t and s gives to the gradient of a query or a key."""
        return scale(self.weight(t, s), scale(gap, spec(other, S)))

    def decode(self) -> Section:
        reach = "all tokens so far" if self.window is None else f"the last {self.window} tokens"
        return Section(
            "Decode step",
            (f"The keys and values of {reach} are kept; a token is one row of the sums above.",),
        )
