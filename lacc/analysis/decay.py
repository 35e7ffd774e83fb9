"""A decay factor of a recurrence in, its space out: the log of it, where that loses nothing, or the
factor itself.

A factor is kept as its log where one exists by algebra alone: ``exp(x)`` is x, ``sigmoid(x)`` is
``logsigmoid(x)``, a product is a sum, and what does not change with the inputs and is proven
positive is the log of its value. A gate that is given in linear space (`0 <= α <= 1`, a `tanh`)
stays linear: through the log its gradient at 0 would be lost.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from lacc.analysis.interval import Interval
from lacc.analysis.ranges import Ranges
from lacc.analysis.transition import Axes, Factor, Recurrence
from lacc.ir.build import Builder
from lacc.spec.model import Expr, Spec

_MOVES = {"T", "roll", "vec", "concat", "stop_gradient"}


@dataclass(frozen=True, slots=True)
class Decay:
    """What multiplies a state along ``axes`` each token.

    space         "log": ``expr`` is the log of the factor; "linear": ``expr`` is the factor
    factor        the factor as the spec has it; ``range`` is its range
    time_varying  it has a value of its own for each token
    """

    space: str
    expr: Expr
    axes: Axes
    factor: Expr
    range: Interval
    time_varying: bool

    @property
    def bounded(self) -> bool:
        """|factor| <= 1 is proven."""
        return self.range.within(-1.0, 1.0)

    @property
    def may_vanish(self) -> bool:
        """0 is in the range: a hard reset."""
        return 0.0 in self.range

    @property
    def may_be_negative(self) -> bool:
        """The factor may change the sign of the state."""
        return self.range.lo < 0


def decays_of(recurrence: Recurrence, ranges: Ranges) -> tuple[Decay, ...]:
    """The decays of a recurrence, one per factor."""
    return tuple(decay_of(factor, ranges) for factor in recurrence.decays)


def decay_of(factor: Factor, ranges: Ranges) -> Decay:
    """The space of one factor, and its range."""
    expr, build = factor.expr, Builder(factor.expr.span)
    log = _Logs(ranges, build).of(expr)
    if log is not None and len(log.shape) < len(expr.shape):
        log = build.node("add", (log, build.node("const", (), expr.shape, 0)), expr.shape)
    space = "linear" if log is None else "log"
    return Decay(
        space,
        expr if log is None else log,
        factor.axes,
        expr,
        ranges.of(expr),
        varies(expr, ranges.spec),
    )


def varies(expr: Expr, spec: Spec) -> bool:
    """Whether ``expr`` has a value of its own for each token."""
    positional = {arg.name for arg in spec.args if arg.per == "position"}
    return any(
        node.op in ("input", "state", "attend", "t")
        or (node.op == "param" and node.value in positional)
        for node in expr.walk()
    )


def learned(expr: Expr) -> bool:
    """Whether a parameter enters ``expr``."""
    return any(node.op == "param" for node in expr.walk())


class _Logs:
    """Builds logs of positive expressions out of the same nodes."""

    def __init__(self, ranges: Ranges, build: Builder) -> None:
        self._ranges = ranges
        self._build = build

    def of(self, e: Expr) -> Expr | None:
        """The log of ``e``; None where it has none by algebra."""
        build = self._build
        match e.op, e.args:
            case "exp", (x,):
                return x
            case "sigmoid", (x,):
                return build.node("logsigmoid", (x,), e.shape)
            case (("mul" | "div" | "sqrt" | "rsqrt" | "pow"), _):
                return self._product(e) or self._constant(e)
            case (("add" | "sub"), (a, b)):
                return self._one_plus(e.op, a, b, e) or self._constant(e)
            case (("max" | "min"), (a, b)):
                return self._each(e, (a, b)) or self._constant(e)
            case "where", (condition, a, b):
                return self._each(e, (a, b), (condition,)) or self._constant(e)
            case op, args if op in _MOVES and args:
                return self._each(e, args) or self._constant(e)
            case "const", () if e.value == 0:
                return build.node("const", (), e.shape, -math.inf)
        return self._constant(e)

    def _each(self, e: Expr, args: Iterable[Expr], kept: tuple[Expr, ...] = ()) -> Expr | None:
        """The same op on the logs of ``args``."""
        logs = tuple(self.of(arg) for arg in args)
        if any(log is None for log in logs):
            return None
        return self._build.node(e.op, kept + tuple(log for log in logs if log), e.shape, e.value)

    def _product(self, e: Expr) -> Expr | None:
        build, logs = self._build, [self.of(arg) for arg in e.args]
        first = logs[0]
        if first is None:
            return None
        match e.op:
            case "sqrt":
                return build.mul(build.number(0.5), first)
            case "rsqrt":
                return build.mul(build.number(-0.5), first)
            case "pow" if first.value != -math.inf:
                return build.node("mul", (e.args[1], first), e.shape)
            case "pow":
                return None
        second = logs[1]
        if second is None or (e.op == "div" and second.value == -math.inf):
            return None
        return build.add(first, second if e.op == "mul" else build.neg(second))

    def _one_plus(self, op: str, a: Expr, b: Expr, e: Expr) -> Expr | None:
        """log(1 - sigmoid(x)) and log(1 + exp(x))."""
        build = self._build
        if op == "sub" and _is_one(a) and b.op == "sigmoid":
            return build.node("logsigmoid", (build.neg(b.args[0]),), e.shape)
        for one, other in ((a, b), (b, a)):
            if op == "add" and _is_one(one) and other.op == "exp":
                return build.node("softplus", other.args, e.shape)
        return None

    def _constant(self, e: Expr) -> Expr | None:
        """The log of what is proven positive and the same for every token."""
        if varies(e, self._ranges.spec) or not self._ranges.of(e).positive:
            return None
        if e.op == "const":
            return self._build.node("const", (), e.shape, math.log(float(e.value)))
        return self._build.node("log", (e,), e.shape)


def _is_one(e: Expr) -> bool:
    return e.op == "const" and e.value == 1
