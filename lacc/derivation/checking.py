"""A derivation in, how far its equations are from the recurrence out: the proof of what is printed.

The states of a short sequence come from the recurrence itself, token by token in float64. A chunk
out of it is then evaluated by the equations, and so are the gradients of a random loss; these are
compared with derivatives of the recurrence, taken with a complex step.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from lacc.derivation.derive import Derivation, Derived
from lacc.derivation.terms import At, Equation, Term
from lacc.derivation.values import Values
from lacc.library import samplers
from lacc.runtime import calls
from lacc.runtime.contract import Arrays, Core, Run
from lacc.runtime.evaluate import Evaluation
from lacc.runtime.kernel import Kernel
from lacc.runtime.oracle import reference as core_of
from lacc.runtime.schedule import Schedule
from lacc.spec.model import Expr, Spec
from lacc.verify.cases import Bench, Case

Array = Any
TINY = 1e-40
"""A complex step: so small that its square is nothing."""


@dataclass(frozen=True)
class Sequence:
    """The values of a spec's expressions at all tokens of one sequence and head."""

    evaluation: Evaluation
    start: int
    turned: bool = False

    def _row(self, token: int) -> int:
        """Where a token of the chunk stands, which begins after ``start`` tokens."""
        before = self.start + token
        return self.evaluation.run.T - before if self.turned else before - 1

    def at(self, expr: Expr, token: int) -> Array:
        """The value of an expression at a token."""
        shape = self.evaluation.shape(expr.shape)
        for node in expr.walk():
            if node.op == "const" and node.shape:
                filled = np.full((1, 1, 1, *self.evaluation.shape(node.shape)), float(node.value))
                self.evaluation.values.setdefault(node, filled)
        return column(self.evaluation.full(expr, shape)[self._row(token), 0, -1])

    def state(self, name: str, token: int) -> Array:
        """The state after a token of the chunk; after 0, the one that it starts from."""
        track = self.evaluation.tracks[name]
        return column(track.rows[track.front + self._row(token), 0, -1])


def column(value: Array) -> Array:
    """A vector as a column."""
    value = np.asarray(value, np.float64)
    return value[:, None] if value.ndim == 1 else value


def sequence(spec: Spec, x: Arrays, run: Run, start: int) -> Sequence:
    """Runs ``spec`` on arguments as a core gets them."""
    evaluation = Evaluation(Schedule(spec, run.dims), x, {}, run)
    with np.errstate(all="ignore"):
        evaluation.recur()
    return Sequence(evaluation, start)


class Check:
    """One recurrence on one chunk."""

    def __init__(self, part: Derived, states: Sequence, length: int, seed: int) -> None:
        self.part, self.states, self.length = part, states, length
        self.rng = np.random.default_rng(seed)
        self.factors: dict[tuple[Expr, int], Array] = {}
        start = {name: states.state(name, 0) for name in part.states}
        self.known: dict[tuple[str, tuple[int, ...]], Array] = {
            (name, (0,)): value for name, value in start.items()
        }
        first = next(iter(start.values()), np.zeros(()))
        self.sizes = tuple(n for n in first.shape)
        self.shape = first.shape

    def given(self, expr: Expr, token: int) -> Array:
        key = expr, token
        if key not in self.factors:
            self.factors[key] = self.states.at(expr, token)
        return self.factors[key]

    def values(self, equations: list[Equation]) -> Values:
        return Values(equations, self.length, self.given, self.known, self.sizes)

    def forward(self) -> dict[str, float]:
        """The error of each chunk equation for a state, and for what is read of it."""
        found: dict[str, float] = {}
        tokens = range(1, self.length + 1)
        true: dict[tuple[str, tuple[int, ...]], Array] = {
            (name, (t,)): self.states.state(name, t)
            for name in self.part.states
            for t in (0, *tokens)
        }
        canonical = self.values(list(self.part.steps))
        for name in self.part.states:
            for t in tokens:
                found["recurrent"] = max(
                    found.get("recurrent", 0.0),
                    error(canonical.of(_symbol(name, t)), true[name, (t,)]),
                )
        for section in self.part.sections[1:2]:
            helpers = [e for e in section.equations if e.name not in self.part.states]
            for equation in section.equations:
                if equation.name and equation.name not in self.part.states:
                    continue
                values = self.values(helpers)
                exact = Values([], self.length, self.given, true, self.sizes)
                for t in tokens:
                    got, want = values.of(equation.right, t=t), exact.of(equation.left, t=t)
                    found["chunk"] = max(found.get("chunk", 0.0), error(got, want))
        return found

    def backward(self) -> dict[str, float]:
        """The error of the adjoint in both forms, and of each gradient, against complex steps."""
        self._draw()
        section = self.part.sections[2]
        cotangents = {f"d {name}" for name in self.part.states}
        tokens = range(1, self.length + 1)
        rules = [e for e in section.equations if e.name in cotangents]
        others = [e for e in section.equations if e.name and e.name not in cotangents]
        chunk = self.part.sections[1].equations
        inner = [e for e in chunk if e.name not in self.part.states]
        steps = list(self.part.steps)
        found: dict[str, float] = {}
        for form in (rules, rules[::-1]):  # the adjoint recurrence, or the chunk form
            rest = others if form is rules else others[::-1]
            values = self.values([*form, *rest, *inner, *steps])
            for equation in section.equations:
                if equation.left.op != "d":
                    continue
                expr, _ = equation.left.args[0].value
                for t in tokens:
                    got = values.of(equation.right, t=t)
                    want = self.derivative(expr, t)
                    found["backward"] = max(found.get("backward", 0.0), error(got, want))
        return found

    def _draw(self) -> None:
        """Random cotangents of all that is read, and of the states that leave."""
        for name in self.part.states:
            self.known[f"d {name}", (Values.OUT,)] = self._random(self.shape)
        tokens = range(1, self.length + 1)
        for name in self.part.direct:
            for t in tokens:
                self.known[name, (t,)] = self._random(self.shape)
        true: dict[tuple[str, tuple[int, ...]], Array] = {
            (name, (t,)): self.states.state(name, t)
            for name in self.part.states
            for t in (0, *tokens)
        }
        exact = Values([], self.length, self.given, true, self.sizes)
        for name, left in self.part.reads:
            for t in tokens:
                self.known[name, (t,)] = self._random(np.shape(exact.of(left, t=t)))

    def _random(self, shape: tuple[int, ...]) -> Array:
        return self.rng.normal(size=shape)

    def loss(self) -> Array:
        """The sum of all cotangents times what they are of, by the recurrence."""
        values = self.values(list(self.part.steps))
        total: Array = 0.0
        for n, name in enumerate(self.part.states):
            end = values.of(_symbol(name, self.length))
            total = total + np.sum(self.known[f"d {name}", (Values.OUT,)] * end)
            if n < len(self.part.direct):
                for t in range(1, self.length + 1):
                    sent = self.known[self.part.direct[n], (t,)]
                    total = total + np.sum(sent * values.of(_symbol(name, t)))
        for name, left in self.part.reads:
            for t in range(1, self.length + 1):
                total = total + np.sum(self.known[name, (t,)] * values.of(left, t=t))
        return total

    def derivative(self, expr: Expr, token: int) -> Array:
        """Of the loss in a factor at a token, all others as they are."""
        value = np.asarray(self.given(expr, token), np.complex128)
        found = np.zeros(value.shape)
        for place in np.ndindex(value.shape):
            moved = value.copy()
            moved[place] += TINY * 1j
            self.factors[expr, token] = moved
            found[place] = np.imag(self.loss()) / TINY
        self.factors[expr, token] = np.real(value)
        return found


def _symbol(name: str, token: int) -> Term:
    return Term("symbol", (), (name, (At("1", token - 1),)))


def error(got: Array, want: Array) -> float:
    """max|got - want| relative to max|want| + 1."""
    gap = np.max(np.abs(np.asarray(got) - want), initial=0.0)
    return float(gap / (np.max(np.abs(want), initial=0.0) + 1.0))


class AttentionCheck(Check):
    """An attention over a whole sequence."""

    def forward(self) -> dict[str, float]:
        values = self.values(list(self.part.sections[0].equations))
        assert self.part.node is not None
        out, window = self._output(), self.part.node.value or self.length
        errors = [
            error(values.of(_symbol(out, t)), self.given(self.part.node, t))
            for t in range(1, self.length + 1)
        ]
        first, chunk = (list(section.equations) for section in self.part.sections[:2])
        together = [e for e in chunk if e.left.value[0] in (out, first[0].name)]
        values = self.values([e for e in (*chunk, *first) if e not in together])
        blocks = self.values([e for e in (*first, *chunk) if e not in together] + together)
        for equation in together:
            for t in range(2, self.length + 1):
                for u in range(max(1, t - int(window) + 1), t):
                    got = blocks.of(equation.right, t=t, u=u)
                    errors.append(error(got, values.of(equation.left, t=t)))
        return {"recurrent": errors[0], "chunk": max(errors)}

    def _output(self) -> str:
        return self.part.sections[0].equations[-1].name

    def _draw(self) -> None:
        assert self.part.node is not None
        for t in range(1, self.length + 1):
            shape = self.given(self.part.node, t).shape
            self.known[f"d {self._output()}", (t,)] = self._random(shape)

    def loss(self) -> Array:
        values, out = self.values(list(self.part.sections[0].equations)), self._output()
        return sum(
            np.sum(self.known[f"d {out}", (t,)] * values.of(_symbol(out, t)))
            for t in range(1, self.length + 1)
        )

    def backward(self) -> dict[str, float]:
        self._draw()
        equations = [*self.part.sections[0].equations, *self.part.sections[2].equations]
        values, worst = self.values(equations), 0.0
        for equation in equations:
            if equation.left.op == "d":
                expr, _ = equation.left.args[0].value
                for t in range(1, self.length + 1):
                    got = values.of(equation.right, t=t)
                    worst = max(worst, error(got, self.derivative(expr, t)))
        return {"backward": worst}


def check(
    derivation: Derivation, reference: Kernel, length: int = 4, start: int = 3
) -> dict[str, dict[str, float]]:
    """The errors of every part, by its title: of its recurrent, chunk and backward equations on a
    chunk of ``length`` tokens behind ``start`` others. Raises LaccError where arguments that keep
    the promises cannot be drawn."""
    x, run = _drawn(reference, start + length + 2)
    found: dict[str, dict[str, float]] = {}
    states = sequence(derivation.spec, x, run, start)
    for number, part in enumerate(derivation.parts):
        attends = part.kind == "attention"
        view = Sequence(states.evaluation, 0 if attends else start, part.turned)
        kind, tokens = (AttentionCheck, start + length) if attends else (Check, length)
        one = kind(part, view, tokens, number)
        found[part.title] = one.forward()
        if any(e.left.op == "d" for e in part.equations):
            found[part.title] |= one.backward()
    return found


def _drawn(reference: Kernel, tokens: int) -> tuple[Arrays, Run]:
    """Arguments of a call of the reference, as its core gets them."""
    draws = {name: partial(samplers.draw, name) for name in samplers.SAMPLERS}
    core, given = core_of(reference.spec, draws), []

    def forward(x: Arrays, state: Arrays, run: Run) -> tuple[Arrays, Arrays]:
        given.append((x, run))
        return core.forward(x, state, run)

    arrays = Bench(reference.spec, reference).arrays(Case(T=tokens, B=1))
    kept = Core(forward, core.step, core.backward, core.promises, draws)
    calls.forward(reference.signature, kept, arrays)
    return given[0]
