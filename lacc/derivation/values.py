"""Equations and what they start from in, the values of terms out.

A vector is a column [n, 1], a number has no axes; all of one sequence and head.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import reduce
from typing import Any

import numpy as np

from lacc.derivation.terms import At, Equation, Term
from lacc.spec.model import Expr

Array = Any
Given = Callable[[Expr, int], Array]
Known = Mapping[tuple[str, tuple[int, ...]], Array]


class Values:
    """Evaluates terms for a chunk of ``length`` tokens.

    ``given`` has the value of a spec's expression at a token, ``known`` those of symbols at tokens
    (the state at 0, cotangents), ``sizes`` the axes of the state. Where several equations define a
    name, that comes first which is for all tokens.
    """

    OUT = -1
    """The index of what leaves the chunk."""

    def __init__(
        self,
        equations: Iterable[Equation],
        length: int,
        given: Given,
        known: Known,
        sizes: tuple[int, ...],
    ) -> None:
        self.length, self.given, self.known, self.sizes = length, given, known, sizes
        self.rules: dict[str, list[Equation]] = {}
        for equation in equations:
            if equation.name:
                self.rules.setdefault(equation.name, []).append(equation)
        self._memo: dict[tuple[str, tuple[int, ...]], Array] = {}

    def of(self, term: Term, **at: int) -> Array:
        """The value of ``term`` where the indices are ``at``."""
        return self._of(term, at)

    def _index(self, at: At, env: Mapping[str, int]) -> int:
        fixed = {"0": 0, "1": 1, "C": self.length, "out": self.OUT}
        base = fixed[at.name] if at.name in fixed else env[at.name]
        return base + at.offset

    def _named(self, name: str, at: tuple[int, ...]) -> Array:
        key = name, at
        if key in self.known:
            return self.known[key]
        if key not in self._memo:
            self._memo[key] = self._of(*self._rule(name, at))
        return self._memo[key]

    def _rule(self, name: str, at: tuple[int, ...]) -> tuple[Term, dict[str, int]]:
        """The right side that defines a name at some tokens, and the indices there."""
        for rule in self.rules[name]:
            assert isinstance(rule.left.value, tuple)
            _, *indices = rule.left.value
            places = indices[0] if rule.left.op == "symbol" else indices
            env, fits = {}, len(places) == len(at)
            for place, value in zip(places, at):
                if place.name in ("0", "1", "C"):
                    fits = fits and self._index(place, {}) == value
                else:
                    env[place.name] = value - place.offset
            if fits:
                return rule.right, env
        raise KeyError(name)

    def _of(self, term: Term, env: dict[str, int]) -> Array:
        match term.op:
            case "spec":
                expr, at = term.value
                return self.given(expr, self._index(at, env))
            case "symbol":
                name, places = term.value
                return self._named(name, tuple(self._index(at, env) for at in places))
            case "path":
                name, low, high = term.value
                return self._named(name, (self._index(low, env), self._index(high, env)))
            case "number":
                return term.value
            case "ones":
                return np.ones((self.sizes[term.value], 1))
            case "sum" | "prod" | "max" | "min" | "lse" | "chain":
                return self._over(term, env)
        args = [self._of(arg, env) for arg in term.args]
        match term.op:
            case "add":
                return reduce(np.add, args)
            case "neg":
                return -args[0]
            case "scale" | "had":
                return reduce(np.multiply, args)
            case "matmul":
                found = reduce(np.matmul, args)
                return found[0, 0] if found.shape == (1, 1) else found
            case "T":
                return np.transpose(args[0])
            case "diag":
                return np.diag(args[0][:, 0])
            case "entry":
                i, j = term.value
                return args[0][i][j]
            case "matrix":
                count = int(term.value)
                return [args[i : i + count] for i in range(0, len(args), count)]
        return FUNCTIONS[str(term.value)](*args)

    def _over(self, term: Term, env: dict[str, int]) -> Array:
        index, low, high = term.value
        last = min(self._index(high, env), self.length)  # no token is before 1 or after C
        span = range(max(self._index(low, env), 1), last + 1)
        found = [self._of(term.args[0], {**env, index.name: value}) for value in span]
        if term.op == "chain":
            if not found:
                some = self._of(term.args[0], {**env, index.name: 1})
                return [[float(i == j) for j in range(len(some))] for i in range(len(some))]
            return reduce(lambda total, next: _product(next, total), found)
        if term.op == "prod" and not found:
            return np.ones_like(self._of(term.args[0], {**env, index.name: 1}))
        return reduce(FOLDS[term.op], found, START[term.op])


def _product(a: Any, b: Any) -> Any:
    """The product of two matrices of entries."""
    n = len(a)
    return [[sum(a[i][k] * b[k][j] for k in range(n)) for j in range(n)] for i in range(n)]


def _logaddexp(a: Array, b: Array) -> Array:
    """Of complex numbers too, whose imaginary parts are a step."""
    top = np.maximum(np.real(a), np.real(b))
    top = np.where(np.isfinite(top), top, 0.0)
    return top + np.log(np.exp(a - top) + np.exp(b - top))


FOLDS: dict[str, Callable[[Array, Array], Array]] = {
    "sum": np.add,
    "prod": np.multiply,
    "max": np.maximum,
    "min": np.minimum,
    "lse": _logaddexp,
}
START = {"sum": 0.0, "prod": 1.0, "max": -np.inf, "min": np.inf, "lse": -np.inf}
FUNCTIONS: dict[str, Callable[..., Array]] = {
    "exp": np.exp,
    "log": np.log,
    "max": np.maximum,
    "min": np.minimum,
    "logaddexp": _logaddexp,
    "larger": lambda a, b: np.heaviside(np.real(a - b), 0.5),
}
