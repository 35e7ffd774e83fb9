"""A spec's promises in, sound ranges of its expressions out.

Two bounds are taken and met: the op table's interval rules, node by node, and that of the
expression as a polynomial (`bounds.py`), where a promise about `sum(k * k)` or `a - b`, a convex
combination and `n / (n + eps)` are seen as what they are. A promise never clips a value: everything
here holds for inputs that keep the promises, with initial states that the spec itself could have
left behind.
"""

from __future__ import annotations

import math
from copy import copy
from fractions import Fraction

from lacc.analysis.algebra import Algebra, Group, Node, Poly, add, number, scaled, unit
from lacc.analysis.bounds import Bounds
from lacc.analysis.interval import REALS, Interval
from lacc.ir import intervals
from lacc.ir.ops import OPS
from lacc.spec.model import Arg, Expr, Spec
from lacc.spec.shapes import ONE, Size

_RISING = {"exp", "log", "sqrt", "sigmoid", "logsigmoid", "softplus", "tanh", "erf", "elu", "elu1"}
_NESTED = 2
_INVARIANTS = (Interval(0.0, 1.0), Interval(0.0), Interval(-1.0, 1.0), Interval(-math.inf, 0.0))


class Ranges(Bounds):
    """Ranges of the expressions of one spec, from its promises."""

    def __init__(self, spec: Spec) -> None:
        self.spec = spec
        self._args = {arg.name: arg for arg in spec.args}
        self._states = {state.name: state for state in spec.states}
        self._known: dict[int, tuple[Expr, Interval]] = {}
        self._assumed: dict[str, Interval] = {}
        self._level = 0
        super().__init__(Algebra(self._fixed, self._update), {})
        for arg in spec.args:
            for promise in arg.promises:
                self._learn_comparison(promise.cmp, promise.left, promise.right)

    def _assuming(self, state: str, interval: Interval) -> Ranges:
        """The same promises, and ``state`` in ``interval`` so far."""
        other = copy(self)
        Bounds.__init__(other, self.algebra, self._promised)
        other._known, other._level = {}, self._level + 1
        other._assumed = {**self._assumed, state: interval}
        return other

    def of(self, expr: Expr) -> Interval:
        """The range of every entry of ``expr``."""
        if id(expr) not in self._known:
            for node in expr.walk():
                if id(node) not in self._known:
                    bound = self._by_op(node).meet(self.of_poly(self.algebra.poly(node)))
                    self._known[id(node)] = (node, bound)
        return self._known[id(expr)][1]

    # ---- promises -------------------------------------------------------------------------------

    def _learn_comparison(self, cmp: str, left: Expr, right: Expr) -> None:
        difference = add(self.algebra.poly(left), scaled(self.algebra.poly(right), -1.0))
        interval = {
            "<": Interval(-math.inf, 0.0, hi_open=True),
            "<=": Interval(-math.inf, 0.0),
            ">": Interval(0.0, math.inf, lo_open=True),
            ">=": Interval(0.0, math.inf),
            "==": Interval(0.0, 0.0),
        }[cmp]
        self._learn(difference, interval)

    def _learn(self, poly: Poly, interval: Interval) -> None:
        """``poly`` is in ``interval``: kept without its constant, with its first coefficient 1."""
        constant = dict(poly.terms).get((), 0.0)
        linear = add(poly, number(-constant))
        if not linear.terms:
            return
        leading = linear.terms[0][1]
        linear = scaled(linear, 1 / leading)
        interval = interval.shifted(-constant).scaled(1 / leading)
        self._promised[linear] = self._promised.get(linear, Interval()).meet(interval)
        if len(linear.terms) == 1 and len(linear.terms[0][0]) == 1:
            self._learn_inverse(linear.terms[0][0][0], interval)

    def _learn_inverse(self, factor: tuple[int, Fraction], interval: Interval) -> None:
        """What a bound of ``f(x)`` says of x, where f is a power or one of a few functions."""
        index, power = factor
        atom = self.algebra.atoms[index]
        if power != 1:
            if power > 0 and (power.denominator != 1 or power % 2 == 0):
                base = interval.meet(Interval(0.0)).power(1 / power)
                if power.denominator == 1:
                    base = _around_zero(base)
                self._learn(atom.poly if isinstance(atom, Group) else unit(index), base)
            return
        if not isinstance(atom, Node):
            return
        args = [self.algebra.poly(arg) for arg in atom.expr.args]
        match atom.expr.op:
            case "exp" if interval.hi > 0:
                self._learn(args[0], Interval(hi=math.log(interval.hi), hi_open=interval.hi_open))
            case "abs":
                self._learn(args[0], _around_zero(interval))
            case "reduce_max":
                self._learn(args[0], Interval(hi=interval.hi, hi_open=interval.hi_open))
            case "reduce_min":
                self._learn(args[0], Interval(lo=interval.lo, lo_open=interval.lo_open))

    def _now(self, expr: Expr) -> Expr | None:
        if expr.op != "input" or expr.value[1] == 0:
            return None
        return _input(self._args[expr.value[0]])

    def _count(self, expr: Expr) -> int | None:
        value = self._fixed(expr.shape[0]) if len(expr.shape) == 1 else None
        return None if value is None else int(value)

    # ---- the op table ---------------------------------------------------------------------------

    def _by_op(self, e: Expr) -> Interval:
        args = [self.of(arg) for arg in e.args]
        if not args:
            return self._leaf(e)
        match e.op:
            case "add":
                return args[0] + args[1]
            case "sub":
                return args[0] + -args[1]
            case "neg":
                return -args[0]
            case "mul":
                return args[0] * args[1]
            case "div":
                return args[0] * args[1].reciprocal()
            case "where":
                return args[1].hull(args[2])
            case "pow" if args[0].lo == args[0].hi and args[0].positive:
                lo, hi = intervals.power(*((a.lo, a.hi) for a in args))
                ends = args[1] if args[0].lo >= 1 else -args[1]
                return Interval(lo, hi, ends.lo_open, ends.hi_open)
            case "T" | "roll" | "vec" | "mean" | "reduce_max" | "reduce_min" | "stop_gradient":
                return args[0]
            case "concat":
                result = args[0]
                for arg in args[1:]:
                    result = result.hull(arg)
                return result
            case "matmul" if e.args[0].shape[-1] == ONE:
                return args[0] * args[1]
            case "attend":
                return args[2].hull(Interval.point(0.0)) if len(args) > 3 else args[2]
            case "softmax":
                return Interval(0.0, 1.0, args[0].lo_open or math.isfinite(args[0].lo))
        rule = OPS[e.op].interval
        if rule is None:
            return REALS
        lo, hi = rule(*((a.lo, a.hi) for a in args))
        if e.op in _RISING:
            return Interval(lo, hi, args[0].lo_open, args[0].hi_open)
        finite = all(
            is_open or math.isfinite(end)
            for a in args
            for end, is_open in ((a.lo, a.lo_open), (a.hi, a.hi_open))
        )
        return Interval(lo, hi, math.isinf(lo) and finite, math.isinf(hi) and finite)

    def _leaf(self, e: Expr) -> Interval:
        match e.op:
            case "const":
                return Interval.point(float(e.value))
            case "size":
                return self._size(e.value)
            case "eye":
                return Interval(0.0, 1.0)
            case "head":
                return Interval(0.0, math.inf, False, True)
            case "t" | "T" | "H":
                return Interval(1.0, math.inf, False, True)
            case "input" if e.value[1] != 0:
                return self.of(_input(self._args[e.value[0]])).hull(Interval.point(0.0))
            case "input" | "param" | "buffer":
                name = e.value[0] if e.op == "input" else e.value
                return Interval() if self._args[name].promises else REALS
            case "state":
                return self._state(*e.value)
        return REALS

    def _state(self, name: str, when: object) -> Interval:
        """An interval that holds the initial state and that the update does not leave."""
        state = self._states[name]
        if when == 0 and len(state.shape) == 2:
            return self.of(state.update)
        if name not in self._assumed:
            self._assumed[name] = REALS
            start = self.of(state.initial).hull(Interval.point(0.0))
            for candidate in _INVARIANTS if self._level < _NESTED else ():
                if start.within(candidate.lo, candidate.hi) and self._kept(name, candidate):
                    self._assumed[name] = candidate
                    break
        return self._assumed[name]

    def _kept(self, name: str, candidate: Interval) -> bool:
        """Whether the update of ``name`` stays in ``candidate`` where its earlier values are."""
        bound = self._assuming(name, candidate).of(self._states[name].update)
        return bound.within(candidate.lo, candidate.hi)

    def _size(self, size: Size) -> Interval:
        value = self._fixed(size)
        if value is not None:
            return Interval.point(value)
        if all(coefficient >= 0 for _, coefficient in size.terms):
            least = float(size.evaluate(dict.fromkeys(size.dims, 1)))
            return Interval(least, math.inf, False, True)
        return REALS

    def _fixed(self, size: Size) -> float | None:
        """The value of a size whose dims are all pinned (the others come with the arrays)."""
        dims = self.spec.dims
        if all(name in dims and dims[name].pinned for name in size.dims):
            return float(size.evaluate({name: dims[name].default for name in size.dims}))
        return None

    def _update(self, name: str) -> Expr | None:
        return self._states[name].update


def _input(arg: Arg) -> Expr:
    return Expr("input", (), (arg.name, 0), arg.shape, arg.span)


def _around_zero(magnitude: Interval) -> Interval:
    """The values whose magnitudes are at most the upper end."""
    hi, is_open = magnitude.hi, magnitude.hi_open
    return Interval(-hi, hi, is_open, is_open)
